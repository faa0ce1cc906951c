"""Whom prefill hands over to."""

from tests.core.build import manifest, settings
from tests.core.driven import T0

from baton.core.effects import Send
from baton.core.events import MessageReceived
from baton.core.ids import Boot
from baton.core.messages import Hello, Refused
from baton.core.scheduler.leader import Leader
from baton.core.scheduler.offering import Offering

P, D = Boot(2), Boot(3)


def test_a_decode_worker_that_reads_by_another_plan_is_refused() -> None:
    """The two would take different bytes for the same block."""
    leader = Leader(manifest("prefill", P), settings(), {"full": 16})
    other = "ab" * 16
    said = [
        e
        for e in leader.step(MessageReceived(D, Hello(manifest("decode", D), other)), T0)
        if isinstance(e, Send)
    ]
    (refused,) = [send.message for send in said if send.to == D]
    assert isinstance(refused, Refused)
    assert "plan digest differs" in refused.why
    assert other in refused.why
    assert not leader.stage(Offering).pairs_with(D)
