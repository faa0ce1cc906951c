"""What a room's blocks must hold, token by token: the same as for the whole sequence at once."""

import numpy as np
import pytest

from baton.core.state import Placement
from baton.sim.content import Rows
from baton.sim.context import Context
from baton.sim.settings import FULL, draw_table
from baton.sim.tape import Tape

ROWS = Rows(Placement(draw_table(Tape(script={1: 3})), 1, 1, 0, 0, 1))  # two kinds of rows in a block
B = ROWS.tokens_per_block(FULL)


def at_once(stamps):
    grid = np.zeros(-(-len(stamps) // B) * B, dtype=np.uint64)
    grid[: len(stamps)] = stamps
    return ROWS.blocks(FULL, grid.reshape(-1, B))


@pytest.mark.parametrize("steps", [(1,) * 9, (B, 1, B, B - 1), (9,), (3, 6)])
def test_a_context_grows(steps):
    context, stamps = Context(ROWS, FULL), []
    for step in steps:
        stamps += range(len(stamps) + 11, len(stamps) + 11 + step)
        assert np.array_equal(context.blocks(stamps), at_once(stamps))
        assert np.array_equal(context.blocks(stamps), at_once(stamps)), "asked again"


def test_other_tokens_have_other_blocks():
    """In the first block, in the last one, and after fewer tokens than before."""
    context = Context(ROWS, FULL)
    for stamps in ([1, 2, 3, 4, 5], [9, 2, 3, 4, 5], [9, 2, 3, 4, 6], [9, 2, 7], [9, 2, 7, 8]):
        assert np.array_equal(context.blocks(stamps)[: len(at_once(stamps))], at_once(stamps))


def test_the_list_that_was_shown_may_grow_in_place():
    context, stamps = Context(ROWS, FULL), [1, 2, 3]
    context.blocks(stamps)
    stamps[0] = 4
    assert np.array_equal(context.blocks(stamps), at_once(stamps))


def test_bytes_of_positions_are_those_that_change_with_them():
    stamps = list(range(1, B + 1))
    for i in range(B):
        changed = at_once(stamps) != at_once([99 if i == j else stamp for j, stamp in enumerate(stamps)])
        others = ~ROWS.bytes_of(FULL, i, i + 1)
        assert changed.any()
        assert not (changed[0] & others).any()
