"""The sums of a sequence's blocks as they were computed, rank by rank."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from baton.core.agreement import unpack_sums
from baton.core.ids import GroupName, Rank
from baton.core.memory.prefix_cache import CachedPage, Sums
from baton.core.memory.state import Placement

# uint64 [blocks from the extent's first, units]
RoomSums = dict[tuple[Rank, GroupName], NDArray[np.uint64]]


def add_sums(
    known: RoomSums,
    by_rank: Mapping[Rank, Mapping[GroupName, bytes]],
    placements: Sequence[Placement],
) -> None:
    """Append the birth sums of further blocks, as every rank reports them, to `known`."""
    for rank, sums in by_rank.items():
        for group, raw in sums.items():
            new = unpack_sums(raw, placements[rank].unit_count(group))
            old = known.get((rank, group))
            known[rank, group] = new if old is None else np.concatenate((old, new))


def sums_of(chain: Sequence[CachedPage]) -> RoomSums:
    """Return the birth sums of all blocks of these pages. All of the pages must have sums."""
    parts: Sequence[Sums] = [entry.sums for entry in chain]
    return {
        where: np.concatenate([part[where] for part in parts])
        for where in (parts[0] if parts else ())
    }
