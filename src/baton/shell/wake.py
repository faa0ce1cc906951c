"""Waking a sleeping pump from another thread."""

import os
import select

from baton.core.ids import Micros


class Wake:
    """An eventfd. A call from any thread makes `fileno` readable until `clear`."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def __call__(self) -> None:
        """Wake the pump; has no effect after `close`."""
        if self._fd >= 0:
            os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        """Make `fileno` unreadable again."""
        if select.select([self._fd], [], [], 0)[0]:
            os.eventfd_read(self._fd)

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._fd

    def close(self) -> None:
        """Close the descriptor."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def sleep_until(filenos: tuple[int, ...], timeout: Micros | None) -> None:
    """Sleep until one of the descriptors is readable, at most `timeout` microseconds (None: for
    ever)."""
    poll = select.poll()
    for fd in filenos:
        poll.register(fd, select.POLLIN)
    # Rounded up: with a timeout of 0 ms for a timer that is 0.3 ms away, the pump would spin.
    poll.poll(None if timeout is None else -(-timeout // 1000))
