"""Hands prompts over between two vLLM engines, and compares every token with what one engine says
that computes the prompt itself.

    python tools/vllm_check.py --vllm DIR/bin/vllm --prompts 50 --longest 3000 --concurrency 8

Starts `baton gateway` and the two engines on loopback, each on a core of its own, in float32, and
ends them. vLLM may live in an environment of its own; Baton must be installed there too. Both ways
of asking use the same random prompts and greedy sampling. At the end every page must be free.

Where two answers part, the engine is asked for the log-probabilities of both tokens: tokens that it
finds equally likely within `--tie` are a matter of rounding. Then it is also asked for the same
answers again, one at a time, which shows how often its own answers part: in 16 bits they do, since
another batch adds up in another order.
"""

import argparse
import asyncio
import random
import shlex
import statistics
import tempfile
import time
from contextlib import ExitStack
from math import inf
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.progress import Progress
from tools.vllm_engines import PORTS, URL, Starts, baton, ended_by, greedy, url_of, wait_ready

from baton.cli.models import TRIAL, ensure

BEST = 20  # the most log-probabilities that vLLM tells


async def ask_all(
    url: str, prompts: list[list[int]], tokens: int, concurrency: int, progress: Progress
) -> tuple[list[Any], list[float]]:
    """Ask for all answers: token ids, or the error; and seconds."""
    bar = progress.add_task(url, total=len(prompts))
    slots, times = asyncio.Semaphore(concurrency), []
    found: list[Any] = [None] * len(prompts)

    async def one(client: httpx.AsyncClient, n: int) -> None:
        body = greedy(prompts[n], tokens)
        async with slots:
            began = time.monotonic()
            reply = await client.post(f"{url}/v1/completions", json=body)
            times.append(time.monotonic() - began)
        said = reply.json()
        found[n] = said["choices"][0]["token_ids"] if reply.status_code == 200 else reply.text
        progress.advance(bar)

    async with httpx.AsyncClient(timeout=1200) as client:
        await asyncio.gather(*(one(client, n) for n in range(len(prompts))))
    return found, times


def parting(a: list[int], b: list[int]) -> int:
    """Return how many tokens two answers have in common before they part."""
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))


async def gaps(
    url: str, prompts: list[list[int]], handed: list[Any], computed: list[Any]
) -> list[float]:
    """Return for each pair of answers that part how far apart an engine finds their tokens there,
    in log-probability; infinity if one of them is not among its best."""
    found = []
    async with httpx.AsyncClient(timeout=120) as client:
        for prompt, a, b in zip(prompts, handed, computed, strict=True):
            if a == b or not (isinstance(a, list) and isinstance(b, list)):
                continue
            common = parting(a, b)
            more = {"logprobs": BEST, "return_tokens_as_token_ids": True}
            body = greedy(prompt + a[:common], 1, **more)
            reply = await client.post(f"{url}/v1/completions", json=body)
            (best,) = reply.json()["choices"][0]["logprobs"]["top_logprobs"]
            of = [best.get(f"token_id:{token}", -inf) for token in (a[common], b[common])]
            found.append(abs(of[0] - of[1]) if -inf not in of else inf)
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vllm", required=True, help="the command of vLLM")
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--longest", type=int, default=3000)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--fabric", default="nixl")
    parser.add_argument("--model", help="a directory; default: the trial model")
    parser.add_argument("--vocabulary", type=int, default=40_000, help="ids of prompts end before")
    parser.add_argument("--tp-prefill", type=int, default=1)
    parser.add_argument("--tp-decode", type=int, default=1)
    parser.add_argument(
        "--tie", type=float, default=0.0, help="log-probability by which tokens may be apart"
    )
    parser.add_argument("--vllm-args", default="", help="more flags of vLLM, which win")
    args = parser.parse_args()
    args.tp = {"prefill": args.tp_prefill, "decode": args.tp_decode}
    console, chance = Console(), random.Random(7)
    model = Path(args.model) if args.model else ensure(TRIAL)
    prompts = [
        [chance.randrange(100, args.vocabulary) for _ in range(chance.randrange(10, args.longest))]
        for _ in range(args.prompts)
    ]
    folder = Path(tempfile.mkdtemp(prefix="baton-vllm-"))
    console.print(f"logs in {folder}")
    starts = Starts(args.vllm, model, folder, shlex.split(args.vllm_args))
    with ExitStack() as stack:
        patience = ("--queue-timeout", "1000", "--request-timeout", "1200")
        processes = [ended_by(stack, starts.gateway(*patience))]
        for role in PORTS:
            transfer = baton(role, fabric=[args.fabric])
            engine = starts.engine(role, transfer, log=f"{role}.log", tp=args.tp[role])
            processes.append(ended_by(stack, engine))
        wait_ready(f"{URL}/ready", processes)
        with Progress(console=console) as progress:
            run = (prompts, args.tokens, args.concurrency, progress)
            handed, times = asyncio.run(ask_all(URL, *run))
            # not decode's: its prefix cache has the state that was handed over
            computed, own = asyncio.run(ask_all(url_of("prefill"), *run))
            parted, alone = asyncio.run(gaps(url_of("prefill"), prompts, handed, computed)), []
            if parted:
                one_by_one = (prompts, args.tokens, 1, progress)
                again, _ = asyncio.run(ask_all(url_of("prefill"), *one_by_one))
                alone = asyncio.run(gaps(url_of("prefill"), prompts, again, computed))
        ledger = httpx.get(f"{URL}/debug/ledger").json()
        lines = httpx.get(f"{URL}/metrics").text.splitlines()
    counted = {
        line.split("{")[0]: float(line.rsplit(" ", 1)[1])
        for line in lines
        if line.startswith("baton:read") and 'worker="decode-0"' in line
    }
    errors = [answer for answer in handed if not isinstance(answer, list)]
    equal = sum(a == b for a, b in zip(handed, computed, strict=True))
    ties = sum(gap <= args.tie for gap in parted)
    console.print_json(
        data={
            "prompts": len(prompts),
            "prompt_tokens": sum(map(len, prompts)),
            "equal": equal,
            "near_ties": ties,
            "gaps": [round(gap, 4) for gap in sorted(parted)],
            "gaps_of_one_engine": [round(gap, 4) for gap in sorted(alone)],
            "errors": errors[:3],
            "clean": ledger["clean"],
            "median_s": {
                "handed over": round(statistics.median(times), 2),
                "one engine": round(statistics.median(own), 2),
            },
            "reads": counted,
        }
    )
    raise SystemExit(equal + ties != len(prompts) or not ledger["clean"])


if __name__ == "__main__":
    main()
