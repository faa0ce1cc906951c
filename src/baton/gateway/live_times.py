"""Times to the first token and between tokens of the last seconds, for those who watch.

The histograms of tally.py are for scrapes: their classes are too wide to follow a service by eye.
"""

from collections import deque
from collections.abc import Sequence

import msgspec

FIRST_WITHIN_S = 10.0  # how long a time to the first token counts as recent
MOST_FIRST, MOST_BETWEEN = 4_096, 65_536


class Quantiles(msgspec.Struct, frozen=True):
    """Some durations in milliseconds; null where there are none."""

    count: int
    p50_ms: float | None = None
    p90_ms: float | None = None
    p99_ms: float | None = None


class LiveTimes:
    """The last times of one gateway.

    Attributes:
        watched: whether times between tokens are kept; with every token somebody looks at this
        first: when a first token came, and how long it took, in seconds
        between: times between tokens, in seconds, since the last `take`
    """

    __slots__ = ("between", "first", "watched")

    def __init__(self) -> None:
        self.watched = False
        self.first: deque[tuple[float, float]] = deque(maxlen=MOST_FIRST)
        self.between: deque[float] = deque(maxlen=MOST_BETWEEN)

    def watch(self, on: bool) -> None:
        """Begin to keep times between tokens, or end it and forget them."""
        self.watched = on
        self.between.clear()

    def take(self, now: float) -> tuple[Quantiles, Quantiles]:
        """Return the times to the first token of the last FIRST_WITHIN_S, and the times between
        tokens since the last call."""
        while self.first and self.first[0][0] < now - FIRST_WITHIN_S:
            self.first.popleft()
        between = quantiles(self.between)
        self.between.clear()
        return quantiles([took for _, took in self.first]), between


def quantiles(seconds: Sequence[float]) -> Quantiles:
    """Return the quantiles of durations."""
    if not seconds:
        return Quantiles(0)
    ascending = sorted(seconds)
    last = len(ascending) - 1
    return Quantiles(
        len(ascending), *(round(1000 * ascending[round(q * last)], 3) for q in (0.5, 0.9, 0.99))
    )
