"""The batches of a worker: the one that this turn composes, and those that its ranks compute.

add ──▶ composed ──issue──▶ in flight, one for each stage of the pipeline ──every rank has reported──▶ ended
"""

from collections.abc import Sequence
from typing import Generic, TypeVar

from baton.core.agreement import PlanDraft, Report, RowOrder, RowResult
from baton.core.ids import Boot, Key, Rank, Seq
from baton.core.scheduler.giving_up import Wedges
from baton.core.scheduler.room import OpenRoom
from baton.core.scheduler.turns import Turns

R = TypeVar("R", bound=OpenRoom)

Rows = list[tuple[R, RowOrder]]
Outcomes = list[tuple[RowResult, ...]]  # by rank, and for each rank in the order of the rows


class Batches(Generic[R]):
    """The batches of one worker, which has `ranks` ranks in `stages` pipeline stages."""

    def __init__(self, *, ranks: int, stages: int) -> None:
        self._ranks, self._stages = ranks, stages
        self._turns = Turns()
        self._composed: Rows[R] = []
        self._flight: dict[Seq, Rows[R]] = {}  # oldest first
        # results of the batches in flight so far, by rank
        self._results: dict[Seq, dict[Rank, tuple[RowResult, ...]]] = {}
        # the suspect whose step is under way; nothing else is in that step
        self.trial: R | None = None
        self.trials = 0  # how many suspects' steps there were
        # the gateway that has not heard yet that such a step is over
        self._unheard: Boot | None = None
        self.wedges = Wedges(ranks)

    @property
    def may_issue(self) -> bool:
        """Whether another batch may be issued: each stage of the pipeline can have one, and a
        suspect has all stages to itself."""
        return len(self._flight) < self._stages and self.trial is None

    @property
    def under_way(self) -> int:
        """Batches that have not ended on every rank."""
        return len(self._flight)

    def lots(self, rooms: Sequence[R]) -> list[list[R]]:
        """Return groups of rooms for the next step, the first choice first (turns.py)."""
        if self._unheard is not None:
            return []
        return self._turns.lots(rooms, flying=bool(self._flight))

    def trial_ended(self, gateway: Boot | None) -> None:
        """The step of a suspect is over. The next step waits until its gateway has heard so: if
        this worker ended in the next step, and what it said last were lost, the gateway would take
        the suspect for the one that did it.

        gateway: None if it is gone
        """
        assert self.trial is not None, "a suspect's step was under way"
        self._unheard, self.trial = gateway, None

    def heard(self, gateway: Boot) -> None:
        """A gateway has received all that was sent to it, or is gone."""
        if gateway == self._unheard:
            self._unheard = None

    @property
    def trials_open(self) -> int:
        """Count what is kept of suspects' steps that a gateway has not heard the end of."""
        return int(self.trial is not None) + int(self._unheard is not None)

    def add(self, draft: PlanDraft, room: R, row: RowOrder) -> None:
        """Add a row to the batch of this turn."""
        draft.batch.append(row)
        self._composed.append((room, row))

    def withdraw(self, draft: PlanDraft, room: R) -> None:
        """A room ends in the turn that composed rows of it: they are not computed."""
        if self._composed:
            self._composed = [(r, row) for r, row in self._composed if r is not room]
            draft.batch = [row for _, row in self._composed]

    def issue(self, seq: Seq) -> R | None:
        """The batch of this turn goes out with plan `seq`. Returns the suspect that has the step to
        itself; None if there is none."""
        first = self._composed[0][0]
        self._turns.stepped(alone=first.alone)
        if first.alone:
            assert len(self._composed) == 1, "a suspect has its step for itself"
            assert not self._flight, "nothing else is under way beside a suspect"
            self.trial = first
            self.trials += 1
        self._flight[seq], self._composed = self._composed, []
        self._results[seq] = {}
        return first if first.alone else None

    def busy(self) -> set[Key]:
        """Return the rooms that have a row in a batch under way."""
        return {room.key for batch in self._flight.values() for room, _ in batch}

    def rooms(self, seq: Seq) -> list[R]:
        """Return the rooms of one batch under way."""
        return [room for room, _ in self._flight[seq]]

    def take(self, report: Report) -> list[tuple[Rows[R], Outcomes]]:
        """Note what a rank reports about its steps. Returns the batches that have now ended on
        every rank, oldest first."""
        ended: list[tuple[Rows[R], Outcomes]] = []
        for step in report.steps:
            by_rank = self._results[step.seq]
            by_rank[report.rank] = step.rows
            if len(by_rank) == self._ranks:
                del self._results[step.seq]
                self.wedges.ended(step.seq)
                ended.append(
                    (self._flight.pop(step.seq), [by_rank[Rank(r)] for r in range(self._ranks)])
                )
        return ended

    def wedged(self, report: Report) -> tuple[str, Seq | None] | None:
        """Return why the worker cannot go on, and in which step; None if it can (giving_up.py)."""
        return self.wedges.judge(report, self._results)
