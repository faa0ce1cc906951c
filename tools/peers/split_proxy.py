"""A proxy before two vLLM engines with NixlConnector: prefill has each prompt first, decode then
answers, as vLLM's documentation of disaggregated prefill describes.

    python -m tools.peers.split_proxy PORT PREFILL_URL DECODE_URL
"""

import sys
import uuid
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from aiohttp import web
from tools.vllm_engines import PRODUCE

Session = web.AppKey("Session", aiohttp.ClientSession)


def application(prefill: str, decode: str) -> web.Application:
    """Make the proxy."""

    async def sessions(app: web.Application) -> AsyncIterator[None]:
        limits = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(
            connector=limits, timeout=aiohttp.ClientTimeout(total=None)
        ) as session:
            app[Session] = session
            yield

    async def complete(request: web.Request) -> web.StreamResponse:
        body: dict[str, Any] = await request.json()
        session, headers = request.app[Session], {"X-Request-Id": uuid.uuid4().hex}
        first = {k: v for k, v in body.items() if k not in ("stream", "stream_options")}
        first |= {"max_tokens": 1, "min_tokens": 1, "kv_transfer_params": dict(PRODUCE)}
        async with session.post(f"{prefill}{request.path}", json=first, headers=headers) as reply:
            if reply.status != 200:
                return web.Response(status=reply.status, body=await reply.read())
            params = (await reply.json())["kv_transfer_params"]
        then = body | {"kv_transfer_params": params}
        async with session.post(f"{decode}{request.path}", json=then, headers=headers) as reply:
            answer = web.StreamResponse(
                status=reply.status, headers={"content-type": reply.content_type}
            )
            await answer.prepare(request)
            async for more in reply.content.iter_any():
                await answer.write(more)
            await answer.write_eof()
            return answer

    async def passed(request: web.Request) -> web.Response:
        async with request.app[Session].get(f"{decode}{request.path}") as reply:
            return web.Response(
                status=reply.status, body=await reply.read(), content_type=reply.content_type
            )

    app = web.Application(client_max_size=1 << 26)
    app.cleanup_ctx.append(sessions)
    app.router.add_post("/v1/completions", complete)
    app.router.add_get("/{path:.*}", passed)
    return app


def main() -> None:
    """Command line."""
    port, prefill, decode = sys.argv[1:]
    web.run_app(application(prefill, decode), host="127.0.0.1", port=int(port), print=None)


if __name__ == "__main__":
    main()
