"""Sums that are remembered are those that would be worked out."""

import numpy as np
import pytest

from baton.core.handoff.seal import block_sums
from baton.core.memory.state import Placement
from baton.dev.sim.memory import SimPool
from baton.dev.sim.settings import FULL, draw_table
from baton.dev.sim.sums import IDENTITY, Sums
from baton.dev.sim.tape import Tape

PLACEMENT = Placement(draw_table(Tape(script={1: 3})), 1, 1, 0, 0, 1)
SIZE = PLACEMENT.block_bytes(FULL)


@pytest.fixture
def pool():
    found = SimPool(6 * SIZE)
    found.data[:] = np.random.default_rng(5).integers(0, 256, found.data.size)
    return found


class Counted:
    """The seal, and how many blocks it was asked for."""

    def __init__(self):
        self.blocks = 0

    def __call__(self, pool, placement, group, slots, numbers, identity):
        self.blocks += len(slots)
        return block_sums(pool, placement, group, slots, numbers, identity)


def afresh(pool, slots, numbers):
    return block_sums(pool.data, PLACEMENT, FULL, np.array(slots), np.array(numbers), IDENTITY)


def test_blocks_are_summed_once(pool):
    seal = Counted()
    sums = Sums(seal)
    for slots, numbers in (([3], [0]), ([1, 3, 2], [1, 0, 7]), ([2, 1], [7, 1]), ([3], [0])):
        assert np.array_equal(
            sums.of(pool, PLACEMENT, FULL, slots, numbers), afresh(pool, slots, numbers)
        )
    assert seal.blocks == 3


def test_another_bit_and_another_place_in_the_sequence_are_another_sum(pool):
    sums = Sums(block_sums)
    before = sums.of(pool, PLACEMENT, FULL, [3], [0]).copy()
    pool.data[3 * SIZE] ^= 1
    after = sums.of(pool, PLACEMENT, FULL, [3], [0])
    assert np.array_equal(after, afresh(pool, [3], [0]))
    assert not np.array_equal(before, after)
    assert not np.array_equal(after, sums.of(pool, PLACEMENT, FULL, [3], [1]))


def test_equal_bytes_at_another_place_are_known(pool):
    seal = Counted()
    sums = Sums(seal)
    pool.raw[5 * SIZE : 6 * SIZE] = pool.raw[SIZE : 2 * SIZE]
    assert np.array_equal(
        sums.of(pool, PLACEMENT, FULL, [5], [4]), sums.of(pool, PLACEMENT, FULL, [1], [4])
    )
    assert seal.blocks == 1


def test_what_is_remembered_cannot_be_changed(pool):
    found = Sums(block_sums).of(pool, PLACEMENT, FULL, [0], [0])
    with pytest.raises(ValueError, match="read-only"):
        found[0, 0] = 1
