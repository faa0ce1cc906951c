"""Preemption: which of the rooms that generate gives way when pages run short, where its state
goes, and when it comes back.

    RUNNING ──a page is short, and it has the least to lose──▶ OFFLOADING ──stored on every rank──▶ OFFLOADED   no pages
       ▲                                                                                               │
       └──────────── verified on every rank ──────────── RESTORING ◀──── its whole state fits again ───┘   other pages

The room with the lowest urgency (the greatest `priority`) has the least to lose, and among equals
the one that came last. If the host store is full, or a copy fails, the room is computed again: its
gateway opens the next epoch (`Recompute`). Rooms also give way to a more urgent one that waits for
admission, if that lets it be admitted and the host store has space for all of them. They go
together, when none of them is in the middle of a step. In a pipeline, those that leave their step
first are kept out of the next one until then.

A room does not starve:
- Between two preemptions a room generates at least one token: one that has just come back is not
  preempted before its step.
- Rooms come back in order, each as soon as its state fits beside one more page for each running
  room.
- While a room is away, at most OVERTAKES later rooms are admitted, or URGENT_OVERTAKES if more
  urgent ones are counted too. From then on all later ones wait for it. A room that waits for
  admission is overtaken by at most OVERTAKES more urgent ones.
- A room gives way to rooms that wait for admission at most PREEMPTIONS times.

So a room waits for the end of the rooms ahead of it and of a bounded number of others, and each of
them has a deadline.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from baton.core.agreement import Ballot, Offload, Restore, Vote
from baton.core.ids import Boot, GroupName, Key, Rank, Stamp
from baton.core.marks import Mark
from baton.core.memory.host_ledger import state_bytes
from baton.core.memory.pages import PageState
from baton.core.memory.state import Unit
from baton.core.messages import Recompute
from baton.core.scheduler.admission import Judgement, Reuse, Want
from baton.core.scheduler.checkpointing import Checkpointing
from baton.core.scheduler.generating_room import GeneratingRoom
from baton.core.scheduler.room import RoomState, Saw
from baton.core.scheduler.stage import Stage
from baton.core.scheduler.worker import Worker

OVERTAKES, URGENT_OVERTAKES, PREEMPTIONS = 4, 16, 4

WITH_PAGES = (
    *(RoomState.RESUMING, RoomState.COMPUTING, RoomState.FETCHING, RoomState.COMMITTING),
    *(RoomState.RUNNING, RoomState.OFFLOADING, RoomState.RESTORING),
)
AWAY = (RoomState.OFFLOADING, RoomState.OFFLOADED)

G = TypeVar("G", bound=GeneratingRoom)


class Preemption(Stage[G]):
    """The admission policy of a worker that generates, and the preemption of its running rooms."""

    def __init__(
        self,
        worker: Worker[G],
        checkpointing: Checkpointing,
        *,
        admissible: Callable[[G], bool],
    ) -> None:
        """admissible: whether only memory keeps a waiting room from being admitted, as far as other
        workers are concerned"""
        super().__init__(worker)
        self._admissible = admissible
        self._host, self._checkpointing = worker.host, checkpointing
        # in this turn: rooms that will give way once none of them is in a step
        self._called_off: set[Key] = set()

    def forgotten(self, room: G) -> None:
        self._host.give_back(room.key)

    def kept(self) -> dict[str, Collection[Any]]:
        return {"host ledger": self._host.rooms}

    def schedule(self) -> None:
        """Find out which rooms follow others before any room is admitted, then bring back rooms
        that are away."""
        worker = self.worker
        if queued := [
            room for room in worker.rooms.in_state(RoomState.QUEUED) if self._admissible(room)
        ]:
            leading = worker.rooms.in_state(*worker.role.bringing)
            worker.followers.look(queued, leading, worker.marks)
        self.resume()

    # ---- steps ----------------------------------------------------------------------------------

    def ready(self, running: Sequence[G]) -> list[G]:
        """Return the running rooms whose next token is computed now, oldest first.

        Each of them has a page for that token, and every stage of a pipeline gets an equal share of
        the rooms. A room that lacked a page is considered beyond that share: the room that is to
        give way to it may have been in another stage then.
        """
        if not running:
            return []
        busy = self._busy() | self._called_off
        share, found = -(-len(running) // self.worker.manifest.pp), list[G]()
        for room in running:
            if (len(found) < share or room.short) and room.key not in busy and self._grow(room):
                found.append(room)
        # A room found first may have given way to a later one.
        return [room for room in found if room.state is RoomState.RUNNING]

    def _busy(self) -> set[Key]:
        """Return the rooms that are in a step, or whose state is being copied as it is now."""
        return self.worker.batches.busy() | self._checkpointing.still

    def _grow(self, room: G) -> bool:
        if room.state is not RoomState.RUNNING:
            return False
        room.short = not self.worker.blocks.grow(room, room.position)
        if not room.short:
            return True
        if not self.worker.rooms.count(RoomState.ENDING, RoomState.OFFLOADING):
            self._preempt()  # otherwise pages come back soon, and it sits out one step
        return False

    def reach(self, room: G, position: int) -> bool:
        """Give a running room the pages that it lacks up to a position, if that leaves one to every
        running room. Nobody gives way for that."""
        want = self.worker.blocks.beyond(room, position)
        if not want:
            return True
        if not self._fits_beside(want):
            return False
        self.worker.blocks.stretch(room, want)
        return True

    def _preempt(self) -> None:
        """The room with the least to lose gives its pages to others, unless it is in a step or on
        its way back."""
        least = max(self.worker.rooms.in_state(RoomState.RUNNING, RoomState.RESTORING), key=_turn)
        if least.state is RoomState.RESTORING or least.key in self._busy():
            return  # the room that needs its pages sits out until that has ended
        if least.resumed:
            return  # it runs one step first
        if not self._comes_back(least):
            self._compute_again(least)  # the next epoch will be refused
        elif not self._offload(least):
            self.worker.marks[Mark.STORE_FULL] += bool(self._host.total)
            self._compute_again(least)

    def _comes_back(self, room: G) -> bool:
        """Whether empty pools would hold the room's state and its next token."""
        return self.worker.ledger.could_ever_fit(self.worker.span.live(room.position + 1))

    def _offload(self, room: G) -> bool:
        """Order the room's state into the host store. Returns False where that has no space, even
        in place of checkpoints."""
        if not self._checkpointing.make_space([room.position], state_bytes):
            return False
        self._host.take(room.key, room.position, state_bytes)
        self.worker.marks[Mark.OFFLOADED] += 1
        self.worker.see(room, Saw.PREEMPTED)
        room.enters = False  # it comes back into pages of its own, none of them cached
        self.worker.draft.offload.append(Offload(self._order_copy(room), room.key, room.position))
        return True

    def _compute_again(self, room: G) -> None:
        self.worker.marks[Mark.RECOMPUTE] += 1
        self.worker.send(room.ticket.gateway, Recompute(room.key))
        self.worker.end(room)

    # ---- copies ---------------------------------------------------------------------------------

    def _order_copy(self, room: G) -> int:
        order = self.worker.new_order()
        self.worker.orders.expect(order, room.key, self._copied)
        return order

    def _copied(self, key: Key, order: int, vote: Vote, by_rank: Mapping[Rank, Ballot]) -> None:
        """Every rank has stored its part of the room's state, or has brought it back; or one of
        them could not."""
        room = self.worker.rooms[key]
        if room.state is RoomState.ENDING:
            return
        if vote is not Vote.ARRIVED:
            self.worker.marks[Mark.COPY_FAILED] += 1
            self._compute_again(room)
        elif room.state is RoomState.OFFLOADING:
            self.worker.see(room, Saw.STORED)
            room.copied = tuple(self.worker.ledger.chain(room.key))
            self.worker.ledger.give_back(room.key)
            self.worker.draft.vacate.append(room.key)
        else:
            self.worker.marks[Mark.RESUMED] += 1
            self.worker.see(room, Saw.RESTORED)
            self.worker.ledger.move(room.key, PageState.COMMITTED)
            self._host.give_back(room.key)
            room.resumed = True

    def resume(self) -> None:
        """Bring rooms back that are away, in order, as far as their state fits. This is the first
        thing in a turn."""
        self._called_off.clear()  # each turn decides anew who is called off
        away = self.worker.rooms.in_state(RoomState.OFFLOADED)
        for room in sorted(away, key=_turn) if away else ():
            want = self.worker.span.live(room.position + 1)
            if (
                self.active >= self.worker.settings.max_rooms
                or self._yields(room)
                or not self._fits_beside(want)
            ):
                return
            taken = self.worker.blocks.take(room, want, PageState.FETCHING, position=room.position)
            assert taken, "it fits"
            room.covered = None
            room.overtaken = 0
            self.worker.see(room, Saw.HELD)
            self.worker.draft.restore.append(
                Restore(self._order_copy(room), room.key, room.position)
            )

    # ---- admission ------------------------------------------------------------------------------

    @property
    def active(self) -> int:
        """Rooms that hold pages and have not ended."""
        return self.worker.rooms.count(*WITH_PAGES)

    def admissible(self, room: G) -> bool:
        """Whether only memory keeps a waiting room out: it follows no other room."""
        return room.key not in self.worker.followers and self._admissible(room)

    def waiting(self) -> list[G]:
        """Return the rooms that wait for memory: first those that were overtaken often enough, then
        by urgency, then by age."""
        queued = self.worker.rooms.in_state(RoomState.QUEUED)
        if not queued:
            return []
        found = [room for room in queued if self.admissible(room)]
        return sorted(found, key=lambda room: (room.overtaken < OVERTAKES, _turn(room)))

    def judge(self, room: G, want: Want, reuse: Reuse) -> Judgement:
        """Decide whether there is room for a waiting room beside those that are away."""
        if self.active >= self.worker.settings.max_rooms:
            return Judgement.STOP
        return Judgement.ADMIT if self.may_enter(room, want, reuse) else Judgement.MAKE_WAY

    def may_enter(self, room: G, want: Want, reuse: Reuse = ()) -> bool:
        """Whether rooms that are away leave space for a room with these pages to be admitted."""
        away = self.worker.rooms.in_state(*AWAY)
        return not away or (not self._waits_for_others(room) and self._fits_beside(want, reuse))

    def _waits_for_others(self, room: G) -> bool:
        """Whether a room that is away was overtaken so often that this one must wait."""
        return any(
            other.overtaken >= (OVERTAKES if _turn(other) < _turn(room) else URGENT_OVERTAKES)
            for other in self._behind(room)
        )

    def unadmitted(self, room: G) -> bool:
        """Never: tokens are generated in the pages that a room has here."""
        return False

    def entered(self, room: G) -> None:
        """A room was admitted: count it for those that it has overtaken."""
        for other in self._behind(room):
            self.worker.marks[Mark.OVERTAKEN] += 1
            other.overtaken += 1
        for other in self.worker.rooms.in_state(RoomState.QUEUED):
            other.overtaken += other.ticket.came < room.ticket.came and self.admissible(other)
        room.overtaken = 0

    def _behind(self, room: G) -> list[G]:
        """Return the rooms that are away and are older than this one, or ahead of it in order."""
        came = room.ticket.came
        return [
            other
            for other in self.worker.rooms.in_state(*AWAY)
            if other.ticket.came < came or _turn(other) < _turn(room)
        ]

    def _yields(self, room: G) -> bool:
        """Whether a room that is away leaves free pages to the next room that waits, because that
        is more urgent.

        It never does so for a room that waits for one that is away: the two would wait for each
        other.
        """
        first = next(iter(self.waiting()), None)
        if (
            first is None
            or first.ticket.priority >= room.ticket.priority
            or room.overtaken >= URGENT_OVERTAKES
        ):
            return False
        return not self._waits_for_others(first)

    def make_way(self, room: G, want: Want, reuse: Reuse) -> None:
        """A room cannot be admitted. If it could be once less urgent rooms gave way, as many of
        them do as it takes.

        want: the pages that it needs, those in `reuse` among them
        """
        if self.worker.rooms.in_state(
            RoomState.ENDING, RoomState.OFFLOADING
        ) or self._waits_for_others(room):
            return  # pages come back soon, or are meant for other rooms
        running, busy = self.worker.rooms.in_state(RoomState.RUNNING), self._busy()
        less = sorted((r for r in running if r.ticket.priority > room.ticket.priority), key=_turn)
        less = [
            r for r in less if not r.resumed and r.preempted < PREEMPTIONS and self._comes_back(r)
        ]
        own, chosen = self.worker.ledger.beyond(want, reuse), list[G]()
        while not self.worker.ledger.fits(
            self._beside(own, len(running) - len(chosen)),
            reuse=reuse,
            ended=[victim.key for victim in chosen],
        ):
            if not less:
                return  # it would not help
            chosen.append(less.pop())
        positions = [victim.position for victim in chosen]
        if not self._checkpointing.make_space(positions, state_bytes):
            return  # if only some of them went, they would go for nothing
        if any(victim.key in busy for victim in chosen):
            self._called_off.update(victim.key for victim in chosen)
            return
        for victim in chosen:
            self._offload(victim)
            self.worker.marks[Mark.PREEMPTED] += 1
            victim.preempted += 1

    def _fits_beside(self, want: Want, reuse: Reuse = ()) -> bool:
        """Whether these pages are free, with one more for every running room in every group of
        pages. Without those, a room that has just been admitted would soon send another away."""
        own = self._beside(
            self.worker.ledger.beyond(want, reuse), self.worker.rooms.count(RoomState.RUNNING)
        )
        return self.worker.ledger.fits(own, reuse=reuse)

    def _beside(self, want: Want, running: int) -> dict[GroupName, int]:
        spare = {
            g.name: running if g.unit is Unit.PAGE else 0 for g in self.worker.state_table.groups
        }
        return {group: n + spare[group] for group, n in want.items()}


def _turn(room: GeneratingRoom) -> tuple[int, tuple[Stamp, Boot]]:
    """Return a room's sort key in the order of return: the smallest comes first."""
    return room.ticket.priority, room.ticket.came
