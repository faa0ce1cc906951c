"""Shows the figures of transfers on a terminal, and prepares them for files."""

import io
from collections.abc import Sequence

import msgspec
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from baton.dev.bench.transfer.figures import Figures

BAR = 60  # characters of the longest bar


def tables(found: Sequence[Figures], *, void_below: float | None) -> RenderableType:
    """Return the rates, then the costs, then bars."""
    return Group(_rates(found, void_below), "", _costs(found), "", bars(found))


def name(f: Figures) -> str:
    """Return a handoff in a few words, e.g. `shm tp1 -> tp4, 2048 scattered`."""
    return f"{f.fabric} {_widths(f)}, {f.context_len} {f.pages.value}"


def line(f: Figures) -> str:
    """Return the most important figures of a run, shown while others go on."""
    return f"{name(f)}: {f.gb_per_s:.2f} GB/s, one range {f.single_range_gb_per_s:.2f}"


def _widths(f: Figures) -> str:
    sides = ((f.prefill_tp, f.prefill_pp), (f.decode_tp, f.decode_pp))
    return " -> ".join(f"tp{tp}" + (f" pp{pp}" if pp > 1 else "") for tp, pp in sides)


def _row_head(f: Figures) -> tuple[str, ...]:
    sizes = (f.prefill_page_size, f.decode_page_size)
    pages = f"{f.pages.value}, {sizes[0] if sizes[0] == sizes[1] else f'{sizes[0]} -> {sizes[1]}'}"
    return (f.fabric, _widths(f), f"{f.context_len:,}", pages)


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in ("fabric", "layout", "tokens", "pages, size", *columns):
        table.add_column(
            column, justify="left" if column in ("fabric", "layout", "pages, size") else "right"
        )
    return table


def _rates(found: Sequence[Figures], void_below: float | None) -> Table:
    columns = (
        "MB",
        "ranges",
        "unmerged",
        "GB/s",
        "one range",
        "ratio",
        "memcpy",
        "plain socket",
        "by token: ranges",
        "GB/s ",
    )
    table = _table("Rates, best round (GB/s); every byte verified", columns)
    for f in found:
        void = void_below is not None and f.single_range_gb_per_s < void_below
        table.add_row(
            *_row_head(f),
            f"{f.bytes / 1e6:,.1f}",
            f"{f.descriptors:,}",
            f"{f.descriptors_before_coalescing:,}",
            f"{f.gb_per_s:.2f}",
            f"{f.single_range_gb_per_s:.2f}" + (" void" if void else ""),
            f"{f.ratio:.2f}",
            f"{f.memcpy_gb_per_s:.2f}",
            "" if f.socket_gb_per_s is None else f"{f.socket_gb_per_s:.2f}",
            f"{f.token_slices.descriptors:,}",
            f"{f.token_slices.gb_per_s:.2f}",
        )
    return table


def _costs(found: Sequence[Figures]) -> Table:
    columns = (
        "reads",
        "median GB/s",
        "seal GB/s",
        "verify GB/s",
        "bind us",
        "CPU ms reader",
        "CPU ms source",
        "one range",
    )
    table = _table("What it costs", columns)
    for f in found:
        table.add_row(
            *_row_head(f),
            str(f.legs),
            f"{f.median_gb_per_s:.2f}",
            f"{f.seal_gb_per_s:.1f}",
            f"{f.verify_gb_per_s:.1f}",
            f"{f.bind_us:.0f}",
            f"{1e3 * f.cpu_s:.1f}",
            f"{1e3 * f.source_cpu_s:.1f}",
            f"{1e3 * f.single_range_cpu_s:.1f}",
        )
    return table


def bars(found: Sequence[Figures]) -> RenderableType:
    """Return a bar for each rate, with `|` at the rate of one range of as many bytes."""
    top = max(max(f.gb_per_s, f.single_range_gb_per_s) for f in found)
    width = max(len(name(f)) for f in found)
    lines = []
    for f in found:
        mark, bar = round(BAR * f.single_range_gb_per_s / top), "█" * round(BAR * f.gb_per_s / top)
        drawn = bar.ljust(BAR + 1)
        lines.append(f"{name(f):{width}} {f.gb_per_s:6.2f} {drawn[:mark]}|{drawn[mark + 1 :]}")
    return Text("\n".join(lines), no_wrap=True)


def as_json(found: Sequence[Figures]) -> bytes:
    """Return all figures as JSON, under the names of `Figures`."""
    return msgspec.json.format(msgspec.json.encode({"runs": list(found)})) + b"\n"


def as_svg(found: Sequence[Figures]) -> str:
    """Return the bars as a picture."""
    console = Console(record=True, file=io.StringIO(), width=BAR + 60)
    console.print(bars(found))
    return console.export_svg(title="baton bench transfer: GB/s, | is one range of as many bytes")
