"""What a worker has counted since it started: absolute numbers, so that a reader who misses some
loses nothing.

Counting is an addition; whoever wants the numbers asks the leader (messages.py AskLedger).
"""

from bisect import bisect_left
from collections.abc import Iterable

import msgspec

# Upper bounds of the classes in which durations are counted, microseconds; one more class has no
# bound.
BOUNDS_US = (
    *(250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000),
    *(1_000_000, 2_500_000, 5_000_000, 10_000_000, 30_000_000, 60_000_000, 300_000_000),
)


class Spent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Durations: how many fell into each class of `BOUNDS_US` (and above the last), and their sum
    in microseconds."""

    counts: tuple[int, ...]
    total_us: int


class RankTally(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What ranks have read and verified. A block is verified once per leg."""

    reads: int = 0  # begun, repeated ones included
    read_bytes: int = 0  # of those
    reads_failed: int = 0  # ended otherwise than well
    blocks_right: int = 0  # matched their sums
    blocks_wrong: int = 0  # did not; they are read again


class CacheTally(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker's prefix cache was asked for, and had."""

    queries: int = 0  # tokens of contexts that began
    hits: int = 0  # of them, tokens whose state was cached
    evicted: int = 0  # pages of each group that were given up for others
    saved_bytes: int = 0  # of the hits' state, on all ranks; on decode they stayed off the wire
    # prefill: tokens whose state was fetched back from a decode worker; not among the hits
    borrowed_tokens: int = 0
    borrowed_bytes: int = 0  # of that state, on all ranks
    # decode: tokens of which a prefill worker was told that it may fetch them back; it may have
    # declined
    lent_tokens: int = 0
    verified_pages: int = 0  # of each group, hashed where they lie, repeatedly
    damaged_pages: int = 0  # of them, other than they were


class Counters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One worker's numbers.

    Attributes:
        epochs: tickets taken
        failures: epochs that ended badly here, by code
        events: rare branches taken (marks.py), by name in lower case
        spent: how long rooms were in each state, by the state's name
        ranks: the sum over its ranks
        cache: its prefix cache
    """

    epochs: int = 0
    failures: dict[str, int] = {}
    events: dict[str, int] = {}
    spent: dict[str, Spent] = {}
    ranks: RankTally = RankTally()
    cache: CacheTally = CacheTally()


class Durations:
    """Durations of one kind, counted in classes."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_US) + 1)
        self._total_us = 0

    def add(self, us: int) -> None:
        """Count one duration, microseconds."""
        self._counts[bisect_left(BOUNDS_US, us)] += 1
        self._total_us += us

    def view(self) -> Spent:
        """The numbers so far."""
        return Spent(tuple(self._counts), self._total_us)


class ReadCounts:
    """A rank's own counters behind its RankTally."""

    def __init__(self) -> None:
        self.reads = self.read_bytes = self.reads_failed = self.blocks_right = self.blocks_wrong = 0

    def began(self, nbytes: int) -> None:
        """A read of that many bytes was ordered."""
        self.reads += 1
        self.read_bytes += nbytes

    def judged(self, *, right: int, wrong: int) -> None:
        """So many blocks matched their sums, and so many did not."""
        self.blocks_right += right
        self.blocks_wrong += wrong

    def view(self) -> RankTally:
        """The numbers so far."""
        return RankTally(
            self.reads, self.read_bytes, self.reads_failed, self.blocks_right, self.blocks_wrong
        )


def added(tallies: Iterable[RankTally]) -> RankTally:
    """The sum of several ranks' numbers."""
    rows = [msgspec.structs.astuple(t) for t in tallies]
    return RankTally(*(sum(column) for column in zip(*rows, strict=True))) if rows else RankTally()
