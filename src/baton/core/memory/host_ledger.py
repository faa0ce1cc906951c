"""The host memory that the states of preempted rooms take, and what is kept of sequences, rank by
rank, as their leader counts it.

Ranks hold different parts of a state (pipeline stages, sharded heads), and each of them has the
same bound.
"""

from collections.abc import Callable, Collection, Iterable, Sequence

from baton.core.ids import Key, StoreKey
from baton.core.memory.state import Placement, extent_blocks

# takes a rank's placement and a number of positions, and returns the bytes that what is stored of
# their state takes there
Measure = Callable[[Placement, int], int]


class HostLedger:
    """The only accounts of the ranks' host stores: a state for which there is no space here is not
    sent there."""

    def __init__(self, placements: Sequence[Placement], total: int) -> None:
        self._placements = tuple(placements)
        self.total = total  # bytes on each rank
        self._taken: dict[StoreKey, tuple[int, ...]] = {}  # bytes by rank

    def fits(
        self, lengths: Iterable[int], measure: Measure, *, without: Collection[StoreKey] = ()
    ) -> bool:
        """Whether every rank has space for all these states.

        lengths: the positions of each
        without: what is counted as if it had left the stores
        """
        want = [
            [measure(placement, length) for placement in self._placements] for length in lengths
        ]
        used = self.used(without)
        return all(sum(column) <= self.total for column in zip(used, *want, strict=True))

    def take(self, key: StoreKey, length: int, measure: Measure) -> bool:
        """Take space for the state of `length` positions, on every rank or on none. Returns False
        if there is not enough."""
        if not self.fits([length], measure):
            return False
        self._taken[key] = tuple(measure(placement, length) for placement in self._placements)
        return True

    def give_back(self, key: StoreKey) -> None:
        """A state has left the stores. It need not have been there."""
        self._taken.pop(key, None)

    def used(self, without: Collection[StoreKey] = ()) -> tuple[int, ...]:
        """Return the bytes taken on each rank. without: by all but these"""
        taken = [by_rank for key, by_rank in self._taken.items() if key not in without]
        return tuple(map(sum, zip((0,) * len(self._placements), *taken, strict=True)))

    def view(self) -> dict[str, int]:
        """Return the bytes of a rank and those used of them, on the fullest one (LedgerView.host);
        nothing where there is no host memory."""
        return {"total": self.total, "used": max(self.used())} if self.total else {}

    @property
    def rooms(self) -> list[Key]:
        """The rooms whose states are in the stores, or on their way there."""
        return [key for key in self._taken if isinstance(key, Key)]


def state_bytes(placement: Placement, length: int) -> int:
    """Return the bytes of the whole state of `length` positions on one rank: every block that a
    handoff of it would carry."""
    table = placement.table
    blocks = {
        g.name: extent_blocks(g.extent, length, table.block_tokens).size for g in table.groups
    }
    return sum(n * placement.block_bytes(group) for group, n in blocks.items())
