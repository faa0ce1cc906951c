"""Shows figures on a terminal, and prepares them for a file."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec
from rich.console import Console, Group, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from baton.dev.bench.client import RequestOutcome
from baton.dev.bench.figures import Spread, Summary
from baton.dev.bench.verdict import Point, Winner, cross_overs, sentence

LATENCIES = ("ttft", "tpot", "itl", "stall", "e2el", "refused")
LATE_MS = 10.0  # a client that sends later than this at p99 is a bottleneck


@contextmanager
def progress(
    label: str, total: int, console: Console
) -> Iterator[Callable[[RequestOutcome], None]]:
    """Show a bar that counts answers and failures, if there is a terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    failed = 0
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(label, total=total)

        def tell(outcome: RequestOutcome) -> None:
            nonlocal failed
            failed += bool(outcome.failure)
            bar.update(
                task, advance=1, description=f"{label}, {failed} failed" if failed else label
            )

        yield tell


def run_table(title: str, s: Summary, slos: Mapping[str, float]) -> RenderableType:
    """Return the tables of one run."""
    rates = Table(title=title, show_header=False, title_justify="left")
    rates.add_column()
    rates.add_column(justify="right")
    rows = [
        ("completed requests", f"{s.completed}"),
        ("failed requests", f"{sum(s.failures.values())}"),
        *((f"  {kind}", str(count)) for kind, count in s.failures.items()),
        ("duration (s)", f"{s.duration_s:.2f}"),
        ("prompt tokens", f"{s.input_tokens}"),
        ("generated tokens", f"{s.output_tokens}"),
        ("request throughput (req/s)", f"{s.request_throughput:.2f}"),
        ("output token throughput (tok/s)", f"{s.output_throughput:.2f}"),
        ("total token throughput (tok/s)", f"{s.total_token_throughput:.2f}"),
    ]
    if s.goodput is not None:
        rows.append((f"goodput (req/s), {limits(slos)}", f"{s.goodput:.2f}"))
    for name, value in rows:
        rates.add_row(name, value)
    parts: list[RenderableType] = [rates, _latencies(s)]
    if s.late_ms.p99 > LATE_MS:
        parts.append(
            f"warning: requests left {s.late_ms.p99:.0f} ms late at p99: this client "
            "is a bottleneck; lower the rate"
        )
    return Group(*parts)


def _latencies(s: Summary) -> Table:
    table = Table("milliseconds", *(f for f in Spread.__struct_fields__))
    for column in table.columns[1:]:
        column.justify = "right"
    for name, values in (
        ("TTFT", s.ttft_ms),
        ("TPOT", s.tpot_ms),
        ("ITL", s.itl_ms),
        ("longest stall", s.stall_ms),
        ("E2E", s.e2el_ms),
        *((("refusals", s.refused_ms),) if s.refused_ms.max else ()),
    ):
        table.add_row(name, *(f"{v:.2f}" for v in msgspec.structs.astuple(values)))
    return table


def limits(slos: Mapping[str, float]) -> str:
    """Return the SLOs in words."""
    return ", ".join(f"{name} <= {limit:.4g} ms" for name, limit in slos.items())


def comparison(points: Sequence[Point]) -> RenderableType:
    """Return a table of both layouts under each load, and the verdict."""
    table = Table(
        "load",
        "layout",
        "goodput",
        "req/s",
        "tok/s",
        "TTFT p50",
        "TTFT p99",
        "ITL p50",
        "ITL p99",
        "failed",
        "better",
    )
    for column in table.columns[2:]:
        column.justify = "right"
    for p in points:
        for name, s in (("split", p.split), ("unified", p.unified)):
            rates = (s.goodput or 0.0, s.request_throughput, s.output_throughput)
            times = (s.ttft_ms.p50, s.ttft_ms.p99, s.itl_ms.p50, s.itl_ms.p99)
            first = name == "split"
            cells = [
                *(f"{v:.2f}" for v in rates),
                *(f"{v:.1f}" for v in times),
                str(sum(s.failures.values())),
            ]
            table.add_row(
                str(p.load) if first else "", name, *cells, p.winner.value if first else ""
            )
    slos = dict.fromkeys(
        f"goodput counts requests with {limits(p.slos)} ({p.load.prompts})" for p in points
    )
    return Group(table, *slos, *cross_overs(points), sentence(points))


def paper() -> Console:
    """Return a console on standard output, which is wide enough for every table if it is not a
    terminal."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=150)


def summary_fields(s: Summary) -> dict[str, object]:
    """Return a summary for a file, under the names that vLLM's benchmark writes."""
    fields: dict[str, object] = {
        "duration": s.duration_s,
        "completed": s.completed,
        "failed": sum(s.failures.values()),
        "failures": s.failures,
        "total_input_tokens": s.input_tokens,
        "total_output_tokens": s.output_tokens,
        "request_throughput": s.request_throughput,
        "request_goodput": s.goodput,
        "output_throughput": s.output_throughput,
        "total_token_throughput": s.total_token_throughput,
        "late_p99_ms": s.late_ms.p99,
    }
    for name in LATENCIES:
        values: Spread = getattr(s, f"{name}_ms")
        fields |= {
            f"mean_{name}_ms": values.mean,
            f"median_{name}_ms": values.p50,
            f"max_{name}_ms": values.max,
        }
        fields |= {f"p{p}_{name}_ms": getattr(values, f"p{p}") for p in (90, 99)}
    return fields


def point_fields(p: Point) -> dict[str, object]:
    """Return a compared load for a file."""
    return {
        "load": p.load.fields(),
        "slos_ms": p.slos,
        "better": p.winner.value,
        "gain": None if p.winner is Winner.NEITHER else p.gain,
        "split": summary_fields(p.split),
        "unified": summary_fields(p.unified),
    }
