"""Preemption: which of the rooms that generate gives way when pages run short, where its state
goes, and when it comes back.

    RUNNING ──a page is short, and it has the least to lose──▶ OFFLOADING ──stored on every rank──▶ OFFLOADED   no pages
       ▲                                                                                               │
       └──────────── verified on every rank ──────────── RESTORING ◀──── its whole state fits again ───┘   other pages

Least to lose has the room of the lowest urgency (`priority`, the greater number), and among those
the one that came last. Where the host store is full, or a copy fails, the room is computed again:
its gateway opens the next epoch (`Recompute`). Rooms give way to a more urgent one that waits for
admission too, if it can be admitted then and the host store has space. They go together, when none
of them is in the middle of a step: in a pipeline those that are back first are called off the next
step.

What keeps a room from starving:
- between two preemptions a room generates at least one token: one that has just come back is not
  taken before its step;
- rooms come back in order, each as soon as its state fits beside one more page for each running
  room;
- at most OVERTAKES later rooms are admitted while a room is away, more urgent ones URGENT_OVERTAKES
  together with those; from then on all later ones wait for it. A room that waits for admission is
  overtaken by OVERTAKES more urgent ones at most;
- for those that wait a room gives way PREEMPTIONS times at most. So it waits for the end of rooms
that are ahead of it and of a bounded number of others, and each of them has a deadline.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from baton.core.agreement import Ballot, Offload, Restore, Vote
from baton.core.ids import Boot, GroupName, Key, Rank, Stamp
from baton.core.marks import Mark
from baton.core.memory.host_ledger import HostLedger
from baton.core.memory.pages import PageState
from baton.core.memory.state import Unit
from baton.core.messages import Recompute
from baton.core.scheduler.admission import Judgement, Reuse, Want
from baton.core.scheduler.block_manager import beyond
from baton.core.scheduler.generating_room import GeneratingRoom
from baton.core.scheduler.room import RoomState, Saw
from baton.core.scheduler.stage import Stage
from baton.core.scheduler.worker import Worker

OVERTAKES, URGENT_OVERTAKES, PREEMPTIONS = 4, 16, 4

WITH_PAGES = (
    *(RoomState.COMPUTING, RoomState.FETCHING, RoomState.COMMITTING, RoomState.RUNNING),
    *(RoomState.OFFLOADING, RoomState.RESTORING),
)
AWAY = (RoomState.OFFLOADING, RoomState.OFFLOADED)

G = TypeVar("G", bound=GeneratingRoom)


class Preemption(Stage[G]):
    """The admission policy of a worker that generates, and what it takes back from rooms that
    run."""

    def __init__(self, worker: Worker[G], *, admissible: Callable[[G], bool]) -> None:
        """admissible: whether nothing but memory keeps a room that waits from being admitted, as
        far as others are concerned"""
        super().__init__(worker)
        self._admissible = admissible
        self._host = HostLedger(worker.placements, worker.settings.host_bytes)
        # in this turn: rooms that are to give way as soon as none of them is in a step
        self._called_off: set[Key] = set()

    def forgotten(self, room: G) -> None:
        self._host.give_back(room.key)

    def host_view(self) -> dict[str, int]:
        return (
            {"total": self._host.total, "used": max(self._host.used())} if self._host.total else {}
        )

    def kept(self) -> dict[str, Collection[Any]]:
        return {"host ledger": range(self._host.rooms)}

    def schedule(self) -> None:
        """Rooms that follow others are known before anybody is admitted; then those that are away
        come back."""
        worker, role = self.worker, self.worker.role
        if queued := [
            room for room in worker.rooms.in_state(RoomState.QUEUED) if self._admissible(room)
        ]:
            leading = worker.rooms.in_state(*role.bringing)
            worker.followers.look(queued, leading, worker.marks, leaving=1 if role.computes else 0)
        self.resume()

    # ---- steps ----------------------------------------------------------------------------------

    def ready(self, running: Sequence[G]) -> list[G]:
        """Of these rooms, which run, those whose next token is computed now, oldest first: each has
        a page for it, and every stage of a pipeline gets an equal share of all. One that lacked a
        page is looked at beyond that share: whoever is to give way to it may have been in another
        stage then."""
        if not running:
            return []
        busy = self.worker.batches.busy() | self._called_off
        share, found = -(-len(running) // self.worker.manifest.pp), list[G]()
        for room in running:
            if (len(found) < share or room.short) and room.key not in busy and self._grow(room):
                found.append(room)
        # less those that gave way to another
        return [room for room in found if room.state is RoomState.RUNNING]

    def _grow(self, room: G) -> bool:
        if room.state is not RoomState.RUNNING:
            return False
        room.short = not self.worker.blocks.grow(room, room.position)
        if not room.short:
            return True
        if not self.worker.rooms.in_state(RoomState.ENDING, RoomState.OFFLOADING):
            self._preempt()  # else pages come back in a moment: it sits out one step
        return False

    def _preempt(self) -> None:
        """The room with the least to lose gives its pages to others; not in the middle of a step,
        nor on its way back."""
        least = max(self.worker.rooms.in_state(RoomState.RUNNING, RoomState.RESTORING), key=_turn)
        if least.state is RoomState.RESTORING or least.key in self.worker.batches.busy():
            return  # whoever needs its pages sits out until that has ended
        if least.resumed:
            return  # it runs one step first
        if not self._comes_back(least):
            self._compute_again(least)  # the next epoch will be refused
        elif not self._offload(least):
            self.worker.marks[Mark.STORE_FULL] += bool(self._host.total)
            self._compute_again(least)

    def _comes_back(self, room: G) -> bool:
        """Whether empty pools would hold its state, and the token after."""
        return self.worker.ledger.could_ever_fit(self.worker.span.live(room.position + 1))

    def _offload(self, room: G) -> bool:
        """Order its state into the host store; False where that has no space."""
        if not self._host.take(room.key, room.position):
            return False
        self.worker.marks[Mark.OFFLOADED] += 1
        self.worker.see(room, Saw.PREEMPTED)
        room.enters = False  # what it shares is another's when it comes back
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
        """Every rank has stored its part of the room's state, or brought it back; or one could
        not."""
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
        """Rooms that are away come back, in order, as far as their states fit. The first thing of a
        turn."""
        self._called_off.clear()  # whoever is called off must still be wanted in this turn
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
        return len(self.worker.rooms.in_state(*WITH_PAGES))

    def admissible(self, room: G) -> bool:
        """Whether nothing but memory keeps a room that waits from being admitted: it follows
        nobody."""
        return room.key not in self.worker.followers and self._admissible(room)

    def waiting(self) -> list[G]:
        """Rooms that wait for memory: those that were overtaken often enough, then the more urgent,
        then who came first."""
        queued = self.worker.rooms.in_state(RoomState.QUEUED)
        if not queued:
            return []
        found = [room for room in queued if self.admissible(room)]
        return sorted(found, key=lambda room: (room.overtaken < OVERTAKES, _turn(room)))

    def judge(self, room: G, want: Want, reuse: Reuse) -> Judgement:
        """Whether there is room for it beside those that are away."""
        if self.active >= self.worker.settings.max_rooms:
            return Judgement.STOP
        return Judgement.ADMIT if self.may_enter(room, want, reuse) else Judgement.MAKE_WAY

    def may_enter(self, room: G, want: Want, reuse: Reuse = ()) -> bool:
        """Whether a room may be admitted with so many pages, as far as rooms that are away are
        concerned."""
        away = self.worker.rooms.in_state(*AWAY)
        return not away or (not self._waits_for_others(room) and self._fits_beside(want, reuse))

    def _waits_for_others(self, room: G) -> bool:
        """Whether somebody who is away has been overtaken often enough."""
        return any(
            other.overtaken >= (OVERTAKES if _turn(other) < _turn(room) else URGENT_OVERTAKES)
            for other in self._behind(room)
        )

    def entered(self, room: G) -> None:
        """A room was admitted."""
        for other in self._behind(room):
            self.worker.marks[Mark.OVERTAKEN] += 1
            other.overtaken += 1
        for other in self.worker.rooms.in_state(RoomState.QUEUED):
            other.overtaken += other.ticket.came < room.ticket.came and self.admissible(other)
        room.overtaken = 0

    def _behind(self, room: G) -> list[G]:
        """Rooms that are away and came first, or would come first."""
        came = room.ticket.came
        return [
            other
            for other in self.worker.rooms.in_state(*AWAY)
            if other.ticket.came < came or _turn(other) < _turn(room)
        ]

    def _yields(self, room: G) -> bool:
        """Whether a room that is away leaves free pages to the next one that waits, which is more
        urgent. Never to one that waits for somebody who is away: the two would wait for each
        other."""
        first = next(iter(self.waiting()), None)
        if (
            first is None
            or first.ticket.priority >= room.ticket.priority
            or room.overtaken >= URGENT_OVERTAKES
        ):
            return False
        return not self._waits_for_others(first)

    def make_way(self, room: G, want: Want, reuse: Reuse) -> None:
        """A room cannot be admitted with so many pages, those to be reused among them: as many less
        urgent ones give way as it takes, if it can be admitted then."""
        if self.worker.rooms.in_state(
            RoomState.ENDING, RoomState.OFFLOADING
        ) or self._waits_for_others(room):
            return  # pages come back in a moment, or are not for this one
        running, busy = self.worker.rooms.in_state(RoomState.RUNNING), self.worker.batches.busy()
        less = sorted((r for r in running if r.ticket.priority > room.ticket.priority), key=_turn)
        less = [
            r for r in less if not r.resumed and r.preempted < PREEMPTIONS and self._comes_back(r)
        ]
        own, chosen = beyond(want, reuse), list[G]()
        while not self.worker.ledger.fits(
            self._beside(own, len(running) - len(chosen)),
            reuse=reuse,
            ended=[victim.key for victim in chosen],
        ):
            if not less:
                return  # it would not help
            chosen.append(less.pop())
        if not self._host.fits(victim.position for victim in chosen):
            return  # some of them alone would go for nothing
        if any(victim.key in busy for victim in chosen):
            self._called_off.update(victim.key for victim in chosen)
            return
        for victim in chosen:
            self._offload(victim)
            self.worker.marks[Mark.PREEMPTED] += 1
            victim.preempted += 1

    def _fits_beside(self, want: Want, reuse: Reuse = ()) -> bool:
        """Whether these pages are free, and one more for every running room in every group of
        pages: else one that has just come would send another away at once."""
        own = self._beside(beyond(want, reuse), self.worker.rooms.count(RoomState.RUNNING))
        return self.worker.ledger.fits(own, reuse=reuse)

    def _beside(self, want: Want, running: int) -> dict[GroupName, int]:
        spare = {
            g.name: running if g.unit is Unit.PAGE else 0 for g in self.worker.state_table.groups
        }
        return {group: n + spare[group] for group, n in want.items()}


def _turn(room: GeneratingRoom) -> tuple[int, tuple[Stamp, Boot]]:
    """Who comes first: the smaller."""
    return room.ticket.priority, room.ticket.came
