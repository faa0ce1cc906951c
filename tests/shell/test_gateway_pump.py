"""The gateway's pump over a front and lines that a test scripts."""

import structlog

from baton.core.ids import Boot, Micros
from baton.core.messages import AnyMessage, Paired, Unpaired
from baton.core.session import Received
from baton.shell.gateway_pump import GatewayPump

PREFILL, DECODE = Boot(1), Boot(2)


class Clock:
    def now(self) -> Micros:
        return Micros(0)


class Lines:
    """What comes in is put into `inbox`."""

    def __init__(self) -> None:
        self.inbox: list[AnyMessage] = []

    def receive(self) -> list[Received]:
        found, self.inbox = [Received(DECODE, m) for m in self.inbox], []
        return found

    def flush(self) -> None:
        pass

    def timer(self) -> None:
        return None


class Front:
    """Keeps the last word about each pair, as the real one does."""

    def __init__(self) -> None:
        self.why: dict[Boot, str] = {}

    def receive(self, sender: Boot, message: AnyMessage, now: Micros) -> None:
        match message:
            case Unpaired():
                self.why[message.prefill] = message.why
            case Paired():
                self.why.pop(message.prefill, None)

    def refusals(self) -> list[str]:
        return list(self.why.values())

    def timer(self) -> None:
        return None

    def effects(self) -> list[object]:
        return []


def test_a_pair_that_does_not_fit_is_told_once_however_often_it_tries() -> None:
    lines = Lines()
    pump = GatewayPump(front=Front(), lines=lines, clock=Clock(), say=lambda heard: None)
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
