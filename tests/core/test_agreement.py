"""Plans, chains and the fold: what one rank alone must never decide."""

import msgspec
import pytest

from baton.core.agreement import (
    Agreement,
    Ballot,
    Chain,
    Fetch,
    PlanDraft,
    Report,
    StepPlan,
    Vote,
    fold,
)
from baton.core.errors import Bug
from baton.core.ids import Boot, Epoch, Key, Rank, Room, Seq

KEY = Key(Room("a" * 32), Epoch(1))
FETCH = Fetch(7, None, (), KEY, Boot(9), 5, {}, (), 1000)


def report(
    rank: int, chain: Chain, *, vote: Vote | None = None, quiet: tuple[Key, ...] = ()
) -> Report:
    ballots = (Ballot(7, vote, "", ()),) if vote is not None else ()
    return Report(Rank(rank), Boot(rank), chain.seq, chain.value, ballots, quiet, (), (), (), 0)


def applied(*plans: StepPlan) -> Chain:
    chain = Chain()
    for plan in plans:
        chain.extend(plan)
    return chain


@pytest.mark.parametrize("a", list(Vote))
@pytest.mark.parametrize("b", list(Vote))
def test_fold_is_the_least_sure_of_all_ranks(a: Vote, b: Vote) -> None:
    expected = next(
        v for v in (Vote.FAILED, Vote.WAITING, Vote.DIFFERED, Vote.ARRIVED) if v in (a, b)
    )
    assert fold([a, b]) is expected


def test_a_room_proceeds_only_where_every_rank_has_it() -> None:
    agreement, plan = Agreement(2), StepPlan(Seq(1), fetch=(FETCH,))
    agreement.issue(plan)
    agreement.take(report(0, applied(plan), vote=Vote.ARRIVED))
    assert agreement.verdict(7)[0] is Vote.WAITING
    agreement.take(report(1, applied(plan), vote=Vote.ARRIVED))
    assert agreement.verdict(7)[0] is Vote.ARRIVED


def test_a_rank_that_applied_another_plan_is_named() -> None:
    agreement = Agreement(2)
    agreement.issue(StepPlan(Seq(1), commit=(KEY,)))
    with pytest.raises(Bug, match=r"rank 1 .* diverged at plan 1"):
        agreement.take(report(1, applied(StepPlan(Seq(1), drop=(KEY,)))))


def test_a_vote_is_monotone() -> None:
    agreement, plan = Agreement(1), StepPlan(Seq(1), fetch=(FETCH,))
    agreement.issue(plan)
    agreement.take(report(0, applied(plan), vote=Vote.ARRIVED))
    with pytest.raises(Bug, match="changed its vote"):
        agreement.take(report(0, applied(plan), vote=Vote.FAILED))


def test_quiet_counts_only_from_a_report_that_applied_the_drop() -> None:
    agreement, empty, drop = Agreement(1), StepPlan(Seq(1)), StepPlan(Seq(2), drop=(KEY,))
    agreement.issue(empty)
    agreement.issue(drop)
    agreement.take(report(0, applied(empty), quiet=(KEY,)))
    assert agreement.newly_quiet() == []
    agreement.take(report(0, applied(empty, drop), quiet=(KEY,)))
    assert agreement.newly_quiet() == [KEY]
    assert agreement.newly_quiet() == []


def test_every_field_of_a_plan_is_in_the_chain_and_in_the_draft() -> None:
    draft = PlanDraft()
    assert {f.name for f in msgspec.structs.fields(StepPlan)} == {"seq", *vars(draft)}
    assert not draft
    draft.commit.append(KEY)
    assert draft
    assert applied(StepPlan(Seq(1))).value != applied(draft.finish(Seq(1))).value


def test_plans_are_applied_in_order() -> None:
    with pytest.raises(Bug, match="plan 2 came after plan 0"):
        Chain().extend(StepPlan(Seq(2)))
