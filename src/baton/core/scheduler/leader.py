"""What every worker's leader does, whatever its role: rooms, endings, plans, reports, books.

    event ──▶ leader ──Send(boot, message)──▶ gateway or peer leader
                   └──Issue(plan)──▶ its ranks          Dial, HangUp: the shell's links

One event, one turn: the role changes its rooms, then `_schedule` looks what can be done, and all decisions of the turn
go out as one step plan. Every end has one path: `_end` drops the room in a plan, the ranks say `quiet`, its pages return,
and `Ended` goes to its gateway.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

from baton.core.agreement import Agreement, PlanDraft, Report, RowOrder, RowResult
from baton.core.effects import Effect, GiveUp, Issue, Send
from baton.core.events import (
    GatewayConnected,
    LeaderEvent,
    MessageReceived,
    PeerConnected,
    PeerLost,
    RankReported,
    TimerDue,
)
from baton.core.frames import Said
from baton.core.handoff.plans import Plans
from baton.core.handoff.progress import ProgressTracker
from baton.core.ids import Boot, Epoch, GroupName, Key, Micros, Rank, Room, Seq
from baton.core.manifest import Manifest
from baton.core.marks import Mark, Marks
from baton.core.memory.pages import Ledger
from baton.core.memory.prefix_cache import CachedPage
from baton.core.memory.scrubber import Scrubber
from baton.core.memory.span import Span
from baton.core.messages import (
    Abort,
    AnyMessage,
    AskLedger,
    Clear,
    Close,
    Credits,
    Ended,
    FailCode,
    Failed,
    LedgerView,
    Progress,
    RankView,
    Register,
    ResetCache,
    RoomView,
    Stale,
    Ticket,
    Trial,
)
from baton.core.scheduler.alone import Turns
from baton.core.scheduler.credit_news import CreditNews
from baton.core.scheduler.followers import Followers
from baton.core.scheduler.giving_up import Wedges
from baton.core.scheduler.inspections import Inspections
from baton.core.scheduler.open_orders import OpenOrders
from baton.core.scheduler.reuse import Reuse
from baton.core.scheduler.room import LeaderSettings, OpenRoom, RoomState, Saw, Table
from baton.core.scheduler.rooms import Rooms
from baton.core.session.senders import may_say
from baton.core.statistics import Counters, Durations, added

R = TypeVar("R", bound=OpenRoom)


class Leader(ABC, Generic[R]):
    """Base of the three roles' leaders. Sans-IO: `step` takes one event and returns what is to be done."""

    table: Table

    def __init__(self, manifest: Manifest, settings: LeaderSettings, totals: dict[GroupName, int]) -> None:
        self.manifest, self.settings = manifest, settings
        self.state_table = manifest.table
        self.span = Span(manifest.table, manifest.page_blocks * manifest.table.block_tokens)
        self.ledger = Ledger(totals)
        self.placements = [manifest.placement(r.rank) for r in manifest.ranks]
        self.inspections = Inspections(self.placements)
        self.scrubber = Scrubber(
            self.ledger.cache,
            interval_ms=settings.verify_ms if manifest.seal else 0,
            page_bytes=max(sum(p.page_bytes(g) for g in totals) for p in self.placements),
            now=lambda: self._now,
        )
        self.reuse = Reuse(manifest, self.ledger, self.scrubber, on=settings.prefix_cache)
        self.followers = Followers(self.reuse)
        self.rooms: Rooms[R] = Rooms()
        self.marks: Marks = Marks()
        self.plans = Plans()
        self._now = Micros(0)  # of the event being handled
        self._due: Micros | None = None  # what `next_wake` found
        self._stirred = True  # by an event since then
        self._opened = 0  # epochs
        self._failures: Counter[FailCode] = Counter()
        self._spent: dict[RoomState, Durations] = {}
        self._clearing: list[tuple[Seq, Boot, int]] = []  # plan, asker, question
        self._epochs: dict[Room, tuple[Epoch, Boot]] = {}  # highest seen; until Close or PeerLost of the gateway
        self._gateways: set[Boot] = set()
        self._agreement = Agreement(len(manifest.ranks))
        self.orders = OpenOrders()
        self.draft = PlanDraft()
        self._last_order = 0
        self._effects: list[Effect] = []
        self._composed: list[tuple[R, RowOrder]] = []  # the batch of this turn
        self._flight: dict[Seq, list[tuple[R, RowOrder]]] = {}  # batches under way, oldest first
        self._steps: dict[Seq, dict[Rank, tuple[RowResult, ...]]] = {}  # their outcomes so far
        self._wedges = Wedges(len(manifest.ranks))
        self._given_up = ""  # why this worker is to end
        self.turns = Turns()
        self._trial: R | None = None  # whose step is under way, with nothing else in it
        self._news = CreditNews()
        self.progress = ProgressTracker(manifest.boot, settings.stall_ms)
        self._handlers: dict[type[Any], Callable[[Boot, Any, Micros], None]] = {
            Ticket: self._on_ticket,
            Abort: self._on_abort,
            Close: self._on_close,
            AskLedger: self._on_ask_ledger,
            Clear: self._on_clear,
            ResetCache: self._on_reset_cache,
            Stale: self._on_stale,
            Progress: self._on_progress,
        }

    # ---- events ---------------------------------------------------------------------------------

    def step(self, event: LeaderEvent, now: Micros) -> list[Effect]:
        """Take one event; returns what is to be done, in order. Raises Bug when a rank has diverged."""
        self._now = now
        match event:
            case MessageReceived():
                self._receive(event.sender, event.message, now)
            case RankReported():
                self._take(event.report, now)
            case TimerDue():
                self._on_timer(now)
            case PeerConnected():
                self._on_peer_up(event.boot, now)
            case PeerLost():
                self._lose(event.boot, event.why, now)
            case GatewayConnected():
                self._on_gateway_up(event.boot, now)
        self._turn(now)
        effects, self._effects = self._effects, []
        return effects

    def _on_gateway_up(self, boot: Boot, now: Micros) -> None:
        self._gateways.add(boot)
        self._news.joined(boot)
        self.send(boot, Register(self.settings.name, self.settings.address, self.manifest, self._news.stamp))

    def _lose(self, boot: Boot, why: str, now: Micros) -> None:
        """A session has ended: an event of every room shared with that boot."""
        if boot in self._gateways:
            self._gateways.discard(boot)
            self._news.left(boot)
            for room in [r for r in self.rooms.values() if r.ticket.gateway == boot]:
                self.marks[Mark.GATEWAY_LOST] += 1
                self.end(room)
            self._epochs = {r: (e, g) for r, (e, g) in self._epochs.items() if g != boot}
        else:
            self.progress.lost(boot)
            self._on_peer_lost(boot, why, now)

    def _receive(self, sender: Boot, message: Said, now: Micros) -> None:
        """A message came in. Kinds this role has no business with, and what is not the sender's to say (session/senders.py), are
        answered by silence: they change nothing."""
        handler = self._handlers.get(type(message))
        if handler is not None and may_say(sender, message, self):
            handler(sender, message, now)
        elif handler is not None:
            self.marks[Mark.WRONG_PARTY] += 1

    def ticket_of(self, key: Key) -> Ticket | None:
        room = self.rooms.get(key)
        return room.ticket if room is not None else None

    def owner_of(self, room: Room) -> Boot | None:
        known = self._epochs.get(room)
        return known[1] if known is not None else None

    def is_gateway(self, boot: Boot) -> bool:
        return boot in self._gateways

    def _take(self, report: Report, now: Micros) -> None:
        """A rank has reported. Raises Bug when it has diverged."""
        self._agreement.take(report)
        self.inspections.take(report.rank, report.rehashed)
        self._answer_cleared(now)
        self.orders.take(report.ballots, self._agreement)
        self._on_report(report, now)
        for step in report.steps:
            by_rank = self._steps[step.seq]
            by_rank[report.rank] = step.rows
            if len(by_rank) == len(self.manifest.ranks):
                del self._steps[step.seq]
                self._wedges.ended(step.seq)
                self._batch_ended(self._flight.pop(step.seq), [by_rank[Rank(r)] for r in range(len(by_rank))], now)
        for key in self._agreement.newly_quiet():
            room = self.rooms[key]
            self.see(room, Saw.QUIET)
            self._forget(room)
        if (wedged := self._wedges.judge(report, self._steps)) is not None:
            self._give_up(*wedged)

    def _batch_ended(self, batch: list[tuple[R, RowOrder]], ranks: list[tuple[RowResult, ...]], now: Micros) -> None:
        if self._trial is not None:
            self.send(self._trial.ticket.gateway, Trial(self._trial.key, over=True))
            self._trial = None
        for i, (room, _) in enumerate(batch):
            why = next((rows[i].failed for rows in ranks if rows[i].failed), "")
            if why and room.state is not RoomState.ENDING:
                self.marks[Mark.ROW_FAILED] += 1
                self.fail(room, FailCode.COMPUTE_FAILED, why, retry=False)
        self._on_batch(batch, ranks, now)

    def _give_up(self, why: str, seq: Seq | None) -> None:
        """This worker cannot go on: its rooms do, elsewhere, but for one that was alone in the step that does not end."""
        self.marks[Mark.GIVEN_UP] += 1
        self._given_up = why
        stuck = [room for room, _ in self._flight[seq]] if seq is not None else []
        rooms = [r for r in self.rooms.values() if r.state is not RoomState.ENDING]
        for room in sorted(rooms, key=lambda r: r is not self._trial):  # whose doing it is is said first: the others are innocent
            if room is self._trial and room in stuck:
                self.fail(room, FailCode.POISON, f"{self.settings.name} computed nothing else, and {why}", retry=False)
            else:
                self.fail(room, FailCode.WORKER_LOST, f"{self.settings.name} gives up: {why}", retry=True)

    def _on_timer(self, now: Micros) -> None:
        """A deadline may have passed."""
        self.followers.lose_patience(now, self.marks)
        if due := self.scrubber.due(busy=bool(self.rooms)):
            self.inspect(due, partial(self._scrubbed, now))
        for room in list(self.rooms.values()):
            if room.state is RoomState.ENDING:
                continue
            if now >= room.deadline:
                self.marks[Mark.DEADLINE] += 1
                self.fail(room, FailCode.DEADLINE_EXCEEDED, f"not done in {room.ticket.limits.deadline_ms} ms", retry=False)
            elif self._waits(room) and now >= room.admit_by:
                self.marks[Mark.WAITED] += 1
                why = f"not admitted in {room.ticket.admit_ms} ms, while {room.state.value}"
                self.fail(room, FailCode.QUEUE_TIMEOUT, why, retry=False)
            elif (other := self._waits_for(room)) is not None and now >= self.progress.patience_ends(other, room.progress):
                self.marks[Mark.STALL] += 1
                whom = "this worker's own reads" if other == self.manifest.boot else f"worker {other:x}"
                why = f"no progress for {self.settings.stall_ms} ms (--handoff-timeout) while {room.state.value}, nor of {whom}"
                self.fail(room, FailCode.HANDOFF_FAILED, why, retry=True)

    @property
    def now(self) -> Micros:
        """The time of the event that is being handled."""
        return self._now

    def next_wake(self) -> Micros | None:
        """When a TimerDue is wanted next: asked in every turn of the shell, and changed by events alone."""
        if self._stirred:
            self._due, self._stirred = self._next_due(), False
        return self._due

    def _next_due(self) -> Micros | None:
        own = (self._news.timer(), self.followers.timer(), self.progress.timer(), self.scrubber.timer(busy=bool(self.rooms)))
        soonest = min((due for due in own if due is not None), default=None)
        for room in self.rooms.values():
            if room.state is RoomState.ENDING:
                continue
            if soonest is None or room.deadline < soonest:
                soonest = room.deadline
            other = self._waits_for(room)
            if other is not None and (ends := self.progress.patience_ends(other, room.progress)) < soonest:
                soonest = ends
            if room.admit_by < soonest and self._waits(room):
                soonest = room.admit_by
        return soonest

    # ---- for the roles --------------------------------------------------------------------------

    @abstractmethod
    def _open(self, ticket: Ticket, now: Micros) -> R:
        """A room for a new ticket."""

    @abstractmethod
    def _schedule(self, now: Micros) -> None:
        """Decide what can be done now; adds to the draft."""

    @abstractmethod
    def _on_batch(self, batch: list[tuple[R, RowOrder]], ranks: list[tuple[RowResult, ...]], now: Micros) -> None:
        """A batch has ended on every rank: its rows as ordered, and for each rank what became of them."""

    def _waits_for(self, room: R) -> Boot | None:
        """The worker, this one or another, whose work the room's handoff waits for; None if it waits for nobody's."""
        return None

    def _waits(self, room: R) -> bool:
        """Whether no worker holds memory to generate the room's tokens in; it does not wait beyond `admit_by`."""
        return room.state is RoomState.QUEUED

    def _needs_partner(self, room: R) -> bool:
        """Whether the room fails if the other side of its epoch is not there any more."""
        return room.state is not RoomState.ENDING

    def _ahead_pages(self) -> dict[GroupName, int]:
        """Pages that rooms for one decode worker may hold before it admits them; none where there is no such worker."""
        return {}

    def _refuse(self, ticket: Ticket) -> str:
        """Why this worker cannot take the ticket's part now; empty if it can."""
        return ""

    def _on_peer_up(self, boot: Boot, now: Micros) -> None:
        """A leader can be talked to."""

    def _on_peer_lost(self, boot: Boot, why: str, now: Micros) -> None:
        """A leader is gone."""

    def _on_report(self, report: Report, now: Micros) -> None:
        """Whatever of a report is not a batch, a vote or an ending."""

    def new_order(self) -> int:
        """A number for the next order that ranks answer."""
        self._last_order += 1
        return self._last_order

    @property
    def may_step(self) -> bool:
        """Whether another batch may be issued: each stage of the pipeline can have one."""
        return len(self._flight) < self.manifest.pp and self._trial is None

    def lots(self, rooms: Sequence[R]) -> list[list[R]]:
        """Rooms of which the next step may consist; see Turns."""
        return self.turns.lots(rooms, flying=bool(self._flight))

    def add_row(self, room: R, row: RowOrder) -> None:
        """Add a row to the batch of this turn."""
        self.draft.batch.append(row)
        self._composed.append((room, row))

    def in_flight(self) -> set[Key]:
        """Rooms with a row in a batch under way."""
        return {room.key for batch in self._flight.values() for room, _ in batch}

    def send(self, to: Boot, message: AnyMessage) -> None:
        """Say something to another process, with the other effects of this turn."""
        self._effects.append(Send(to, message))

    def see(self, room: R, saw: Saw) -> None:
        """Move a room along its table; a pair that the table lacks is our bug."""
        before, after = room.state, self.table[room.state, saw]
        if after is not before:
            self.rooms.move(room, after)
            self._spent.setdefault(before, Durations()).add(self._now - room.since)
            room.since = self._now

    def find(self, key: Key) -> R | None:
        """The open room of that very epoch."""
        return self.rooms.get(key)

    def pages_for(self, tokens: int) -> dict[GroupName, int]:
        """Pages per group that a room of so many positions begins with."""
        return self.span.live(tokens)

    def fail(self, room: R, code: FailCode, detail: str, *, retry: bool) -> None:
        """End a room badly and say why to its gateway, which aborts the other side."""
        self._failures[code] += 1
        self.send(room.ticket.gateway, Failed(room.key, code, detail, retry))
        self.end(room)

    def end(self, room: R) -> None:
        """The one path out: whatever the room holds comes back when nothing touches it any more."""
        self.leave(room, Saw.END)

    def leave(self, room: R, saw: Saw) -> None:
        """Out by an edge of the table: drop the room in this turn's plan, or forget it if it holds nothing."""
        before = room.state
        self.see(room, saw)
        if room.state is RoomState.ENDED:
            self._forget(room)
        elif before is not RoomState.ENDING:
            self.draft.drop.append(room.key)

    def _forget(self, room: R) -> None:
        self.orders.forget(room.key, self._agreement)
        self.followers.forget(room.key)
        self.ledger.give_back(room.key)
        self.rooms.drop(room)
        self.send(room.ticket.gateway, Ended(room.key))

    # ---- damage at rest -------------------------------------------------------------------------

    def inspect(self, entries: Sequence[CachedPage], done: Callable[[list[CachedPage]], None]) -> None:
        """Have cached pages hashed where they lie; `done` is called with those that are not what they were."""
        self.draft.inspect.append(self.inspections.inspect(self.new_order(), entries, done))

    def _scrubbed(self, ordered_at: Micros, damaged: list[CachedPage]) -> None:
        found = self.scrubber.ended(ordered_at, damaged)
        self.marks[Mark.DAMAGED_AT_REST] += bool(found)
        self.condemn(found)

    def condemn(self, damaged: Iterable[CachedPage]) -> None:
        """Cached pages are damaged: they leave the cache with all that was computed above them, and rooms that hold any of it
        end: their state may have been computed from it, or copied."""
        for entry in damaged:
            hit = self.ledger.condemn_cached(entry)
            copied = {room.key for room in self.rooms.values() if entry in room.copied}
            self.end_all(hit | copied, f"cached page {entry.number} of its sequence changed in this worker's own memory")

    def end_all(self, keys: Collection[Key], why: str) -> None:
        """Rooms end whose state may be damaged; they are begun anew."""
        for room in [r for r in self.rooms.values() if r.key in keys and r.state is not RoomState.ENDING]:
            self.marks[Mark.DAMAGE_SHARED] += 1
            self.fail(room, FailCode.HANDOFF_FAILED, why, retry=True)

    # ---- what all roles do with messages --------------------------------------------------------

    def _on_ticket(self, sender: Boot, ticket: Ticket, now: Micros) -> None:
        key, highest = ticket.key, self._epochs.get(ticket.key.room)
        if highest is not None and highest[0] >= key.epoch:
            return  # an old epoch, or this one again, changes nothing
        self._news.heard(sender, ticket.stamp)
        if self.manifest.boot not in (ticket.prefill, ticket.decode):
            self.send(sender, Failed(key, FailCode.WORKER_LOST, "the ticket names another boot of this worker", True))
            self.send(sender, Ended(key))
            return
        if highest is not None and (earlier := self.rooms.get(Key(key.room, highest[0]))) is not None:
            self.marks[Mark.TICKET_HIGHER_EPOCH] += 1
            self.end(earlier)
        self._epochs[key.room] = (key.epoch, ticket.gateway)
        self._opened += 1
        room = self._open(ticket, now)
        self.rooms.add(room)
        want = self.pages_for(room.length + 1)
        refusal = self._refuse(ticket)
        if refusal:
            self.marks[Mark.TICKET_UNPAIRED] += 1
            self.fail(room, FailCode.WORKER_LOST, refusal, retry=True)
        elif not self.ledger.could_ever_fit(want):
            self.marks[Mark.TICKET_TOO_LARGE] += 1
            why = f"{room.length} tokens need {want} pages; the pools hold {self.ledger.totals()}"
            self.fail(room, FailCode.OVERLOADED, why, retry=False)
        elif self.rooms.count(RoomState.QUEUED) > self.settings.max_queue:
            self.fail(room, FailCode.OVERLOADED, f"{self.settings.max_queue} requests wait already", retry=True)

    def _on_abort(self, sender: Boot, abort: Abort, now: Micros) -> None:
        room = self.find(abort.key)
        if room is not None:
            self.end(room)

    def _on_close(self, sender: Boot, close: Close, now: Micros) -> None:
        self._epochs.pop(close.room, None)

    def _on_stale(self, sender: Boot, stale: Stale, now: Micros) -> None:
        room = self.find(stale.key)
        if room is not None and self._needs_partner(room):
            self.marks[Mark.STALE_HEARD] += 1
            self.fail(room, FailCode.HANDOFF_FAILED, "the other side does not know this epoch", retry=True)

    def _on_progress(self, sender: Boot, message: Progress, now: Micros) -> None:
        if any(sender in (r.ticket.prefill, r.ticket.decode) for r in self.rooms.values()):
            self.progress.heard(sender, message.done, now)

    def _tell_progress(self, now: Micros) -> None:
        """To the workers whose rooms may wait for this one."""
        if self.progress.due(now):
            sides = {boot for room in self.rooms.values() for boot in (room.ticket.prefill, room.ticket.decode)}
            for boot in sorted(sides - {self.manifest.boot}):
                self.send(boot, Progress(self.manifest.boot, self.progress.done))

    # ---- turn, books ----------------------------------------------------------------------------

    def _turn(self, now: Micros) -> None:
        self._stirred = True
        if self._given_up:
            self._effects.append(GiveUp(self._given_up))
            return
        if self.rooms:
            self._schedule(now)
        if self.draft:
            draft, self.draft = self.draft, PlanDraft()
            plan = draft.finish(Seq(self._agreement.chain.seq + 1))
            if plan.batch:
                if self._flight:
                    self.marks[Mark.PIPELINED] += 1
                self._note_turn(self._composed[0][0])
                self._flight[plan.seq], self._composed = self._composed, []
                self._steps[plan.seq] = {}
            self._agreement.issue(plan)
            self._effects.append(Issue(plan))
        self._tell_progress(now)
        for boot, credits in self._news.due(self._capacity, now):
            self.send(boot, credits)

    def _note_turn(self, room: R) -> None:
        """A step is issued, of which this is the first room."""
        self.turns.stepped(alone=room.alone)
        if room.alone:
            assert len(self._composed) == 1, "a suspect has its step for itself"
            assert not self._flight, "and nothing else is under way"
            self.marks[Mark.ALONE] += 1
            self._trial = room
            self.send(room.ticket.gateway, Trial(room.key, over=False))

    def _capacity(self) -> Credits:
        """What this worker holds and could still take, for the gateways."""
        queued, ending = self.rooms.count(RoomState.QUEUED), self.rooms.count(RoomState.ENDING)
        running = len(self.rooms) - queued
        return Credits(
            number=0,  # CreditNews counts what is said
            worker=self.manifest.boot,
            free_pages=self.ledger.free(),
            total_pages=self.ledger.totals(),
            waiting=queued,
            running=running,
            free_rooms=max(0, self.settings.max_rooms - running + ending),
            free_queue=max(0, self.settings.max_queue - queued),
            ahead_pages=self._ahead_pages(),
            stamp=self._news.stamp,
        )

    def _on_ask_ledger(self, sender: Boot, ask: AskLedger, now: Micros) -> None:
        if ask.audit:
            self.ledger.audit()
        self.send(sender, self._books(ask.question, now))

    def _on_clear(self, sender: Boot, clear: Clear, now: Micros) -> None:
        """The table says which groups there are. While a room is open the answer is that nothing was cleared."""
        if self.rooms:
            self.send(sender, self._books(clear.question, now))
            return
        self.ledger.forget_cached()
        self.draft.clear = [group.name for group in self.state_table.groups]
        self._clearing.append((Seq(self._agreement.chain.seq + 1), sender, clear.question))

    def _on_reset_cache(self, sender: Boot, reset: ResetCache, now: Micros) -> None:
        """Pages are not zeroed: what is not found is not read. Those that open rooms share go with the last of them."""
        self.ledger.forget_cached()
        self.send(sender, self._books(reset.question, now))

    def _answer_cleared(self, now: Micros) -> None:
        """Ranks zero a pool when they apply the plan that says so."""
        if not self._clearing:
            return
        groups = tuple(group.name for group in self.state_table.groups)
        for _, asker, question in [c for c in self._clearing if self._agreement.all_applied(c[0])]:
            self.send(asker, msgspec.structs.replace(self._books(question, now), cleared=groups))
        self._clearing = [c for c in self._clearing if not self._agreement.all_applied(c[0])]

    def _books(self, question: int, now: Micros) -> LedgerView:
        ranks = zip(self.manifest.ranks, self.settings.pids, strict=True)
        reads, copies = sum(self._agreement.reads.values()), sum(self._agreement.copies.values())
        return LedgerView(
            question=question,
            name=self.settings.name,
            role=self.manifest.role,
            ranks=tuple(RankView(r.rank, pid, r.boot) for r, pid in ranks),
            pages=self.ledger.view(),
            pins=self.ledger.pins,
            reads=reads,
            rooms=tuple(self._room_view(r, now) for r in self.rooms.values()),
            clean=self.ledger.clean and not self.rooms and not reads and not copies,
            counters=self._counters(),
            host=self._host_view(),
            copies=copies,
        )

    def _host_view(self) -> dict[str, int]:
        """Host memory for retracted rooms; see LedgerView."""
        return {}

    def _counters(self) -> Counters:
        return Counters(
            epochs=self._opened,
            failures={code.value: n for code, n in self._failures.items()},
            events={mark.name.lower(): n for mark, n in self.marks.items()},
            spent={state.value: durations.view() for state, durations in self._spent.items()},
            ranks=added(self._agreement.counted.values()),
            cache=self.reuse.tally(),
        )

    def _room_view(self, room: R, now: Micros) -> RoomView:
        held = {g: len(p) for g, p in self.ledger.held(room.key).items()}
        return RoomView(room.key.room, room.key.epoch, room.state.value, (now - room.born) // 1000, held)
