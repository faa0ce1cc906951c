"""The gateway's pump over a front and lines that a test scripts."""

from typing import Any

import structlog

from baton.core.ids import Boot, Micros
from baton.core.messages import AnyMessage, Paired, Unpaired
from baton.core.session.session import MessageReceived
from baton.shell.gateway_pump import GatewayPump

PREFILL, DECODE = Boot(1), Boot(2)


class Clock:
    def now(self) -> Micros:
        return Micros(0)


class Lines:
    """What comes in is put into `inbox`."""

    def __init__(self) -> None:
        self.inbox: list[AnyMessage] = []

    def receive(self) -> list[MessageReceived]:
        found, self.inbox = [MessageReceived(DECODE, m) for m in self.inbox], []
        return found

    def flush(self) -> None:
        pass

    def timer(self) -> None:
        return None


class Front:
    """Keeps the last word about each pair, as the real one does."""

    def __init__(self) -> None:
        self.why: dict[Boot, str] = {}

    def step(self, event: Any, now: Micros) -> list[Any]:
        match event.message:
            case Unpaired() as message:
                self.why[message.prefill] = message.why
            case Paired() as message:
                self.why.pop(message.prefill, None)
        return []

    def refusals(self) -> list[str]:
        return list(self.why.values())

    def next_wake(self) -> None:
        return None


def test_a_pair_that_does_not_fit_is_told_once_however_often_it_tries() -> None:
    lines = Lines()
    front: Any = Front()
    pump = GatewayPump(core=front, front=front, lines=lines, clock=Clock(), say=lambda heard: None)
    with structlog.testing.capture_logs() as logged:
        for message in (
            *[Unpaired(PREFILL, "dtype differs")] * 3,
            Unpaired(PREFILL, "weights differ"),
            Paired(PREFILL, "shm"),
            Unpaired(PREFILL, "dtype differs"),
        ):
            lines.inbox.append(message)
            pump.turn()
    told = [line["why"] for line in logged if line["event"] == "pair_refused"]
    assert told == ["dtype differs", "weights differ", "dtype differs"]
