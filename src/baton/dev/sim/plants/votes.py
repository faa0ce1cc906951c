"""Wrong agreements between ranks: which votes count, when, and for what."""

from collections import Counter
from typing import Any

from baton.core import agreement as agreement_module
from baton.core.agreement import Agreement, Ballot, Chain, Report, RowOrder, StepPlan, Vote
from baton.core.frames import Data, Said
from baton.core.ids import Key, Micros, Rank, Room, Seq
from baton.core.rank.rank import RankCore
from baton.core.rank.rank_effects import Compute
from baton.core.scheduler import roles as roles_module
from baton.core.scheduler import worker as worker_module
from baton.core.scheduler.decode_room import DecodeRoom
from baton.core.scheduler.fetching import Fetching
from baton.core.scheduler.room import RoomState, Saw
from baton.core.session.stream import Stream
from baton.dev.sim.parts import Parts, Replaced
from baton.dev.sim.plants.plant import Plant

# ruff: noqa: D101  (each class is described by the plant that it is part of)


class OwnVoteOnly(Agreement):
    def verdict(self, order: int) -> tuple[Vote, dict[Rank, Ballot]]:
        mine = self._votes[order].get(Rank(0))
        return (mine.vote, {Rank(0): mine}) if mine is not None else (Vote.WAITING, {})


class LooksAgain(RankCore):
    def _compute(self, seq: Seq, orders: tuple[RowOrder, ...]) -> Compute:
        waiting = {order.fetch.key for order in self.fetches._orders.values()}
        return super()._compute(seq, tuple(o for o in orders if o.key not in waiting))


class ByStage(Agreement):
    def __init__(self, ranks: int, tp: int) -> None:
        super().__init__(ranks)
        self._tp = tp

    def _vote(self, rank: Rank, ballot: Ballot) -> None:
        if ballot.order in self._votes:
            self._votes[ballot.order][Rank(rank // self._tp)] = ballot


class CollapsesRanks(Fetching):
    def __init__(self, *made_of: Any) -> None:
        super().__init__(*made_of)
        manifest = self.worker.manifest
        self.worker.agreement = ByStage(len(manifest.ranks), manifest.tp)


class NoEpoch(Agreement):
    """The n-th order of a room has one ballot box, whatever the epoch."""

    def __init__(self, ranks: int) -> None:
        super().__init__(ranks)
        self._orders_of: Counter[Key] = Counter()
        self._boxes: dict[tuple[Room, int], dict[Rank, Ballot]] = {}

    def issue(self, plan: StepPlan) -> None:
        super().issue(plan)
        for fetch in plan.fetch:
            self._orders_of[fetch.key] += 1
            self._votes[fetch.order] = self._boxes.setdefault(
                (fetch.key.room, self._orders_of[fetch.key]), {}
            )

    def _vote(self, rank: Rank, ballot: Ballot) -> None:
        if ballot.order in self._votes:
            self._votes[ballot.order][rank] = ballot


class OldQuiet(Agreement):
    def issue(self, plan: StepPlan) -> None:
        super().issue(plan)
        for key in plan.drop:
            self._quiet[key] |= {rank for rank, reads in self.reads.items() if not reads}


class CountsBlocks(Fetching):
    def __init__(self, *made_of: Any) -> None:
        super().__init__(*made_of)
        self._counted: Counter[Key] = Counter()
        # by order: its room, and how many blocks it has
        self._runs: dict[int, tuple[Key, int]] = {}

    def report(self, report: Report) -> None:
        for ballot in report.ballots:
            if ballot.vote is Vote.ARRIVED and ballot.order in self._runs:
                key, blocks = self._runs[ballot.order]
                self._counted[key] += blocks
        super().report(report)

    def _try_commit(self, room: DecodeRoom) -> None:
        for order, fetch in room.open_orders.items():
            self._runs[order] = room.key, sum(run.end - run.start for run in fetch.runs.values())
        due = sum(len(blocks) for blocks in self._expected(room).values()) * len(
            self.worker.manifest.ranks
        )
        if (
            room.state is RoomState.FETCHING
            and room.record is not None
            and self._counted[room.key] >= due
        ):
            self.worker.see(room, Saw.ARRIVED)
            self.worker.draft.commit.append(room.key)
            room.committed_at = self.worker.next_seq


def _deliver_at_once(self: Stream, frame: Data, now: Micros) -> tuple[Said, ...]:
    """Do what Stream._take does, but let a plan not wait for the one before it."""
    told: set[int] = self.__dict__.setdefault("told", set())
    plan = frame.messages[0]  # a plan travels alone
    early = (
        isinstance(plan, StepPlan)
        and self._got + 1 < frame.number <= self._got + self._limits.window
    )
    if early and frame.number not in self._held:
        self._held[frame.number] = plan
        told.add(frame.number)
        return (plan,)
    first = self._got + 1
    whole = _take(self, frame, now)
    return tuple(message for number, message in enumerate(whole, first) if number not in told)


_take = Stream._take


def _extend_unordered(self: Chain, plan: StepPlan) -> bytes:
    """A chain that does not depend on the order: the sum of the plans."""
    self.seq = max(self.seq, plan.seq)
    return self.value


PLANTS = (
    Plant(
        "gate_after_fold",
        "the leader decides by its own rank's vote, and each rank looks again whether it is "
        "ready when the plan comes",
        ("right_commit", "equal_plans", "commit_after_arrival"),
        2,
        lambda: Parts(
            rank=LooksAgain, replaced=(Replaced(worker_module, "Agreement", OwnVoteOnly),)
        ),
    ),
    Plant(
        "one_rank_suffices",
        "the fold is a maximum: what one rank has, all are thought to have",
        ("right_commit", "commit_after_arrival"),
        2,
        lambda: Parts(replaced=(Replaced(agreement_module, "fold", lambda votes: max(votes)),)),
    ),
    Plant(
        "collapsed_identity",
        "votes are kept by pipeline rank: the tensor-parallel ranks of a stage look alike, "
        "and decode waits for ever",
        ("healed_succeeds", "no_spurious_failure", "liveness"),
        5,
        lambda: Parts(replaced=(Replaced(roles_module, "Fetching", CollapsesRanks),)),
    ),
    Plant(
        "no_epoch",
        "votes are kept by room and order, without the epoch: those of an earlier attempt "
        "count for the next one",
        ("right_commit", "commit_after_arrival"),
        7,
        lambda: Parts(replaced=(Replaced(worker_module, "Agreement", NoEpoch),)),
    ),
    Plant(
        "quiet_from_old_report",
        "a rank that had no read under way when it last reported is taken for quiet",
        ("own_reads_ended", "own_compute_ended", "own_digest_ended", "page_books"),
        6,
        lambda: Parts(replaced=(Replaced(worker_module, "Agreement", OldQuiet),)),
    ),
    Plant(
        "completion_by_count",
        "a room is complete when as many blocks have arrived as it has, whichever they are",
        ("right_commit", "commit_after_arrival"),
        5,
        lambda: Parts(replaced=(Replaced(roles_module, "Fetching", CountsBlocks),)),
    ),
    Plant(
        "plans_out_of_order",
        "ranks apply a step plan when it comes, even before an earlier one",
        ("equal_plans",),
        2,
        lambda: Parts(
            replaced=(
                Replaced(Stream, "_take", _deliver_at_once),
                Replaced(Chain, "extend", _extend_unordered),
            )
        ),
    ),
)
