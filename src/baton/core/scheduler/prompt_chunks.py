"""Chunks of prompts in a step: rooms in order, each of them with as much as the step still has room for."""

from collections.abc import Iterable
from typing import Any

from baton.core.agreement import RowOrder
from baton.core.ids import TokenIndex
from baton.core.memory.chunks import ChunkRule, final_blocks, next_chunk
from baton.core.past import past_of
from baton.core.scheduler.holding import slide
from baton.core.scheduler.leader import Leader
from baton.core.scheduler.prefill_room import PrefillRoom
from baton.core.scheduler.unified_room import UnifiedRoom

ComputedRoom = PrefillRoom | UnifiedRoom


def add_chunks(leader: Leader[Any], rooms: Iterable[ComputedRoom], *, rule: ChunkRule, budget: int, follow: int) -> None:
    """Add chunks to the batch of this turn, of so many tokens together.

    follow: positions that the same pages hold behind the prompt; with some of them its tail block goes on being written
    """
    for room in rooms:
        if budget <= 0:
            return
        block = leader.state_table.block_tokens
        size = next_chunk(done=room.ordered, length=room.length, budget=budget, rule=rule, block_tokens=block)
        slide(leader, room, room.done, tokens=room.length + follow)
        leader.add_row(room, _chunk(leader, room, room.ordered, room.ordered + size, follow))
        room.ordered += size
        budget -= size


def _chunk(leader: Leader[Any], room: ComputedRoom, start: int, end: int, follow: int) -> RowOrder:
    whole = end == room.length
    return RowOrder(
        key=room.key,
        start=start,
        tokens=room.context[start:end],
        final=final_blocks(leader.state_table, start=start, end=end, length=room.length + follow),
        valid=end,
        sampling=room.ticket.sampling if whole else None,
        index=TokenIndex(len(room.ticket.said)),
        past=past_of(room.ticket) if whole else None,
    )
