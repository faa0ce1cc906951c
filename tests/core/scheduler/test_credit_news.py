"""When a worker says what it can take."""

from tests.core.build import KV

from baton.core.ids import Boot, Micros
from baton.core.messages import Credits
from baton.core.scheduler.credit_news import PERIOD, CreditNews

CREDITS = Credits(0, Boot(2), {KV: 16}, {KV: 16}, waiting=0, running=0)


def test_a_gateway_that_comes_is_told_at_once_though_nobody_was_there_to_be_told_a_moment_ago() -> (
    None
):
    news, now = CreditNews(), Micros(10 * PERIOD)
    assert news.due(lambda: CREDITS, now) == []
    news.joined(Boot(1))
    assert [(to, said.free_pages) for to, said in news.due(lambda: CREDITS, now)] == [(1, {KV: 16})]
