"""One rank by itself: an order that replaces another begins when nothing of the other can land any more."""

import pytest
from tests.core.build import KV, key, manifest

from baton.core.agreement import Fetch, Hold, Meet, StepPlan
from baton.core.ids import Boot, Page, RankId, Seal, Seq
from baton.core.messages import BlockRun, LegSums
from baton.core.rank import RankCore
from baton.core.rank_effects import CancelRead, Connect, Read
from baton.core.work import Ended, Handle, Outcome, Released

KEY = key()


def order(number: int, *, replaces: int | None) -> Fetch:
    run = BlockRun(0, 1, (Page(3),))
    return Fetch(number, replaces, KEY, Boot(2), 4, {KV: run}, (LegSums(0, KV, (0,), (Seal(1),)),), 1000)


@pytest.fixture
def rank() -> RankCore:
    ours, theirs = manifest("decode", 3), manifest("prefill", 2)
    core = RankCore(rank=0, boot=Boot(3), placements=[ours.placement(0)], seal=True)
    (connect,) = core.apply(StepPlan(Seq(1), meet=(Meet(theirs, "shm"),)))
    assert isinstance(connect, Connect)
    core.connected(RankId(Boot(2), Boot(2), 0), "")
    (read,) = core.apply(StepPlan(Seq(2), hold=(Hold(KEY, {KV: (Page(5),)}),), fetch=(order(1, replaces=None),)))
    assert isinstance(read, Read)
    return core


def test_a_replacement_waits_for_the_reads_of_what_it_replaces(rank: RankCore) -> None:
    assert rank.apply(StepPlan(Seq(3), fetch=(order(2, replaces=1),))) == [CancelRead(Handle(1))]
    (read,) = rank.ended(Ended(Handle(1), Outcome.FAILED, "cancelled"))
    assert isinstance(read, Read)
    assert read.handle == Handle(2)


def test_it_waits_for_their_release_where_an_end_promises_nothing(rank: RankCore) -> None:
    rank.apply(StepPlan(Seq(3), fetch=(order(2, replaces=1),)))
    assert rank.ended(Ended(Handle(1), Outcome.UNKNOWN, "torn down")) == []
    (read,) = rank.released(Released(Handle(1)))
    assert isinstance(read, Read)


def test_a_replacement_that_is_replaced_hands_on_whom_it_waits_for(rank: RankCore) -> None:
    rank.apply(StepPlan(Seq(3), fetch=(order(2, replaces=1),)))
    assert rank.apply(StepPlan(Seq(4), fetch=(order(3, replaces=2),))) == []
    (read,) = rank.ended(Ended(Handle(1), Outcome.FAILED, "cancelled"))
    assert isinstance(read, Read)
    assert rank.ended(Ended(read.handle, Outcome.FAILED, "x")) != []  # tried again: it is order 3's own


def test_a_dropped_room_starts_nothing_afterwards(rank: RankCore) -> None:
    rank.apply(StepPlan(Seq(3), fetch=(order(2, replaces=1),)))
    rank.apply(StepPlan(Seq(4), drop=(KEY,)))
    assert rank.ended(Ended(Handle(1), Outcome.FAILED, "cancelled")) == []
    report = rank.report()
    assert report is not None
    assert report.quiet == (KEY,)
