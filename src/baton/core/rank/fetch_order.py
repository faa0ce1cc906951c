"""What a rank keeps of the blocks that it is fetching: orders, and their pieces."""

from collections.abc import Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from baton.core.agreement import Fetch, Suspect
from baton.core.handoff.plan import Leg
from baton.core.ids import BlockIndex, GroupName, Key, Seal


class Piece(msgspec.Struct, frozen=True):
    """Some blocks of one group on one leg, which are read and hashed together."""

    order: int
    key: Key
    leg: Leg
    group: GroupName
    blocks: tuple[BlockIndex, ...]
    tries: int


class OpenOrder(msgspec.Struct):
    """A fetch order under way. It knows what is still open, what has gone on differing, and which
    sums are to be found."""

    fetch: Fetch
    open: set[tuple[int, GroupName, BlockIndex]]
    sums: Mapping[tuple[int, GroupName, BlockIndex], Seal]
    suspects: list[Suspect] = []
    # of the first piece that failed; where the order is patient and goes on until all have ended
    why: str = ""
    # what the blocks of each run sum to, where the order says `tell`
    found: dict[GroupName, NDArray[np.uint64]] = {}

    def note(
        self,
        group: GroupName,
        blocks: tuple[BlockIndex, ...],
        sums: NDArray[np.uint64],
        units: NDArray[np.int64],
    ) -> None:
        """Blocks have been hashed. These units of what they sum to are the leg's own."""
        if not self.fetch.tell:
            return
        run = self.fetch.runs[group]
        if group not in self.found:
            self.found[group] = np.zeros((run.end - run.start, sums.shape[1]), dtype=np.uint64)
        rows = np.asarray(blocks, dtype=np.int64) - run.start
        self.found[group][rows[:, None], units[None, :]] = sums[:, units]

    def sums_by_unit(self) -> dict[GroupName, NDArray[np.uint64]]:
        """Return what all blocks of the order sum to, once they have been hashed. A group that this
        rank has no part of is empty."""
        if not self.fetch.tell:
            return {}
        none = np.zeros((0, 0), dtype=np.uint64)
        return {group: self.found.get(group, none) for group in self.fetch.runs}
