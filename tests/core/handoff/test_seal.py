import itertools

import numpy as np
import pytest
from tests.core.handoff.layouts import Layout, picture, placements
from tests.core.handoff.seal_cases import PAGED, SLOT, TWIN, cases, plain_sums, table, undamaged
from tests.core.handoff.seal_suite import GOLDEN, SealSuite, hexed

from baton.core.errors import Bug
from baton.core.handoff.plan import leg_seals, pair
from baton.core.handoff.seal import (
    block_sums,
    constants,
    identity_bits,
    mix,
    row_keys,
    spec_key,
    unit_keys,
)
from baton.core.memory.state import DType, Placement, StateSpec

# ---- the values ---------------------------------------------------------------------------------


def test_constants_and_finaliser_are_the_golden_ones():
    given = np.array([int(x, 16) for x in GOLDEN["mix"]], dtype=np.uint64)
    assert hexed(mix(given)) == list(GOLDEN["mix"].values())
    assert hexed(constants()[[int(i) for i in GOLDEN["constants"]]]) == list(
        GOLDEN["constants"].values()
    )


class TestSums(SealSuite):
    sums = staticmethod(block_sums)


def test_the_plain_implementation_still_makes_the_golden_file():
    case = next(c for c in cases() if c.name == "bf16 x 33")
    assert [hexed(row) for row in case.sums(plain_sums)] == GOLDEN["sums"][case.name]
    assert {c.name for c in cases()} == GOLDEN["sums"].keys()


# ---- what must be caught ------------------------------------------------------------------------


def test_no_two_constants_cancel_each_other():
    """Equal changes of bit b <= 31 of words i and j cancel exactly if 2^33 divides K_i + K_j or K_i
    - K_j."""
    k = constants() & np.uint64(2**33 - 1)
    assert (k % 2 == 1).all()
    negated = (np.uint64(2**33) - k) & np.uint64(2**33 - 1)
    assert len({*k.tolist(), *negated.tolist()}) == 2 * len(k)


@pytest.mark.parametrize("zero", [False, True])
def test_the_same_bytes_elsewhere_have_another_sum(zero):
    """A page reused by another request, weights of another model, another position: also where all
    bytes are zero."""
    case = undamaged()
    pool = np.zeros_like(case.pool()) if zero else case.pool()
    slots = np.zeros(1000, dtype=np.int64)
    first = block_sums(pool, TWIN, PAGED, slots, np.arange(1000), 1)
    second = block_sums(pool, TWIN, PAGED, slots, np.arange(1000), 2)
    assert len(np.unique(np.concatenate((first, second)))) == 2 * first.size


def test_a_slots_sum_names_the_tokens_it_has_consumed():
    placement = Placement(
        table(StateSpec("delta", SLOT, (1,), ("s",), 1, 8, DType.F32)), 1, 1, 0, 0, 1
    )
    pool = np.ones(placement.block_bytes(SLOT), dtype=np.uint8)
    sums = block_sums(pool, placement, SLOT, np.array([0, 0]), np.array([512, 513]), 1)
    assert sums[0] != sums[1]


def test_rows_of_other_names_or_lengths_have_other_keys():
    found = [
        spec_key(i, s, n)
        for i in (0, 1, 2**64 - 1)
        for s in ("k", "kv", "v")
        for n in (2, 256, 258)
    ]
    assert len(set(found)) == len(found)
    keys = unit_keys(TWIN.places["a"], 5)
    assert keys.shape == (9, 2)
    assert len(np.unique(keys)) == keys.size
    cells = np.stack([row_keys(keys[0, :1], np.arange(500, dtype=np.uint64), c) for c in range(20)])
    assert len(np.unique(cells)) == cells.size


# ---- algebra ------------------------------------------------------------------------------------

MIXED = table(
    StateSpec("kv", PAGED, (0, 1, 2, 3), ("k", "v"), 4, 2, DType.BF16),
    StateSpec("latent", PAGED, (1, 3), ("c",), 1, 3, DType.FP8),
)


def held(layout: Layout, blocks: int) -> tuple[list[np.ndarray], list[int]]:
    """Every rank's pool for blocks 0 .. blocks of one sequence, and the block's slots."""
    pages = [5, 0, 1, 7, 3, 2, 9, 8, 4, 6][: -(-blocks // layout.k)]
    ids = [
        picture(MIXED, layout, r, PAGED, pages, 10, 0, blocks) for r in range(layout.tp * layout.pp)
    ]
    pools = [((x * 0x9E3779B1 >> 15) & 255).astype(np.uint8) for x in ids]
    return pools, [pages[b // layout.k] * layout.k + b % layout.k for b in range(blocks)]


def rank_sums(layout: Layout, blocks: int) -> list[np.ndarray]:
    pools, slots = held(layout, blocks)
    return [
        block_sums(pool, p, PAGED, np.array(slots), np.arange(blocks), 1)
        for pool, p in zip(pools, placements(MIXED, layout), strict=True)
    ]


LAYOUTS = [Layout(tp, pp, k) for tp in (1, 2, 4, 8) for pp, k in ((1, 1), (2, 2), (3, 1), (4, 3))]


def test_a_units_sum_is_the_same_in_every_layout():
    want = dict(
        zip(
            placements(MIXED, LAYOUTS[0])[0].units(PAGED),
            rank_sums(LAYOUTS[0], 6)[0].T,
            strict=True,
        )
    )
    for layout in LAYOUTS:
        for placement, sums in zip(placements(MIXED, layout), rank_sums(layout, 6), strict=True):
            for unit, found in zip(placement.units(PAGED), sums.T, strict=True):
                assert np.array_equal(found, want[unit])


def test_a_legs_seal_is_the_same_on_both_sides():
    for source, target in itertools.product(LAYOUTS[::3], LAYOUTS[1::3]):
        plan = pair(placements(MIXED, source), placements(MIXED, target))
        theirs, ours = rank_sums(source, 6), rank_sums(target, 6)
        for leg in plan.legs:
            offered = leg_seals(theirs[leg.source], plan.source_units(leg, PAGED))
            found = leg_seals(ours[leg.target], plan.target_units(leg, PAGED))
            assert np.array_equal(offered, found)


# ---- edges --------------------------------------------------------------------------------------


def test_a_stage_without_rows_of_a_group_has_no_columns():
    stage = Placement(table(StateSpec("kv", PAGED, (0,), ("k",), 1, 2, DType.BF16)), 1, 4, 0, 3, 1)
    assert block_sums(
        np.zeros(0, np.uint8), stage, PAGED, np.array([3, 4]), np.array([0, 1]), 1
    ).shape == (2, 0)


def test_no_blocks_have_no_sums():
    none = np.zeros(0, dtype=np.int64)
    assert block_sums(undamaged().pool(), TWIN, PAGED, none, none, 1).shape == (0, 18)


@pytest.mark.parametrize("slots", [[-1], [0, 4], [2**40]])
def test_blocks_outside_the_pool_are_refused(slots):
    with pytest.raises(Bug):
        block_sums(undamaged().pool(), TWIN, PAGED, np.array(slots), np.arange(len(slots)), 1)


def test_an_identity_is_the_first_64_bits_of_the_hex():
    assert identity_bits("0123456789abcdef" + "77" * 24) == 0x0123456789ABCDEF
    assert identity_bits("ff" * 32) == 2**64 - 1
    with pytest.raises(ValueError, match="invalid literal"):
        identity_bits("not hex")
