"""The raylet, Ray's daemon of a node: whether it has ended.

The kernel tells at once. Ray itself notices after many seconds, when the control plane misses it.
"""

import os
import select
import socket
import struct
from typing import Self

CREDENTIALS = struct.Struct("3i")  # process, user and group of the other end of a Unix socket


LOST = "Ray's daemon of this node (raylet) has ended; start it, and then Baton again"


class Raylet:
    """A raylet of this machine. Any thread may ask."""

    def __init__(self, pid: int) -> None:
        """Watch the process `pid`; 0 = one that this process cannot see, which never ends.

        Raises:
            ProcessLookupError: there is no such process
        """
        self._watched = [os.pidfd_open(pid)] if pid else []

    @classmethod
    def at(cls, path: str) -> Self:
        """Watch the one that listens at this Unix socket.

        Raises:
            OSError: nobody listens there, or has ended since
        """
        with socket.socket(socket.AF_UNIX) as asked:
            asked.connect(path)
            said = asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        return cls(CREDENTIALS.unpack(said)[0])

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return bool(select.select(self._watched, [], [], 0)[0])

    def wait(self) -> None:
        """Wait until it has ended."""
        select.select(self._watched, [], [])
