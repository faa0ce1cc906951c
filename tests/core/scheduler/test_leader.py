"""When a leader is to be woken."""

from tests.core.handoff.test_progress import PATIENCE, prefill

from baton.core.handoff.progress import SHARE
from baton.core.ids import Micros
from baton.core.messages import Credits, Progress
from baton.core.scheduler.credit_news import PERIOD


def test_it_is_woken_for_the_first_of_several_things_that_are_due() -> None:
    bench = prefill()
    bench.leader.worker.progress.did(Micros(0))
    bench.wait_until(PERIOD)
    assert bench.said(Credits)
    assert not bench.said(Progress)
    bench.wait_until(PATIENCE // SHARE)
    assert bench.said(Progress)
