"""The host memory that the states of preempted rooms take, rank by rank, as their leader counts it.

Ranks hold different parts of a state (pipeline stages, sharded heads), and each of them has the
same bound.
"""

from collections.abc import Iterable, Sequence

from baton.core.ids import Key
from baton.core.memory.state import Placement, extent_blocks


class HostLedger:
    """The only accounts of the ranks' host stores: a state for which there is no space here is not
    sent there."""

    def __init__(self, placements: Sequence[Placement], total: int) -> None:
        self._placements = tuple(placements)
        self.total = total  # bytes on each rank
        self._taken: dict[Key, tuple[int, ...]] = {}  # bytes by rank

    def fits(self, lengths: Iterable[int]) -> bool:
        """Whether every rank has space for all these states. lengths: the positions of each"""
        want = [
            [state_bytes(placement, length) for placement in self._placements] for length in lengths
        ]
        return all(sum(column) <= self.total for column in zip(self.used(), *want, strict=True))

    def take(self, key: Key, length: int) -> bool:
        """Take space for the state of `length` positions, on every rank or on none. Returns False
        if there is not enough."""
        if not self.fits([length]):
            return False
        self._taken[key] = tuple(state_bytes(placement, length) for placement in self._placements)
        return True

    def give_back(self, key: Key) -> None:
        """A room's state has left the stores. It need not have been there."""
        self._taken.pop(key, None)

    def used(self) -> tuple[int, ...]:
        """Return the bytes taken on each rank."""
        return tuple(
            sum(column)
            for column in zip((0,) * len(self._placements), *self._taken.values(), strict=False)
        )

    @property
    def rooms(self) -> int:
        """The number of rooms whose state is in the stores, or on its way there."""
        return len(self._taken)


def state_bytes(placement: Placement, length: int) -> int:
    """Return the bytes of the whole state of `length` positions on one rank: every block that a
    handoff of it would carry."""
    table = placement.table
    blocks = {
        g.name: extent_blocks(g.extent, length, table.block_tokens).size for g in table.groups
    }
    return sum(n * placement.block_bytes(group) for group, n in blocks.items())
