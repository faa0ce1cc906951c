"""`baton bench routing`: compares routing policies on a virtual clock."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from baton.core.errors import ConfigError
from baton.dev.cli.bench_options import several

Traces = Annotated[
    list[Path],
    typer.Option(metavar="FILE", help="A Mooncake trace (JSON lines); may be given again."),
]


def routing(
    dataset_path: Traces,
    policies: Annotated[
        str, typer.Option(metavar="LIST", help="Values of --routing-policy.")
    ] = "priced,mooncake,lmetric,cache_aware,least_load,round_robin",
    workers: Annotated[str, typer.Option(metavar="LIST", help="Numbers of workers.")] = "8",
    loads: Annotated[
        str,
        typer.Option(
            metavar="LIST", help="Rates, as multiples of the trace's own for eight workers."
        ),
    ] = "1.0",
    length_scale: Annotated[
        int, typer.Option(metavar="N", help="One token stands for so many of the trace.")
    ] = 32,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all figures.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw FILE.png and FILE.svg.")
    ] = None,
) -> None:
    """Serve traces with the gateway and the leaders as they are shipped, on a virtual clock where
    only computing is modelled, and print the mean time to the first token under each policy."""
    from rich.progress import track

    from baton.core.gateway.routing_policy import POLICIES
    from baton.dev.routing.cells import CellResult, grid, measure, trace_items
    from baton.dev.routing.show import plot as draw
    from baton.dev.routing.show import table

    names = policies.split(",")
    if unknown := [name for name in names if name not in POLICIES]:
        raise ConfigError(f"--policies: {unknown[0]!r} is none of {', '.join(POLICIES)}")
    items = {
        path.stem.removesuffix("_trace"): trace_items(path, length_scale) for path in dataset_path
    }
    cells = list(
        grid(
            list(items),
            several("--workers", workers, int),
            several("--loads", loads, float),
            names,
        )
    )
    results: list[CellResult] = []
    for cell in track(cells, description="cells"):
        results.append(measure(cell, items[cell.trace], length_scale))
        if json_file is not None:
            json_file.write_bytes(msgspec.json.format(msgspec.json.encode(results)))
    typer.echo(table(results))
    if plot is not None:
        draw(results, plot)
