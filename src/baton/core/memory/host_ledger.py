"""The host memory that the states of preempted rooms take, or what is kept of prompts, rank by
rank, as their leader counts it.

Ranks hold different parts of a state (pipeline stages, sharded heads), and each of them has the
same bound.
"""

from collections.abc import Callable, Iterable, Sequence

from baton.core.ids import StoreKey
from baton.core.memory.state import Placement, extent_blocks


class HostLedger:
    """The only accounts of the ranks' host stores: a state for which there is no space here is not
    sent there."""

    def __init__(
        self,
        placements: Sequence[Placement],
        total: int,
        *,
        measure: Callable[[Placement, int], int],
    ) -> None:
        """measure: takes a rank's placement and a number of positions, and returns the bytes that
        their state takes in the rank's store"""
        self._placements, self._measure = tuple(placements), measure
        self.total = total  # bytes on each rank
        self._taken: dict[StoreKey, tuple[int, ...]] = {}  # bytes by rank

    def fits(self, lengths: Iterable[int]) -> bool:
        """Whether every rank has space for all these states. lengths: the positions of each"""
        want = [
            [self._measure(placement, length) for placement in self._placements]
            for length in lengths
        ]
        return all(sum(column) <= self.total for column in zip(self.used(), *want, strict=True))

    def could_ever_fit(self, length: int) -> bool:
        """Whether every rank would have space for this state if its store were empty."""
        return all(self._measure(placement, length) <= self.total for placement in self._placements)

    def take(self, key: StoreKey, length: int) -> bool:
        """Take space for the state of `length` positions, on every rank or on none. Returns False
        if there is not enough."""
        if not self.fits([length]):
            return False
        self._taken[key] = tuple(self._measure(placement, length) for placement in self._placements)
        return True

    def give_back(self, key: StoreKey) -> None:
        """A state has left the stores. It need not have been there."""
        self._taken.pop(key, None)

    def used(self) -> tuple[int, ...]:
        """Return the bytes taken on each rank."""
        return tuple(
            sum(column)
            for column in zip((0,) * len(self._placements), *self._taken.values(), strict=False)
        )

    @property
    def states(self) -> int:
        """The number of states that are in the stores, or on their way there."""
        return len(self._taken)


def state_bytes(placement: Placement, length: int) -> int:
    """Return the bytes of the whole state of `length` positions on one rank: every block that a
    handoff of it would carry."""
    table = placement.table
    blocks = {
        g.name: extent_blocks(g.extent, length, table.block_tokens).size for g in table.groups
    }
    return sum(n * placement.block_bytes(group) for group, n in blocks.items())
