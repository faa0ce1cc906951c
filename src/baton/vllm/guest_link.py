"""The link between vLLM's scheduler and the leader, which runs with rank 0: a pair of sockets on
one machine.

    scheduler ──GuestAllocated, -Scheduled, -Computes, -Finished──▶ leader
              ◀──────────────TellEngine, Evict────────────────────┘
"""

import shutil
import tempfile
from collections import deque
from typing import Generic, TypeVar

import msgspec
import zmq

from baton.core.effects import GuestNews
from baton.core.events import GuestEvent

In = TypeVar("In")
Out = TypeVar("Out")


class _End(Generic[In, Out]):
    def __init__(self, reads: type[In]) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        # Nothing is dropped: what waits is bounded by the engine's own number of requests.
        self._socket.set_hwm(0)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._decoder: msgspec.msgpack.Decoder[In] = msgspec.msgpack.Decoder(reads)
        self._encoder = msgspec.msgpack.Encoder()
        self._waiting: deque[bytes] = deque()  # until the other end is connected

    def _send(self, message: Out) -> None:
        self._waiting.append(self._encoder.encode(message))
        self._flush()

    def _flush(self) -> None:
        while self._waiting:
            try:
                self._socket.send(self._waiting[0], zmq.NOBLOCK)
            except zmq.Again:
                return
            self._waiting.popleft()

    def _receive(self) -> list[In]:
        self._flush()
        found = []
        while True:
            try:
                found.append(self._decoder.decode(self._socket.recv(zmq.NOBLOCK)))
            except zmq.Again:
                return found

    def close(self) -> None:
        """Close the socket."""
        self._context.destroy(linger=0)


class LeaderEnd(_End[GuestEvent, GuestNews]):
    """Implements ports.guest.GuestLink."""

    def __init__(self) -> None:
        super().__init__(GuestEvent)  # type: ignore[arg-type]
        # only this user can reach a socket in it
        self._directory = tempfile.mkdtemp(prefix="baton-")
        self.address = f"ipc://{self._directory}/leader"
        self._socket.bind(self.address)

    def events(self) -> list[GuestEvent]:
        return self._receive()

    def tell(self, news: GuestNews) -> None:
        self._send(news)

    def fileno(self) -> int:
        return int(self._socket.getsockopt(zmq.FD))

    def close(self) -> None:
        super().close()
        shutil.rmtree(self._directory, ignore_errors=True)


class SchedulerEnd(_End[GuestNews, GuestEvent]):
    """Implements ports.guest.SchedulerLink."""

    def __init__(self, address: str) -> None:
        super().__init__(GuestNews)  # type: ignore[arg-type]
        self._socket.connect(address)

    def say(self, event: GuestEvent) -> None:
        self._send(event)

    def news(self) -> list[GuestNews]:
        return self._receive()
