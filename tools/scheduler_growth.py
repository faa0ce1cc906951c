"""Times what a step costs beside the engine: gateway, leader and rank as they are shipped, 256 answers
that run and more requests that wait, over an engine that takes no time of its own.

    python tools/scheduler_growth.py --queued 0 100 1000 3000 10000 --plot docs/benchmarks/scheduler

Medians of processor time from one step's beginning to the next one's: of the leader, of the rank,
and of the gateway's core, which is a process of its own. Without `--held-back` the worker has all
requests; with it, it has as many as its credits allow, and the gateway has the others.
"""

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from baton.core.gateway.request import FrontSettings
from baton.core.ids import TokenId
from baton.core.work import Batch
from baton.dev.fleet.fleet import Fleet, FleetRequest, FleetSettings
from baton.dev.fleet.profile import (
    MachineProfile,
    StepLimits,
    StepTimes,
    WireTimes,
    WorkerMemory,
)

PROMPT, RUNNING = 32, 256
SETTLED = 400  # steps until all requests have come and as many run as may
COUNTED = 300  # steps


class Enough(Exception):
    """All steps have been counted."""


def profile(running: int) -> MachineProfile:
    """An engine whose steps take a millisecond of virtual time."""
    return MachineProfile(
        name="engine that takes a millisecond of no real time",
        steps=StepTimes(tokens_us=((1, 1_000.0),), pair_us=0.0, row_us=0.0, context_us=0.0),
        wire=WireTimes(bytes_per_s=1e12, read_us=0.0, message_us=0.0),
        memory=WorkerMemory(page_tokens=16, pages=running * 200, token_bytes=16),
        limits=StepLimits(step_tokens=4_096, max_rooms=running),
    )


def measured(running: int, queued: int) -> dict[str, int]:
    """Return medians of microseconds a step."""
    settings = FleetSettings(
        most_steps=1,
        prefix_cache=False,
        deadline_ms=3_600_000,
        front=FrontSettings(
            max_requests=running + queued + 1, max_queued=running + queued + 1, queue_ms=3_600_000
        ),
    )
    fleet = Fleet(("unified",), profile(running), settings)
    (worker,) = fleet.workers.values()
    clock = Clock()
    worker.engine.compute = clock.beginning(worker.engine.compute)  # type: ignore[method-assign]
    parts = {"leader": worker.leader, "rank": worker.rank, "gateway": fleet.front}
    for name, part in parts.items():
        part.step = clock.timed(name, part.step)  # type: ignore[attr-defined]
    with contextlib.suppress(Enough):
        fleet.serve(_requests(running + queued))
    steps = clock.steps[SETTLED + 1 : -1]
    found = {f"{name}_us": _us([step.get(name, 0.0) for step in steps]) for name in parts}
    return {"running": running, "queued": queued, **found}


def _us(seconds: list[float]) -> int:
    return round(1e6 * statistics.median(seconds))


class Clock:
    """Adds up what parts take in each step."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = [{}]

    def beginning(self, compute: Callable[..., None]) -> Callable[..., None]:
        """Return `compute`, which begins a step."""

        def counted(batch: Batch, *, steps: int) -> None:
            self.steps.append({})
            if len(self.steps) > SETTLED + COUNTED:
                raise Enough
            compute(batch, steps=steps)

        return counted

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose time belongs to a part."""

        def found(*args: Any) -> Any:
            start = time.process_time()
            result = function(*args)
            step = self.steps[-1]
            step[name] = step.get(name, 0.0) + time.process_time() - start
            return result

        return found


def _requests(count: int) -> Iterator[FleetRequest]:
    answer = 4 * (SETTLED + COUNTED)
    return (FleetRequest(0, (TokenId(n + 1),) * PROMPT, answer) for n in range(count))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--queued", type=int, nargs="*", default=[0, 100, 1_000, 3_000, 10_000])
    parser.add_argument("--running", type=int, nargs="*", default=[RUNNING])
    parser.add_argument("--rounds", type=int, default=3, help="of which the least counts")
    parser.add_argument("--plot", type=Path, help="writes .svg and .png; needs baton-llm[bench]")
    args = parser.parse_args()
    rows = []
    cases = [(running, queued) for running in args.running for queued in args.queued]
    errors = Console(stderr=True)
    turns = track(cases * args.rounds, "measuring", console=errors, disable=not errors.is_terminal)
    found = [measured(*case) for case in turns]
    for number in range(len(cases)):
        each = found[number :: len(cases)]
        rows.append({name: min(one[name] for one in each) for name in each[0]})
        print(json.dumps(rows[-1]), flush=True)
    if args.plot is not None:
        draw(rows, args.plot)


def draw(rows: list[dict[str, int]], target: Path) -> None:
    """Draw the time of a step over the requests that wait."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for running in dict.fromkeys(row["running"] for row in rows):
        mine = [row for row in rows if row["running"] == running]
        at = [row["queued"] for row in mine]
        for part in ("leader", "rank", "gateway"):
            times = [row[f"{part}_us"] for row in mine]
            axes.plot(at, times, "o-", label=f"{part}, {running} running")
    axes.set(xlabel="requests that wait", ylabel="processor time of a step, us", ylim=(0, None))
    axes.legend()
    axes.grid(alpha=0.3)
    for kind in ("svg", "png"):
        figure.savefig(target.with_suffix(f".{kind}"), bbox_inches="tight", dpi=120)


if __name__ == "__main__":
    main()
