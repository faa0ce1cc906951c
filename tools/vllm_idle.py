"""Measures what a connector that has nothing to do costs a vLLM engine.

    python -m tools.vllm_idle --vllm DIR/bin/vllm --turns 5

Two engines on the same core, one without a connector and one with, generate in turns; the one that
waits is stopped. Baton's connector comes first, then vLLM's own NixlConnector. With Baton's a gateway
runs on the other core, and the engine is registered there whenever it is measured.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.progress import Progress, TaskID
from tools.vllm_engines import URL, Starts, baton, ended_by, greedy, nixl, url_of, wait_ready

from baton.cli.models import TRIAL, ensure

# roles only choose ports here: both engines compute on one core
ALONE, CONNECTED = "prefill", "decode"
CONNECTORS = {"baton": baton(CONNECTED), "nixl": nixl()}
PROMPT = 128
WARM = 1
SETTLE_S = 0.5


async def rate(role: str, clients: int, tokens: int, seed: int) -> float:
    """Return how many tokens a second an engine generates for so many clients."""
    chance = random.Random(seed)
    prompts = [[chance.randrange(100, 40_000) for _ in range(PROMPT)] for _ in range(clients)]
    url = f"{url_of(role)}/v1/completions"
    async with httpx.AsyncClient(timeout=600) as http:
        began = time.monotonic()
        for reply in await asyncio.gather(
            *(http.post(url, json=greedy(p, tokens)) for p in prompts)
        ):
            reply.raise_for_status()
    return clients * tokens / (time.monotonic() - began)


def registered() -> bool:
    """Whether the gateway knows the engine."""
    return bool(httpx.get(f"{URL}/debug/ledger", timeout=10).json()["workers"])


def tree(process: subprocess.Popen[bytes]) -> list[int]:
    """Return the ids of a process and of all that descend from it."""
    found, parents = [process.pid], {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(status.parent.name)] = int(status.read_text().rsplit(")", 1)[1].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


@contextmanager
def stopped(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Stop a process and all that descend from it."""
    pids = tree(process)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def compare(
    starts: Starts, name: str, args: argparse.Namespace, progress: Progress, task: TaskID
) -> dict[int, list[tuple[float, float]]]:
    """Return the rates without a connector and with it, in turns, by number of clients."""
    found: dict[int, list[tuple[float, float]]] = {clients: [] for clients in args.clients}
    with ExitStack() as stack:
        if name == "baton":
            gateway = ended_by(stack, starts.gateway())
            wait_ready(f"{URL}/health", [gateway])
        engines = {}
        for role, connector in ((ALONE, None), (CONNECTED, CONNECTORS[name])):
            engines[role] = ended_by(
                stack, starts.engine(role, connector, core=1, log=f"{name}-{role}.log")
            )
            wait_ready(f"{url_of(role)}/health", [engines[role]])

        def measure(role: str, clients: int, seed: int) -> float:
            with stopped(engines[ALONE if role == CONNECTED else CONNECTED]):
                if role == CONNECTED and name == "baton":
                    while not registered():
                        time.sleep(0.2)
                time.sleep(SETTLE_S)
                return asyncio.run(rate(role, clients, args.tokens, seed))

        for clients in args.clients:
            for turn in range(WARM + args.turns):
                pair = measure(ALONE, clients, turn), measure(CONNECTED, clients, turn)
                if turn >= WARM:
                    found[clients].append(pair)
                progress.advance(task)
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vllm", required=True, help="the command of vLLM")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--connectors", nargs="+", choices=[*CONNECTORS], default=[*CONNECTORS])
    args = parser.parse_args()
    console, folder = Console(), Path(tempfile.mkdtemp(prefix="baton-vllm-"))
    console.print(f"logs in {folder}")
    starts = Starts(args.vllm, ensure(TRIAL), folder)
    report: dict[str, Any] = {}
    with Progress(console=console) as progress:
        turns = len(args.connectors) * len(args.clients) * (WARM + args.turns)
        task = progress.add_task("turns", total=turns)
        for name in args.connectors:
            for clients, pairs in compare(starts, name, args, progress, task).items():
                ratios = sorted(connected / alone for alone, connected in pairs)
                report[f"{name}, {clients} clients"] = {
                    "tokens/s without": round(statistics.median(a for a, _ in pairs), 1),
                    "tokens/s with": round(statistics.median(c for _, c in pairs), 1),
                    "with / without, median": round(statistics.median(ratios), 3),
                    "least": round(ratios[0], 3),
                    "most": round(ratios[-1], 3),
                }
    console.print_json(json.dumps(report))


if __name__ == "__main__":
    main()
