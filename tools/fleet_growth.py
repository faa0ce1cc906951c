"""What a simulated second of a fleet costs in processor time, by the number of workers.

    python -m tools.fleet_growth --workers 8,32,128,512 --seconds 20 --out docs/benchmarks/fleet_growth

Half of the workers compute prompts, and the load is in proportion to them, so that each does the
same at any size. That workers are introduced to each other, each prefill worker to each decode
worker, is counted apart. A cost of the same value a worker at any size would be linear growth.
"""

import argparse
import gc
import json
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tools.scaling_signal import PROFILE

from baton.core.gateway.request import DECODE, PREFILL
from baton.dev.fleet.fleet import Fleet, FleetSettings
from baton.dev.planning.traffic import MixPart, PoissonMix, requests

RATE = 0.5  # requests a second for each worker: both roles are about half busy
MIX = (MixPart(256, 32),)


def measured(workers: int, seconds: float) -> dict[str, Any]:
    """Serve for so long, and return the processor time of that in seconds."""
    half = workers // 2
    began = time.process_time()
    fleet = Fleet((PREFILL,) * half + (DECODE,) * half, PROFILE, FleetSettings())
    while fleet.clock.now < 500_000 and fleet.clock.advance():
        pass
    introduced = time.process_time() - began
    count = round(RATE * workers * seconds)
    rows = PoissonMix(parts=MIX, rate=RATE * workers, count=count, range_ratio=0.5).rows(0)
    start, began = fleet.clock.now, time.process_time()
    served = fleet.serve(requests(rows))
    spent, simulated = time.process_time() - began, (fleet.clock.now - start) / 1e6
    assert not [one for one in served if one.failure], "nothing is overloaded"
    return {
        "workers": workers,
        "requests": count,
        "simulated_s": simulated,
        "introduced_s": introduced,
        "spent_s": spent,
        "a_second": spent / simulated,
        "ms_a_request": 1e3 * spent / count,
    }


def plot(found: Sequence[Mapping[str, Any]], target: Path) -> None:
    """Draw the costs over the workers, as PNG and SVG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(6, 4))
    sizes = [one["workers"] for one in found]
    axis.plot(sizes, [one["a_second"] for one in found], marker="o", label="a simulated second")
    first = found[0]["a_second"] / sizes[0]
    axis.plot(sizes, [first * n for n in sizes], "--", color="grey", label="linear growth")
    pairs = [one["introduced_s"] for one in found]
    axis.plot(sizes, pairs, marker="s", label="introducing all pairs, once")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(sizes, [str(n) for n in sizes])
    axis.set_xlabel("workers, half of them for prefill; load in proportion")
    axis.set_ylabel("seconds of processor time")
    axis.grid(visible=True, alpha=0.3)
    axis.legend()
    figure.tight_layout()
    for ending in ("png", "svg"):
        figure.savefig(target.with_suffix(f".{ending}"))
    pyplot.close(figure)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", default="8,32,128,512")
    parser.add_argument("--seconds", type=float, default=20.0, help="for which requests come")
    parser.add_argument("--out", type=Path, help="write OUT.json, .png and .svg")
    args = parser.parse_args()
    gc.disable()  # as in a plan
    found = []
    for workers in map(int, args.workers.split(",")):
        found.append(measured(workers, args.seconds))
        print({name: round(value, 3) for name, value in found[-1].items()}, flush=True)
        gc.collect()
    if args.out is not None:
        args.out.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
        if find_spec("matplotlib") is not None:
            plot(found, args.out)


if __name__ == "__main__":
    main()
