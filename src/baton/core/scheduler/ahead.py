"""Prefill's admission policy: how far prompts are computed ahead of decode, and which of them give
up their pages again."""

from baton.core.ids import GroupName
from baton.core.marks import Mark
from baton.core.messages import Withdrawn
from baton.core.scheduler.admission import Judgement, Reuse, Want
from baton.core.scheduler.offering import Offering
from baton.core.scheduler.prefill_room import PrefillRoom
from baton.core.scheduler.room import RoomState
from baton.core.scheduler.stage import Stage
from baton.core.scheduler.worker import Worker

HOLDING = (
    *(RoomState.RESUMING, RoomState.COMPUTING, RoomState.BORROWING),
    RoomState.OFFERED,
)


class AheadOfDecode(Stage[PrefillRoom]):
    """Admits the oldest request first. What runs ahead of a decode worker's admission is bounded.
    Beyond that bound only rooms of that decode worker wait."""

    def __init__(self, worker: Worker[PrefillRoom], offering: Offering) -> None:
        super().__init__(worker)
        self._offering = offering

    def waiting(self) -> list[PrefillRoom]:
        return self.worker.rooms.in_state(RoomState.QUEUED)

    def judge(self, room: PrefillRoom, want: Want, reuse: Reuse) -> Judgement:
        """Decide whether a room must wait because its decode worker has not admitted rooms that
        already hold too much. The first such room never waits."""
        settings, ledger = self.worker.settings, self.worker.ledger
        if settings.ahead >= 1:
            return Judgement.ADMIT
        held = self.worker.rooms.in_state(*HOLDING)
        ahead = [r.key for r in held if not r.admitted and r.ticket.decode == room.ticket.decode]
        pages, own = ledger.count(ahead, beside=reuse), ledger.beyond(want, reuse)
        if ahead and any(pages[g] + own[g] > n for g, n in self.ahead_pages().items()):
            self.worker.marks[Mark.TOO_FAR_AHEAD] += 1
            return Judgement.SKIP
        return Judgement.ADMIT

    def make_way(self, room: PrefillRoom, want: Want, reuse: Reuse) -> None:
        """Withdraw younger rooms that decode has not admitted, the youngest first, until this one
        will fit.

        An admitted room is never withdrawn. If blocks are not sealed no room is, as decode would
        not notice that its pages hold something else by then.
        """
        worker, ledger = self.worker, self.worker.ledger
        own, coming = (
            ledger.beyond(want, reuse),
            [r.key for r in worker.rooms.in_state(RoomState.ENDING)],
        )
        held = worker.rooms.in_state(*HOLDING)
        younger = [
            r
            for r in held
            if r.ticket.came > room.ticket.came and not r.admitted and worker.manifest.seal
        ]
        chosen: list[PrefillRoom] = []
        while younger and not ledger.fits(own, reuse=reuse, ended=coming):
            chosen.append(younger.pop())
            coming.append(chosen[-1].key)
        if not ledger.fits(own, reuse=reuse, ended=coming):
            return  # it would not help
        for victim in chosen:
            worker.marks[Mark.WITHDRAWN] += 1
            for boot in (victim.ticket.decode, victim.ticket.gateway):
                worker.send(boot, Withdrawn(victim.key))
            worker.end(victim)

    def entered(self, room: PrefillRoom) -> None:
        """Do nothing: rooms are admitted in the order of age, so none is overtaken."""

    def unadmitted(self, room: PrefillRoom) -> bool:
        """Whether decode has not admitted it: what is computed ahead holds memory, so it has a
        deadline too."""
        return not room.admitted

    def ahead_pages(self) -> dict[GroupName, int]:
        """Return the configured share of the pool, divided among the decode workers: one that is
        full keeps no other one waiting."""
        ahead = self.worker.settings.ahead
        share = ahead / max(1, self._offering.pairs) if ahead < 1 else 1
        return {g: int(n * share) for g, n in self.worker.ledger.totals().items()}
