"""Tells one run to people: the world, the choices that made it, what happened, and the room that it
is about."""

from collections import Counter

from rich.console import Console
from rich.markup import escape

from baton.dev.sim.run import RunOutcome

EACH = 40  # choices that are listed one by one; if there are more, their kinds are listed


def tell(outcome: RunOutcome, console: Console) -> None:
    """Print everything."""
    console.rule("the world", align="left")
    for line in outcome.settings:
        console.print(escape(line))
    console.rule(f"{len(outcome.choices)} choices other than the calm one", align="left")
    for line in chosen(outcome):
        console.print(escape(line))
    console.rule(f"{outcome.events:,} events", align="left")
    for line in outcome.story:
        style = (
            "bold red"
            if "VIOLATION" in line
            else "yellow"
            if "FAULT" in line
            else "bold"
            if "----" in line
            else ""
        )
        console.print(escape(line), style=style)
    if outcome.diagram and outcome.invariant:
        console.rule("the room, as a mermaid sequence diagram", align="left")
        console.print(escape(outcome.diagram))
    console.rule(align="left")
    console.print(verdict(outcome))


def chosen(outcome: RunOutcome) -> list[str]:
    """Return the choices one by one or, if there are many, how many there are of each kind."""
    if len(outcome.choices) <= EACH:
        return [
            f"{at:>6}  {outcome.labels[at]}: {choice}"
            for at, choice in sorted(outcome.choices.items())
        ]
    kinds = Counter(outcome.labels.values())
    return [
        f"{times:>6}  {label}"
        for label, times in sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
    ]


def verdict(outcome: RunOutcome) -> str:
    """Return the result in a line."""
    what = f"{outcome.requests} requests, trace {outcome.trace:08x}"
    if not outcome.invariant:
        return f"fine: {what}"
    return f"[red]{outcome.kind.value}[/red]: {outcome.invariant}: {escape(outcome.detail)}; {what}"
