"""How a prompt is cut into chunks, and which blocks a chunk completes."""

import msgspec

from baton.core.ids import BlockIndex, GroupName
from baton.core.state import StateTable, Unit, extent_blocks


class ChunkRule(msgspec.Struct, frozen=True):
    """Limits of a step.

    Attributes:
        step_tokens: tokens of all rows of a step together (`--max-num-batched-tokens`)
        last_tokens: size of a long prompt's last chunk, whose transfer and verification nothing hides
    """

    step_tokens: int
    last_tokens: int


def next_chunk(*, done: int, length: int, budget: int, rule: ChunkRule, block_tokens: int) -> int:
    """Tokens to compute next of a prompt of `length` with `done` computed, at most `budget`.

    All of the rest if it fits and is small, else up to where the last chunk begins; borders lie on the block grid
    (a border inside a block would leave it unsealed until the next chunk).
    """
    rest = length - done
    if rest <= min(budget, rule.last_tokens):
        return rest
    end = min(done + budget, max(length - rule.last_tokens, done + 1))
    aligned = end // block_tokens * block_tokens
    return aligned - done if aligned > done else min(budget, rest)


def final_blocks(table: StateTable, *, start: int, end: int, length: int) -> dict[GroupName, tuple[BlockIndex, BlockIndex]]:
    """Blocks [first, past) per group that computing positions [start, end) of a prompt of `length` makes final.

    Only blocks within the group's extent at `length` are named: nobody reads the others. A slot is final at the end.
    """
    found = {}
    for group in table.groups:
        due = extent_blocks(group.extent, length, table.block_tokens)
        first, past = due.start, due.end
        if group.unit is Unit.PAGE:
            b = table.block_tokens
            first, past = max(first, start // b), min(past, -(-length // b) if end == length else end // b)
        elif end < length:
            continue
        if past > first:
            found[group.name] = (BlockIndex(first), BlockIndex(past))
    return found
