"""One HTTP connection, with bounds on what a client can make the gateway hold before it is asked
for a key.

uvicorn's own connection takes a header of any length, waits for it without end, and takes any
number of connections: each would let one client exhaust memory or descriptors. Bodies are bounded
where they are read (body.py).
"""

import asyncio
import resource

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from baton.gateway.faults import HttpFault, refuse

MOST_HEAD = 64 << 10  # bytes between two parts of bodies: of a header, of what follows a body
HEAD_S = 30.0  # for a whole header
KEPT_BACK = 64  # descriptors for workers, files and other gateways


class BoundedConnection(HttpToolsProtocol):
    """A connection of uvicorn's that ends when its client passes a bound."""

    _unspent = 0  # bytes received since the parser has last made something of them
    _late: asyncio.TimerHandle | None = None  # ends a connection that sends no request

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, unless there are as many as descriptors allow."""
        super().connection_made(transport)
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if len(self.connections) > max(soft - KEPT_BACK, KEPT_BACK):
            transport.close()
            return
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; the connection ends if they are too much of a header."""
        self._unspent += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._unspent > MOST_HEAD:
            self._refuse(
                refuse(
                    f"the header has more than {MOST_HEAD} bytes",
                    code="header_too_large",
                    status=431,
                )
            )
        elif self._late is None and not self._is_answering():
            self._expect_head()

    def on_message_begin(self) -> None:
        """Begin to count a header."""
        self._unspent = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """A request is there."""
        self._unspent = 0
        self._stop_waiting()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of a body is there."""
        self._unspent = 0
        super().on_body(body)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_head(self) -> None:
        self._late = self.loop.call_later(HEAD_S, self._on_late)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _on_late(self) -> None:
        self._late = None
        if not self.transport.is_closing():
            self.transport.close()

    def _refuse(self, fault: HttpFault) -> None:
        if not self._is_answering():
            head = (
                f"HTTP/1.1 {fault.status} Request Header Fields Too Large\r\n"
                f"content-type: application/json\r\ncontent-length: {len(fault.body)}\r\n"
                "connection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + fault.body)
        self.transport.close()
