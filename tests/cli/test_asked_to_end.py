"""What signals ask of a worker: to drain first, and to end at once when it is told again."""

import os
import signal
from collections.abc import Iterator

import pytest

from baton.cli.asked_to_end import AskedToEnd
from baton.core.ids import Micros


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Process:
    """This one."""

    def __init__(self, drain_timeout_s: float) -> None:
        self.wakes = 0
        self.asked = AskedToEnd(drain_timeout_s, self._wake)

    def _wake(self) -> None:
        self.wakes += 1

    def gets(self, number: signal.Signals) -> tuple[bool, bool]:
        os.kill(os.getpid(), number)
        return self.asked.to_drain, self.asked.to_end


def test_nothing_is_asked_before_a_signal() -> None:
    asked = Process(60).asked
    assert (asked.to_drain, asked.to_end) == (False, False)
    assert asked.sooner(None) is None
    assert asked.sooner(Micros(5)) == 5


def test_the_first_sigterm_drains_and_the_second_ends() -> None:
    process = Process(60)
    assert process.gets(signal.SIGTERM) == (True, False)
    sleep = process.asked.sooner(None)
    assert sleep is not None
    assert 0 < sleep <= 60_000_000, "it wakes when the time is over"
    assert process.asked.sooner(Micros(5)) == 5
    assert process.gets(signal.SIGTERM) == (True, True)
    assert process.asked.sooner(None) == 0
    assert process.wakes == 2


@pytest.mark.parametrize("before", [(), (signal.SIGTERM,)])
def test_ctrl_c_ends_at_once(before: tuple[signal.Signals, ...]) -> None:
    process = Process(60)
    for number in before:
        process.gets(number)
    assert process.gets(signal.SIGINT) == (True, True)


def test_without_time_to_drain_the_first_one_ends() -> None:
    assert Process(0).gets(signal.SIGTERM) == (True, True)


def test_released_the_signals_are_no_longer_taken() -> None:
    """A worker that begins again in another role loads first, and must end at a signal then."""
    before = signal.getsignal(signal.SIGTERM)
    asked = AskedToEnd(60, lambda: None)
    assert signal.getsignal(signal.SIGTERM) != before
    asked.release()
    assert signal.getsignal(signal.SIGTERM) == before
