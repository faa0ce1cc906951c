"""An application over a scripted door, reached in memory or over a real socket."""

import asyncio
import json
import socket as sockets
import ssl
import tempfile
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from baton.gateway.api_keys import plain_key
from baton.gateway.app import create_app
from baton.gateway.counts import Siblings
from baton.gateway.serve import serve_http
from baton.gateway.settings import HttpSettings
from baton.gateway.timelines import Timelines
from baton.gateway.tokenizer import Tokenizer
from baton.shell.listener import bound

from .fake_door import FakeDoor
from .models import write_checkpoint

MODEL = "tiny"


def make_tokenizer() -> Tokenizer:
    with tempfile.TemporaryDirectory() as directory:
        return Tokenizer.load(write_checkpoint(Path(directory)))


def make_app(
    door: FakeDoor,
    *,
    tokenizer: Tokenizer | None = None,
    siblings: Siblings | None = None,
    timelines: Timelines | None = None,
    **settings,
):
    """settings: of HttpSettings, with keys as clients send them, or as ApiKey; without a tokenizer
    it is the one of models.py."""
    keys = settings.pop("api_keys", ())
    settings["api_keys"] = tuple(plain_key(k) if isinstance(k, str) else k for k in keys)
    settings = HttpSettings(**{"model": MODEL} | settings)
    return create_app(door, tokenizer or make_tokenizer(), settings, siblings, timelines)


def request(
    door: FakeDoor,
    method: str,
    path: str,
    *,
    client=("127.0.0.1", 5),
    settings=None,
    siblings=None,
    timelines=None,
    **arguments,
) -> httpx.Response:
    """One request, answered in memory."""

    async def go() -> httpx.Response:
        transport = httpx.ASGITransport(
            make_app(door, siblings=siblings, timelines=timelines, **(settings or {})),
            raise_app_exceptions=False,
            client=client,
        )
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
            return await http.request(method, path, **arguments)

    return asyncio.run(go())


def post(door: FakeDoor, path: str, body: dict, **settings) -> httpx.Response:
    return request(door, "POST", path, json=body, settings=settings)


def events(response: httpx.Response) -> list:
    """The events of a stream; the end mark as a string."""
    found = []
    for part in response.text.split("\n\n"):
        if part:
            assert part.startswith("data: ")
            found.append("[DONE]" if part == "data: [DONE]" else json.loads(part[6:]))
    return found


@asynccontextmanager
async def served(
    door: FakeDoor,
    *,
    grace_s: float = 0.0,
    hurry: asyncio.Event | None = None,
    send_buffer: int | None = None,
    tls: ssl.SSLContext | None = None,
    **settings,
):
    """The base URL of a server on a free port, in this loop. send_buffer: bytes that the kernel
    takes for a client."""
    socket, stop = bound("127.0.0.1", 0), asyncio.Event()
    if send_buffer is not None:
        socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_SNDBUF, send_buffer)
    scheme = "http" if tls is None else "https"
    url = f"{scheme}://127.0.0.1:{socket.getsockname()[1]}"
    app = make_app(door, **settings)
    serving = asyncio.ensure_future(
        serve_http(
            app,
            socket=socket,
            stop=stop,
            hurry=hurry or asyncio.Event(),
            grace_s=grace_s,
            tls=tls,
        )
    )
    try:
        await until(lambda: _answers(socket))
        yield url, app, stop, serving
    finally:
        stop.set()
        await asyncio.wait_for(serving, 20)


def _answers(socket) -> bool:
    return bool(socket.getsockopt(1, 30))  # SOL_SOCKET, SO_ACCEPTCONN


async def until(true: Callable[[], object], *, seconds: float = 10) -> None:
    """Wait until a condition holds."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not true():
        assert asyncio.get_running_loop().time() < deadline, "did not become true"
        await asyncio.sleep(0.002)
