"""Somebody who watches /debug/live: an application called as a server does, which can tell when its
client has gone."""

import asyncio
import json
from typing import Any


class Watcher:
    """One request for the stream."""

    def __init__(self, app, *, client=("127.0.0.1", 5), headers=None, path="/debug/live") -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.snapshots: list[dict[str, Any]] = []
        self.body = b""
        self._gone = asyncio.Event()
        self._asked = False
        raw = [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(b"host", b"gateway"), *raw],
            "client": client,
            "server": ("gateway", 80),
        }
        self.served = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {k.decode(): v.decode() for k, v in message["headers"]}
            return
        self.body += message["body"]
        if message["body"].startswith(b"data: "):
            self.snapshots.append(json.loads(message["body"][6:]))

    async def leave(self) -> None:
        """Close the connection."""
        self._gone.set()
        await asyncio.wait_for(self.served, 5)
