"""When a worker says what it can take."""

from msgspec.structs import replace
from tests.core.build import KV

from baton.core.ids import Boot, Micros
from baton.core.messages import Credits
from baton.core.prefill_cost import Backlog, PrefillCost
from baton.core.scheduler.credit_news import PERIOD, CreditNews

CREDITS = Credits(0, Boot(2), {KV: 16}, {KV: 16}, waiting=0, running=0)


def test_a_gateway_that_comes_is_told_at_once_though_nobody_was_there_to_be_told_a_moment_ago() -> (
    None
):
    news, now = CreditNews(), Micros(10 * PERIOD)
    assert news.due(lambda: CREDITS, now) == []
    news.joined(Boot(1))
    assert [(to, said.free_pages) for to, said in news.due(lambda: CREDITS, now)] == [(1, {KV: 16})]


def test_that_less_is_to_be_computed_or_that_it_costs_less_is_no_news() -> None:
    """The receiver knows how fast it gets less."""
    news, busy = CreditNews(), replace(CREDITS, backlog=Backlog(2, 900, 400_000))
    news.joined(Boot(1))
    assert len(news.due(lambda: busy, Micros(PERIOD))) == 1
    less = replace(CREDITS, backlog=Backlog(2, 500, 200_000), prefill_cost=PrefillCost(1.0, 2.0))
    assert news.due(lambda: less, Micros(9 * PERIOD)) == []
    assert news.timer() is None
    other = replace(less, free_pages={KV: 15})
    ((_, said),) = news.due(lambda: other, Micros(9 * PERIOD))
    assert (said.backlog, said.prefill_cost) == (less.backlog, less.prefill_cost), (
        "with other news it is said"
    )


def test_that_a_prompt_is_computed_is_news() -> None:
    """A gateway that is not told takes the worker for stuck."""
    news, busy = CreditNews(), replace(CREDITS, backlog=Backlog(2, 900, 400_000))
    news.joined(Boot(1))
    news.due(lambda: busy, Micros(PERIOD))
    less = replace(CREDITS, backlog=Backlog(1, 500, 200_000))
    assert len(news.due(lambda: less, Micros(9 * PERIOD))) == 1


def test_that_a_gateway_was_told_of_cached_pages_is_news() -> None:
    """So that it notices if that was lost."""
    news = CreditNews()
    news.joined(Boot(1))
    news.due(lambda: CREDITS, Micros(PERIOD))
    more = replace(CREDITS, cache_changes=1)
    assert len(news.due(lambda: more, Micros(2 * PERIOD))) == 1
    assert news.due(lambda: more, Micros(3 * PERIOD)) == []
