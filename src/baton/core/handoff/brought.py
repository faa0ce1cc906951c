"""The sums of the blocks that a decode room has fetched, as their verification found them, order by
order.

orders   [16 ── 24)  [24 ── 31)          in the order in which they end, each with the sums of every rank
sums     cached [0 ── 16) + [16 ── 30)   together they are the birth sums of the room's whole blocks
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from baton.core.agreement import unpack_sums
from baton.core.handoff.birth_sums import RoomSums
from baton.core.ids import BlockIndex, GroupName, Rank
from baton.core.messages import BlockRun

ByRank = Mapping[Rank, Mapping[GroupName, bytes]]
Units = Mapping[tuple[Rank, GroupName], int]  # columns of a rank's sums


class Brought:
    """The sums of one room's fetched blocks."""

    def __init__(self) -> None:
        # by group and first block: the block after the last one, and the sums
        self._parts: dict[GroupName, dict[BlockIndex, tuple[BlockIndex, ByRank]]] = {}

    def add(self, runs: Mapping[GroupName, BlockRun], by_rank: ByRank) -> None:
        """An order has ended, and all its blocks were right. Orders that ended otherwise are not
        added, so their sums stay unknown."""
        for group, run in runs.items():
            self._parts.setdefault(group, {})[run.start] = run.end, by_rank

    def sums(
        self, cached: RoomSums, first: BlockIndex, past: BlockIndex, units: Units
    ) -> RoomSums | None:
        """Return the sums of the blocks [0, past), of which those before `first` were `cached`;
        None if some are unknown."""
        if first and not cached:
            return None
        found: RoomSums = {}
        for where, columns in units.items():
            parts = [cached[where]] if first else []
            at: BlockIndex = first
            while at < past:
                end, by_rank = self._parts.get(where[1], {}).get(at, (at, {}))
                if end <= at:
                    return None
                parts.append(_rows(by_rank[where[0]][where[1]], columns, end - at))
                at = end
            found[where] = (
                np.concatenate(parts)[:past] if parts else np.zeros((0, columns), dtype=np.uint64)
            )
        return found


def _rows(raw: bytes, columns: int, rows: int) -> NDArray[np.uint64]:
    return unpack_sums(raw, columns) if columns else np.zeros((rows, 0), dtype=np.uint64)
