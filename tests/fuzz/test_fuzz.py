"""The fuzzers, for a few seconds each; `make long` runs them for their whole counts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzz import codec, doors, loaders
from tests.fuzz.mutate import Mutator

SEED = 20


@pytest.mark.parametrize(
    ("fuzz", "count"),
    [
        (codec.fuzz, 5_000),
        (doors.fuzz, 200),
        pytest.param(loaders.fuzz, 60, marks=pytest.mark.slow),  # a minute of imports
    ],
)
def test_nothing_breaks(fuzz, count):
    report = fuzz(count, SEED)
    assert not report.broken, "\n".join(report.lines())
    assert sum(report.outcomes.values()) >= count


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 2**32))
def test_the_same_seed_draws_the_same_damage(raw, seed):
    draws = [[m.draw() for _ in range(5)] for m in (Mutator([raw], seed), Mutator([raw], seed))]
    assert draws[0] == draws[1]


def test_most_draws_are_damaged():
    raw = bytes(range(200))
    mutator = Mutator([raw], SEED)
    assert sum(mutator.draw() != raw for _ in range(1000)) > 900
