"""The Response that writes answers itself, without layers between the core's events and the socket.

It sends the status line only when the first event has come, so that a request which fails before
that gets the status of its error.
"""

import asyncio

import structlog
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from baton.gateway.api_keys import logged_holder
from baton.gateway.ask import Ask
from baton.gateway.dispatcher import Dispatcher
from baton.gateway.exchange import Exchange
from baton.gateway.faults import HttpFault
from baton.gateway.messages_faults import in_schema_of
from baton.gateway.outlet import outlet_of

log = structlog.get_logger("baton.gateway")
PLAIN_SEND = "baton.send"  # in an ASGI scope


class PlainSend:
    """ASGI middleware that keeps the server's own
    `send` in the scope, before other layers wrap it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        scope[PLAIN_SEND] = send
        await self._app(scope, receive, send)


def fault_response(fault: HttpFault, path: str) -> Response:
    """Make an ordinary response of an error of a request for `path`."""
    shown = in_schema_of(path, fault)
    return Response(shown.body, shown.status, headers=shown.headers, media_type="application/json")


class Answer(Response):
    """Opens the request when it is called, and leaves nothing open when it returns or raises."""

    def __init__(self, dispatcher: Dispatcher, exchange: Exchange, ask: Ask) -> None:
        super().__init__()
        self._dispatcher, self._exchange, self._ask = dispatcher, exchange, ask

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        exchange = self._exchange
        watch = asyncio.ensure_future(self._watch(receive))
        try:
            self._dispatcher.open(exchange, self._ask)
            await exchange.change()
            if exchange.fault is not None:
                await fault_response(exchange.fault, scope["path"])(scope, receive, send)
            elif not exchange.gone:
                await self._write(send, scope.get(PLAIN_SEND, send))
        finally:
            watch.cancel()
            self._dispatcher.close(exchange, "answer abandoned")
            self._log(scope)

    async def _watch(self, receive: Receive) -> None:
        """Wait for the client to disconnect: after the body, nothing else can come from it."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._dispatcher.close(self._exchange, "client disconnected")

    async def _write(self, send: Send, plain: Send) -> None:
        """Write the answer: the head through the
        middleware, which looks at it; the body past it."""
        exchange = self._exchange
        body, last = exchange.take(), exchange.ended
        length = ((b"content-length", str(len(body)).encode()),) if last else ()
        await send(
            {"type": "http.response.start", "status": 200, "headers": [*exchange.headers, *length]}
        )
        await plain({"type": "http.response.body", "body": body, "more_body": not last})
        outlet = outlet_of(plain)
        if outlet is not None:
            exchange.pour(outlet)
        while not last:
            await exchange.change()
            last = exchange.ended
            await plain(
                {"type": "http.response.body", "body": exchange.take(), "more_body": not last}
            )

    def _log(self, scope: Scope) -> None:
        """Log one line for each choice, because each choice has a room of its own."""
        exchange = self._exchange
        for stream in exchange.streams:
            key = exchange.keys.get(stream.index)
            log.info(
                "request.ended",
                **({} if key is None else {"room": key.room, "epoch": key.epoch}),
                **logged_holder(scope),
                id=exchange.id,
                choice=stream.index,
                outcome=exchange.outcome,
                **({"why": exchange.why} if exchange.why else {}),
                prompt_tokens=len(stream.prompt),
                generated_tokens=stream.count,
            )
