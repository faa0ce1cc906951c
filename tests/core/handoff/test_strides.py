"""Plans between pools that other engines have laid out: every cell moved alone, by the addresses
that the documents give."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.core.handoff.layouts import (
    FULL,
    GROUPS,
    Layout,
    extent,
    heads_of,
    laid_out_elsewhere,
    layers_of,
    mixed,
    placements,
)

from baton.core.errors import ConfigError, Mismatch
from baton.core.handoff.plan import pair
from baton.core.ids import BlockIndex, Page
from baton.core.memory.state import Strides, Unit
from baton.core.messages import BlockRun

BLOCKS = 9  # of each pool
ORDERS = ["".join(axes) for axes in itertools.permutations("blh")]


@st.composite
def workers(draw, table):
    """All ranks of a worker, in our layout or in another one, and the layout."""
    layout = Layout(draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2])), 1)
    ranks = placements(table, layout)
    if draw(st.booleans()):
        orders = {group.name: draw(st.sampled_from(ORDERS)) for group in GROUPS}
        ranks = [laid_out_elsewhere(rank, orders, BLOCKS) for rank in ranks]
    return layout, ranks


def address(placement, spec, block, layer, head):
    """Where a cell begins: n-th of the rank's layers, h-th of its heads."""
    tokens = placement.table.block_tokens
    if placement.table.group(spec.group).unit is Unit.SLOT:
        tokens = 1
    cell = len(spec.parts) * tokens * spec.row * spec.dtype.size
    if not placement.strides:
        before, size = 0, 0
        for other, place in placement.places.items():
            if place.spec.group == spec.group:
                before += size if other == spec.name else 0
                size += place.nbytes
        offset = 0
        for other in placement.table.specs:
            if other.name == spec.name:
                break
            if other.group == spec.group and other.name in placement.places:
                offset += placement.places[other.name].nbytes
        layers = len(placement.places[spec.name].layers)
        return block * size + offset + (head * layers + layer) * cell, cell
    at = next(s for s in placement.strides if s.spec == spec.name)
    return at.offset + block * at.block + layer * at.layer + head * at.head, cell


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_cell_comes_from_its_own_address(data):
    table = mixed(4)
    (from_layout, source), (to_layout, target) = (data.draw(workers(table)) for _ in range(2))
    plan = pair(source, target)
    for group in table.groups:
        first, past = extent(table, group.name, 9)
        pages = data.draw(st.permutations(range(BLOCKS)), label="pages")
        theirs, ours = pages[: past - first], pages[::-1][: past - first]
        run = BlockRun(BlockIndex(first), BlockIndex(past), tuple(map(Page, theirs)))
        for t, into in enumerate(target):
            got = {}
            for leg in plan.legs_into(t):
                mine = plan.owned(leg, group.name, np.arange(first, past))
                for copies in plan.bind(
                    leg,
                    group.name,
                    source=run,
                    target_pages=np.array(ours),
                    target_start=first,
                    blocks=mine,
                ):
                    for a, b, n in zip(copies.source, copies.target, copies.nbytes, strict=True):
                        for byte in range(n):
                            assert int(b) + byte not in got, "a byte is read twice"
                            got[int(b) + byte] = leg.source, int(a) + byte
            want = {}
            for spec in table.specs:
                if spec.group != group.name:
                    continue
                held = heads_of(spec, to_layout, t), layers_of(table, spec, to_layout, t)
                for (h, head), (n, layer), block in itertools.product(
                    *map(enumerate, held), range(first, past)
                ):
                    ranks = [
                        s
                        for s in range(len(source))
                        if head in heads_of(spec, from_layout, s)
                        and layer in layers_of(table, spec, from_layout, s)
                    ]
                    s = ranks[block // 8 % len(ranks)]
                    there = (
                        layers_of(table, spec, from_layout, s).index(layer),
                        heads_of(spec, from_layout, s).index(head),
                    )
                    a, cell = address(source[s], spec, theirs[block - first], *there)
                    b, _ = address(into, spec, ours[block - first], n, h)
                    want |= {b + byte: (s, a + byte) for byte in range(cell)}
            assert got == want


def test_a_whole_block_of_each_head_major_layout_is_as_few_ranges_as_it_can_be():
    """Block first: one range. Layer first: one for each layer, as heads follow each other."""
    table = mixed(4)
    (own,) = placements(table, Layout(1, 1, 1))
    kv = next(s for s in table.specs if s.name == "kv")
    for order, ranges in (("bhl", 1), ("blh", 1), ("lbh", len(kv.layers))):
        other = laid_out_elsewhere(own, dict.fromkeys((g.name for g in GROUPS), order), BLOCKS)
        plan = pair([other], [other])
        (copies,) = plan.bind(
            plan.legs[0],
            FULL,
            source=BlockRun(BlockIndex(0), BlockIndex(1), (Page(3),)),
            target_pages=np.array([5]),
            target_start=0,
            blocks=np.array([0]),
        )
        latent = 1 if order != "lbh" else len(table.specs[1].layers)
        assert copies.nbytes.size == ranges + latent, order


def test_strides_that_make_no_sense_are_refused():
    (own,) = placements(mixed(4), Layout(1, 1, 1))
    good = laid_out_elsewhere(own, dict.fromkeys((g.name for g in GROUPS), "blh"), BLOCKS)
    kv, *others = good.strides
    with pytest.raises(Mismatch, match="cells of group 'full'"):
        pair([own], [replace(own, strides=(replace(kv, head=kv.head - 1), *others))])
    with pytest.raises(ConfigError, match="negative"):
        _ = replace(own, strides=(replace(kv, layer=-8), *others)).places
    with pytest.raises(ConfigError, match="strides are given for"):
        _ = replace(own, strides=(Strides("kw", 0, 1, 1, 1), *others)).places
