"""What a room's blocks must hold, token by token: the same as for the whole sequence at once."""

import pytest

from baton.core.memory.state import Placement, Unit
from baton.dev.sim.content import BlockContents
from baton.dev.sim.context import Context
from baton.dev.sim.settings import FULL, draw_table
from baton.dev.sim.tape import Tape

TABLE = draw_table(Tape(script={1: 3}))  # two kinds of rows in a block
PLACEMENT = Placement(TABLE, 1, 1, 0, 0, 1)
ROWS = BlockContents(PLACEMENT)
B = ROWS.tokens_per_block(FULL)


def at_once(stamps):
    return [ROWS.block(FULL, stamps[i : i + B]) for i in range(0, len(stamps), B)]


@pytest.mark.parametrize("steps", [(1,) * 9, (B, 1, B, B - 1), (9,), (3, 6)])
def test_a_context_grows(steps):
    context, stamps = Context(ROWS, FULL), []
    for step in steps:
        stamps += range(len(stamps) + 11, len(stamps) + 11 + step)
        assert context.blocks(stamps) == at_once(stamps)
        assert context.blocks(stamps) == at_once(stamps), "asked again"


def test_other_tokens_have_other_blocks():
    """In the first block, in the last one, and after fewer tokens than before."""
    context = Context(ROWS, FULL)
    for stamps in ([1, 2, 3, 4, 5], [9, 2, 3, 4, 5], [9, 2, 3, 4, 6], [9, 2, 7], [9, 2, 7, 8]):
        assert context.blocks(stamps)[: len(at_once(stamps))] == at_once(stamps)


def test_the_list_that_was_shown_may_grow_in_place():
    context, stamps = Context(ROWS, FULL), [1, 2, 3]
    context.blocks(stamps)
    stamps[0] = 4
    assert context.blocks(stamps) == at_once(stamps)


def test_bits_of_positions_are_those_that_change_with_them():
    stamps = list(range(1, B + 1))
    (before,) = at_once(stamps)
    for i in range(B):
        (after,) = at_once([99 if i == j else stamp for j, stamp in enumerate(stamps)])
        assert before != after
        assert (before ^ after) & ~ROWS.mask(FULL, i, i + 1) == 0


@pytest.mark.parametrize("group", TABLE.groups, ids=lambda g: g.name)
def test_masks_of_all_positions_are_the_whole_block(group):
    tokens = ROWS.tokens_per_block(group.name)
    assert tokens == (B if group.unit is Unit.PAGE else 1)
    every = [ROWS.mask(group.name, i, i + 1) for i in range(tokens)]
    assert (
        sum(every)
        == ROWS.mask(group.name, 0, tokens)
        == (1 << 8 * PLACEMENT.block_bytes(group.name)) - 1
    )


def test_every_row_of_a_block_is_another_and_is_equal_wherever_its_unit_lies():
    """The stamp is the largest there is: a product that left its row would show in the next one."""
    top = (1 << 64) - 1
    whole = Placement(TABLE, 1, 1, 0, 0, 1)
    halves = [Placement(TABLE, 1, 2, 0, stage, 1) for stage in range(2)]
    found = rows_of(whole, top)
    assert len(set(found.values())) == len(found)
    parts = [rows_of(half, top) for half in halves]
    assert found == parts[0] | parts[1]


def rows_of(placement, stamp):
    """By spec, head, layer, part and position the bytes of the row, found by the strides of the
    layout."""
    block = (
        BlockContents(placement)
        .block(FULL, [stamp - t for t in range(B)])
        .to_bytes(placement.block_bytes(FULL), "little")
    )
    return {
        (name, place.heads.start + h, layer, part, t): block[at : at + place.row_bytes]
        for name, place in placement.places.items()
        if place.spec.group == FULL
        for h in range(place.heads.size)
        for i, layer in enumerate(place.layers)
        for part in range(len(place.spec.parts))
        for t in range(B)
        for at in [
            place.offset
            + h * place.head_stride
            + i * place.layer_stride
            + part * place.part_stride
            + t * place.row_bytes
        ]
    }
