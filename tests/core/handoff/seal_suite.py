"""What every implementation of the seal must do, as tests to inherit."""

import json

import pytest
from tests.core.handoff.golden.make_seal import FILE
from tests.core.handoff.seal_cases import (
    CATALOGUE,
    BlockSums,
    cases,
    flip_rates,
    indistinct_flips,
    missed,
)

from baton.core.memory.state import DType

GOLDEN = json.loads(FILE.read_text())


def hexed(values) -> list[str]:
    return [f"{int(v):016x}" for v in values]


class SealSuite:
    """`sums`: a static method, the implementation."""

    sums: BlockSums

    @pytest.mark.parametrize("case", cases(), ids=lambda c: c.name)
    def test_sums_are_the_golden_ones(self, case):
        assert [hexed(row) for row in case.sums(self.sums)] == GOLDEN["sums"][case.name]

    @pytest.mark.parametrize("name", CATALOGUE)
    def test_damage_is_caught(self, name):
        assert missed(self.sums, CATALOGUE[name]) == []

    @pytest.mark.parametrize("zero", [False, True])
    @pytest.mark.parametrize(("dtype", "row"), [(DType.BF16, 64), (DType.F32, 16), (DType.FP8, 37)])
    def test_flipped_bits_and_pairs_of_bits_are_caught(self, dtype, row, zero):
        assert indistinct_flips(self.sums, dtype, row, zero=zero) == 0

    def test_any_flipped_bit_changes_every_bit_of_a_sum_half_of_the_time(self):
        """The finaliser is at work: without it the lowest bits would hang on the lowest bits of
        words alone."""
        rates = flip_rates(self.sums)
        assert rates.min() > 0.4
        assert rates.max() < 0.6
