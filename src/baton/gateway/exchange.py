"""One HTTP request under way: the part of its answer that has not been written yet.

    core ──hear──▶ Dispatcher ─▶ Exchange ──take──▶ Answer's coroutine ──send──▶ client
                                     └───────────write──▶ Outlet ──────────────────▲

It is filled on the loop by calls that never wait. The coroutine waits for `change`, takes what
there is, and writes it. In the middle of a stream, while the coroutine is idle, new text bypasses
it and goes directly to the connection (outlet.py).
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from baton.core.door import Emit, RequestId
from baton.core.errors import Bug
from baton.core.ids import Key
from baton.core.messages import FinishReason
from baton.gateway.faults import Fault, HttpFault
from baton.gateway.forms import Form
from baton.gateway.stream import TextDelta, TextStream

Headers = tuple[tuple[bytes, bytes], ...]

SSE_HEADERS: Headers = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
JSON_HEADERS: Headers = ((b"content-type", b"application/json"),)


class Exchange:
    """The outgoing side of a request with one or several choices.

    Attributes:
        requests: the core's request numbers of the choices, maintained by the dispatcher
        ended: no more events will come
        gone: the client is gone
        fault: the error to answer, if it came before the first byte
        id: id of the answer, as the client sees it
        keys: last known room and epoch of each choice
        outcome, why: how the request ended, for the log
    """

    __slots__ = (
        *(
            "_idle",
            "_max_pending_bytes",
            "_open",
            "_outlet",
            "_pending",
            "_pending_bytes",
            "_style",
            "_waiter",
            "_written",
        ),
        *("ended", "fault", "gone", "id", "keys", "outcome", "requests", "streams", "why"),
    )

    def __init__(
        self, style: "Style", streams: Sequence[TextStream], *, id: str, max_pending_bytes: int
    ) -> None:
        self.streams = tuple(streams)
        self.id = id
        self.keys: dict[int, Key] = {}
        self.requests: set[RequestId] = set()
        self.ended = False
        self.gone = False
        self.fault: HttpFault | None = None
        self.outcome, self.why = "open", ""
        self._style = style
        self._open = len(self.streams)
        self._max_pending_bytes = max_pending_bytes
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._written = False
        self._waiter: asyncio.Future[None] | None = None
        self._outlet: Outlet | None = None
        self._idle = False  # the coroutine has written everything and waits

    @property
    def headers(self) -> Headers:
        """The headers of an answer with status 200."""
        return self._style.headers

    def note(self, stream: TextStream, key: Key | None) -> None:
        """Note the room and epoch in which a choice is, or was, served."""
        if key is not None:
            self.keys[stream.index] = key

    def emit(self, stream: TextStream, heard: Emit) -> bool:
        """Take tokens of a choice; returns True if a stop
        string ends it (the core does not know yet)."""
        if stream.wrap is not None and (text := stream.fast_text(heard)) is not None:
            self._put(stream.wrap(text) if text else b"")
            return False
        piece = stream.feed(heard)
        if stream.ending is None:
            self._put(self._style.delta(stream, piece))
            return False
        self._end_choice(stream, piece)
        return True

    def finish(self, stream: TextStream, reason: FinishReason) -> None:
        """End a choice without an error."""
        self._end_choice(stream, stream.finish(reason))

    def _end_choice(self, stream: TextStream, piece: TextDelta) -> None:
        self._open -= 1
        data = self._style.ending(stream, piece)
        if self._open == 0:
            data += self._style.closing(self.streams)
            self.ended, self.outcome = True, "served"
        self._put(data)

    def fail(self, fault: HttpFault) -> None:
        """End the request with an error: a status before the first byte, else an error event."""
        if self.ended:
            return
        self.ended, self.outcome = True, fault.fault.code or "error"
        self.why = fault.logged.get("why", "")
        if self._written:
            self._pending.append(self._style.failure(fault))
        else:
            self.fault = fault
        self._wake()

    def abandon(self, outcome: str) -> None:
        """Note that the client is gone, or wants no more."""
        if not self.ended:
            self.ended, self.gone, self.outcome = True, True, outcome
        self._wake()

    def _put(self, data: bytes) -> None:
        if not data:
            return
        if self._idle and self._outlet is not None and not self.ended and self._outlet.write(data):
            return  # the common case: no task has to wake up
        self._pending.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes > self._max_pending_bytes and not self.ended:
            self._pending.clear()
            message = (
                f"more than {self._max_pending_bytes} bytes were waiting to be read by this client"
            )
            self.fail(HttpFault(408, Fault(message, "invalid_request_error", None, "slow_client")))
        self._wake()

    def _wake(self) -> None:
        self._idle = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def pour(self, outlet: "Outlet") -> None:
        """From now on, write to `outlet` directly while
        the coroutine waits and the connection accepts."""
        self._outlet = outlet

    async def change(self) -> None:
        """Wait until there is something to take, a fault, or the end."""
        while not (self._pending or self.ended):
            self._waiter, self._idle = asyncio.get_running_loop().create_future(), True
            await self._waiter

    def take(self) -> bytes:
        """Take everything that is to be written now."""
        data = self._pending[0] if len(self._pending) == 1 else b"".join(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        self._written = True
        return data


class Outlet(Protocol):
    """The connection of an answer whose head has been sent."""

    def write(self, data: bytes) -> bool:
        """Write a part of the body; returns False if the connection accepts none now."""
        ...


class Style(Protocol):
    """How the body is written: streamed or undivided."""

    headers: Headers

    def delta(self, stream: TextStream, piece: TextDelta) -> bytes:
        """Return what a piece adds to the body."""
        ...

    def ending(self, stream: TextStream, piece: TextDelta) -> bytes:
        """Return what the end of a choice adds to the body."""
        ...

    def closing(self, streams: Sequence[TextStream]) -> bytes:
        """Return what the end of all choices adds to the body."""
        ...

    def failure(self, fault: HttpFault) -> bytes:
        """Return what an error adds to a body of which a part has been written."""
        ...


class Streamed:
    """Server-sent events, as they come."""

    headers = SSE_HEADERS

    def __init__(self, form: Form) -> None:
        self._form = form
        self._opened: set[int] = set()

    def _opening(self, stream: TextStream) -> bytes:
        if stream.index in self._opened:
            return b""
        self._opened.add(stream.index)
        return self._form.opening(stream)

    def delta(self, stream: TextStream, piece: TextDelta) -> bytes:
        """One event; the first one is preceded by the opening."""
        if stream.index in self._opened:
            return self._form.delta(stream, piece)
        return self._opening(stream) + self._form.delta(stream, piece)

    def ending(self, stream: TextStream, piece: TextDelta) -> bytes:
        """The choice's last event."""
        assert stream.ending is not None
        return self._opening(stream) + self._form.ending(stream, piece, stream.ending)

    def closing(self, streams: Sequence[TextStream]) -> bytes:
        """Usage and the end mark."""
        return self._form.closing(streams)

    def failure(self, fault: HttpFault) -> bytes:
        """The event of the error."""
        return self._form.failure(fault)


class Undivided:
    """One JSON document at the end."""

    headers = JSON_HEADERS

    def __init__(self, form: Form) -> None:
        self._form = form
        self._pieces: dict[int, list[TextDelta]] = {}

    def delta(self, stream: TextStream, piece: TextDelta) -> bytes:
        """Nothing yet."""
        self._pieces.setdefault(stream.index, []).append(piece)
        return b""

    def ending(self, stream: TextStream, piece: TextDelta) -> bytes:
        """Nothing yet."""
        return self.delta(stream, piece)

    def closing(self, streams: Sequence[TextStream]) -> bytes:
        """The document."""
        return self._form.whole(streams, [self._pieces[s.index] for s in streams])

    def failure(self, fault: HttpFault) -> bytes:
        """Not called: the only write is the last one."""
        raise Bug(f"a document was cut short: {fault}")
