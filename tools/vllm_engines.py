"""vLLM engines, and what connects them, for the tools that try Baton under vLLM.

    client ──▶ gateway ──▶ (Recorder) ──▶ prefill engine, first core
                   └─────▶ (Recorder) ──▶ decode engine, second core

vLLM may live in an environment of its own; Baton must be installed there too. An engine is started
in float32 and ended by the tool that has started it.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiohttp
import httpx
from aiohttp import web

READY_S = 600.0  # a machine may be busy when an engine starts
CONTROL = 8991
GATEWAY = 8990
PORTS = MappingProxyType({"prefill": 8992, "decode": 8993})
RECORDERS = MappingProxyType({"prefill": 8994, "decode": 8995})
SIDE_CHANNELS = MappingProxyType({"prefill": 8996, "decode": 8998})  # of NixlConnector
FIRST_CORE = MappingProxyType({"prefill": 0, "decode": 1})
CORES = os.cpu_count() or 1
ROLES = MappingProxyType({"prefill": "kv_producer", "decode": "kv_consumer"})
MODEL = "m"
# what vLLM's example proxy asks a prefill engine with NixlConnector
PRODUCE: Mapping[str, Any] = MappingProxyType(
    {"do_remote_decode": True, "do_remote_prefill": False}
)
URL = f"http://127.0.0.1:{GATEWAY}"


def url_of(role: str, ports: Mapping[str, int] = PORTS) -> str:
    """Return where an engine, or its recorder, answers."""
    return f"http://127.0.0.1:{ports[role]}"


def baton(role: str, *, url: str = "", **more: Any) -> dict[str, Any]:
    """Return the --kv-transfer-config of Baton's connector.

    Args:
        url: where the gateway reaches the engine; default: the engine itself
        more: other keys of its kv_connector_extra_config
    """
    return {
        "kv_connector": "BatonConnector",
        "kv_connector_module_path": "baton.vllm.connector",
        "kv_role": ROLES[role],
        "kv_connector_extra_config": {
            "name": f"{role}-0",
            "url": url or url_of(role),
            "gateways": [f"tcp://127.0.0.1:{CONTROL}"],
            **more,
        },
    }


def nixl(buffer_device: str = "cpu", **more: Any) -> dict[str, Any]:
    """Return the --kv-transfer-config of vLLM's own connector, as its documentation has it."""
    return {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_both",
        "kv_buffer_device": buffer_device,
        "kv_connector_extra_config": more,
    }


@dataclass(frozen=True)
class Starts:
    """How engines are started.

    Attributes:
        vllm: the command
        model: directory of a checkpoint
        folder: where logs are written
        flags: more of vLLM's
    """

    vllm: str
    model: Path
    folder: Path
    flags: Sequence[str] = ()

    def engine(
        self,
        role: str,
        transfer: Mapping[str, Any] | None,
        *,
        log: str,
        tp: int = 1,
        core: int | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start an engine on cores of its own, or from `core` on."""
        first = FIRST_CORE[role] if core is None else core
        cores = "|".join(str((first + rank) % CORES) for rank in range(tp))
        command = [
            *(self.vllm, "serve", str(self.model), "--served-model-name", MODEL),
            *("--dtype", "float32", "--host", "127.0.0.1", "--port", str(PORTS[role])),
            *("--max-model-len", "4096", "--tensor-parallel-size", str(tp)),
            *("--enforce-eager", "--block-size", "32", *self.flags),
        ]
        if transfer is not None:
            command += ["--kv-transfer-config", json.dumps(transfer)]
        environment = os.environ | {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": cores,
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(SIDE_CHANNELS[role]),
            "OMP_NUM_THREADS": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "PATH": f"{Path(self.vllm).parent}:{os.environ['PATH']}",
        }
        return subprocess.Popen(
            command,
            env=environment,
            stdout=(self.folder / log).open("wb"),
            stderr=subprocess.STDOUT,
        )

    def gateway(self, *flags: str) -> subprocess.Popen[bytes]:
        """Start a gateway."""
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "baton", "gateway", "--model", str(self.model)),
                *("--served-model-name", MODEL, "--port", str(GATEWAY)),
                *("--control", f"tcp://127.0.0.1:{CONTROL}", *flags),
            ],
            stdout=(self.folder / "gateway.log").open("ab"),
            stderr=subprocess.STDOUT,
        )


def ended_by(stack: ExitStack, process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    """Have a stack end a process."""
    stack.callback(end, process)
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process as Ctrl-C does, and wait for it."""
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGINT)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_ready(page: str, processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait until a page answers with 200: a gateway's `/ready`, an engine's `/health`."""
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        if any(process.poll() is not None for process in processes):
            raise SystemExit("a process has ended; its log says why")
        try:
            if httpx.get(page, timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    raise SystemExit(f"{page} was not ready in {READY_S:.0f} s")


def greedy(prompt: list[int], tokens: int, **more: Any) -> dict[str, Any]:
    """Return a greedy request of a prompt."""
    fixed = {"temperature": 0, "ignore_eos": True, "return_token_ids": True}
    return {"model": MODEL, "prompt": prompt, "max_tokens": tokens, **fixed, **more}


@dataclass
class Seen:
    """One request that a recorder has passed on; times in seconds of the monotonic clock."""

    params: Mapping[str, Any]
    began: float
    first: float | None = None  # its first token has passed
    ended: float | None = None


@dataclass
class Recorder:
    """Stands between a gateway and an engine: passes everything on, and notes when.

    Attributes:
        seen: requests in the order in which they came
    """

    role: str
    seen: list[Seen] = field(default_factory=list)

    async def __aenter__(self) -> "Recorder":
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self._pass)
        self._runner = web.AppRunner(app, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", RECORDERS[self.role]).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        params = json.loads(body).get("kv_transfer_params") if body else None
        seen = Seen(params or {}, time.monotonic())
        if params:
            self.seen.append(seen)
        headers = {"content-type": request.content_type}
        url = f"{url_of(self.role)}{request.path_qs}"
        try:
            async with self._session.request(
                request.method, url, data=body, headers=headers
            ) as reply:
                answer = web.StreamResponse(status=reply.status)
                await answer.prepare(request)
                async for more in reply.content.iter_any():
                    if seen.first is None and b"token_ids" in more:
                        seen.first = time.monotonic()
                    await answer.write(more)
                await answer.write_eof()
        except aiohttp.ClientConnectionError:
            return web.Response(status=502)
        seen.ended = time.monotonic()
        return answer


async def first_token_at(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> float:
    """Ask for an answer as a stream, and read it; returns when its first token came."""
    first = None
    async with session.post(f"{url}/v1/completions", json=body | {"stream": True}) as reply:
        if reply.status != 200:
            raise SystemExit(f"{url} answered {reply.status}: {await reply.text()}")
        async for more in reply.content.iter_any():
            if first is None and b"token_ids" in more:
                first = time.monotonic()
    assert first is not None
    return first


async def until(what: Any, seconds: float = 30.0) -> None:
    """Wait until a condition holds."""
    limit = time.monotonic() + seconds
    while not what():
        if time.monotonic() > limit:
            raise SystemExit("what was waited for did not come")
        await asyncio.sleep(0.01)
