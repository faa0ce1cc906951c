"""How a prompt is cut into chunks, and which blocks a chunk completes."""

import msgspec

from baton.core.ids import BlockIndex, GroupName
from baton.core.memory.state import StateTable, Unit, extent_blocks


class ChunkRule(msgspec.Struct, frozen=True):
    """The limits of a step.

    Attributes:
        step_tokens: tokens of all rows of a step together (`--max-num-batched-tokens`)
        last_tokens: size of a long prompt's last chunk, whose transfer and verification no
            computing hides
    """

    step_tokens: int
    last_tokens: int


def next_chunk(*, done: int, length: int, budget: int, rule: ChunkRule, block_tokens: int) -> int:
    """Return how many tokens of a prompt to compute next, at most `budget`. The prompt has `length`
    tokens, of which `done` are computed.

    It is as much as the budget allows. If the whole rest fits but is not small, it is the part
    before the last chunk. Chunks end on the block grid where possible: a block in the middle of
    which a chunk ends stays unsealed until the next chunk.
    """
    rest = length - done
    if rest > budget:
        border = (done + budget) // block_tokens * block_tokens
        return border - done if border > done else budget
    small = max(rule.last_tokens, block_tokens)
    border = -(-(length - small) // block_tokens) * block_tokens
    return border - done if rest > small and border > done else rest


def final_blocks(
    table: StateTable, *, start: int, end: int, length: int
) -> dict[GroupName, tuple[BlockIndex, BlockIndex]]:
    """Return the blocks [first, past) per group that become final when positions [start, end) of a
    prompt of `length` are computed.

    Only blocks within the group's extent at `length` are returned, as nobody reads the others. A
    slot is final at the end of the prompt.
    """
    found = {}
    for group in table.groups:
        due = extent_blocks(group.extent, length, table.block_tokens)
        first, past = due.start, due.end
        if group.unit is Unit.PAGE:
            b = table.block_tokens
            first, past = (
                max(first, start // b),
                min(past, -(-length // b) if end == length else end // b),
            )
        elif end < length:
            continue
        if past > first:
            found[group.name] = (BlockIndex(first), BlockIndex(past))
    return found
