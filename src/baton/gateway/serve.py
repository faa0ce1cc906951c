"""Serves the application on a socket until it is told to stop, on the caller's asyncio loop.

On stop it accepts no new connections and requests. Open requests may continue for `grace_s`, or
until `hurry` is set; then each gets an error event or status. About a second later, connections
still open are closed.
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

from baton.core.errors import ConfigError
from baton.gateway.answer import PlainSend
from baton.gateway.dispatcher import Dispatcher

log = structlog.get_logger()
BACKLOG = 2048
UNREAD_MS = 60_000  # the kernel closes a connection whose client reads nothing for this long
WRITE_OUT_S = 1
REMEDY = "a second SIGTERM or Ctrl-C ends them at once"
# longer than clients keep idle connections: closing one that a client reuses loses a request
IDLE_S = 75


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signals to the owner of the process."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals."""
        yield


def listen(host: str, port: int) -> sockets.socket:
    """Return a bound TCP socket (port 0 takes a free port); its connections inherit its options.

    Raises:
        ConfigError: the address cannot be bound
    """
    family = sockets.AF_INET6 if ":" in host else sockets.AF_INET
    # The protocol is named so that event loops recognise TCP and disable Nagle's algorithm.
    sock = sockets.socket(family, sockets.SOCK_STREAM, sockets.IPPROTO_TCP)
    sock.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
    sock.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
    sock.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_USER_TIMEOUT, UNREAD_MS)
    try:
        sock.bind((host, port))
    except OSError as e:
        sock.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {e.strerror}; choose another --host or --port"
        ) from e
    sock.setblocking(False)
    return sock


async def serve_http(
    app: FastAPI,
    *,
    socket: sockets.socket,
    stop: asyncio.Event,
    hurry: asyncio.Event,
    grace_s: float,
    tls: SSLContext | None = None,
) -> None:
    """Serve until `stop` is set and everything open has ended, at most about `grace_s` + 2 seconds
    later.

    Args:
        app: from create_app
        socket: from `listen`; closed at the end
        stop: set by the owner of the process
        hurry: set by the owner of the process after `stop`, to end open requests at once
        grace_s: how long open requests may continue
        tls: for HTTPS; None = plain HTTP
    """
    dispatcher: Dispatcher = app.state.dispatcher
    config = uvicorn.Config(
        PlainSend(app),
        loop="none",  # uses the caller's loop
        http="httptools",
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
    stopping, hurrying = asyncio.ensure_future(stop.wait()), asyncio.ensure_future(hurry.wait())
    try:
        await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
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
        stopping.cancel()
        hurrying.cancel()
        serving.cancel()
