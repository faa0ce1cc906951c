"""What the stages of a worker share: its rooms, its memory, its ranks' votes, and the plan of this
turn.

    stage ──fail, end──▶ drop in the plan ──▶ every rank is quiet ──▶ forgotten: pages return, `Ended` goes to its gateway

A room always ends by this path, whoever ends it and for whatever reason.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Generic, TypeVar

import msgspec

from baton.core.agreement import Agreement, PlanDraft, RowOrder
from baton.core.effects import Effect, Send
from baton.core.handoff.plans import Plans
from baton.core.handoff.progress import ProgressTracker
from baton.core.ids import Boot, GroupName, Key, Micros, Room, Seq
from baton.core.manifest import Manifest
from baton.core.marks import Mark, Marks
from baton.core.memory.foreign_pages import ForeignLedger
from baton.core.memory.host_ledger import HostLedger
from baton.core.memory.pages import Ledger
from baton.core.memory.prefix_cache import CachedPage
from baton.core.memory.scrubber import Scrubber
from baton.core.memory.span import Span
from baton.core.messages import AnyMessage, Ended, FailCode, Failed, Ticket
from baton.core.prefill_cost import MeasuredPrefill
from baton.core.scheduler.batches import Batches
from baton.core.scheduler.block_manager import BlockManager
from baton.core.scheduler.draining import Draining
from baton.core.scheduler.followers import Followers
from baton.core.scheduler.inspections import Inspections
from baton.core.scheduler.open_orders import OpenOrders
from baton.core.scheduler.reuse import Reuse
from baton.core.scheduler.room import AWAITS_TURN, LeaderSettings, OpenRoom, RoomState, Saw, Table
from baton.core.scheduler.rooms import Rooms
from baton.core.scheduler.seen_epochs import SeenEpochs
from baton.core.statistics import Durations, SpeculationCount

R = TypeVar("R", bound=OpenRoom)


class RoleRules(msgspec.Struct, frozen=True):
    """What a role means for its rooms and their memory."""

    table: Table
    generates: bool  # tokens after a prompt, so a room needs a page for the first of them
    bringing: tuple[RoomState, ...]  # states of rooms whose pages are not in the prefix cache yet
    guest: bool = False  # another engine gives out the pages and computes


class Worker(Generic[R]):
    """One worker, as its leader and the stages of its role see it."""

    def __init__(
        self,
        manifest: Manifest,
        settings: LeaderSettings,
        totals: dict[GroupName, int],
        role: RoleRules,
    ) -> None:
        self.manifest, self.settings, self.role = manifest, settings, role
        self.state_table = manifest.table
        self.span = Span(manifest.table, manifest.page_blocks * manifest.table.block_tokens)
        self.ledger = (
            ForeignLedger(totals) if role.guest else Ledger(totals, manifest.table.lasting)
        )
        self.blocks = BlockManager(self.ledger, self.span)
        self.placements = [manifest.placement(r.rank) for r in manifest.ranks]
        self.host = HostLedger(self.placements, settings.host_bytes)
        self.now = Micros(0)  # of the event that is being handled
        self.inspections = Inspections(self.placements)
        self.scrubber = Scrubber(
            self.ledger.cache,
            interval_ms=settings.verify_ms if manifest.seal else 0,
            page_bytes=max(sum(p.page_bytes(g) for g in totals) for p in self.placements),
            now=lambda: self.now,
        )
        self.reuse = Reuse(
            manifest,
            self.ledger,
            self.scrubber,
            on=settings.prefix_cache,
            tells_tokens=settings.publish_cache,
        )
        self.followers = Followers(self.reuse)
        self.rooms: Rooms[R] = Rooms()
        self.epochs = SeenEpochs()
        self.gateways: set[Boot] = set()  # gateways with a session
        self.agreement = Agreement(len(manifest.ranks))
        self.orders = OpenOrders()
        self.batches: Batches[R] = Batches(ranks=len(manifest.ranks), stages=manifest.pp)
        self.draining = Draining()
        self.draft = PlanDraft()
        self.effects: list[Effect] = []
        self.prefill = MeasuredPrefill()
        self.speculation = SpeculationCount()
        self.progress = ProgressTracker(manifest.boot, settings.stall_ms)
        self.plans = Plans()
        self.marks: Marks = Marks()
        self.failures: Counter[FailCode] = Counter()
        self.spent: dict[str, Durations] = {}  # by what rooms were told to be in
        self.on_forget: list[Callable[[R], None]] = []  # called when a room holds nothing any more
        self.on_resumed: list[Callable[[R], None]] = []  # when a room goes on from a checkpoint
        # what is called when what a key holds beside the rooms is touched by no rank any more
        self.beside: dict[Key, Callable[[], None]] = {}
        self._last_order = 0

    # ---- who takes part in what (session/senders.py) --------------------------------------------

    def ticket_of(self, key: Key) -> Ticket | None:
        room = self.rooms.get(key)
        return room.ticket if room is not None else None

    def owner_of(self, room: Room) -> Boot | None:
        return self.epochs.owner(room)

    def is_gateway(self, boot: Boot) -> bool:
        return boot in self.gateways

    # ---- this turn ------------------------------------------------------------------------------

    def send(self, to: Boot, message: AnyMessage) -> None:
        """Send a message to another process, with the other effects of this turn."""
        self.effects.append(Send(to, message))

    def new_order(self) -> int:
        """Return a number for the next order that ranks answer."""
        self._last_order += 1
        return self._last_order

    @property
    def next_seq(self) -> Seq:
        """The number of the plan that this turn issues, if it issues one."""
        return Seq(self.agreement.chain.seq + 1)

    def add_row(self, room: R, row: RowOrder) -> None:
        """Add a row to the batch of this turn."""
        self.batches.add(self.draft, room, row)

    # ---- rooms ----------------------------------------------------------------------------------

    def find(self, key: Key) -> R | None:
        """Return the open room of exactly this epoch; None if there is none."""
        return self.rooms.get(key)

    def see(self, room: R, saw: Saw) -> None:
        """Move a room along its table. A state and event that it lacks is a bug of ours."""
        before, after = room.state, self.role.table[room.state, saw]
        if after is not before:
            waited = self.waited(room)
            self.rooms.move(room, after)
            if not waited:
                self._leaves(room, before, self.now)
            if after is RoomState.COMPUTING and room.takes_turns:
                room.waits_since = self.now

    def waited(self, room: R) -> bool:
        """A step has the next chunk of a room's prompt, or it is computed no longer: returns
        whether it has waited for its turn until now."""
        since, room.waits_since = room.waits_since, None
        if since is None or room.state is not RoomState.COMPUTING:
            return False
        since = max(since, room.since)
        if since == self.now:
            return False  # its turn has come at once, as nearly always
        if room.since < since:
            self._leaves(room, RoomState.COMPUTING, since)
        self._leaves(room, AWAITS_TURN, self.now)
        return True

    def _leaves(self, room: R, told: str, at: Micros) -> None:
        self.spent.setdefault(told, Durations()).add(room.leaves(told, at))

    def fail(self, room: R, code: FailCode, detail: str, *, retry: bool) -> None:
        """End a room because of a failure. Its gateway is told why and aborts the other side."""
        self.failures[code] += 1
        self.send(room.ticket.gateway, Failed(room.key, code, detail, retry))
        self.end(room)

    def end(self, room: R) -> None:
        """End a room. Its memory comes back when nothing touches it any more."""
        self.leave(room, Saw.END)

    def leave(self, room: R, saw: Saw) -> None:
        """Take an edge of the table that ends a room: drop it in this turn's plan, or forget it at
        once if it holds nothing."""
        before = room.state
        self.see(room, saw)
        if room.state is RoomState.ENDED:
            self.forget(room)
        elif before is not RoomState.ENDING:
            self.batches.withdraw(self.draft, room)
            self.draft.drop.append(room.key)

    def forget(self, room: R) -> None:
        """Forget a room. Nothing touches its memory any more."""
        for tell in self.on_forget:
            tell(room)
        self.orders.forget(room.key, self.agreement)
        self.followers.forget(room.key)
        self.ledger.give_back(room.key)
        self.rooms.drop(room)
        self.send(room.ticket.gateway, Ended(room.key, room.phases))

    def pages_for(self, room: R, tokens: int) -> dict[GroupName, int]:
        """Return the pages of each group that a room with this many positions begins with. Where
        its prompt is computed, they are enough for any chunk."""
        if self.role.guest:
            return {}
        if room.computes:
            step = self.settings.step_tokens * self.manifest.pp
            return self.span.reserve(tokens, step=step, position=room.begins_at)
        return self.span.live(tokens)

    # ---- damage at rest -------------------------------------------------------------------------

    def scrub(self) -> None:
        """Order the ranks to hash the cached pages that are due."""
        if due := self.scrubber.due(busy=bool(self.rooms)):
            self.inspect(due, partial(self._scrubbed, self.now))

    def _scrubbed(self, ordered_at: Micros, damaged: list[CachedPage]) -> None:
        found = self.scrubber.ended(ordered_at, damaged)
        self.marks[Mark.DAMAGED_AT_REST] += bool(found)
        self.condemn(found)

    def inspect(
        self, entries: Sequence[CachedPage], done: Callable[[list[CachedPage]], None]
    ) -> None:
        """Order the ranks to hash cached pages in place. `done` is called with those whose bytes
        have changed."""
        self.draft.inspect.append(self.inspections.inspect(self.new_order(), entries, done))

    def condemn(self, damaged: Iterable[CachedPage]) -> None:
        """Take damaged pages out of the cache, with all that was computed above them. Rooms that
        hold any of these pages end: their state may have been computed from them, or copied."""
        for entry in damaged:
            hit = self.ledger.condemn_cached(entry)
            copied = {room.key for room in self.rooms.values() if entry in room.copied}
            self.end_all(
                hit | copied,
                f"cached page {entry.number} of its sequence changed in this worker's own memory",
            )

    def end_all(self, keys: Collection[Key], why: str) -> None:
        """End rooms whose state may be damaged. Their gateways begin them anew."""
        for room in [
            r for r in self.rooms.values() if r.key in keys and r.state is not RoomState.ENDING
        ]:
            self.marks[Mark.DAMAGE_SHARED] += 1
            self.fail(room, FailCode.HANDOFF_FAILED, why, retry=True)
