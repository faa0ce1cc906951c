"""Hands prompts over between two vLLM engines, and compares every token with what one engine says
that computes the prompt itself.

    python tools/vllm_check.py --vllm DIR/bin/vllm --prompts 50 --longest 3000 --concurrency 8

Starts `baton gateway` and the two engines on loopback, each on a core of its own, in float32, and
ends them. vLLM may live in an environment of its own; Baton must be installed there too. Both ways
of asking use the same random prompts and greedy sampling. At the end every page must be free.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.progress import Progress

from baton.cli.models import TRIAL, ensure

READY_S = 300.0
CONTROL = 8991
GATEWAY = 8990
ENGINES = {"prefill": (8992, 0), "decode": (8993, 1)}  # port and first core
CORES = os.cpu_count() or 1
ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}


def engine(args: argparse.Namespace, model: Path, role: str, log: Path) -> subprocess.Popen[bytes]:
    """Start one engine."""
    port, core = ENGINES[role]
    tp = args.tp[role]
    cores = "|".join(str((core + rank) % CORES) for rank in range(tp))
    transfer = {
        "kv_connector": "BatonConnector",
        "kv_connector_module_path": "baton.vllm.connector",
        "kv_role": ROLES[role],
        "kv_connector_extra_config": {
            "name": f"{role}-0",
            "url": f"http://127.0.0.1:{port}",
            "gateways": [f"tcp://127.0.0.1:{CONTROL}"],
            "fabric": [args.fabric],
        },
    }
    command = [
        *(args.vllm, "serve", str(model), "--served-model-name", "m", "--dtype", "float32"),
        *("--host", "127.0.0.1", "--port", str(port), "--max-model-len", "4096"),
        *("--tensor-parallel-size", str(tp)),
        *("--enforce-eager", "--block-size", "32", "--kv-transfer-config", json.dumps(transfer)),
    ]
    environment = os.environ | {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": cores,
        "OMP_NUM_THREADS": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "PATH": f"{Path(args.vllm).parent}:{os.environ['PATH']}",
    }
    return subprocess.Popen(
        command, env=environment, stdout=log.open("wb"), stderr=subprocess.STDOUT
    )


def wait_ready(url: str, processes: list[subprocess.Popen[bytes]]) -> None:
    """Wait until a pair can hand over."""
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        if any(process.poll() is not None for process in processes):
            raise SystemExit("a process has ended; its log says why")
        try:
            if httpx.get(f"{url}/ready", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    raise SystemExit(f"not ready in {READY_S:.0f} s")


async def ask_all(
    url: str, prompts: list[list[int]], tokens: int, concurrency: int, progress: Progress
) -> tuple[list[Any], list[float]]:
    """Ask for all answers: token ids, or the error; and seconds."""
    bar = progress.add_task(url, total=len(prompts))
    slots, times = asyncio.Semaphore(concurrency), []
    found: list[Any] = [None] * len(prompts)

    async def one(client: httpx.AsyncClient, n: int) -> None:
        body = {
            "model": "m",
            "prompt": prompts[n],
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
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
    url = f"http://127.0.0.1:{GATEWAY}"
    with ExitStack() as stack:
        gateway = subprocess.Popen(
            [
                *(sys.executable, "-m", "baton", "gateway", "--model", str(model)),
                *("--served-model-name", "m", "--port", str(GATEWAY)),
                *("--control", f"tcp://127.0.0.1:{CONTROL}"),
                *("--queue-timeout", "1000", "--request-timeout", "1200"),
            ],
            stdout=(folder / "gateway.log").open("wb"),
            stderr=subprocess.STDOUT,
        )
        processes = [gateway, *(engine(args, model, r, folder / f"{r}.log") for r in ENGINES)]
        for process in processes:
            stack.callback(process.wait, 60)
            stack.callback(process.send_signal, signal.SIGINT)
        wait_ready(url, processes)
        with Progress(console=console) as progress:
            run = (prompts, args.tokens, args.concurrency, progress)
            handed, times = asyncio.run(ask_all(url, *run))
            # not decode's: its prefix cache has the state that was handed over
            alone = f"http://127.0.0.1:{ENGINES['prefill'][0]}"
            computed, own = asyncio.run(ask_all(alone, *run))
        ledger = httpx.get(f"{url}/debug/ledger").json()
        lines = httpx.get(f"{url}/metrics").text.splitlines()
    counted = {
        line.split("{")[0]: float(line.rsplit(" ", 1)[1])
        for line in lines
        if line.startswith("baton:read") and 'worker="decode-0"' in line
    }
    errors = [answer for answer in handed if not isinstance(answer, list)]
    equal = sum(a == b for a, b in zip(handed, computed, strict=True))
    console.print_json(
        data={
            "prompts": len(prompts),
            "prompt_tokens": sum(map(len, prompts)),
            "equal": equal,
            "errors": errors[:3],
            "clean": ledger["clean"],
            "median_s": {
                "handed over": round(statistics.median(times), 2),
                "one engine": round(statistics.median(own), 2),
            },
            "reads": counted,
        }
    )
    raise SystemExit(equal != len(prompts) or not ledger["clean"])


if __name__ == "__main__":
    main()
