"""What signals ask of the process of a rank.

SIGTERM          drain: take no more requests, finish those that are here, then end
--drain-timeout later, a second SIGTERM, or SIGINT          end at once
"""

import signal
import time
from collections.abc import Callable
from types import FrameType

from baton.core.ids import Micros


class AskedToEnd:
    """Takes SIGTERM and SIGINT from now on, until `release`.

    Args:
        drain_timeout_s: how long requests may go on after SIGTERM; 0 = not at all
        wake: called when a signal has come
    """

    def __init__(self, drain_timeout_s: float, wake: Callable[[], None]) -> None:
        self._timeout_s, self._wake = drain_timeout_s, wake
        self._end_at: float | None = None  # monotonic seconds
        self._before = {
            number: signal.signal(number, self._on_signal)
            for number in (signal.SIGTERM, signal.SIGINT)
        }

    def release(self) -> None:
        """Put back what took the signals before: a worker that loads ends at the first one."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        drains = number == signal.SIGTERM and self._end_at is None
        self._end_at = time.monotonic() + (self._timeout_s if drains else 0.0)
        self._wake()

    @property
    def to_drain(self) -> bool:
        """Whether any signal has come."""
        return self._end_at is not None

    @property
    def to_end(self) -> bool:
        """Whether the process is to end now, whatever is open."""
        return self._end_at is not None and time.monotonic() >= self._end_at

    def sooner(self, sleep: Micros | None) -> Micros | None:
        """Return how long the process may sleep, which wants to sleep for so long (None: until
        woken)."""
        if self._end_at is None:
            return sleep
        left = Micros(max(0, round((self._end_at - time.monotonic()) * 1e6)))
        return left if sleep is None else min(sleep, left)
