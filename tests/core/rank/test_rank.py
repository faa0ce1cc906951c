"""One rank by itself: when it votes on an order, and what it reads once more."""

import numpy as np
import pytest
from msgspec.structs import replace
from tests.core.build import KV, key, manifest
from tests.core.driven import T0, report_of

from baton.core.agreement import Ballot, ConnectOrder, Fetch, Hold, StepPlan, Suspect, Vote
from baton.core.ids import Boot, Page, RankId, Seal, Seq
from baton.core.messages import BlockRun, LegSums
from baton.core.rank.fetches import MAX_TRIES
from baton.core.rank.rank import RankCore
from baton.core.rank.rank_effects import CancelRead, Connect, Digest, RankEffect, Read
from baton.core.work import Connected, DigestDone, Handle, ReadEnded, ReadOutcome, Released

KEY = key()


def order(
    number: int,
    *,
    first: int = 0,
    count: int = 1,
    follows: int | None = None,
    only: tuple[Suspect, ...] = (),
) -> Fetch:
    """Of blocks [first, first + count), whose sums are 11, 22, ..."""
    run = BlockRun(first, first + count, tuple(Page(3 + n) for n in range(count)))
    sums = LegSums(
        0,
        KV,
        tuple(range(first, first + count)),
        tuple(Seal(11 * (first + n + 1)) for n in range(count)),
    )
    return Fetch(number, follows, only, KEY, Boot(2), 4 * count, {KV: run}, (sums,), 1000)


def made(*fetch: Fetch) -> tuple[RankCore, list[RankEffect]]:
    ours, theirs = manifest("decode", 3), manifest("prefill", 2)
    core = RankCore(rank=0, boot=Boot(3), placements=[ours.placement(0)], seal=True)
    (connect,) = core.step(StepPlan(Seq(1), connect=(ConnectOrder(theirs, "shm"),)), T0)
    assert isinstance(connect, Connect)
    core.step(Connected(RankId(Boot(2), Boot(2), 0), ""), T0)
    return core, core.step(
        StepPlan(Seq(2), hold=(Hold(KEY, {KV: (Page(5), Page(6))}),), fetch=fetch), T0
    )


def lands(core: RankCore, read: RankEffect, *sums: int) -> list[RankEffect]:
    """A read ends well, and these are the sums of what it brought."""
    assert isinstance(read, Read)
    (digest,) = core.step(ReadEnded(read.handle, ReadOutcome.OK, ""), T0)
    assert isinstance(digest, Digest)
    units = np.zeros((len(sums), 4), dtype=np.uint64)
    units[:, 0] = sums
    return core.step(DigestDone(digest.order.job, units), T0)


def nbytes(read: RankEffect) -> int:
    assert isinstance(read, Read)
    return sum(int(copies.nbytes.sum()) for copies in read.copies)


def ballots(core: RankCore) -> tuple[Ballot, ...]:
    report = report_of(core)
    return report.ballots if report is not None else ()


def test_a_difference_is_said_when_everything_else_of_the_order_has_arrived() -> None:
    core, (read,) = made(order(1, count=2))
    for sums in ((11, 7), (7,)):
        assert ballots(core) == ()
        (read,) = lands(core, read, *sums)
    assert ballots(core) == ()
    assert lands(core, read, 7) == []
    (ballot,) = ballots(core)
    assert (ballot.vote, ballot.suspects) == (Vote.DIFFERED, (Suspect(0, KV, (1,)),))


def test_what_follows_reads_only_what_differed() -> None:
    core, (first,) = made(order(1, count=2))
    read = first
    for sums in ((11, 7), (7,)):
        (read,) = lands(core, read, *sums)
    lands(core, read, 7)
    (again,) = core.step(
        StepPlan(Seq(3), fetch=(order(2, count=2, follows=1, only=(Suspect(0, KV, (1,)),)),)), T0
    )
    assert nbytes(again) * 2 == nbytes(first)
    assert lands(core, again, 22) == []
    assert [b.vote for b in ballots(core) if b.order == 2] == [Vote.ARRIVED]


def test_a_rank_without_a_part_in_what_differed_has_it_all() -> None:
    core, _ = made()
    assert (
        core.step(StepPlan(Seq(3), fetch=(order(2, follows=1, only=(Suspect(9, KV, (0,)),)),)), T0)
        == []
    )
    assert [b.vote for b in ballots(core)] == [Vote.ARRIVED]


@pytest.mark.parametrize("outcome", [ReadOutcome.FAILED, ReadOutcome.UNKNOWN])
def test_a_read_that_fails_is_said_at_once(outcome: ReadOutcome) -> None:
    core, effects = made(order(1), order(2, first=1))
    first, _ = effects
    for _ in range(MAX_TRIES if outcome is ReadOutcome.FAILED else 1):
        assert isinstance(first, Read)
        assert ballots(core) == ()
        first, *_ = [*core.step(ReadEnded(first.handle, outcome, "x"), T0), None]
    assert [(b.order, b.vote, b.suspects) for b in ballots(core)] == [(1, Vote.FAILED, ())]


def test_a_dropped_room_starts_nothing_afterwards() -> None:
    core, _ = made(order(1))
    assert core.step(StepPlan(Seq(3), drop=(KEY,)), T0) == [CancelRead(Handle(1))]
    assert core.step(ReadEnded(Handle(1), ReadOutcome.FAILED, "cancelled"), T0) == []
    report = report_of(core)
    assert report is not None
    assert (report.quiet, report.ballots) == ((KEY,), ())


# ---- patient orders -----------------------------------------------------------------------------


def of_two(
    number: int = 1, *, patient: bool = True, tell: bool = True
) -> tuple[RankCore, list[RankEffect]]:
    """Two blocks from two source ranks, half of the heads from each; the legs' sums are 11, 22 and
    33, 44."""
    ours, one = manifest("prefill", 3), manifest("decode", 2)
    other = replace(one.ranks[0], boot=Boot(12), rank=1, tp_rank=1)
    theirs = replace(one, tp=2, ranks=(one.ranks[0], other))
    core = RankCore(rank=0, boot=Boot(3), placements=[ours.placement(0)], seal=True)
    core.step(StepPlan(Seq(1), connect=(ConnectOrder(theirs, "shm"),)), T0)
    for rank in theirs.ranks:
        core.step(Connected(RankId(Boot(2), rank.boot, rank.rank), ""), T0)
    run = BlockRun(0, 2, (Page(3), Page(4)))
    sums = tuple(
        LegSums(leg, KV, (0, 1), (Seal(22 * leg + 11), Seal(22 * leg + 22))) for leg in (0, 1)
    )
    fetch = Fetch(
        number, None, (), KEY, Boot(2), 8, {KV: run}, sums, 1000, tell=tell, patient=patient
    )
    report_of(core)
    return core, core.step(
        StepPlan(Seq(2), hold=(Hold(KEY, {KV: (Page(5), Page(6))}),), fetch=(fetch,)), T0
    )


def arrives(core: RankCore, read: RankEffect, units: list[list[int]]) -> list[RankEffect]:
    """A read ends well; what it brought sums to that, by block and unit."""
    assert isinstance(read, Read)
    (digest,) = core.step(ReadEnded(read.handle, ReadOutcome.OK, ""), T0)
    assert isinstance(digest, Digest)
    return core.step(DigestDone(digest.order.job, np.array(units, dtype=np.uint64)), T0)


def test_what_blocks_sum_to_is_said_with_the_vote_each_unit_by_the_leg_that_brought_it() -> None:
    core, (first, second) = of_two()
    arrives(core, second, [[99, 99, 30, 3], [99, 99, 40, 4]])  # the other half has not come yet
    assert ballots(core) == ()
    arrives(core, first, [[10, 1, 77, 77], [20, 2, 77, 77]])
    (ballot,) = ballots(core)
    assert ballot.vote is Vote.ARRIVED
    found = np.frombuffer(ballot.sums[KV], dtype=np.uint64).reshape(2, 4)
    assert found.tolist() == [[10, 1, 30, 3], [20, 2, 40, 4]]


def test_nothing_is_said_of_sums_that_nobody_asked_for() -> None:
    core, (first, second) = of_two(tell=False)
    arrives(core, first, [[10, 1, 0, 0], [20, 2, 0, 0]])
    arrives(core, second, [[0, 0, 30, 3], [0, 0, 40, 4]])
    (ballot,) = ballots(core)
    assert (ballot.vote, ballot.sums) == (Vote.ARRIVED, {})


@pytest.mark.parametrize("last", ["ended", "released", "hashed"])
def test_a_patient_order_that_fails_is_voted_on_when_nothing_touches_its_pages(last: str) -> None:
    core, (first, second) = of_two()
    assert isinstance(first, Read)
    assert isinstance(second, Read)
    assert core.step(ReadEnded(first.handle, ReadOutcome.FAILED, "x"), T0) == [], (
        "it is not read again"
    )
    assert ballots(core) == ()
    match last:
        case "ended":
            core.step(ReadEnded(second.handle, ReadOutcome.FAILED, "y"), T0)
        case "released":
            core.step(ReadEnded(second.handle, ReadOutcome.UNKNOWN, "y"), T0)
            assert ballots(core) == ()
            core.step(Released(second.handle), T0)
        case _:
            (digest,) = core.step(ReadEnded(second.handle, ReadOutcome.OK, ""), T0)
            assert isinstance(digest, Digest)
            assert ballots(core) == ()
            core.step(DigestDone(digest.order.job, np.zeros((2, 4), dtype=np.uint64)), T0)
    (ballot,) = ballots(core)
    assert (ballot.vote, ballot.why, ballot.sums) == (Vote.FAILED, "read failed: x", {})


def test_a_patient_order_that_differs_is_not_read_again() -> None:
    core, (first, second) = of_two()
    assert arrives(core, first, [[10, 1, 0, 0], [20, 9, 0, 0]]) == []
    assert ballots(core) == ()
    assert arrives(core, second, [[0, 0, 30, 3], [0, 0, 40, 4]]) == []
    (ballot,) = ballots(core)
    assert (ballot.vote, ballot.suspects, ballot.sums) == (
        Vote.DIFFERED,
        (Suspect(0, KV, (1,)),),
        {},
    )


def test_an_impatient_one_is_said_to_have_failed_at_once_and_a_late_release_changes_nothing() -> (
    None
):
    core, (first, second) = of_two(patient=False)
    assert isinstance(second, Read)
    core.step(ReadEnded(second.handle, ReadOutcome.UNKNOWN, "x"), T0)
    assert [b.vote for b in ballots(core)] == [Vote.FAILED]
    core.step(Released(second.handle), T0)
    assert isinstance(first, Read)
    assert core.step(ReadEnded(first.handle, ReadOutcome.OK, ""), T0) == []
    assert ballots(core) == ()
