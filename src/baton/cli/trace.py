"""`baton trace`: where the time of a request went, as its gateway tells.

trace ──GET /debug/requests/NAME──▶ a gateway ──▶ a line for each phase, with a bar
"""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from baton.cli.operate import ApiKey, Gateway, Url

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

BAR = 40  # characters for the whole time
CELLS = "▏▎▍▌▋▊▉█"  # from an eighth of a character to all of it
FIRST = "first token"


def trace(
    name: Annotated[
        str | None,
        typer.Argument(help="Room, or id of the answer; the last requests are listed without."),
    ] = None,
    url: Url = "http://127.0.0.1:8000",
    api_key: ApiKey = None,
) -> None:
    """Show where the time of a request went that has ended."""
    from rich.console import Console

    gateway = Gateway(url, api_key)
    shown = (
        table_of(gateway.ask("/debug/requests")["requests"])
        if name is None
        else picture_of(gateway.ask(f"/debug/requests/{name}"))
    )
    Console().print(shown)


def table_of(requests: list[dict[str, Any]]) -> "Table":
    """Return requests as a table."""
    from rich.table import Table

    table = Table("arrived", "answer", "room", "first token", "whole", "end")
    for request in requests:
        first = request["first_us"]
        table.add_row(
            time.strftime("%H:%M:%S", time.localtime(request["arrived"])),
            request["id"] or "-",
            request["room"],
            "-" if first is None else ms(first),
            ms(request["total_us"]),
            request["end"],
        )
    return table


def picture_of(timeline: dict[str, Any]) -> "RenderableType":
    """Return the phases of a request as bars."""
    from rich.console import Group
    from rich.text import Text

    total, first = timeline["total_us"], timeline["first_us"]
    head = (
        f"{timeline['id'] or '-'}  room {timeline['room']}\n"
        f"{timeline['prompt_tokens']} prompt tokens, {timeline['cached_tokens']} of them cached; "
        f"{timeline['generated_tokens']} generated; end: {timeline['end']}\n"
        f"first token after {'-' if first is None else ms(first)}, whole after {ms(total)}"
    )
    verdict = timeline.get("verdict")  # a gateway of before has none
    if verdict is not None:
        head += f"\n\n{verdict['says']}\n{verdict['advice']}\n{verdict['more']}"
    table = _phases(f"0 to {ms(total)}")
    for phase in timeline["path"]:
        if first is not None and phase["start_us"] == first:
            table.add_row("", FIRST, "", "", " " * round(BAR * first / max(1, total)) + "▼")
        table.add_row(*_cells(phase, total))
    beside = _phases("")
    for phase in timeline["workers"]:
        beside.add_row(*_cells(phase, total))
    return Group(Text(head), "", table, "", Text("Everything that its workers say:"), beside)


def _phases(bars: str) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=bool(bars))
    for name in ("where", "phase", "#"):
        table.add_column(name, no_wrap=True)
    table.add_column("took", justify="right", no_wrap=True)
    table.add_column(bars, no_wrap=True)
    return table


def _cells(phase: dict[str, Any], total: int) -> tuple[str, ...]:
    start, end = phase["start_us"], phase["end_us"]
    return (
        phase["where"],
        phase["name"],
        str(phase["epoch"] or "-"),
        ms(end - start),
        bar(start, end, total),
    )


def bar(start: int, end: int, total: int) -> str:
    """Return a bar from `start` to `end` of `total`, an eighth of a character at least."""
    eighths = 8 * BAR / max(1, total)
    before = min(int(start * eighths) // 8, BAR - 1)
    length = min(max(1, round((end - start) * eighths)), 8 * (BAR - before))
    whole, rest = divmod(length, 8)
    return " " * before + CELLS[-1] * whole + (CELLS[rest - 1] if rest else "")


def ms(us: int) -> str:
    """Return a time in milliseconds."""
    return f"{us / 1000:,.1f} ms"
