"""Serves the application on a socket until it is told to stop, on the caller's asyncio loop.

On stop it accepts no new connections. For PARTING_S it still takes requests on those that it has,
and each answer asks its client to open another connection for the next one; then idle connections
are closed. Open requests may continue for `grace_s`, or until `hurry` is set; then each gets an
error event or status. About a second later, connections still open are closed.
"""

import asyncio
import socket as sockets
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
from ssl import SSLContext

import structlog
import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from baton.gateway.answer import PlainSend
from baton.gateway.connection import BoundedConnection
from baton.gateway.dispatcher import Dispatcher
from baton.gateway.live_feed import LiveFeed
from baton.gateway.scaling_watch import ScalingWatch
from baton.shell.listener import BACKLOG

log = structlog.get_logger()
WRITE_OUT_S = 1
# Closing an idle connection just when its client sends a request loses the request.
PARTING_S, PARTING_LOOK_S = 1.0, 0.02
REMEDY = "a second SIGTERM or Ctrl-C ends them at once"
# longer than clients keep idle connections: closing one that a client reuses loses a request
IDLE_S = 75


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signals to the owner of the process."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals."""
        yield


class _Parting:
    """ASGI middleware that, once `begun`, asks clients not to use their connections again."""

    def __init__(self, app: ASGIApp) -> None:
        self._app, self.begun = app, False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""

        async def last(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            await send(message)

        await self._app(scope, receive, last if self.begun else send)


async def serve_http(
    app: FastAPI,
    *,
    socket: sockets.socket,
    stop: asyncio.Event,
    hurry: asyncio.Event,
    grace_s: float,
    tls: SSLContext | None = None,
) -> None:
    """Serve until `stop` is set and everything open has ended, at most about `grace_s` + 3 seconds
    later.

    Args:
        app: from create_app
        socket: bound (shell/listener.py); closed at the end
        stop: set by the owner of the process
        hurry: set by the owner of the process after `stop`, to end open requests at once
        grace_s: how long open requests may continue
        tls: for HTTPS; None = plain HTTP
    """
    dispatcher: Dispatcher = app.state.dispatcher
    feed: LiveFeed = app.state.feed
    scaling: ScalingWatch = app.state.scaling
    parting = _Parting(app)
    config = uvicorn.Config(
        PlainSend(parting),
        loop="none",  # uses the caller's loop
        http=BoundedConnection,
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=IDLE_S,
        proxy_headers=False,  # /debug/ledger trusts the peer's address
        timeout_graceful_shutdown=ceil(grace_s) + WRITE_OUT_S,
    )
    config.load()
    config.ssl = tls  # made by us (tls.py): errors of uvicorn's own would not name the flag
    server = _Server(config)
    serving = asyncio.ensure_future(server.serve(sockets=[socket]))
    watching = asyncio.ensure_future(scaling.run())
    stopping, hurrying = asyncio.ensure_future(stop.wait()), asyncio.ensure_future(hurry.wait())
    try:
        await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        parting.begun = True
        feed.close()
        await _part(server, hurry)
        dispatcher.shut()
        # closes the listener and idle connections, and waits for the others
        server.should_exit = True
        if dispatcher.open_requests:
            log.info(
                "shutting_down",
                open_requests=dispatcher.open_requests,
                shutdown_timeout_s=grace_s,
                remedy=REMEDY,
            )
        ended, _ = await asyncio.wait(
            [serving, hurrying], timeout=grace_s, return_when=asyncio.FIRST_COMPLETED
        )
        dispatcher.fail_all()
        if hurrying in ended:
            await asyncio.wait([serving], timeout=WRITE_OUT_S)
            server.force_exit = True
        await serving
    finally:
        dispatcher.fail_all()
        watching.cancel()
        stopping.cancel()
        hurrying.cancel()
        serving.cancel()


async def _part(server: _Server, hurry: asyncio.Event) -> None:
    """Accept no more connections, and give those that are open time for one more request."""
    if not server.started:
        return
    for listener in server.servers:
        listener.close()
    loop = asyncio.get_running_loop()
    until = loop.time() + PARTING_S
    while server.server_state.connections and loop.time() < until and not hurry.is_set():
        await asyncio.sleep(PARTING_LOOK_S)
