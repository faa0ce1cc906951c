"""The compiled seal against the numpy one, the golden values and the same catalogue of damage."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.handoff.layouts import laid_out_elsewhere
from tests.core.handoff.seal_cases import PAGED, SLOT, TWIN, cases, table, undamaged
from tests.core.handoff.seal_suite import GOLDEN, SealSuite, hexed

from baton.core.errors import Bug
from baton.core.handoff import seal
from baton.core.memory.state import DType, Placement, StateSpec
from baton.engine.digest import block_sums


class TestSums(SealSuite):
    sums = staticmethod(block_sums)


@st.composite
def specs(draw, name, layers):
    group = draw(st.sampled_from([PAGED, PAGED, SLOT]))
    held = draw(st.sets(st.integers(0, layers - 1), min_size=1))
    parts = ("x", "y", "z")[: draw(st.integers(1, 3))]
    row = draw(st.integers(1, 80) | st.integers(1000, 2100))
    return StateSpec(
        name,
        group,
        tuple(sorted(held)),
        parts,
        draw(st.sampled_from([2, 4])),
        row,
        draw(st.sampled_from(list(DType))),
    )


@st.composite
def ranks(draw):
    layers = draw(st.integers(2, 4))
    rows = [draw(specs(f"s{n}", layers)) for n in range(draw(st.integers(1, 3)))]
    tp, pp = draw(st.sampled_from([1, 2, 4])), draw(st.integers(1, 2))
    made = table(*rows, layers=layers, block_tokens=draw(st.integers(1, 5)))
    return Placement(
        made,
        tp,
        pp,
        draw(st.integers(0, tp - 1)),
        draw(st.integers(0, pp - 1)),
        draw(st.integers(1, 3)),
    )


@settings(max_examples=80, deadline=None)
@given(
    ranks(),
    st.sampled_from([PAGED, SLOT]),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2**40)), max_size=6),
    st.integers(0, 2**64 - 1),
    st.integers(0, 5),
    st.integers(0, 2**32 - 1),
)
def test_both_implementations_agree_bit_for_bit(placement, group, blocks, identity, skew, seed):
    """`skew`: a pool that begins at an odd address and ends in part of a block."""
    size = 5 * placement.block_bytes(group)
    chance = np.random.default_rng(seed)
    pool = chance.integers(0, 256, size + 2 * skew, dtype=np.uint8)[skew:]
    slots, numbers = (np.array([b[i] for b in blocks], dtype=np.int64) for i in (0, 1))
    ours = block_sums(pool, placement, group, slots, numbers, identity)
    theirs = seal.block_sums(pool, placement, group, slots, numbers, identity)
    assert ours.dtype == theirs.dtype == np.uint64
    assert ours.shape == theirs.shape
    assert np.array_equal(ours, theirs)


@settings(max_examples=60, deadline=None)
@given(
    ranks(),
    st.sampled_from([PAGED, SLOT]),
    st.permutations("blh"),
    st.integers(0, 2**32 - 1),
)
def test_sums_do_not_depend_on_where_an_engine_puts_its_cells(placement, group, order, seed):
    """The same cells at the addresses of our layout and of another one, copied one by one."""
    chance = np.random.default_rng(seed)
    slots = chance.permutation(5).astype(np.int64)
    size = placement.block_bytes(group)
    pool = chance.integers(0, 256, 5 * size, dtype=np.uint8)
    elsewhere = laid_out_elsewhere(placement, dict.fromkeys((PAGED, SLOT), "".join(order)), 5)
    moved = np.full(sum(5 * p.nbytes for p in placement.places.values()), 0xEE, dtype=np.uint8)
    for spec in elsewhere.strides:
        place = placement.places[spec.spec]
        if place.spec.group != group:
            continue
        unit = place.nbytes // (place.heads.size * len(place.layers))
        for b in range(5):
            for h in range(place.heads.size):
                for n in range(len(place.layers)):
                    at = b * size + place.offset + (h * len(place.layers) + n) * unit
                    to = spec.offset + b * spec.block + n * spec.layer + h * spec.head
                    moved[to : to + unit] = pool[at : at + unit]
    numbers = np.arange(5, dtype=np.int64)
    want = seal.block_sums(pool, placement, group, slots, numbers, 7)
    for sums in (block_sums, seal.block_sums):
        assert np.array_equal(sums(moved, elsewhere, group, slots, numbers, 7), want)


def test_a_read_only_pool_needs_no_compiling():
    """A mapping of a peer's pool is read-only: another type to numba, which must not compile it in
    a request."""
    case = undamaged()
    pool = case.pool()
    pool.flags.writeable = False
    assert np.array_equal(case.sums(block_sums, pool), case.sums(seal.block_sums))


@pytest.mark.parametrize("before", range(4))
@pytest.mark.parametrize("after", range(4))
@pytest.mark.parametrize("name", ["bf16 x 64", "bf16 x 33", "several specs on rank 1, 0"])
def test_pools_may_begin_at_any_address_and_end_in_part_of_a_word(name, before, after):
    """Whole words are read as words only where every block of the spec begins at the address of
    one."""
    case = next(c for c in cases() if c.name == name)
    room = np.zeros(case.pool().size + before + after, dtype=np.uint8)
    pool = room[before:]
    pool[: case.pool().size] = case.pool()
    assert [hexed(row) for row in case.sums(block_sums, pool)] == GOLDEN["sums"][name]


def test_all_rows_of_a_served_model_agree():
    """SmolLM2-135M's geometry; adjacent, scattered and repeated blocks."""
    model = table(
        StateSpec("kv", PAGED, tuple(range(30)), ("k", "v"), 3, 64, DType.BF16),
        layers=30,
        block_tokens=16,
    )
    placement = Placement(model, 1, 1, 0, 0, 4)
    pool = np.random.default_rng(3).integers(
        0, 256, 8 * placement.block_bytes(PAGED), dtype=np.uint8
    )
    slots, numbers = np.array([0, 1, 7, 3, 3]), np.array([0, 1, 2, 3, 4])
    ours = block_sums(pool, placement, PAGED, slots, numbers, 11)
    assert np.array_equal(ours, seal.block_sums(pool, placement, PAGED, slots, numbers, 11))
    assert len(np.unique(ours)) == ours.size


@pytest.mark.parametrize("slots", [[-1], [0, 4], [2**40]])
def test_blocks_outside_the_pool_are_refused(slots):
    """Compiled code does not look at bounds."""
    with pytest.raises(Bug):
        block_sums(undamaged().pool(), TWIN, PAGED, np.array(slots), np.arange(len(slots)), 1)
