"""Does it pay to have prefill and decode apart? Two runs of the same load compared: pure functions.

The measure is goodput: requests a second that met every SLO. A layout that answers more of them is
better for that load, whatever its single figures are.
"""

from collections.abc import Sequence
from enum import Enum

import msgspec

from baton.dev.bench.figures import Summary

MARGIN = 0.05  # within so much the two count as equal


class Winner(Enum):
    """Which layout a load is better served by."""

    SPLIT = "split"
    UNIFIED = "unified"
    EVEN = "even"
    NEITHER = "neither"  # no request met the SLOs in either


class LoadPoint(msgspec.Struct, frozen=True):
    """One point of a sweep.

    prompt_tokens: None where a file states them
    concurrency: requests under way at once; None = no limit
    rate: requests a second; None = as the trace says, or all at once
    """

    prompt_tokens: int | None
    concurrency: int | None
    rate: float | None = None

    @property
    def prompts(self) -> str:
        """How long the prompts are, in words."""
        return (
            "prompts of the file" if self.prompt_tokens is None else f"{self.prompt_tokens} tokens"
        )

    @property
    def pace(self) -> str:
        """When requests come, in words."""
        limit = [f"{self.concurrency} at once"] if self.concurrency is not None else []
        rate = [f"{self.rate:g} a second"] if self.rate is not None else []
        return ", ".join(rate + limit) or "as they come"

    def __str__(self) -> str:
        """In words."""
        return f"{self.prompts}, {self.pace}"

    def fields(self) -> dict[str, object]:
        """For a file; a rate without limit is the word inf, which JSON has no number for."""
        rate = "inf" if self.rate == float("inf") else self.rate
        return {"prompt_tokens": self.prompt_tokens, "concurrency": self.concurrency, "rate": rate}


class Point(msgspec.Struct, frozen=True):
    """Both layouts under one load."""

    load: LoadPoint
    slos: dict[str, float]
    split: Summary
    unified: Summary

    @property
    def winner(self) -> Winner:
        """By goodput."""
        split, unified = self.split.goodput or 0.0, self.unified.goodput or 0.0
        if split == unified == 0:
            return Winner.NEITHER
        if abs(split - unified) <= MARGIN * max(split, unified):
            return Winner.EVEN
        return Winner.SPLIT if split > unified else Winner.UNIFIED

    @property
    def gain(self) -> float | None:
        """Split's goodput over unified's; None where unified has none."""
        return (self.split.goodput or 0.0) / self.unified.goodput if self.unified.goodput else None


def cross_overs(points: Sequence[Point]) -> list[str]:
    """For each prompt length, from which load on split wins, one sentence each."""
    found = []
    for prompts in dict.fromkeys(p.load.prompts for p in points):
        row = sorted((p for p in points if p.load.prompts == prompts), key=_heaviness)
        winners = [p.winner for p in row]
        at = crossing(winners)
        if at is not None:
            found.append(f"{prompts}: split pays from {row[at].load.pace} on")
        elif Winner.SPLIT in winners:
            where = "; ".join(p.load.pace for p in row if p.winner is Winner.SPLIT)
            found.append(f"{prompts}: no single cross-over; split pays at {where}")
        else:
            found.append(f"{prompts}: split does not pay at any load tried")
    return found


def crossing(winners: Sequence[Winner]) -> int | None:
    """Index of the first of a last unbroken run of SPLIT, NEITHER aside; None where the row does
    not end in one."""
    at = None
    for i in reversed(range(len(winners))):
        if winners[i] is Winner.SPLIT:
            at = i
        elif winners[i] is not Winner.NEITHER:
            break
    return at if at is not None and Winner.SPLIT not in winners[:at] else None


def sentence(points: Sequence[Point]) -> str:
    """The verdict in one line."""
    judged = [p for p in points if p.winner is not Winner.NEITHER]
    if not judged:
        return (
            "No verdict: no request met the SLOs in either layout; loosen them or lower the load."
        )
    wins = [p for p in judged if p.winner is Winner.SPLIT]
    losses = [p for p in judged if p.winner is Winner.UNIFIED]
    best = max(
        wins, key=lambda p: (p.split.goodput or 0.0) - (p.unified.goodput or 0.0), default=None
    )
    worst = min(losses, key=lambda p: p.gain or 0.0, default=None)
    parts = [
        f"Disaggregation pays at {len(wins)} of {len(judged)} loads and costs at {len(losses)}"
    ]
    if best is not None:
        parts.append(f"most at {best.load} ({_times(best)})")
    if worst is not None:
        parts.append(f"least at {worst.load} ({_times(worst)})")
    return "; ".join(parts) + "."


def _times(point: Point) -> str:
    gain = "unified 0" if point.gain is None else f"x{point.gain:.2f}"
    return (
        f"goodput {point.split.goodput or 0:.2f} against {point.unified.goodput or 0:.2f} "
        f"a second, {gain}"
    )


def _heaviness(point: Point) -> tuple[float, float]:
    rate, most = point.load.rate, point.load.concurrency
    return (float("inf") if rate is None else rate, float("inf") if most is None else most)
