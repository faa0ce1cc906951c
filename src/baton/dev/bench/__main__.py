"""`make bench`: latency split and unified, and what the handoff costs.

python -m baton.dev.bench [--model smollm2] [--fabric shm] [--json FILE]
"""

import json
import random
import statistics
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from baton.dev.bench.handoff import handoffs, summary
from baton.dev.bench.service import Service, serving

LENGTHS = (512, 2048)
CONCURRENCY = (1, 8)
MAX_TOKENS = 32


def measure(service: Service, length: int, concurrency: int, *, repeats: int) -> dict[str, float]:
    """Return TTFT and the times between tokens, in milliseconds, for random prompts."""
    rng = random.Random(length)
    prompts = [
        [rng.randrange(100, 20_000) for _ in range(length)] for _ in range(repeats * concurrency)
    ]
    with ThreadPoolExecutor(concurrency) as pool:
        times = list(pool.map(lambda p: service.stream(p, max_tokens=MAX_TOKENS), prompts))
    gaps = sorted(b - a for t in times for a, b in pairwise(t))
    first = sorted(t[0] for t in times)
    return {
        "ttft_p50_ms": 1e3 * statistics.median(first),
        "ttft_max_ms": 1e3 * first[-1],
        "itl_p50_ms": 1e3 * statistics.median(gaps),
        "itl_p99_ms": 1e3 * gaps[int(0.99 * (len(gaps) - 1))],
        "itl_max_ms": 1e3 * gaps[-1],
    }


def main(
    model: Annotated[str, typer.Option(help="A checkpoint, or the trial model.")] = "smollm2",
    fabric: Annotated[str, typer.Option(help="shm or nixl.")] = "shm",
    repeats: Annotated[int, typer.Option(help="Requests of each client.")] = 3,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures here, too.")
    ] = None,
) -> None:
    """Run both layouts one after the other and print a table."""
    rows: list[dict[str, object]] = []
    costs: list[dict[str, float]] = []
    for layout in ("split", "unified"):
        flags = [model, "--role", layout, "--fabric", fabric, "--log-level", "debug"]
        for length in track(LENGTHS, description=f"{layout}", console=Console(stderr=True)):
            with serving(*flags) as service:
                # so that whatever is made lazily is made now
                service.stream(list(range(100, 164)), max_tokens=4)
                for clients in CONCURRENCY:
                    service.lines.clear()
                    load = {"prompt": length, "clients": clients}
                    found = measure(service, length, clients, repeats=repeats)
                    rows.append({"layout": layout, **load, **found})
                    if layout == "split":
                        costs.append({**load, **summary(handoffs(service))})
    table = Table(*[str(k) for k in rows[0]])
    for row in rows:
        table.add_row(*[f"{v:.1f}" if isinstance(v, float) else str(v) for v in row.values()])
    Console().print(table)
    cost = Table(*costs[0])
    for values in costs:
        cost.add_row(*[f"{v:.2f}" for v in values.values()])
    Console().print(cost)
    if json_file is not None:
        json_file.write_text(json.dumps({"latency": rows, "handoff": costs}, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
