"""Serves loads that no profile was fitted to, and compares the plan's figures with them.

    python -m tools.held_out --out docs/benchmarks/held_out      (about 65 minutes; nothing else should run)

A profile is measured first, and the processor time of gateway and client. Three mixes of requests
come at fractions of the rate that two workers carry by the plan: to 1 prefill and 1 decode worker,
and to 2 unified ones, each of one thread on a core of its own. Gateway and client have no cores of
their own. Each load is served in several rounds, in the order split, unified, unified, split, and
so on; the plan is asked for the very same requests, and its verdict for many draws of the load.

Workers write down their steps, so that the report says how long these took beside the profile's. With
--paced they take the profile's times and compute nothing: a machine whose speed changes has no part
in the comparison then.
"""

import argparse
import platform
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn
from tools.held_out import report
from tools.held_out.live import LiveRun, measured, running, with_host_times
from tools.held_out.loads import LAYOUTS, MIXES, HeldOutLoad, held_out, planned, planned_verdict
from tools.held_out.recording import Recording
from tools.peers.__main__ import processor

from baton.dev.bench.service import BATON
from baton.dev.fleet.profile import MachineProfile, read_profile, write_profile
from baton.shell.threads import available_cores

ENGINE = ("--dtype", "bfloat16", "--max-num-batched-tokens", "512", "--max-num-seqs", "128")
ENGINE = (*ENGINE, "--kv-memory", "1GiB", "--fabric", "shm")


def fresh_profile(model: str, seconds: float) -> MachineProfile:
    """Measure a worker of one thread."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "profile.json"
        command = [*BATON, "plan", "measure", "--model", model, "--threads", "1", *ENGINE]
        command += ["--seconds", str(seconds), "--out", str(out)]
        subprocess.run(command, check=True)
        return with_host_times(read_profile(out), model, ENGINE)


def layouts_of(rounds: int) -> list[str]:
    """Return the order of the layouts: each comes first in every other round."""
    pair = ("split", "unified")
    return [layout for number in range(rounds) for layout in pair[:: 1 if number % 2 == 0 else -1]]


@contextmanager
def bar(loads: Sequence[HeldOutLoad], rounds: int) -> Iterator[Progress]:
    """Show how far it is, if there is a terminal."""
    console = Console(stderr=True)
    with Progress(
        *Progress.get_default_columns(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as progress:
        progress.add_task("requests", total=rounds * sum(len(load.rows) for load in loads))
        yield progress


def serve_all(
    loads: Sequence[HeldOutLoad],
    model: str,
    order: Sequence[str],
    profile: MachineProfile,
    *,
    paced: bool,
) -> dict[str, dict[str, list[LiveRun]]]:
    """Serve all loads in rounds. Returns the runs by load and layout."""
    found: dict[str, dict[str, list[LiveRun]]] = {str(load): defaultdict(list) for load in loads}
    with bar(loads, len(order)) as progress, tempfile.TemporaryDirectory() as directory:
        recording = Recording(
            profile=Path(directory) / "profile.json", directory=Path(directory), paced=paced
        )
        write_profile(profile, recording.profile)
        for number, layout in enumerate(order):
            with running(layout, model, ENGINE, recording=recording) as target:
                for load in loads:
                    run = measured(
                        target,
                        load,
                        recording,
                        purpose=f"round {number}",
                        tell=lambda _: progress.advance(progress.task_ids[0]),
                    )
                    found[str(load)][layout].append(run)
                    print(_line(number, len(order), layout, load, run), file=sys.stderr, flush=True)
    return found


def _line(number: int, rounds: int, layout: str, load: HeldOutLoad, run: LiveRun) -> str:
    one = report.figures(run.served, load.slos)
    cores = ", ".join(f"{name} {share:.2f}" for name, share in run.cores.items() if share > 0.005)
    pace = ", ".join(f"{name} {ratio:.2f}" for name, ratio in run.pace.items())
    return (
        f"{number + 1}/{rounds} {layout:8} {load!s:30} {len(load.rows):4} requests in "
        f"{run.seconds:5.1f} s: within SLOs {one.attained:6.1%}, TTFT {one.ttft:6.0f} ms, TPOT "
        f"{one.tpot:6.1f} ms, late {run.late_ms:.0f} ms; cores: {cores}; pace: {pace}"
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--mixes", nargs="+", choices=MIXES, default=list(MIXES))
    parser.add_argument("--fractions", type=float, nargs="+", default=[0.4, 0.7, 1.0, 1.3])
    parser.add_argument("--seconds", type=float, default=35.0, help="of each load")
    parser.add_argument("--rounds", type=int, default=3, help="of every load with each layout")
    parser.add_argument(
        "--measure-seconds", type=float, default=120.0, help="that a profile is measured for"
    )
    parser.add_argument("--profile", type=Path, help="read this instead of measuring one")
    parser.add_argument(
        "--paced",
        action="store_true",
        help="steps take the times of --profile and compute nothing: the machine's speed has no part",
    )
    parser.add_argument("--out", type=Path, help="write OUT.json, .md, .png and .svg")
    parser.add_argument(
        "--quick", action="store_true", help="two loads of 10 seconds, to see that it works"
    )
    args = parser.parse_args()
    if args.paced and args.profile is None:
        parser.error("--paced: name the profile whose times steps take, with --profile")
    if args.quick:
        args.mixes, args.fractions, args.seconds = ["mixed"], [0.4, 1.0], 10.0
        args.rounds, args.measure_seconds = 2, 10.0
    profile = (
        fresh_profile(args.model, args.measure_seconds)
        if args.profile is None
        else read_profile(args.profile)
    )
    # steps that compute nothing want no core
    shared = None if args.paced else len(available_cores())
    loads = held_out(profile, args.mixes, args.fractions, seconds=args.seconds)
    plans, apart = (
        {str(load): {n: planned(profile, load.rows, n, cores=c) for n in LAYOUTS} for load in loads}
        for c in (shared, None)
    )
    for load in loads:
        print(f"{load}: {len(load.rows)} requests, SLOs {load.slos}", file=sys.stderr, flush=True)
    rounds = serve_all(loads, args.model, layouts_of(args.rounds), profile, paced=args.paced)
    machine = {
        "processor": processor(),
        "cores": len(available_cores()),
        "system": platform.platform(),
        "model": args.model,
        "dtype": "bfloat16",
    }
    rows = []
    for load in loads:
        name, advice_apart = str(load), planned_verdict(profile, load, cores=None)
        advice = advice_apart
        if shared is not None:
            advice = planned_verdict(profile, load, cores=shared)
        rows.append(
            report.compared(
                load,
                plans[name],
                apart[name],
                rounds[name],
                advice=advice,
                advice_apart=advice_apart,
            )
        )
    found = report.document(rows, profile, machine)
    Console(width=200).print(report.table(found), markup=False, highlight=False)
    if args.out is not None:
        plots = find_spec("matplotlib") is not None
        report.write(found, args.out, plots=plots)
        if not plots:
            print("no plots: pip install 'baton-llm[bench]'", file=sys.stderr)


if __name__ == "__main__":
    main()
