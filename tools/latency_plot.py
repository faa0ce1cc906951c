"""Draws docs/latency.svg, the tail of the time between tokens, from docs/benchmarks.md; `--check`
fails where they differ."""

import re
import sys
from pathlib import Path
from typing import NamedTuple

from document import write_or_check

DOCS = Path(__file__).parents[1] / "docs"
PLOT, TABLE = DOCS / "latency.svg", DOCS / "benchmarks.md"
HEAD = "| layout | prompt | clients | TTFT p50 | TTFT max | ITL p50 | ITL p99 | longest stall |"
COLOURS = {"split": "#2563eb", "unified": "#d97706"}
NAMES = {
    "split": "disaggregated: prefill and decode apart",
    "unified": "colocated: one worker does both",
}
WIDTH, LEFT, RIGHT, TOP = 760, 200, 90, 84
BAR, GAP, GROUP = 16, 3, 20  # heights: of a bar, between two, between groups


class Row(NamedTuple):
    """One line of the table: the p99 of the time between tokens, in milliseconds."""

    layout: str
    prompt: str
    clients: int
    p99: float


def rows(page: str) -> list[Row]:
    """The table's lines, the smallest load first. Raises ValueError where the page has no such
    table."""
    lines = page[page.index(HEAD) :].splitlines()[2:]
    cells = [
        [cell.strip() for cell in line.strip("| ").split("|")] for line in lines[: lines.index("")]
    ]
    found = [Row(c[0], c[1], int(c[2]), float(c[6].replace(",", ""))) for c in cells]
    return sorted(
        found, key=lambda row: (row.clients, float(row.prompt.replace(",", "")), row.layout)
    )


def drawn(found: list[Row]) -> str:
    """The picture. Bars begin at 0, and all have the same scale."""
    scale = (WIDTH - LEFT - RIGHT) / max(row.p99 for row in found)
    loads = list(dict.fromkeys((row.clients, row.prompt) for row in found))
    step = len(COLOURS) * (BAR + GAP) + GROUP
    height = TOP + len(loads) * step + 8
    parts = [
        _text(
            20,
            30,
            "p99 of the time between tokens, ms (lower is better)",
            size=17,
            weight=600,
            fill="#1f2328",
        )
    ]
    x = 20
    for layout, name in NAMES.items():
        parts += [_bar(x, 46, 12, 12, COLOURS[layout]), _text(x + 18, 57, name)]
        x += 310
    for i, (clients, prompt) in enumerate(loads):
        top = TOP + i * step
        who = f"{clients} client{'s' if clients > 1 else ''}, {prompt} tokens"
        parts.append(_text(LEFT - 12, top + BAR + 6, who, anchor="end"))
        for row in found:
            if (row.clients, row.prompt) == (clients, prompt):
                y, length = top + list(COLOURS).index(row.layout) * (BAR + GAP), row.p99 * scale
                parts += [
                    _bar(LEFT, y, length, BAR, COLOURS[row.layout]),
                    _text(LEFT + length + 7, y + 13, f"{row.p99:g}"),
                ]
    said = "; ".join(
        f"{r.clients} x {r.prompt} tokens, {NAMES[r.layout]}: {r.p99:g} ms" for r in found
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'{_size(WIDTH, height)} role="img">',
            f"<title>p99 of the time between tokens. {said}</title>",
            f'<rect {_size(WIDTH, height)} rx="8" fill="#ffffff"/>',
            '<g font-family="system-ui, sans-serif">',
            *parts,
            "</g>",
            "</svg>\n",
        ]
    )


def _size(width: float, height: float) -> str:
    return f'width="{width:g}" height="{height:g}"'


def _bar(x: float, y: float, width: float, height: float, fill: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" {_size(round(width, 1), height)} rx="2" fill="{fill}"/>'


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: int = 14,
    weight: int = 400,
    fill: str = "#424a53",
    anchor: str = "start",
) -> str:
    assert not re.search("[<>&]", text), "nothing here needs escapes"
    style = f'font-size="{size}" font-weight="{weight}" fill="{fill}" text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:g}" {style}>{text}</text>'


if __name__ == "__main__":
    PLOT.touch()
    sys.exit(write_or_check(PLOT, lambda _: drawn(rows(TABLE.read_text())), __doc__))
