"""What a room's state must hold on one rank, kept while the room's sequence grows.

A context is compared before every step and is one token longer each time: whatever was worked out for its first blocks is
not worked out again.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from baton.core.ids import GroupName
from baton.sim.content import Rows


class Context:
    """One room's blocks of one group, from the first position on."""

    def __init__(self, rows: Rows, group: GroupName) -> None:
        self._rows, self._group = rows, group
        self._stamps: list[int] = []  # of the positions that `_blocks` holds
        self._blocks: NDArray[np.uint8] = np.zeros((0, 0), dtype=np.uint8)

    def blocks(self, stamps: Sequence[int]) -> NDArray[np.uint8]:
        """Whole blocks of a sequence with these stamps; positions beyond it are zero."""
        known = len(self._stamps)
        if self._stamps != stamps[:known]:  # other tokens than before, or fewer
            known = 0
        if known < len(stamps):
            b = self._rows.tokens_per_block(self._group)
            first = known // b
            grid = np.zeros((-(-len(stamps) // b) - first) * b, dtype=np.uint64)
            grid[: len(stamps) - first * b] = stamps[first * b :]
            fresh = self._rows.blocks(self._group, grid.reshape(-1, b))
            self._blocks = np.concatenate((self._blocks[:first], fresh)) if first else fresh
            self._stamps = list(stamps)
        return self._blocks
