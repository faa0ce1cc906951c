"""The sums of blocks that a prompt did not compute itself: what a checkpoint keeps of them, and
what a prompt that resumes from it begins with (pure)."""

from collections.abc import Sequence

import numpy as np

from baton.core.handoff.birth_sums import RoomSums, sums_of
from baton.core.memory.checkpoints import KeptSums, PromptCheckpoint, kept_blocks
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
    one: PromptCheckpoint,
    chain: Sequence[CachedPage],
    table: StateTable,
    *,
    page_blocks: int,
    length: int,
) -> RoomSums:
    """Return the sums of all blocks that are complete where a prompt of `length` positions goes on,
    from the first one of its own extent on. Its slots are sealed at its own end.

    chain: the cached pages that it begins with
    """
    found = sums_of(chain)
    kept, done = kept_blocks(table, one.length, page_blocks), one.length // table.block_tokens
    for (rank, group), rows in one.sums.items():
        if table.group(group).unit is Unit.SLOT:
            continue
        first = kept[group].start
        begin = extent_blocks(table.group(group).extent, length, table.block_tokens).start
        part = rows[max(0, begin - first) : max(0, done - first)]
        before = found.get((rank, group))
        found[rank, group] = part if before is None else np.concatenate((before, part))
    return found
