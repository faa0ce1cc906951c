"""The sums of blocks that a prompt did not compute itself: what a checkpoint keeps of them, and
what a prompt that resumes from it begins with (pure)."""

from collections.abc import Mapping, Sequence

import numpy as np

from baton.core.handoff.birth_sums import RoomSums, sums_of
from baton.core.ids import GroupName
from baton.core.memory.checkpoints import KeptSums, kept_blocks
from baton.core.memory.prefix_cache import CachedPage
from baton.core.memory.state import StateTable, Unit, extent_blocks
from baton.core.scheduler.prefill_room import PrefillRoom


def kept_sums(room: PrefillRoom, table: StateTable, page_blocks: int) -> KeptSums:
    """Return the sums of the blocks that are kept of a prompt, which is computed."""
    kept, found = kept_blocks(table, room.length, page_blocks), {}
    for (rank, group), rows in room.sums.items():
        first = extent_blocks(table.group(group).extent, room.length, table.block_tokens).start
        blocks = kept[group]
        found[rank, group] = rows[blocks.start - first : blocks.end - first].copy()
    return found


def resumed_sums(
    sums: KeptSums,
    firsts: Mapping[GroupName, int],
    chain: Sequence[CachedPage],
    table: StateTable,
    *,
    computed: int,
    length: int,
) -> RoomSums:
    """Return the sums of all blocks that are complete where a prompt of `length` positions goes on,
    from the first one of its own extent on. Its slots are sealed at its own end.

    sums: of the blocks that it has beside the chain, of each group from its block in `firsts` on
    chain: the cached pages that it begins with
    computed: positions of which it has the state
    """
    found, done = sums_of(chain), computed // table.block_tokens
    for (rank, group), rows in sums.items():
        if table.group(group).unit is Unit.SLOT:
            continue
        first = firsts[group]
        begin = extent_blocks(table.group(group).extent, length, table.block_tokens).start
        part = rows[max(0, begin - first) : max(0, done - first)]
        before = found.get((rank, group))
        found[rank, group] = part if before is None else np.concatenate((before, part))
    return found
