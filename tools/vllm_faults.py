"""Kills vLLM engines under load, lets clients leave, and looks whether anything goes wrong or is
left.

    python -m tools.vllm_faults --vllm DIR/bin/vllm --kills 20 --leaving 200

Two engines with BatonConnector and a gateway on loopback. While clients
ask without a pause, the engines are killed in turns: all processes of one at once, or only the one
that holds its memory. Each is started again. Every answer must be the one that an engine computes
alone, or an error with a code; the other engine must live on; at the end nothing may be held.
"""

import argparse
import asyncio
import collections
import json
import random
import re
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil
from rich.console import Console
from tools.vllm_engines import PORTS, URL, Starts, baton, end, greedy, url_of, wait_ready

from baton.cli.models import TRIAL, ensure

TOKENS = 16
CLEAN_AFTER_KILLS_S, CLEAN_AFTER_LEAVING_S = 5.0, 2.0
USED = re.compile(r"^vllm:(kv_cache_usage_perc|num_requests_\w+)\{[^}]*\} (\S+)$", re.MULTILINE)


class Service:
    """The gateway and both engines."""

    def __init__(self, starts: Starts, fabric: str) -> None:
        self._starts, self._fabric = starts, fabric
        self._count: collections.Counter[str] = collections.Counter()
        self.gateway = starts.gateway()
        self.engines = {role: self._start(role) for role in PORTS}

    def _start(self, role: str) -> subprocess.Popen[bytes]:
        self._count[role] += 1
        transfer = baton(role, fabric=[self._fabric])
        return self._starts.engine(role, transfer, log=f"{role}.{self._count[role]}.log")

    def wait_ready(self) -> None:
        """Wait until a pair can hand over."""
        wait_ready(f"{URL}/ready", [self.gateway, *self.engines.values()])

    def kill(self, role: str, *, whole: bool) -> None:
        """Kill an engine, or only its worker process, and see the rest of it gone."""
        process = self.engines[role]
        family = psutil.Process(process.pid).children(recursive=True)
        workers = [p for p in family if "Worker" in " ".join(p.cmdline())]
        for each in [*family, psutil.Process(process.pid)] if whole or not workers else workers:
            each.kill()
        psutil.wait_procs(family, timeout=20)
        for each in family:
            if each.is_running():
                each.kill()
        process.kill()
        process.wait()

    def restart(self, role: str) -> None:
        """Start an engine that was killed."""
        self.engines[role] = self._start(role)

    def close(self) -> None:
        """End everything."""
        for process in (self.gateway, *self.engines.values()):
            end(process)


class Load:
    """Clients that ask without a pause, and what became of their requests."""

    def __init__(self, prompts: list[list[int]], truth: list[list[int]]) -> None:
        self._prompts, self._truth = prompts, truth
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.wrong: list[Any] = []
        self.stop = False

    async def client(self, http: httpx.AsyncClient, seed: int) -> None:
        """Ask until told to stop."""
        chance = random.Random(seed)
        while not self.stop:
            n = chance.randrange(len(self._prompts))
            reply = await http.post(f"{URL}/v1/completions", json=greedy(self._prompts[n], TOKENS))
            said = reply.json()
            if reply.status_code == 200:
                same = said["choices"][0]["token_ids"] == self._truth[n]
                self._count("right" if same else "wrong", (n, said))
            else:
                code = said.get("error", {}).get("code")
                self._count(f"{reply.status_code} {code}" if code else "no code", said)
                await asyncio.sleep(0.5)

    def _count(self, what: str, said: Any) -> None:
        self.outcomes[what] += 1
        if what in ("wrong", "no code"):
            self.wrong.append(said)


async def truth_of(prompts: list[list[int]]) -> list[list[int]]:
    """Return what the prefill engine answers by itself."""
    alone = f"{url_of('prefill')}/v1/completions"
    async with httpx.AsyncClient(timeout=600) as http:
        replies = [await http.post(alone, json=greedy(p, TOKENS)) for p in prompts]
    return [r.json()["choices"][0]["token_ids"] for r in replies]


def held() -> dict[str, Any]:
    """Return what the gateway's ledger and the engines' metrics say is held; empty = nothing."""
    found: dict[str, Any] = {}
    ledger = httpx.get(f"{URL}/debug/ledger", timeout=10).json()
    if not ledger["clean"]:
        found["ledger"] = ledger
    for role in PORTS:
        page = httpx.get(f"{url_of(role)}/metrics", timeout=10).text
        used = {name: float(value) for name, value in USED.findall(page) if float(value)}
        if used:
            found[role] = used
    return found


def seconds_until_nothing_is_held(most: float) -> tuple[float, dict[str, Any]]:
    """Return when nothing was held any more, and what was held after `most` seconds."""
    began = time.monotonic()
    while (rest := held()) and time.monotonic() - began < most:
        time.sleep(0.1)
    return time.monotonic() - began, rest


async def under_load(service: Service, load: Load, args: argparse.Namespace) -> list[str]:
    """Kill and restart engines while clients ask; returns the engines that died unasked."""
    chance, died = random.Random(args.seed), []
    async with httpx.AsyncClient(timeout=300) as http:
        clients = [asyncio.ensure_future(load.client(http, i)) for i in range(args.concurrency)]
        for n in range(args.kills):
            await asyncio.sleep(chance.uniform(2, 8))
            role = ("prefill", "decode")[n % 2]
            other = ("decode", "prefill")[n % 2]
            await asyncio.to_thread(service.kill, role, whole=n % 4 < 2)
            await asyncio.sleep(chance.uniform(0, 4))
            if service.engines[other].poll() is not None:
                died.append(f"{other} after kill {n}")
                service.restart(other)
            service.restart(role)
            await asyncio.to_thread(service.wait_ready)
            print(f"kill {n + 1} of {args.kills} ({role}): {dict(load.outcomes)}", flush=True)
        await asyncio.sleep(5)
        load.stop = True
        await asyncio.gather(*clients)
    return died


async def leave(prompts: list[list[int]], args: argparse.Namespace) -> int:
    """Let clients leave at random moments; returns how many had their whole answer before."""
    chance, slots, whole = random.Random(args.seed), asyncio.Semaphore(16), 0

    async def one(http: httpx.AsyncClient, patience: float, prompt: list[int]) -> None:
        nonlocal whole
        url, body = f"{URL}/v1/completions", greedy(prompt, TOKENS, stream=True)
        async with slots:
            try:
                async with asyncio.timeout(patience), http.stream("POST", url, json=body) as reply:
                    async for _ in reply.aiter_bytes():
                        pass
                    whole += 1
            except TimeoutError:
                pass

    async with httpx.AsyncClient(timeout=300) as http:
        each = [
            one(http, chance.uniform(0, args.patience), chance.choice(prompts))
            for _ in range(args.leaving)
        ]
        await asyncio.gather(*each)
    return whole


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vllm", required=True, help="the command of vLLM")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--leaving", type=int, default=200)
    parser.add_argument("--patience", type=float, default=4.0, help="longest, of clients; seconds")
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--longest", type=int, default=600)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--fabric", default="nixl")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    model, console, chance = ensure(TRIAL), Console(), random.Random(args.seed)
    prompts = [
        [chance.randrange(100, 40_000) for _ in range(chance.randrange(10, args.longest))]
        for _ in range(args.prompts)
    ]
    folder = Path(tempfile.mkdtemp(prefix="baton-vllm-"))
    console.print(f"logs in {folder}")
    with ExitStack() as stack:
        service = Service(Starts(args.vllm, model, folder), args.fabric)
        stack.callback(service.close)
        service.wait_ready()
        load = Load(prompts, asyncio.run(truth_of(prompts)))
        died = asyncio.run(under_load(service, load, args))
        after_kills, rest = seconds_until_nothing_is_held(CLEAN_AFTER_KILLS_S)
        whole = asyncio.run(leave(prompts, args))
        after_leaving, left = seconds_until_nothing_is_held(CLEAN_AFTER_LEAVING_S)
    report = {
        "kills": args.kills,
        "died unasked": died,
        "outcomes": dict(load.outcomes),
        "wrong": load.wrong[:3],
        "held after kills": rest,
        "seconds until nothing was held, after kills": round(after_kills, 2),
        "clients that left": args.leaving - whole,
        "held after they left": left,
        "seconds until nothing was held, after they left": round(after_leaving, 2),
    }
    console.print_json(json.dumps(report, default=str))
    raise SystemExit(bool(died or load.wrong or rest or left))


if __name__ == "__main__":
    main()
