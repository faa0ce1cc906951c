"""Shows decode engines references that do not hold any more, as in vllm-project/vllm#52234, and
compares every answer with the right one: with Baton's connector, and with vLLM's NixlConnector.

    python -m tools.vllm_stale --vllm DIR/bin/vllm

A reference is what a request to a decode engine carries in `kv_transfer_params`: a room and an epoch
with Baton, which only the gateway knows and which the tool reads on the way; blocks, an engine and a
request with NixlConnector. Every prompt is new, and every request has a cache salt of its own, so
no prefix cache helps. The right answer is computed by the prefill engine without a reference.
"""

import argparse
import asyncio
import json
import random
import signal
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil
from rich.console import Console
from rich.progress import Progress
from tools.vllm_engines import (
    PORTS,
    PRODUCE,
    RECORDERS,
    URL,
    Recorder,
    Starts,
    baton,
    ended_by,
    greedy,
    nixl,
    until,
    url_of,
    wait_ready,
)

from baton.cli.models import TRIAL, ensure

LEASE_S = 5  # NixlConnector's lease, and Baton's handoff timeout
LENGTH, TOKENS = 400, 16
BLOCKS = 144  # of each engine's KV cache, little more than the longest request that it must serve
FLOOD = 16  # prompts that use all of them
FLAGS = ("--num-gpu-blocks-override", str(BLOCKS))
LEAVES = 20
LEAVE_WITHIN_S = 3.0
UNKNOWN_ROOM = "0" * 32


def halt(pid: int, *, to: signal.Signals) -> None:
    """Stop a process and its children, or let them go on."""
    for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        process.send_signal(to)


class Bench(ABC):
    """What the cases of both connectors share."""

    def __init__(self, starts: Starts, stack: ExitStack, seed: int) -> None:
        self.starts, self._stack, self._chance = starts, stack, random.Random(seed)
        self._salts = 0
        self.engines: dict[str, Any] = {}
        self.http = httpx.AsyncClient(timeout=300)

    def salt(self) -> str:
        """A new cache salt."""
        self._salts += 1
        return f"salt {self._salts}"

    def prompt(self, length: int = LENGTH) -> list[int]:
        """A new prompt."""
        return [self._chance.randrange(100, 40_000) for _ in range(length)]

    def start(self, role: str, transfer: Mapping[str, Any]) -> None:
        """Start an engine."""
        name = type(self).__name__
        process = self.starts.engine(role, transfer, log=f"{name}-{role}.log")
        self.engines[role] = ended_by(self._stack, process)

    def kill(self, role: str) -> None:
        """Kill an engine with all its processes."""
        process = psutil.Process(self.engines[role].pid)
        for each in (*process.children(recursive=True), process):
            each.kill()
        self.engines[role].wait()

    async def ask(self, role: str, prompt: list[int], **more: Any) -> Any:
        """What an engine answers: token ids, or its error."""
        body = greedy(prompt, more.pop("tokens", TOKENS), cache_salt=self.salt(), **more)
        return await self.answer(url_of(role), body)

    async def answer(self, url: str, body: dict[str, Any]) -> Any:
        """What an address answers: token ids, or its error."""
        try:
            reply = await self.http.post(f"{url}/v1/completions", json=body)
        except httpx.TransportError as error:
            return f"no answer: {type(error).__name__}"
        if reply.status_code != 200:
            return f"HTTP {reply.status_code}: {reply.text[:160]}"
        return reply.json()["choices"][0]["token_ids"]

    async def right(self, prompt: list[int]) -> Any:
        """What a single engine answers."""
        return await self.ask("prefill", prompt)

    async def flood(self) -> None:
        """Have prefill use all its blocks for other prompts."""
        slots = asyncio.Semaphore(4)

        async def one() -> None:
            async with slots:
                await self.ask("prefill", self.prompt(), tokens=1)

        await asyncio.gather(*(one() for _ in range(FLOOD)))

    async def judged(self, prompt: list[int], said: Any) -> str:
        """Whether an answer is the right one."""
        if isinstance(said, str):
            return said
        return "right" if said == await self.right(prompt) else "WRONG, with HTTP 200"

    @abstractmethod
    async def begin(self) -> None:
        """Start both engines."""

    @abstractmethod
    async def end(self) -> None:
        """End what is not a process."""

    @abstractmethod
    async def unknown(self) -> str:
        """A request that prefill does not know."""

    @abstractmethod
    async def out_of_range(self) -> str:
        """Something that prefill does not have."""

    @abstractmethod
    async def consumed(self) -> str:
        """A reference that has been used, at once again."""

    @abstractmethod
    async def reused(self) -> str:
        """The same, after prefill has computed other prompts there."""

    @abstractmethod
    async def expired(self) -> str:
        """A reference that has expired, after prefill has computed other prompts there."""

    @abstractmethod
    async def twice(self) -> str:
        """One reference in two requests at once."""

    @abstractmethod
    async def aborted(self) -> str:
        """Clients that leave around the admission, then the same again."""

    @abstractmethod
    async def restarted(self) -> str:
        """Decode is killed after the prompt was computed, and started again."""


class Nixl(Bench):
    """The cases with NixlConnector."""

    async def begin(self) -> None:
        """Start both engines."""
        for role in PORTS:
            self.start(role, nixl(kv_lease_duration=LEASE_S))
            await asyncio.to_thread(wait_ready, f"{url_of(role)}/health", [self.engines[role]])

    async def end(self) -> None:
        """Nothing more to end."""

    async def reference(self, prompt: list[int]) -> dict[str, Any]:
        """Compute a prompt, and return the reference to its blocks."""
        body = greedy(prompt, 1, cache_salt=self.salt(), kv_transfer_params=dict(PRODUCE))
        reply = await self.http.post(f"{url_of('prefill')}/v1/completions", json=body)
        said: dict[str, Any] = reply.json()["kv_transfer_params"]
        return said

    async def _decode(self, prompt: list[int], reference: Mapping[str, Any]) -> Any:
        return await self.ask("decode", prompt, kv_transfer_params=dict(reference))

    async def unknown(self) -> str:
        """A request that prefill does not know."""
        prompt = self.prompt()
        reference = await self.reference(prompt)
        return await self.judged(
            prompt, await self._decode(prompt, reference | {"remote_request_id": "cmpl-unknown"})
        )

    async def out_of_range(self) -> str:
        """Blocks that prefill does not have."""
        prompt = self.prompt()
        reference = await self.reference(prompt)
        ids = [[1_000_000 + block for block in group] for group in reference["remote_block_ids"]]
        return await self.judged(
            prompt, await self._decode(prompt, reference | {"remote_block_ids": ids})
        )

    async def consumed(self) -> str:
        """A reference that has been used, at once again."""
        prompt = self.prompt()
        reference = await self.reference(prompt)
        await self._decode(prompt, reference)
        return await self.judged(prompt, await self._decode(prompt, reference))

    async def reused(self) -> str:
        """A reference that has been used, after prefill has computed other prompts there."""
        prompt = self.prompt()
        reference = await self.reference(prompt)
        await self._decode(prompt, reference)
        await self.flood()
        return await self.judged(prompt, await self._decode(prompt, reference))

    async def expired(self) -> str:
        """A reference whose lease has ended, after prefill has computed other prompts there."""
        prompt = self.prompt()
        reference = await self.reference(prompt)
        await asyncio.sleep(2 * LEASE_S)
        await self.flood()
        return await self.judged(prompt, await self._decode(prompt, reference))

    async def restarted(self) -> str:
        """Decode is killed after the prompt was computed, and asked the same after its restart."""
        prompt = self.prompt()
        reference = await self.reference(prompt)
        self.kill("decode")
        self.start("decode", nixl(kv_lease_duration=LEASE_S))
        await asyncio.to_thread(wait_ready, f"{url_of('decode')}/health", [self.engines["decode"]])
        await self.flood()
        return await self.judged(prompt, await self._decode(prompt, reference))

    async def twice(self) -> str:
        """One reference in two requests at once."""
        prompt = self.prompt()
        reference = await self.reference(prompt)
        said = await asyncio.gather(*(self._decode(prompt, reference) for _ in range(2)))
        return " and ".join([await self.judged(prompt, each) for each in said])

    async def aborted(self) -> str:
        """Clients that leave around the admission, then the same reference again."""
        found: dict[str, int] = {}
        for n in range(LEAVES):
            prompt = self.prompt()
            reference = await self.reference(prompt)
            try:
                async with asyncio.timeout(LEAVE_WITHIN_S * n / LEAVES / 10):
                    await self._decode(prompt, reference)
            except TimeoutError:
                pass
            said = await self.judged(prompt, await self._decode(prompt, reference))
            found[said] = found.get(said, 0) + 1
        return json.dumps(found)


class Baton(Bench):
    """The same cases with Baton's connector. The tool asks the gateway as a client, and where a case
    needs it, decode directly with a reference that it has seen on the way."""

    async def begin(self) -> None:
        """Start the gateway and both engines, with recorders between them."""
        self.recorders = {role: Recorder(role) for role in PORTS}
        for recorder in self.recorders.values():
            await recorder.__aenter__()
        self.gateway = ended_by(self._stack, self.starts.gateway("--skip-server-warmup"))
        for role in PORTS:
            self._start(role)
        await self._ready()

    def _start(self, role: str) -> None:
        self.start(role, baton(role, url=url_of(role, RECORDERS), handoff_timeout_s=LEASE_S))

    async def _ready(self) -> None:
        processes = [self.gateway, *self.engines.values()]
        await asyncio.to_thread(wait_ready, f"{URL}/ready", processes)

    async def end(self) -> None:
        """End the recorders."""
        for recorder in self.recorders.values():
            await recorder.__aexit__()

    async def _client(self, prompt: list[int]) -> Any:
        return await self.answer(URL, greedy(prompt, TOKENS, cache_salt=self.salt()))

    async def _decode(self, prompt: list[int], reference: Mapping[str, Any]) -> Any:
        return await self.ask("decode", prompt, kv_transfer_params=dict(reference))

    async def _used(self) -> tuple[list[int], Mapping[str, Any]]:
        prompt = self.prompt()
        await self._client(prompt)
        return prompt, self.recorders["decode"].seen[-1].params

    async def unknown(self) -> str:
        """A room that no ticket has named."""
        prompt = self.prompt()
        said = await self._decode(prompt, {"room": UNKNOWN_ROOM, "epoch": 1})
        return await self.judged(prompt, said)

    async def out_of_range(self) -> str:
        """An epoch that the room never had; pages cannot be named."""
        prompt, reference = await self._used()
        said = await self._decode(prompt, {**reference, "epoch": 1_000_000})
        return await self.judged(prompt, said)

    async def consumed(self) -> str:
        """A room that has ended, at once again."""
        prompt, reference = await self._used()
        return await self.judged(prompt, await self._decode(prompt, reference))

    async def reused(self) -> str:
        """A room that has ended, after prefill has computed other prompts there."""
        prompt, reference = await self._used()
        await self.flood()
        return await self.judged(prompt, await self._decode(prompt, reference))

    async def _while_decode_is_gone(self, gone: Callable[[], Awaitable[None]]) -> str:
        prompt, seen = self.prompt(), self.recorders["prefill"].seen
        before = len(seen)
        asked = asyncio.ensure_future(self._client(prompt))
        await until(lambda: len(seen) > before and seen[before].first is not None)
        await gone()
        said = await asked
        await self._ready()
        return await self.judged(prompt, said)

    async def expired(self) -> str:
        """Decode stands still until the handoff has expired and the pages are used again."""

        async def gone() -> None:
            pid = self.engines["decode"].pid
            halt(pid, to=signal.SIGSTOP)
            await asyncio.sleep(2 * LEASE_S)
            await self.flood()
            halt(pid, to=signal.SIGCONT)

        return await self._while_decode_is_gone(gone)

    async def restarted(self) -> str:
        """Decode is killed after the prompt was computed, and started again."""

        async def gone() -> None:
            self.kill("decode")
            self._start("decode")
            await self._ready()
            await self.flood()

        return await self._while_decode_is_gone(gone)

    async def twice(self) -> str:
        """One room in two requests at once."""
        prompt, seen = self.prompt(), self.recorders["decode"].seen
        before = len(seen)
        asked = asyncio.ensure_future(self._client(prompt))
        await until(lambda: len(seen) > before)
        other = await self._decode(prompt, seen[before].params)
        return " and ".join([await self.judged(prompt, each) for each in (await asked, other)])

    async def aborted(self) -> str:
        """Clients that leave around the admission, then the same prompt again."""
        found: dict[str, int] = {}
        for n in range(LEAVES):
            prompt = self.prompt()
            try:
                async with asyncio.timeout(LEAVE_WITHIN_S * n / LEAVES):
                    await self._client(prompt)
            except TimeoutError:
                pass
            said = await self.judged(prompt, await self._client(prompt))
            found[said] = found.get(said, 0) + 1
        return json.dumps(found)


CASES: Mapping[str, Callable[[Bench], Awaitable[str]]] = {
    "unknown": lambda bench: bench.unknown(),
    "out of range": lambda bench: bench.out_of_range(),
    "consumed": lambda bench: bench.consumed(),
    "reused": lambda bench: bench.reused(),
    "expired": lambda bench: bench.expired(),
    "twice": lambda bench: bench.twice(),
    "aborted": lambda bench: bench.aborted(),
    "restarted": lambda bench: bench.restarted(),
}
CONNECTORS: Mapping[str, type[Nixl] | type[Baton]] = {"nixl": Nixl, "baton": Baton}


async def try_all(args: argparse.Namespace, folder: Path, progress: Progress) -> dict[str, Any]:
    """Run every case with every connector."""
    cases = args.cases or list(CASES)
    task = progress.add_task("cases", total=len(args.connectors) * len(cases))
    found: dict[str, dict[str, str]] = {case: {} for case in cases}
    for name in args.connectors:
        with ExitStack() as stack:
            bench = CONNECTORS[name](
                Starts(args.vllm, ensure(TRIAL), folder, FLAGS), stack, args.seed
            )
            await bench.begin()
            for case in cases:
                found[case][name] = await CASES[case](bench)
                progress.console.print(f"{name}, {case}: {found[case][name]}")
                progress.advance(task)
            await bench.end()
            await bench.http.aclose()
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vllm", required=True, help="the command of vLLM")
    parser.add_argument("--connectors", nargs="+", choices=CONNECTORS, default=list(CONNECTORS))
    parser.add_argument("--cases", nargs="+", choices=CASES)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    console, folder = Console(), Path(tempfile.mkdtemp(prefix="baton-vllm-"))
    console.print(f"logs in {folder}")
    with Progress(console=console) as progress:
        found = asyncio.run(try_all(args, folder, progress))
    console.print_json(json.dumps(found))
    raise SystemExit(any("WRONG" in said.get("baton", "") for said in found.values()))


if __name__ == "__main__":
    main()
