"""A service on a thread that answers as a test tells it to."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web


def event(**fields: object) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def token(text: str) -> bytes:
    return event(choices=[{"index": 0, "text": text}])


DONE = b"data: [DONE]\n\n"
USAGE = event(choices=[], usage={"prompt_tokens": 7, "completion_tokens": 3})


class Script:
    """What the service says, by the number of tokens asked for."""

    def __init__(
        self, pieces: dict[int, list[bytes] | tuple[int, str] | tuple[int, str, dict[str, str]]]
    ) -> None:
        self.pieces = pieces
        self.asked: list[dict[str, object]] = []
        self.under_way = self.most = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body)
        said = self.pieces[body["max_tokens"]]
        if isinstance(said, tuple):
            return web.Response(status=said[0], text=said[1], headers=dict(*said[2:]))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        for piece in said:
            if piece == b"hang":
                await asyncio.sleep(60)
            if piece == b"cut":
                request.transport.abort()
                return response
            await response.write(piece)
            await asyncio.sleep(0.001)
        self.under_way -= 1
        return response

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "the-model"}]})


@contextmanager
def serving(script: Script) -> Iterator[str]:
    """Its address."""
    loop, ready, found = asyncio.new_event_loop(), threading.Event(), []

    async def start() -> web.AppRunner:
        app = web.Application()
        app.router.add_post("/v1/completions", script.answer)
        app.router.add_post("/v1/chat/completions", script.answer)
        app.router.add_get("/v1/models", script.models)
        runner = web.AppRunner(app, shutdown_timeout=0, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        found.append(runner.addresses[0][1])
        ready.set()
        return runner

    def run() -> None:
        runner = loop.run_until_complete(start())
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(10)
    try:
        yield f"http://127.0.0.1:{found[0]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
