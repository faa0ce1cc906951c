"""A prefill worker that is introduced is paired in time, or its decode worker forgets it and says
why."""

import pytest
from tests.core.build import KV, manifest, settings
from tests.core.driven import Driven

from baton.core.agreement import ConnectResult, Report
from baton.core.effects import Dial, HangUp, Issue, Send
from baton.core.events import (
    GatewayConnected,
    MessageReceived,
    PeerConnected,
    PeerLost,
    RankReported,
    TimerDue,
)
from baton.core.ids import Boot, Micros, Rank
from baton.core.marks import Mark
from baton.core.messages import Hello, HelloBack, Introduce, Paired, Unpaired
from baton.core.scheduler.leader import Leader
from baton.core.scheduler.pairs import Pairing

GATEWAY, PREFILL, DECODE = Boot(1), Boot(2), Boot(3)
PAIR_US = 10_000_000


def introduced() -> Driven:
    """A decode leader that has been told of a prefill worker at time 0."""
    leader = Driven(Leader(manifest("decode", DECODE), settings("d"), {KV: 16}))
    leader.step(GatewayConnected(GATEWAY), Micros(0))
    leader.step(
        MessageReceived(GATEWAY, Introduce(PREFILL, "tcp://p", manifest("prefill", PREFILL))),
        Micros(0),
    )
    return leader


def met(leader: Driven, now: int) -> None:
    """Its rank has connected."""
    chain = leader.worker.agreement.chain
    report = Report(
        Rank(0), DECODE, chain.seq, chain.value, (), (), (), (ConnectResult(PREFILL, ""),), (), 0
    )
    leader.step(RankReported(report), Micros(now))


def pairing_timer(leader: Driven) -> int | None:
    """When it wants to be called, less what it wants to tell the gateway of its credits."""
    credits_due = leader._books.news.timer()
    due = leader.next_wake()
    return leader.stage(Pairing).timer() if credits_due == due else due


def said(leader: Driven) -> list[object]:
    return [
        e.message
        for e in leader.effects()
        if isinstance(e, Send) and isinstance(e.message, Paired | Unpaired | Hello)
    ]


def test_who_never_answers_is_forgotten_with_its_connections_and_its_link():
    leader = introduced()
    assert any(isinstance(effect, Dial) for effect in leader.effects())
    assert pairing_timer(leader) == PAIR_US
    leader.step(TimerDue(), Micros(PAIR_US - 1))
    assert said(leader) == []
    leader.step(TimerDue(), Micros(PAIR_US))
    effects = leader.effects()
    assert (
        Send(GATEWAY, Unpaired(PREFILL, "not paired in 10000 ms: its leader has not answered"))
        in effects
    )
    assert HangUp(PREFILL) in effects
    assert [e.plan.disconnect for e in effects if isinstance(e, Issue)] == [(PREFILL,)]
    assert leader.worker.marks[Mark.NOT_PAIRED] == 1
    assert pairing_timer(leader) is None


@pytest.mark.parametrize(
    ("session", "connected", "why"),
    [
        (True, False, "not all ranks have connected to it"),
        (False, True, "its leader has not answered"),
    ],
)
def test_what_was_lacking_is_said(session, connected, why):
    leader = introduced()
    if session:
        leader.step(PeerConnected(PREFILL), Micros(1))
    if connected:
        met(leader, 1)
    leader.step(TimerDue(), Micros(PAIR_US))
    assert said(leader) == [Unpaired(PREFILL, f"not paired in 10000 ms: {why}")]


def test_who_does_not_answer_hello_is_given_up_too():
    leader = introduced()
    leader.step(PeerConnected(PREFILL), Micros(1))
    met(leader, 1)
    assert len(said(leader)) == 1
    leader.step(TimerDue(), Micros(PAIR_US))
    assert said(leader) == [Unpaired(PREFILL, "not paired in 10000 ms: it has not answered Hello")]


def test_who_was_paired_in_time_has_all_the_time_there_is():
    leader = introduced()
    leader.step(PeerConnected(PREFILL), Micros(1))
    met(leader, 1)
    (hello,) = said(leader)
    leader.step(MessageReceived(PREFILL, HelloBack(hello.plan)), Micros(2))
    assert said(leader) == [Paired(PREFILL, "shm")]
    assert pairing_timer(leader) is None
    leader.step(TimerDue(), Micros(PAIR_US))
    assert said(leader) == []


def test_who_is_not_there_is_forgotten_at_once_and_may_be_introduced_again():
    leader = introduced()
    leader.effects()
    leader.step(PeerLost(PREFILL, "boot 9 answered, 2 was expected"), Micros(5))
    assert said(leader) == [Unpaired(PREFILL, "boot 9 answered, 2 was expected")]
    assert leader.worker.marks[Mark.NOT_THERE] == 1
    leader.step(
        MessageReceived(GATEWAY, Introduce(PREFILL, "tcp://p", manifest("prefill", PREFILL))),
        Micros(7),
    )
    assert any(isinstance(effect, Dial) for effect in leader.effects())
    assert pairing_timer(leader) == 7 + PAIR_US
