"""Measures what a connector that has nothing to do costs a vLLM engine.

    python -m tools.vllm_idle --vllm DIR/bin/vllm --rounds 3

One engine on one core generates by itself: without a connector, with Baton's, and with vLLM's own
NixlConnector, in turns. With Baton's a gateway runs beside it, on the other core, and the engine is
registered there.
"""

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.progress import Progress
from tools.vllm_engines import URL, Starts, baton, ended_by, greedy, nixl, url_of, wait_ready

from baton.cli.models import TRIAL, ensure

ROLE = "decode"
CONNECTORS = {"none": None, "baton": baton(ROLE), "nixl": nixl()}
PROMPT = 128
WARM = 1


async def rate(clients: int, tokens: int, seed: int) -> float:
    """Return how many tokens a second an engine generates for so many clients."""
    chance = random.Random(seed)
    prompts = [[chance.randrange(100, 40_000) for _ in range(PROMPT)] for _ in range(clients)]
    url = f"{url_of(ROLE)}/v1/completions"
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


def one_round(
    starts: Starts, name: str, args: argparse.Namespace, number: int
) -> dict[str, list[float]]:
    """Start the engine with one connector, and measure."""
    found: dict[str, list[float]] = defaultdict(list)
    with ExitStack() as stack:
        if name == "baton":
            gateway = ended_by(stack, starts.gateway())
            wait_ready(f"{URL}/health", [gateway])
        engine = ended_by(stack, starts.engine(ROLE, CONNECTORS[name], log=f"{number}-{name}.log"))
        wait_ready(f"{url_of(ROLE)}/health", [engine])
        while name == "baton" and not registered():
            time.sleep(0.2)
        for clients in args.clients:
            for turn in range(WARM + args.each):
                said = asyncio.run(rate(clients, args.tokens, 1000 * number + turn))
                if turn >= WARM:
                    found[str(clients)].append(said)
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vllm", required=True, help="the command of vLLM")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--each", type=int, default=2, help="measurements of a kind in a round")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8])
    args = parser.parse_args()
    console, folder = Console(), Path(tempfile.mkdtemp(prefix="baton-vllm-"))
    console.print(f"logs in {folder}")
    starts = Starts(args.vllm, ensure(TRIAL), folder)
    found: dict[str, dict[str, list[float]]] = {n: defaultdict(list) for n in CONNECTORS}
    with Progress(console=console) as progress:
        task = progress.add_task("engines", total=args.rounds * len(CONNECTORS))
        for number in range(args.rounds):
            for name in CONNECTORS:
                for clients, rates in one_round(starts, name, args, number).items():
                    found[name][clients] += rates
                progress.advance(task)
    alone = {clients: statistics.median(rates) for clients, rates in found["none"].items()}
    report: dict[str, Any] = {
        name: {
            f"{clients} clients": {
                "tokens/s": round(statistics.median(rates), 1),
                "least": round(min(rates), 1),
                "most": round(max(rates), 1),
                "beside none": round(statistics.median(rates) / alone[clients], 3),
            }
            for clients, rates in each.items()
        }
        for name, each in found.items()
    }
    console.print_json(json.dumps(report))


if __name__ == "__main__":
    main()
