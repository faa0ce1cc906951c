import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.core.handoff.layouts import (
    FULL,
    GROUPS,
    SLOT,
    WINDOW,
    Layout,
    extent,
    heads_of,
    layers_of,
    mixed,
    placements,
)
from tests.core.handoff.oracle import check

from baton.core.errors import Bug, Mismatch, PeerError
from baton.core.handoff.plan import REPLICA_RUN, leg_seals, pair
from baton.core.ids import BlockIndex, Page
from baton.core.memory.state import (
    DType,
    Full,
    Group,
    Interval,
    Placement,
    StateSpec,
    StateTable,
    Unit,
    Whole,
    Window,
    extent_blocks,
)
from baton.core.messages import BlockRun

LENGTH = 53  # 27 blocks of 2: replicas take several turns


def one_spec(heads: int, layers: int = 4) -> StateTable:
    return StateTable(
        layers,
        2,
        GROUPS[:1],
        (StateSpec("kv", FULL, tuple(range(layers)), ("k", "v"), heads, 2, DType.BF16),),
    )


def verify(
    table: StateTable,
    source: Layout,
    target: Layout,
    *,
    length: int,
    wanted: set[int] | None = None,
) -> None:
    check(pair(placements(table, source), placements(table, target)), length, wanted)


# ---- every layout -------------------------------------------------------------------------------


@pytest.mark.parametrize("source_tp", [1, 2, 4])
@pytest.mark.parametrize("target_tp", [1, 2, 4])
def test_every_byte_arrives_once_where_it_belongs(source_tp, target_tp):
    """Of two heads; other numbers, and each axis as a whole, in test_plan_axes.py."""
    pages = [(1, 1), (1, 3), (4, 2)]
    for source_pp, target_pp, (source_k, target_k) in itertools.product(
        (1, 2, 3), (1, 2, 3), pages
    ):
        verify(
            mixed(2),
            Layout(source_tp, source_pp, source_k),
            Layout(target_tp, target_pp, target_k),
            length=LENGTH,
        )


@pytest.mark.parametrize(
    ("heads", "source_tp", "target_tp"),
    [(2, 6, 1), (3, 6, 3), (3, 1, 9), (8, 8, 2), (1, 3, 8), (6, 2, 3)],
)
def test_widths_that_are_no_powers_of_two(heads, source_tp, target_tp):
    verify(mixed(heads), Layout(source_tp, 2, 2), Layout(target_tp, 1, 3), length=LENGTH)


def test_one_layer_a_stage():
    verify(mixed(2), Layout(1, 5, 1), Layout(2, 4, 2), length=9)


LAYOUTS = st.tuples(st.sampled_from([1, 2, 3, 4, 6]), st.integers(1, 4), st.integers(1, 4)).map(
    lambda x: Layout(*x)
)


@st.composite
def tables(draw):
    layers = draw(st.integers(4, 7))
    specs = []
    for n in range(draw(st.integers(1, 4))):
        held = draw(st.sets(st.integers(0, layers - 1), min_size=1))
        specs.append(
            StateSpec(
                f"s{n}",
                draw(st.sampled_from([FULL, WINDOW, SLOT])),
                tuple(sorted(held)),
                ("a", "b")[: draw(st.integers(1, 2))],
                draw(st.sampled_from([1, 12])),  # every width of LAYOUTS fits
                draw(st.integers(1, 3)),
                draw(st.sampled_from(list(DType))),
            )
        )
    groups = (
        Group(FULL, Unit.PAGE, Full()),
        Group(WINDOW, Unit.PAGE, Window(draw(st.integers(1, 20)))),
        GROUPS[2],
    )
    return StateTable(layers, draw(st.integers(1, 3)), groups, tuple(specs))


@settings(max_examples=60, deadline=None)
@given(tables(), LAYOUTS, LAYOUTS, st.integers(1, 45), st.sets(st.integers(0, 45)) | st.none())
def test_any_table_any_layouts_any_subset_of_blocks(table, source, target, length, wanted):
    verify(table, source, target, length=length, wanted=wanted)


# ---- ranges -------------------------------------------------------------------------------------


def ranges(
    table: StateTable, source: Layout, target: Layout, from_pages: list[int], to_pages: list[int]
) -> int:
    """Ranges into target rank 0 for blocks 0 .. len(from_pages) * k."""
    plan = pair(placements(table, source), placements(table, target))
    n = len(from_pages) * source.k
    run = BlockRun(BlockIndex(0), BlockIndex(n), tuple(Page(p) for p in from_pages))
    found = 0
    for leg in plan.legs_into(0):
        mine = plan.owned(leg, FULL, np.arange(n))
        for c in plan.bind(
            leg, FULL, source=run, target_pages=np.array(to_pages), target_start=0, blocks=mine
        ):
            found += len(c.nbytes)
    return found


def test_equal_layouts_take_one_range_for_each_run_of_adjacent_blocks():
    table = one_spec(4)
    same = Layout(2, 1, 2)
    assert ranges(table, same, same, [0, 1, 2, 3], [4, 5, 6, 7]) == 1
    assert ranges(table, same, same, [0, 1, 5, 6], [4, 5, 6, 7]) == 2
    assert ranges(table, same, same, [0, 1, 2, 3], [7, 5, 3, 1]) == 4
    assert ranges(table, same, same, [3, 2, 1, 0], [3, 2, 1, 0]) == 4  # adjacent, but downwards
    # several specs, other pages
    assert ranges(mixed(4), Layout(1, 1, 2), Layout(1, 1, 1), [0, 1], [3, 4, 5, 6]) == 1


def test_other_widths_take_one_range_for_each_block():
    table, pages = one_spec(4), [0, 1, 2, 3]
    assert ranges(table, Layout(1, 1, 1), Layout(4, 1, 1), pages, pages) == 4
    assert ranges(table, Layout(4, 1, 1), Layout(1, 1, 1), pages, pages) == 4 * 4  # four legs
    assert ranges(table, Layout(4, 1, 1), Layout(2, 1, 1), pages, pages) == 2 * 4


def test_other_stages_take_one_range_for_each_block_and_head():
    table, pages = one_spec(4), [0, 1, 2, 3]
    assert ranges(table, Layout(1, 1, 1), Layout(1, 2, 1), pages, pages) == 4 * 4


# ---- refusals -----------------------------------------------------------------------------------


def test_a_source_that_lacks_a_rank_is_refused_by_name():
    with pytest.raises(
        Mismatch,
        match=r"spec 'kv' on target rank 0, heads \[2, 4\), layers "
        r"\[0, 1, 2, 3\].*from \[0\] legs",
    ):
        pair(placements(one_spec(4), Layout(2, 1, 1))[:1], placements(one_spec(4), Layout(1, 1, 1)))
    with pytest.raises(
        Mismatch,
        match=r"spec 'kv' on target rank 1, heads \[1, 2\), layers " r"\[2, 3\].*from \[0\] legs",
    ):
        pair(placements(one_spec(2), Layout(2, 2, 1))[:3], placements(one_spec(2), Layout(2, 1, 1)))


def test_a_missing_replica_is_refused():
    """Its blocks would have no source, though every unit has one."""
    with pytest.raises(Mismatch, match="spec 'kv' on target rank 0"):
        pair(placements(one_spec(1), Layout(2, 1, 1))[:1], placements(one_spec(1), Layout(1, 1, 1)))


def test_a_rank_listed_twice_is_refused():
    whole = placements(one_spec(4), Layout(1, 1, 1))
    with pytest.raises(Mismatch, match=r"from \[2\] legs"):
        pair(whole * 2, whole)


class Misplaced(Placement, frozen=True, dict=True):
    """A rank whose description of its own bytes is wrong by `gap` between heads and by `shift` at
    the start."""

    gap: int = 0
    shift: int = 0

    @property
    def places(self):
        right = Placement(
            self.table, self.tp, self.pp, self.tp_rank, self.pp_rank, self.page_blocks
        ).places
        return {
            n: replace(p, head_stride=p.head_stride + self.gap, offset=p.offset + self.shift)
            for n, p in right.items()
        }


def test_byte_ranges_that_overlap_or_leave_the_block_are_refused():
    table = one_spec(4)
    good = Placement(table, 1, 1, 0, 0, 1)
    for wrong in ({"gap": -2}, {"gap": 2}, {"shift": 2}):
        with pytest.raises(Mismatch, match="bytes of a block of group 'full' on target rank 0"):
            pair([good], [Misplaced(table, 1, 1, 0, 0, 1, **wrong)])
    for wrong in ({"gap": 2}, {"shift": 2}, {"shift": -2}):
        with pytest.raises(
            Mismatch, match="bytes read of a block of group 'full' on source rank 0"
        ):
            pair([Misplaced(table, 1, 1, 0, 0, 1, **wrong)], [good])


def test_unequal_tables_are_refused_by_field():
    def changed(**fields):
        return placements(replace(one_spec(4), **fields), Layout(1, 1, 1))

    ours = placements(one_spec(4), Layout(1, 1, 1))
    with pytest.raises(Mismatch, match=r"table\.block_tokens differs: ours is 2, theirs is 4"):
        pair(ours + changed(block_tokens=4), ours)
    with pytest.raises(Mismatch, match=r"table\.specs"):
        pair(changed(specs=one_spec(2).specs), ours)
    with pytest.raises(Mismatch, match=r"table\.num_layers"):
        pair(ours + changed(num_layers=5), ours)  # any rank's, not the first one's alone


def bound(blocks, *, run=(4, 8), pages=(5, 6), target_pages=(1, 2), target_start=4):
    plan = pair(placements(one_spec(4), Layout(1, 1, 2)), placements(one_spec(4), Layout(1, 1, 2)))
    offered = BlockRun(BlockIndex(run[0]), BlockIndex(run[1]), tuple(Page(p) for p in pages))
    wanted = np.array(blocks, dtype=np.int64)
    (copies,) = plan.bind(
        plan.legs[0],
        FULL,
        source=offered,
        target_pages=np.array(target_pages),
        target_start=target_start,
        blocks=wanted,
    )
    size = plan.source[0].block_bytes(FULL)
    return (
        (copies.source // size).tolist(),
        (copies.target // size).tolist(),
        (copies.nbytes // size).tolist(),
    )


def test_blocks_outside_the_page_lists_are_refused():
    """Numbers before a list's start would otherwise count from its end."""
    assert bound([4, 5, 6, 7]) == ([10], [2], [4])
    assert bound([5, 6], run=(5, 7), target_start=5) == ([11], [3], [2])  # borders inside a page
    for blocks in ([3, 4], [7, 8]):
        with pytest.raises(PeerError, match=r"the run offers \[4, 8\)"):
            bound(blocks)
    with pytest.raises(PeerError, match=r"the run offers \[4, 7\)"):
        bound([7], run=(4, 7))  # its page is there, the block was never offered
    with pytest.raises(PeerError, match="in 1 pages"):
        bound([6], pages=(5,))
    with pytest.raises(Bug):
        bound([4], target_start=6)
    with pytest.raises(Bug):
        bound([6], target_pages=(1,))


def test_nothing_is_bound_for_a_group_or_blocks_that_a_leg_has_not():
    plan = pair(placements(mixed(2), Layout(1, 1, 1)), placements(mixed(2), Layout(1, 5, 1)))
    stage = plan.legs_into(0)[0]  # layer 0: no latent, no delta
    run = BlockRun(BlockIndex(0), BlockIndex(1), (Page(0),))
    slots = {"source": run, "target_pages": np.array([0]), "target_start": 0}
    assert plan.owned(stage, SLOT, np.array([0])).size == 0
    assert plan.bind(stage, SLOT, **slots, blocks=np.array([0])) == []
    assert plan.bind(stage, FULL, **slots, blocks=np.array([], dtype=np.int64)) == []
    assert plan.source_units(stage, SLOT).size == plan.target_units(stage, SLOT).size == 0


# ---- units, extents, digest ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "source", [Layout(1, 1, 1), Layout(2, 2, 1), Layout(4, 1, 2), Layout(8, 3, 1)]
)
@pytest.mark.parametrize("target", [Layout(1, 1, 1), Layout(2, 1, 3), Layout(8, 2, 1)])
def test_both_sides_list_a_legs_units_in_one_order(source, target):
    table = mixed(4)
    plan = pair(placements(table, source), placements(table, target))
    for leg, group in itertools.product(plan.legs, table.groups):
        theirs = [
            plan.source[leg.source].units(group.name)[i] for i in plan.source_units(leg, group.name)
        ]
        ours = [
            plan.target[leg.target].units(group.name)[i] for i in plan.target_units(leg, group.name)
        ]
        shared = {
            (spec.name, head, layer)
            for spec in table.specs
            for head in set(heads_of(spec, source, leg.source))
            & set(heads_of(spec, target, leg.target))
            for layer in set(layers_of(table, spec, source, leg.source))
            & set(layers_of(table, spec, target, leg.target))
            if spec.group == group.name and leg.replicas == max(1, source.tp // spec.heads)
        }
        assert theirs == ours
        assert set(ours) == shared
        assert len(ours) == len(shared)


@pytest.mark.parametrize("layout", [Layout(1, 1, 1), Layout(4, 1, 2), Layout(8, 3, 1)])
def test_units_are_counted_as_they_are_listed(layout):
    for placement, group in itertools.product(placements(mixed(4), layout), mixed(4).groups):
        assert placement.unit_count(group.name) == len(placement.units(group.name))


def test_a_legs_seal_is_the_sum_of_its_columns_modulo_two_to_the_64():
    sums = np.array([[1, 2**64 - 1, 7], [2**63, 2**63, 9]], dtype=np.uint64)
    assert leg_seals(sums, np.array([0, 1])).tolist() == [0, 0]
    assert leg_seals(sums, np.array([0, 2])).tolist() == [8, 2**63 + 9]
    assert leg_seals(sums, np.array([], dtype=np.int64)).tolist() == [0, 0]


def test_extents_hold_what_the_next_token_attends_to():
    for length, window, b in itertools.product(range(1, 60), (2, 3, 8, 16, 100), (1, 4, 16)):
        seen = {p // b for p in range(max(0, length - window + 1), length)}
        found = extent_blocks(Window(window), length, b)
        assert set(range(found.start, found.end)) == seen
        assert extent_blocks(Full(), length, b) == Interval(0, len({p // b for p in range(length)}))
    assert extent_blocks(Whole(), 77, 16) == Interval(0, 1)
    assert extent_blocks(Window(1), 8, 4).size == 0  # the next token attends to itself alone


@pytest.mark.parametrize(("source_tp", "target_tp"), [(1, 1), (4, 1), (4, 8), (1, 4)])
def test_what_legs_must_bring_is_the_extent_once_for_each_unit(source_tp, target_tp):
    table = mixed(2)
    plan = pair(
        placements(table, Layout(source_tp, 2, 1)), placements(table, Layout(target_tp, 1, 2))
    )
    for t, group in itertools.product(range(target_tp), table.groups):
        brought = [
            (plan.target[t].units(group.name)[u], int(b))
            for leg in plan.legs_into(t)
            for u in plan.target_units(leg, group.name)
            for b in plan.admit(leg, group.name, LENGTH)
        ]
        first, past = extent(table, group.name, LENGTH)
        assert sorted(brought) == sorted(
            itertools.product(plan.target[t].units(group.name), range(first, past))
        )


def test_neighbours_come_from_one_replica():
    plan = pair(placements(one_spec(1), Layout(4, 1, 1)), placements(one_spec(1), Layout(2, 1, 1)))
    blocks = np.arange(40)
    for t in (0, 1):
        owned = {leg.source: plan.owned(leg, FULL, blocks).tolist() for leg in plan.legs_into(t)}
        assert owned[0] == [*range(8), *range(32, 40)]
        assert owned[3] == list(range(24, 32))
        assert REPLICA_RUN == 8


def test_digests_are_equal_on_both_sides_and_differ_between_plans():
    layouts = [Layout(tp, pp, k) for tp in (1, 4) for pp in (1, 2) for k in (1, 2)]
    # its legs are the same
    wider = replace(mixed(2), specs=tuple(replace(s, row=s.row + 1) for s in mixed(2).specs))
    found = {}
    for table in (mixed(2), mixed(4), wider):
        for source, target in itertools.product(layouts, layouts):
            first, second = (
                pair(placements(table, source), placements(table, target)) for _ in range(2)
            )
            assert first.digest == second.digest
            found[table, source, target] = first.digest
    assert len(set(found.values())) == len(found)


def test_the_digest_of_a_plan_is_fixed():
    """Two releases that compute it differently would refuse each other: change the protocol number
    with it."""
    plan = pair(placements(mixed(2), Layout(2, 1, 1)), placements(mixed(2), Layout(1, 2, 2)))
    assert plan.digest == "22399473504f03dd14ea87003ce10167"
