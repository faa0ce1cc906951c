"""What a worker has counted since it started. The figures are absolute, so a reader who misses some
loses nothing.

Counting is an addition. To get the figures, ask the leader (AskLedger in messages.py).
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

    reads: int = 0  # reads begun, repeated ones included
    read_bytes: int = 0  # of these reads
    reads_failed: int = 0  # reads that ended, but not well
    blocks_right: int = 0  # matched their sums
    blocks_wrong: int = 0  # did not match; they are read again


class CacheTally(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker's prefix cache was asked for, and what it had."""

    queries: int = 0  # tokens of the contexts of rooms that began
    hits: int = 0  # those of them whose state was cached
    evicted: int = 0  # pages of each group that were given up for others
    saved_bytes: int = 0  # state of the hits, on all ranks; decode did not have to fetch it
    # prefill: tokens whose state was fetched back from a decode worker; not among the hits
    borrowed_tokens: int = 0
    borrowed_bytes: int = 0  # of that state, on all ranks
    # decode: tokens whose state was offered to a prefill worker, which may have declined
    lent_tokens: int = 0
    verified_pages: int = 0  # of each group, verified at rest; each time counts
    damaged_pages: int = 0  # of each group, found to have changed


class Speculation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What became of drafts.

    Attributes:
        drafts: rows with drafts
        tokens: tokens that were drafted
        accepted: those of them that were drawn; entry n counts the n-th of a row
    """

    drafts: int = 0
    tokens: int = 0
    accepted: tuple[int, ...] = ()


class Counters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The figures of one worker.

    Attributes:
        epochs: tickets taken
        failures: epochs that failed here, by code
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


class SpeculationCount:
    """Counts drafts."""

    def __init__(self) -> None:
        self._drafts = self._tokens = 0
        self._accepted: list[int] = []

    def add(self, drafts: int, accepted: int) -> None:
        """Count a row with so many drafts."""
        self._drafts += 1
        self._tokens += drafts
        self._accepted += [0] * (drafts - len(self._accepted))
        for n in range(accepted):
            self._accepted[n] += 1

    def figures(self) -> Speculation:
        """Return the figures so far."""
        return Speculation(self._drafts, self._tokens, tuple(self._accepted))


class Durations:
    """Durations of one kind, counted in classes."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_US) + 1)
        self._total_us = 0

    def add(self, us: int) -> None:
        """Count one duration, in microseconds."""
        self._counts[bisect_left(BOUNDS_US, us)] += 1
        self._total_us += us

    def view(self) -> Spent:
        """Return the figures so far."""
        return Spent(tuple(self._counts), self._total_us)


class ReadCounts:
    """The counters of a rank, from which its RankTally is made."""

    def __init__(self) -> None:
        self.reads = self.read_bytes = self.reads_failed = self.blocks_right = self.blocks_wrong = 0

    def began(self, nbytes: int) -> None:
        """Count a read of this many bytes."""
        self.reads += 1
        self.read_bytes += nbytes

    def judged(self, *, right: int, wrong: int) -> None:
        """Count blocks that matched their sums, and blocks that did not."""
        self.blocks_right += right
        self.blocks_wrong += wrong

    def view(self) -> RankTally:
        """Return the figures so far."""
        return RankTally(
            self.reads, self.read_bytes, self.reads_failed, self.blocks_right, self.blocks_wrong
        )


def added(tallies: Iterable[RankTally]) -> RankTally:
    """Return the sum of several ranks' figures."""
    rows = [msgspec.structs.astuple(t) for t in tallies]
    return RankTally(*(sum(column) for column in zip(*rows, strict=True))) if rows else RankTally()
