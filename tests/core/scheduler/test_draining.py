"""A worker that drains: what it tells gateways, when it leaves, and what it still serves."""

from typing import Any

import pytest
from tests.core.build import manifest, settings, ticket
from tests.core.driven import Driven

from baton.core.effects import Effect, Leave, Send
from baton.core.events import DrainAsked, GatewayConnected, MessageReceived, PeerLost, TimerDue
from baton.core.ids import Boot, Micros
from baton.core.messages import Abort, Credits, Drain, LedgerView
from baton.core.scheduler.draining import LINGER_US
from baton.core.scheduler.leader import Leader

GATEWAY, OTHER, U = Boot(1), Boot(7), Boot(2)


class Draining:
    """A unified leader of one rank; its ranks do nothing unless `quiet` says that they have."""

    def __init__(self, *gateways: Boot) -> None:
        self.leader: Any = Driven(
            Leader(manifest("unified", U), settings(), {"full": 16})  # type: ignore[dict-item]
        )
        self.now = 0
        for gateway in gateways:
            self.step(GatewayConnected(gateway))

    def step(self, event: Any, after_us: int = 0) -> list[Effect]:
        self.now += after_us
        self.leader.step(event, Micros(self.now))
        found: list[Effect] = self.leader.effects()
        return found

    def until_told(self) -> list[Credits]:
        """What gateways hear once the pause between two statements is over."""
        return statements(self.step(TimerDue(), 25_000))


def statements(effects: list[Effect]) -> list[Credits]:
    said = [e.message for e in effects if isinstance(e, Send)]
    return [m for m in said if isinstance(m, Credits)]


def leaves(effects: list[Effect]) -> list[str | None]:
    return [e.role for e in effects if isinstance(e, Leave)]


def test_gateways_are_told_and_it_leaves_when_no_ticket_can_be_under_way() -> None:
    worker = Draining(GATEWAY, OTHER)
    worker.until_told()
    assert leaves(worker.step(DrainAsked())) == []
    assert [said.draining for said in worker.until_told()] == [True, True]
    early = worker.step(TimerDue(), LINGER_US - 25_001)
    assert leaves(early) == []
    assert worker.leader.next_wake() == worker.now + 1
    assert leaves(worker.step(TimerDue(), 1)) == [None]
    assert leaves(worker.step(TimerDue(), 1)) == [], "it leaves once"


def test_a_gateway_that_comes_later_is_told_as_well() -> None:
    worker = Draining(GATEWAY)
    worker.step(MessageReceived(GATEWAY, ticket(1, prefill=U, decode=U)))
    worker.step(DrainAsked())
    worker.until_told()
    worker.step(GatewayConnected(OTHER))
    assert [said.draining for said in worker.until_told()] == [True, True]


def test_it_leaves_at_once_if_nobody_can_send_it_anything() -> None:
    alone = Draining()
    assert leaves(alone.step(DrainAsked())) == []
    assert alone.leader.next_wake() == alone.now
    assert leaves(alone.step(TimerDue())) == [None]
    worker = Draining(GATEWAY)
    worker.step(DrainAsked())
    assert leaves(worker.step(PeerLost(GATEWAY, "it ended"), 10)) == []
    assert leaves(worker.step(TimerDue(), LINGER_US)) == [None]


@pytest.mark.parametrize("before", [True, False])
def test_requests_that_it_has_and_those_under_way_are_served_first(before: bool) -> None:
    worker = Draining(GATEWAY)
    events = [MessageReceived(GATEWAY, ticket(1, prefill=U, decode=U)), DrainAsked()]
    for event in events if before else reversed(events):
        worker.step(event, 100)
    for _ in range(5):
        assert leaves(worker.step(TimerDue(), LINGER_US)) == []
    (room,) = worker.leader.worker.rooms.values()
    worker.step(MessageReceived(GATEWAY, Abort(room.key, "enough")), 100)
    worker.leader.worker.forget(room)
    assert leaves(worker.step(TimerDue(), LINGER_US - 1)) == [], "only now nothing is open"
    assert leaves(worker.step(TimerDue(), LINGER_US)) == [None]


def test_an_operator_may_want_it_back_in_another_role() -> None:
    worker = Draining(GATEWAY)
    said = worker.step(MessageReceived(GATEWAY, Drain(5, "decode")))
    assert [
        e.message.question
        for e in said
        if isinstance(e, Send) and isinstance(e.message, LedgerView)
    ] == [5]
    assert leaves(worker.step(TimerDue(), LINGER_US)) == ["decode"]


def test_only_gateways_can_ask_for_it() -> None:
    worker = Draining(GATEWAY)
    assert worker.step(MessageReceived(Boot(99), Drain(5))) == []
    assert not worker.leader.worker.draining.on


def test_tickets_that_have_come_are_looked_at_before_it_leaves() -> None:
    """A process may have stood still: its timer has long been due, and more than one message waits.
    Found by the simulator: it left at the first of them."""
    worker = Draining(GATEWAY)
    worker.step(DrainAsked())
    late = worker.step(MessageReceived(GATEWAY, Drain(5)), 10 * LINGER_US)
    assert leaves(late) == []
    worker.step(MessageReceived(GATEWAY, ticket(1, prefill=U, decode=U)))
    assert leaves(worker.step(TimerDue())) == []
