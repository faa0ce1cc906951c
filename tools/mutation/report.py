"""What a run of the gate says: a table, the survivors, and the shares that it is held to."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mutation.gate import NOBODY, SIMULATION, Verdict

SHOWN = 200  # characters of a change


@dataclass(frozen=True)
class Count:
    """Of some mutants: how many there are, and how many were found by whom."""

    mutants: int
    simulation: int
    all: int

    @property
    def by_simulation(self) -> float:
        """Share that the simulator finds alone."""
        return self.simulation / self.mutants if self.mutants else 1.0

    @property
    def by_all(self) -> float:
        """Share that the simulator or a test finds."""
        return self.all / self.mutants if self.mutants else 1.0


def counted(verdicts: Iterable[Verdict]) -> Count:
    """Of these."""
    found = [verdict.found_by for verdict in verdicts]
    return Count(len(found), found.count(SIMULATION), len(found) - found.count(NOBODY))


def markdown(verdicts: Sequence[Verdict]) -> str:
    """The table: a line a module, those with most mutants first, and one for all."""
    lines = [
        "| module | mutants | found by simulation | by tests besides | survivors |",
        "|---|---|---|---|---|",
    ]
    modules = {verdict.module for verdict in verdicts}
    rows = {module: counted(v for v in verdicts if v.module == module) for module in modules}
    for module, count in sorted(rows.items(), key=lambda row: (-row[1].mutants, row[0])):
        lines.append(_row(f"`{module}`", count))
    return "\n".join([*lines, _row("**all**", counted(verdicts))])


def _row(name: str, count: Count) -> str:
    besides, left = count.all - count.simulation, count.mutants - count.all
    return (
        f"| {name} | {count.mutants} | {count.simulation} ({count.by_simulation:.0%}) | "
        f"{besides} | {left} |"
    )


def interval(share: float, of: int) -> tuple[float, float]:
    """Wilson's, at 95 %: where the share of all mutants lies of which these are a sample."""
    if not of:
        return 0.0, 1.0
    z = 1.96
    middle = (share + z * z / (2 * of)) / (1 + z * z / of)
    half = z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of)) / (1 + z * z / of)
    return max(0.0, middle - half), min(1.0, middle + half)


def short(change: str) -> str:
    """What differs, with some of what is around it."""
    before, _, after = change.partition(" -> ")
    if len(change) <= SHOWN or not after:
        return change
    start = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), 0)
    start = max(0, start - 40)
    return f"..{before[start : start + 90]}.. -> ..{after[start : start + 90]}.."


def survivors(verdicts: Iterable[Verdict]) -> list[str]:
    """A line each."""
    return [
        f"{v.name}  line {v.line}, {v.worlds} worlds and {v.tests} tests reach it\n    "
        f"{short(v.change)}"
        for v in sorted(verdicts, key=lambda v: (v.module, v.line))
        if v.found_by == NOBODY
    ]
