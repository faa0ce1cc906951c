"""Measures services over HTTP, in turns: Baton split and unified, vLLM on all cores with its default and
with a small chunk budget, and vLLM split over NIXL.

    python -m tools.peers.served --rounds 2 --prompts 512 2048 --clients 1 8 --out docs/benchmarks/served

All have the same weights, cores and client (that of `baton bench serve`), and each has the machine to
itself while it is measured. Where a layout is split, prefill has one half of the cores and decode the
other. Ratios are Baton's over the peer's. Requests that keep 5 times the idle time of vLLM on all
cores are good.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
from rich.console import Console
from tools.peers.__main__ import processor
from tools.peers.turns import PEERS, ROOT, preloaded, why_absent
from tools.vllm_engines import MODEL, PORTS, SIDE_CHANNELS, end, nixl, url_of, wait_ready

from baton.cli.models import TRIAL, ensure
from baton.dev.bench.client import RequestOutcome, Target
from baton.dev.bench.figures import summarize
from baton.dev.bench.layouts import started
from baton.dev.bench.show import progress
from baton.dev.bench.sweep import Plan, idle, maker, measure, slos_of
from baton.dev.bench.verdict import LoadPoint
from baton.dev.bench.workload import Shape
from baton.shell.threads import available_cores

PROXY = 8990
PAGES = 1200  # of each of Baton's workers of a pair, 16 tokens each
CACHE_GB = 1  # of each vLLM engine, more than that
SMALL_CHUNK = 256
SLO_SCALE = 5.0
Start = Callable[[Path], AbstractContextManager[Target]]


class Figures(NamedTuple):
    """One service under one load, in milliseconds and per second."""

    ttft: float
    itl: float
    itl_p99: float
    stall: float
    goodput: float
    tokens: float


def target(url: str) -> Target:
    """Return a service of vLLM's."""
    return Target(
        base_url=url,
        endpoint="/v1/completions",
        model=MODEL,
        api_key=None,
        chat=False,
        ignore_eos=True,
        temperature=0.0,
        timeout_s=600.0,
    )


def baton(*flags: str) -> Start:
    """Return a service of `baton serve`."""

    def start(_logs: Path) -> AbstractContextManager[Target]:
        return started(target(""), [TRIAL, "--dtype", "bfloat16", *flags])

    return start


def engine(logs: Path, role: str, cores: Sequence[int], *flags: str) -> subprocess.Popen[bytes]:
    """Start an engine of vLLM."""
    environment = PEERS / "vllm" / "bin"
    command = [
        *("taskset", "-c", ",".join(map(str, cores)), str(environment / "vllm"), "serve"),
        *(str(ensure(TRIAL)), "--served-model-name", MODEL, "--dtype", "bfloat16"),
        *("--host", "127.0.0.1", "--port", str(PORTS[role]), "--max-model-len", "4096", *flags),
    ]
    return subprocess.Popen(
        command,
        env=os.environ
        | {
            "VLLM_CPU_KVCACHE_SPACE": str(CACHE_GB),
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(SIDE_CHANNELS[role]),
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "PATH": f"{environment}:{os.environ['PATH']}",
        }
        | preloaded("vllm"),
        stdout=(logs / f"vllm-{role}.log").open("wb"),
        stderr=subprocess.STDOUT,
    )


def colocated(*flags: str) -> Start:
    """Return one engine of vLLM with all cores."""

    @contextmanager
    def start(logs: Path) -> Iterator[Target]:
        process = engine(logs, "decode", available_cores(), "--no-enable-prefix-caching", *flags)
        try:
            wait_ready(f"{url_of('decode')}/health", [process])
            yield target(url_of("decode"))
        finally:
            end(process)

    return start


@contextmanager
def split(logs: Path) -> Iterator[Target]:
    """Run two engines of vLLM with NixlConnector, and a proxy."""
    cores = available_cores()
    half = max(1, len(cores) // 2)
    flags = ("--no-enable-prefix-caching", "--kv-transfer-config", json.dumps(nixl()))
    with ExitStack() as stack:
        processes = []
        for role, own in (("prefill", cores[:half]), ("decode", cores[half:] or cores)):
            processes.append(engine(logs, role, own, *flags))
            stack.callback(end, processes[-1])
        for role in PORTS:
            wait_ready(f"{url_of(role)}/health", processes)
        command = [sys.executable, "-m", "tools.peers.split_proxy", str(PROXY)]
        proxy = subprocess.Popen([*command, *(url_of(role) for role in PORTS)], cwd=ROOT)
        stack.callback(end, proxy)
        wait_ready(f"http://127.0.0.1:{PROXY}/health", [proxy])
        yield target(f"http://127.0.0.1:{PROXY}")


COLOCATED = "vllm"
SERVICES: Mapping[str, Start] = MappingProxyType(
    {
        COLOCATED: colocated(),
        "baton split": baton("--role", "split", "--kv-pages", str(PAGES)),
        "vllm split": split,
        "baton unified": baton("--role", "unified", "--kv-pages", str(2 * PAGES)),
        "vllm, small chunks": colocated("--max-num-batched-tokens", str(SMALL_CHUNK)),
    }
)


def figures(outcomes: Sequence[RequestOutcome], slos: Mapping[str, float]) -> Figures:
    """Return the figures of one run.

    Raises:
        SystemExit: a request failed
    """
    found = summarize(outcomes, slos)
    if found.failures:
        raise SystemExit(f"requests failed: {found.failures}: {outcomes[0].detail}")
    return Figures(
        ttft=found.ttft_ms.p50,
        itl=found.itl_ms.p50,
        itl_p99=found.itl_ms.p99,
        stall=found.stall_ms.p99,
        goodput=found.goodput or 0.0,
        tokens=found.output_throughput,
    )


def table(found: Mapping[str, Mapping[str, Sequence[Figures]]]) -> str:
    """Return the medians as Markdown."""
    head = "| load | service | TTFT p50 | ITL p50 | ITL p99 | longest stall | goodput | tokens/s |"
    lines = [head, "|---" * 8 + "|"]
    for load, services in found.items():
        for name, runs in services.items():
            middle = Figures(*(median(values) for values in zip(*runs, strict=True)))
            shown = [f"{value:,.0f}" for value in middle[:4]]
            cells = [load, name, *shown, f"{middle.goodput:.2f}", f"{middle.tokens:,.0f}"]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measure every service under every load."""
    shape = Shape(seed=0, low=100, high=20_000, output_tokens=args.tokens)
    plan = Plan(
        make=maker("random", None, output_len=args.tokens, range_ratio=0.0, shape=shape),
        loads=tuple(LoadPoint(p, c) for p in args.prompts for c in args.clients),
        count=args.requests,
        warm_ups=2,
        burstiness=1.0,
        seed=0,
        keep_times=False,
    )

    def watch(label: str, total: int) -> Any:
        return progress(label, total, console)

    args.logs.mkdir(parents=True, exist_ok=True)
    slos: dict[int | None, dict[str, float]] = {}
    found: dict[str, dict[str, list[Figures]]] = defaultdict(lambda: defaultdict(list))
    for number in range(args.rounds):
        for name in args.services:
            with SERVICES[name](args.logs) as service:
                if not slos:  # of the first service
                    alone = idle(service, plan, watch)
                    slos = {length: slos_of(o, SLO_SCALE) for length, o in alone.items()}
                for load, outcomes in measure(service, plan, watch, label=f"{name}, "):
                    row = figures(outcomes, slos[load.prompt_tokens])
                    found[str(load)][name].append(row)
                    console.print(f"round {number}, {name}, {load}: {row}")
    return {
        "machine": {"processor": processor(), "cores": len(available_cores())},
        "model": TRIAL,
        "tokens": args.tokens,
        "slos_ms": {str(length): ms for length, ms in slos.items()},
        "rows": {
            load: {name: [row._asdict() for row in runs] for name, runs in services.items()}
            for load, services in found.items()
        },
        "table": table(found),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--services", nargs="+", choices=SERVICES, default=list(SERVICES))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--prompts", nargs="+", type=int, default=[128, 512, 2048])
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=32, help="of each answer")
    parser.add_argument("--requests", type=int, help="of a load; default: 4 a client, at least 8")
    parser.add_argument("--out", type=Path, help="where results are written, without an ending")
    parser.add_argument("--logs", type=Path, default=Path(tempfile.gettempdir()))
    args = parser.parse_args()
    console = Console()
    if (why := why_absent("vllm")) and any("vllm" in name for name in args.services):
        console.print(f"left out: {why}")
        args.services = [name for name in args.services if "vllm" not in name]
    found = run(args, console)
    print(found["table"])
    if args.out is not None:
        args.out.with_suffix(".json").write_bytes(msgspec.json.format(msgspec.json.encode(found)))
        args.out.with_suffix(".md").write_text(found["table"] + "\n")


if __name__ == "__main__":
    main()
