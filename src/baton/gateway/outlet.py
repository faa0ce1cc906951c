"""From whoever has a part of an answer straight to its connection: no task is woken for it, no event is made.

A thousand streams wake a thousand tasks for each step of the model otherwise, which costs a gateway more than all else that it
does for a token except the write itself. The head of an answer and its end stay with the server's own `send`.
"""

from starlette.types import Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class ChunkOutlet:
    """Implements exchange.Outlet: one of uvicorn's connections in the middle of a chunked body."""

    __slots__ = ("_flow", "_gone", "_write")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        # asked of the transport: while another request waits on the connection, it is that one's cycle which hears of the end
        self._flow, self._gone, self._write = cycle.flow, cycle.transport.is_closing, cycle.transport.write

    def write(self, data: bytes) -> bool:
        """Hand over one chunk; False where the client reads too slowly, or has gone: `send` can wait for what becomes of it."""
        if self._flow.write_paused or self._gone():
            return False
        self._write(b"%x\r\n%b\r\n" % (len(data), data))
        return True


def outlet_of(send: Send) -> ChunkOutlet | None:
    """Of the answer that a server's `send` belongs to; None for other servers, and where the length of the body was stated."""
    cycle = getattr(send, "__self__", None)
    return ChunkOutlet(cycle) if isinstance(cycle, RequestResponseCycle) and cycle.chunked_encoding else None
