"""Times how long a gateway takes to choose the workers of a request: its core as it is shipped, over a
part of a Mooncake trace, with as many prefill as decode workers.

    python tools/choice_time.py conversation_trace.jsonl --workers 16 64 256

Medians and 99th percentiles of processor time in microseconds.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from baton.core.gateway.worker_choice import WorkerChoice
from baton.core.ids import TokenId
from baton.dev.bench.workload import Item
from baton.dev.fleet.fleet import Fleet, FleetRequest
from baton.dev.routing.cells import BASE_WORKERS, machine, settings, trace_items

SCALE = 32  # tokens of the trace that one stands for
COUNTED = 3_000  # requests


def watched(choose: Callable[..., Any], spent: list[int]) -> Callable[..., Any]:
    """Return the same method, whose time is noted."""

    def run(*args: Any, **kwargs: Any) -> Any:
        began = time.process_time_ns()
        try:
            return choose(*args, **kwargs)
        finally:
            spent.append(time.process_time_ns() - began)

    return run


def requests(items: list[Item], factor: float) -> list[FleetRequest]:
    """Return the first of a trace's requests, each answered with two tokens."""
    asked = []
    for item in islice(items, COUNTED):
        assert item.at_s is not None, "a trace has times"
        assert not isinstance(item.prompt, str), "a trace has token ids"
        tokens = tuple(map(TokenId, item.prompt))
        asked.append(FleetRequest(round(item.at_s * factor * 1e6), tokens, 2))
    return asked


def main() -> None:
    """Print the times."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--workers", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--policy", default="priced")
    options = parser.parse_args()
    items, shipped = trace_items(options.trace, SCALE), WorkerChoice.choose
    for count in options.workers:
        spent: list[int] = []
        WorkerChoice.choose = watched(shipped, spent)  # type: ignore[method-assign]
        half = count // 2
        fleet = Fleet(
            ["prefill"] * half + ["decode"] * half, machine(SCALE), settings(options.policy)
        )
        fleet.serve(requests(items, BASE_WORKERS / half))
        found = [n / 1000 for n in spent]
        p99 = statistics.quantiles(found, n=100)[98]
        print(
            f"{count} workers: {len(found)} choices, median {statistics.median(found):.0f} us, "
            f"p99 {p99:.0f} us"
        )


if __name__ == "__main__":
    main()
