"""How a prompt is cut into chunks, and which blocks a chunk completes."""

import msgspec

from baton.core.ids import BlockIndex, GroupName
from baton.core.memory.state import StateTable, Unit, extent_blocks


class ChunkRule(msgspec.Struct, frozen=True):
    """Limits of a step.

    Attributes:
        step_tokens: tokens of all rows of a step together (`--max-num-batched-tokens`)
        last_tokens: size of a long prompt's last chunk, whose transfer and verification nothing
            hides
    """

    step_tokens: int
    last_tokens: int


def next_chunk(*, done: int, length: int, budget: int, rule: ChunkRule, block_tokens: int) -> int:
    """Tokens to compute next of a prompt of `length` with `done` computed, at most `budget`.

    As much as the budget allows; of a rest that fits but is not small, what comes before the last
    chunk. Borders lie on the block grid where they can: one inside a block leaves it unsealed until
    the next chunk.
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
    """Blocks [first, past) per group that computing positions [start, end) of a prompt of `length`
    makes final.

    Only blocks within the group's extent at `length` are named: nobody reads the others. A slot is
    final at the end.
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
