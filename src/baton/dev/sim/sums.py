"""Block sums of a world, computed once for equal bytes: most blocks are hashed where they were
computed and again on each rank that they come to."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from baton.core.ids import GroupName
from baton.core.memory.state import Placement
from baton.dev.sim.memory import SimPool

IDENTITY = 0xBA70
BlockSums = Callable[
    [NDArray[np.uint8], Placement, GroupName, NDArray[np.int64], NDArray[np.int64], int],
    NDArray[np.uint64],
]


class Sums:
    """The sums of blocks of equal layout, whatever their page size."""

    def __init__(self, block_sums: BlockSums) -> None:
        self._block_sums = block_sums
        self._known: dict[tuple[GroupName, int, bytes], NDArray[np.uint64]] = {}  # [1, units]

    def of(
        self,
        pool: SimPool,
        placement: Placement,
        group: GroupName,
        slots: Sequence[int],
        numbers: Sequence[int],
    ) -> NDArray[np.uint64]:
        """Return the sums of blocks as `core.handoff.seal.block_sums` does; read-only."""
        size, known = placement.block_bytes(group), self._known
        keys = [
            (group, number, bytes(pool.raw[slot * size : (slot + 1) * size]))
            for slot, number in zip(slots, numbers, strict=True)
        ]
        new = [i for i, key in enumerate(keys) if key not in known]
        if new:
            at, of = (
                np.array([which[i] for i in new], dtype=np.int64) for which in (slots, numbers)
            )
            sums = self._block_sums(pool.data, placement, group, at, of, IDENTITY)
            sums.flags.writeable = False
            known.update((keys[i], sums[n : n + 1]) for n, i in enumerate(new))
        return known[keys[0]] if len(keys) == 1 else np.concatenate([known[key] for key in keys])
