"""`--health-port`: a worker's HTTP for probes, on a thread of its own.

    main thread   loads ──loaded──▶ turns ──turned, turned, ..──▶ ends ──ending──▶
    HTTP thread   /health: is it alive?    /ready: may gateways send it requests?

A worker that loads or ends is alive. One that should turn is asked to: the answer waits until it
has, so a worker whose main thread hangs is found by its probe.
"""

import asyncio
import json
import socket
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from enum import Enum
from http import HTTPStatus
from typing import Any, Protocol

import uvicorn

from baton.core.errors import ConfigError

TURN_S = 2.0  # for one turn; they take milliseconds, unless the machine is very busy
LOOK_S = 0.01  # between two looks whether there was one
MAX_CONNECTIONS = 16
Message = MutableMapping[str, Any]  # ASGI's
Answer = tuple[HTTPStatus, dict[str, Any]]


class LifeStage(Enum):
    """What the worker does."""

    LOADING = "loading"
    TURNING = "turning"
    ENDING = "ending"


class Probed(Protocol):
    """The running worker, for other threads."""

    @property
    def why_not_ready(self) -> str | None:
        """What keeps it from its work; None = nothing."""

    def wake(self) -> None:
        """Make it turn at once."""


class Health:
    """What a worker has said of itself. The main thread writes it, the HTTP thread reads it."""

    def __init__(self) -> None:
        self._stage = LifeStage.LOADING
        self._worker: Probed | None = None
        self._turns = 0

    def loaded(self, worker: Probed) -> None:
        """The worker begins to turn."""
        self._worker, self._stage = worker, LifeStage.TURNING

    def turned(self) -> None:
        """The worker has turned once more."""
        self._turns += 1

    def ending(self) -> None:
        """The worker turns no more; it frees what it holds."""
        self._stage = LifeStage.ENDING

    async def health(self) -> Answer:
        """200 if the worker is alive, else 503."""
        stage, turns = self._stage, self._turns
        if stage is LifeStage.TURNING:
            assert self._worker is not None
            self._worker.wake()
            try:
                async with asyncio.timeout(TURN_S):
                    while self._turns == turns and self._stage is LifeStage.TURNING:
                        await asyncio.sleep(LOOK_S)
            except TimeoutError:
                why = f"the main thread has not turned for {TURN_S:g} s"
                return HTTPStatus.SERVICE_UNAVAILABLE, {"alive": False, "why": why}
        return HTTPStatus.OK, {"alive": True, "stage": stage.value}

    async def ready(self) -> Answer:
        """200 if gateways may send requests, else 503 and why not."""
        why: str | None = f"the worker is {self._stage.value}"
        if self._stage is LifeStage.TURNING:
            assert self._worker is not None
            why = self._worker.why_not_ready
        if why is None:
            return HTTPStatus.OK, {"ready": True}
        return HTTPStatus.SERVICE_UNAVAILABLE, {"ready": False, "why": why}


def serve_health(health: Health, host: str, port: int) -> None:
    """Answer on this address until the process ends.

    Raises:
        ConfigError: the address is in use, or not one of this machine
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another --health-host or "
            "--health-port"
        ) from error
    config = uvicorn.Config(
        _application(health),
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
    )
    server = uvicorn.Server(config)
    threading.Thread(
        target=lambda: asyncio.run(server.serve(sockets=[listening])), name="health", daemon=True
    ).start()


def _application(
    health: Health,
) -> Callable[[Message, object, Callable[[Message], Awaitable[None]]], Awaitable[None]]:
    """Return the ASGI application."""
    answers = {"/health": health.health, "/ready": health.ready}

    async def nothing() -> Answer:
        return HTTPStatus.NOT_FOUND, {"why": f"there is {', '.join(answers)}"}

    async def answer(
        scope: Message, _receive: object, send: Callable[[Message], Awaitable[None]]
    ) -> None:
        status, said = await answers.get(scope["path"], nothing)()
        body = json.dumps(said).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": int(status), "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return answer
