"""Whether it pays to separate prefill and decode: two runs of the same load compared, by pure
functions.

The measure is goodput: the requests per second that met every SLO. The layout with more of them is
better for that load, whatever its single figures are.
"""

from collections.abc import Sequence
from enum import Enum

import msgspec

from baton.dev.bench.figures import Summary

MARGIN = 0.05  # within this share the two count as equal


class Winner(Enum):
    """The layout that serves a load better."""

    SPLIT = "split"
    UNIFIED = "unified"
    EVEN = "even"
    NEITHER = "neither"  # no request met the SLOs in either


class LoadPoint(msgspec.Struct, frozen=True):
    """One point of a sweep.

    Attributes:
        prompt_tokens: None if a file gives the lengths
        concurrency: requests under way at once; None = no limit
        rate: requests per second; None = as the trace says, or all at once
    """

    prompt_tokens: int | None
    concurrency: int | None
    rate: float | None = None

    @property
    def prompts(self) -> str:
        """The length of the prompts, in words."""
        return (
            "prompts of the file" if self.prompt_tokens is None else f"{self.prompt_tokens} tokens"
        )

    @property
    def pace(self) -> str:
        """The arrival of requests, in words."""
        limit = [f"{self.concurrency} at once"] if self.concurrency is not None else []
        rate = [f"{self.rate:g} a second"] if self.rate is not None else []
        return ", ".join(rate + limit) or "as they come"

    def __str__(self) -> str:
        """Return the load in words."""
        return f"{self.prompts}, {self.pace}"

    def fields(self) -> dict[str, object]:
        """Return the load for a file. A rate without limit is the word inf, as JSON lacks that
        number."""
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
        """The better layout, by goodput."""
        split, unified = self.split.goodput or 0.0, self.unified.goodput or 0.0
        if split == unified == 0:
            return Winner.NEITHER
        if abs(split - unified) <= MARGIN * max(split, unified):
            return Winner.EVEN
        return Winner.SPLIT if split > unified else Winner.UNIFIED

    @property
    def gain(self) -> float | None:
        """Split's goodput divided by unified's; None if unified has none."""
        return (self.split.goodput or 0.0) / self.unified.goodput if self.unified.goodput else None


def cross_overs(points: Sequence[Point]) -> list[str]:
    """Return one sentence for each prompt length that says from which load on split wins."""
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
    """Return the index at which the last unbroken run of SPLIT begins, ignoring NEITHER; None if
    the row does not end with one, or SPLIT also wins before."""
    at = None
    for i in reversed(range(len(winners))):
        if winners[i] is Winner.SPLIT:
            at = i
        elif winners[i] is not Winner.NEITHER:
            break
    return at if at is not None and Winner.SPLIT not in winners[:at] else None


def sentence(points: Sequence[Point]) -> str:
    """Return the verdict in one line."""
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
