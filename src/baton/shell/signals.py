"""Turns signals into something to poll for, instead of interrupts."""

import signal
import socket
from types import FrameType, TracebackType
from typing import Self


class Signals:
    """A context manager that collects the given signals; on exit it restores the previous handlers.

    Use it in the main thread only. A SIGHUP that the process ignores, as under nohup, stays
    ignored. SIGINT is collected even if it was ignored: shells make background processes ignore it,
    but a user who sends it to a service with `kill` means it.
    """

    def __init__(self, *wanted: signal.Signals) -> None:
        self._wanted = [
            s for s in wanted if s is not signal.SIGHUP or signal.getsignal(s) is not signal.SIG_IGN
        ]
        self._ours, self._kernels = socket.socketpair()
        for end in (self._ours, self._kernels):
            end.setblocking(False)

    def __enter__(self) -> Self:
        self._before = {s: signal.signal(s, _nothing) for s in self._wanted}
        self._waker = signal.set_wakeup_fd(self._kernels.fileno(), warn_on_full_buffer=False)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        signal.set_wakeup_fd(self._waker)
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        self._ours.close()
        self._kernels.close()

    def fileno(self) -> int:
        """Return a descriptor that polls readable when a signal has come."""
        return self._ours.fileno()

    def take(self) -> list[signal.Signals]:
        """Return the signals that have come since the last call."""
        try:
            numbers = self._ours.recv(4096)
        except BlockingIOError:
            return []
        return [s for number in numbers for s in self._wanted if s == number]


def _nothing(signum: int, frame: FrameType | None) -> None:
    """Do nothing: the byte that the interpreter writes to the wakeup socket tells of the signal."""
