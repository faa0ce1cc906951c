"""What moves for a model whose one kind of state is a row a token, which every rank of a stage
holds: counted, not planned."""

from collections import Counter

import numpy as np
import pytest
from tests.core.handoff.layouts import Layout, placements

from baton.core.handoff.plan import pair
from baton.core.ids import BlockIndex, GroupName, Page
from baton.core.memory.state import DType, Full, Group, StateSpec, StateTable, Unit
from baton.core.messages import BlockRun

FULL, B, LAYERS, ROW = GroupName("full"), 16, 6, 576
TABLE = StateTable(
    LAYERS,
    B,
    (Group(FULL, Unit.PAGE, Full()),),
    (StateSpec("latent", FULL, tuple(range(LAYERS)), ("c",), 1, ROW, DType.BF16),),
)
WIDTHS = [(4, 2), (2, 4), (4, 1), (1, 4), (2, 2)]


@pytest.mark.parametrize("tokens", [1, 15, 16, 700])
@pytest.mark.parametrize("stages", [(1, 1), (2, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("widths", WIDTHS)
def test_each_row_goes_to_each_target_once_and_from_one_source(widths, stages, tokens):
    source, target = (Layout(tp, pp, 1) for tp, pp in zip(widths, stages, strict=True))
    plan = pair(placements(TABLE, source), placements(TABLE, target))
    blocks = -(-tokens // B)
    pages = tuple(Page(p) for p in range(blocks))
    moved, authors = Counter(), {}
    for leg in plan.legs:
        wanted = plan.admit(leg, FULL, tokens)
        run = BlockRun(BlockIndex(0), BlockIndex(blocks), pages)
        for copies in plan.bind(
            leg, FULL, source=run, target_pages=np.arange(blocks), target_start=0, blocks=wanted
        ):
            moved[leg.target] += int(copies.nbytes.sum())
        for block in wanted.tolist():
            for share in leg.shares:
                for layer in share.layers:
                    assert authors.setdefault((leg.target, layer, block), leg.source) == leg.source
    rows = blocks * B * LAYERS // target.pp
    assert moved == dict.fromkeys(range(target.tp * target.pp), rows * ROW * 2)
    assert len(authors) == target.tp * LAYERS * blocks
    if tokens == 700:  # the work of reading is shared: a run of blocks from each copy in turn
        assert {leg.source for leg in plan.legs} == set(range(source.tp * source.pp))
        assert set(authors.values()) == set(range(source.tp * source.pp))
