"""Snapshots for any number of watchers, made once for all of them, and only while there is one.

    LiveView.look, every PERIOD_S ──▶ the next snapshot ──▶ each watcher who waits for it

A watcher who reads slowly misses snapshots; nothing is kept for him.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from baton.gateway.exchange import SSE_HEADERS
from baton.gateway.faults import unavailable
from baton.gateway.live import LiveView

PERIOD_S = 0.5  # between two snapshots; where a worker does not answer, up to a second more
MOST_WATCHERS = 64


class LiveFeed:
    """Everything is on one asyncio loop."""

    def __init__(self, view: LiveView, *, retry_after_s: int) -> None:
        self._view, self._retry_after_s = view, retry_after_s
        self._task: asyncio.Task[None] | None = None
        self._next: asyncio.Future[bytes] | None = None
        self._closed = False
        self.watchers = 0

    def require_place(self) -> None:
        """Raise HttpFault 503 if there are as many watchers as may be."""
        if self.watchers >= MOST_WATCHERS:
            raise unavailable(
                f"{MOST_WATCHERS} clients watch already",
                code="too_many_watchers",
                retry_after_s=self._retry_after_s,
            )

    async def snapshots(self) -> AsyncGenerator[bytes, None]:
        """Yield snapshots as they are made, until the feed is closed."""
        self.watchers += 1
        try:
            while not self._closed:
                coming = self._coming()
                await asyncio.wait([coming])  # which leaves it to the others if this one goes
                if not coming.cancelled():
                    yield coming.result()
        finally:
            self.watchers -= 1
            if not self.watchers:
                self._stop()

    def close(self) -> None:
        """End all streams: the gateway shuts down."""
        self._closed = True
        self._stop()

    def _coming(self) -> asyncio.Future[bytes]:
        """Return the snapshot that is made next."""
        loop = asyncio.get_running_loop()
        if self._next is None or self._next.done():
            self._next = loop.create_future()
        if self._task is None:
            self._view.watch(True)
            self._task = loop.create_task(self._look())
            self._task.add_done_callback(self._fail)
        return self._next

    async def _look(self) -> None:
        while True:
            began = time.monotonic()
            snapshot = await self._view.look(began)
            if self._next is not None and not self._next.done():
                self._next.set_result(snapshot)
            await asyncio.sleep(max(PERIOD_S / 2, began + PERIOD_S - time.monotonic()))

    def _fail(self, task: "asyncio.Task[None]") -> None:
        """Pass a bug of a look on to those who wait."""
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        if self._next is not None and not self._next.done():
            self._next.set_exception(error)
        if self._task is task:
            self._stop()

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
            self._view.watch(False)
        if self._next is not None:
            self._next.cancel()
            self._next = None


class LiveResponse(Response):
    """Writes snapshots as server-sent events for as long as the client stays."""

    def __init__(self, feed: LiveFeed) -> None:
        super().__init__()
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        writing = asyncio.ensure_future(self._write(send))
        watching = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait([writing, watching], return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                writing.result()
        finally:
            writing.cancel()
            watching.cancel()
            await asyncio.wait([writing, watching])

    async def _write(self, send: Send) -> None:
        started = False
        async with aclosing(self._feed.snapshots()) as snapshots:
            async for snapshot in snapshots:
                if not started:
                    await send(_HEAD)
                    started = True
                body = b"data: " + snapshot + b"\n\n"
                await send({"type": "http.response.body", "body": body, "more_body": True})
        if not started:
            await send(_HEAD)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


_HEAD = {"type": "http.response.start", "status": 200, "headers": [*SSE_HEADERS]}


async def _gone(receive: Receive) -> None:
    """Wait until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
