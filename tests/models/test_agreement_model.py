"""All that a leader and its two ranks can do with few rooms; and what that finds where the
agreement is made worse.

Searched whole: a room is committed only where it has arrived on every rank, a rank works only on
pages of the room for which it does, a rank that has diverged is not believed once more, and from
everywhere the worker comes to hold nothing.
"""

from typing import Any

import msgspec
import pytest
from tests.core.build import key

from baton.core.agreement import Agreement, Ballot, Report, Vote
from baton.core.rank.rank import RankCore
from baton.core.rank.rank_effects import RankEffect
from baton.core.scheduler.room import Saw
from baton.core.scheduler.worker import Worker

from .agreement_model import AgreementModel
from .explore import explore

SIZES = ("rooms", "pages", "faults", "states")


class SaysQuietOfAll(RankCore):
    """Says in every report of which rooms nothing is under way, as it may: what that is worth is
    for the leader to know."""

    def _report(self) -> list[RankEffect]:
        reads = (*self.fetches._reads.values(), *self.fetches._unknown.values())
        busy = {piece.key for piece in reads}.union(*self._batches.values())
        idle = tuple(k for k in (key(n) for n in (1, 2, 3)) if k not in busy)
        return [
            msgspec.structs.replace(found, quiet=idle)
            for found in super()._report()
            if isinstance(found, Report)
        ]


@pytest.mark.parametrize(
    SIZES,
    [
        (1, 1, 2, 5_000),
        (2, 1, 1, 10_000),
        (2, 2, 0, 10_000),
        (3, 1, 0, 4_000),
        pytest.param(2, 1, 2, 70_000, marks=pytest.mark.slow),
        pytest.param(2, 2, 1, 250_000, marks=pytest.mark.slow),
        pytest.param(3, 1, 1, 80_000, marks=pytest.mark.slow),
    ],
)
def test_every_way_a_worker_can_go(rooms: int, pages: int, faults: int, states: int) -> None:
    found = explore(AgreementModel(rooms=rooms, pages=pages, faults=faults))
    assert found.bad is None, str(found)
    assert found.states > states, "an empty search proves nothing"
    assert found.done > 0


def test_quiet_may_be_said_too_early_where_it_is_not_counted() -> None:
    found = explore(AgreementModel(rooms=2, pages=1, faults=1, rank=SaysQuietOfAll))
    assert found.bad is None, str(found)
    assert found.states > 10_000


# ---- planted bugs -------------------------------------------------------------------------------


class FoldsByMax(Agreement):
    """A room proceeds where any rank has it."""

    def verdict(self, order: int) -> tuple[Vote, tuple[Ballot, ...]]:
        """Max instead of min."""
        ballots = tuple(self._votes[order].values())
        return max((b.vote for b in ballots), default=Vote.WAITING), ballots


class CountsQuietOfAnyReport(Agreement):
    """A negative fact counts from a report that has not applied the plan which ordered it."""

    def take(self, report: Report) -> None:
        """Quiet, whenever it was said."""
        super().take(report)
        for of in report.quiet:
            if of in self._quiet:
                self._quiet[of].add(report.rank)


class BelievesAllChains(Agreement):
    """A report counts whatever its rank has applied."""

    def take(self, report: Report) -> None:
        """As if it had applied what it was given."""
        super().take(msgspec.structs.replace(report, chain=self._chains[report.applied]))


class CountsOneRank(Agreement):
    """What one rank says is quiet is taken for all."""

    def take(self, report: Report) -> None:
        """Add every rank when the first one says it."""
        super().take(report)
        for ranks in self._quiet.values():
            ranks |= set(self._applied) if ranks else set()


class FreesAtTheDrop(Worker[Any]):
    """Pages come back when a room is given up, not when its ranks are quiet."""

    def leave(self, room: Any, saw: Saw) -> None:
        """Give back at once."""
        super().leave(room, saw)
        self.ledger.give_back(room.key)


@pytest.mark.parametrize(
    ("agreement", "worker", "rank", "faults", "why", "steps"),
    [
        (FoldsByMax, Worker, RankCore, 0, "nothing of it has arrived", 5),
        (CountsQuietOfAnyReport, Worker, SaysQuietOfAll, 1, "whose owner is", 7),
        (CountsOneRank, Worker, RankCore, 1, "whose owner is", 9),
        (BelievesAllChains, Worker, RankCore, 1, "its report was believed", 3),
        (Agreement, FreesAtTheDrop, RankCore, 1, "whose owner is", 4),
    ],
)
def test_the_search_finds(
    agreement: type[Agreement],
    worker: type[Worker[Any]],
    rank: type[RankCore],
    faults: int,
    why: str,
    steps: int,
) -> None:
    found = explore(
        AgreementModel(
            rooms=2, pages=1, faults=faults, agreement=agreement, worker=worker, rank=rank
        )
    )
    assert found.bad is not None
    assert why in found.bad.why, str(found)
    assert len(found.bad.steps) == steps, str(found)
