"""What a room's state must hold on one rank, kept while the room's sequence grows.

A context is compared before every step and is one token longer each time. What was computed for its
first positions is not computed again.
"""

from collections.abc import Sequence

from baton.core.ids import GroupName
from baton.dev.sim.content import BlockContents


class Context:
    """One room's blocks of one group, from the first position on."""

    def __init__(self, rows: BlockContents, group: GroupName) -> None:
        self._rows, self._group = rows, group
        self._stamps: list[int] = []  # of the positions that `_blocks` holds
        self._blocks: list[int] = []

    def blocks(self, stamps: Sequence[int]) -> list[int]:
        """Return the whole blocks (see BlockContents) of a sequence with these stamps. Positions
        beyond it are zero."""
        if self._stamps != stamps[: len(self._stamps)]:  # other tokens than before, or fewer
            self._stamps, self._blocks = [], []
        b = self._rows.tokens_per_block(self._group)
        for position in range(len(self._stamps), len(stamps)):
            stamp = stamps[position]
            self._stamps.append(stamp)
            block, at = divmod(position, b)
            if at == 0:
                self._blocks.append(0)
            self._blocks[block] += self._rows.row(self._group, at, stamp)
        return self._blocks
