"""Fits: known times are found again, and what is wrong with a fit is said."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.dev.fleet.profile import StepTimes
from baton.dev.profiling.core_turns import ROWS, fit_turns, measured_turns
from baton.dev.profiling.engine_steps import (
    COUNTS,
    PADDED_TO,
    StepShape,
    counts,
    medians,
    shapes,
)
from baton.dev.profiling.least_squares import (
    MeasuredRead,
    MeasuredStep,
    fit_reads,
    fit_steps,
    foretold,
    not_negative,
    read_errors,
    step_errors,
)

# a few tokens take as long as one; more take time each
POINTS = {
    1: 9_500.0,
    2: 9_900.0,
    4: 9_000.0,
    16: 14_000.0,
    64: 36_000.0,
    256: 120_000.0,
    512: 240_000.0,
}
TRUE = StepTimes(
    tokens_us=tuple(POINTS.items()), padded_to=32, pair_us=0.2, row_us=700.0, context_us=1.8
)


def steps(noise: float = 0.0, times: StepTimes = TRUE) -> list[MeasuredStep]:
    chance, found = random.Random(1), []
    for shape in shapes(512, 1024):
        blank = MeasuredStep(
            tokens=shape.tokens,
            pairs=shape.tokens * (shape.start + shape.tokens / 2),
            rows=shape.rows,
            context=shape.rows * shape.context,
            us=1.0,
        )
        us = took(times, blank) * (1 + chance.uniform(-noise, noise))
        found.append(
            MeasuredStep(
                tokens=blank.tokens,
                pairs=blank.pairs,
                rows=blank.rows,
                context=blank.context,
                us=us,
            )
        )
    return found


def took(times: StepTimes, step: MeasuredStep) -> float:
    """The microseconds of a step: what `fit_steps` is to find again."""
    tokens = step.tokens + step.rows
    computed = tokens if tokens < times.padded_to else math.ceil(tokens / 32) * 32
    return (
        float(np.interp(computed, *zip(*times.tokens_us, strict=True)))
        + times.pair_us * step.pairs
        + times.row_us * step.rows
        + times.context_us * step.context
    )


def fit(measured: list[MeasuredStep]) -> StepTimes:
    return fit_steps(measured, counts(512), padded_to=32)


def test_known_times_are_found_again():
    found = fit(steps())
    assert dict(found.tokens_us) == pytest.approx(POINTS, rel=1e-6)
    for name in ("pair_us", "row_us", "context_us"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=1e-6)
    for step in steps():
        assert foretold(found, step) == pytest.approx(step.us)
    errors = step_errors(found, steps())
    assert set(errors) == {"prompts", "answers", "mixed"}
    assert all(e.worst_error < 1e-6 for e in errors.values())


def test_noise_moves_them_little_and_shows_as_error():
    found = fit(steps(noise=0.05))
    assert dict(found.tokens_us) == pytest.approx(POINTS, rel=0.1)
    assert found.context_us == pytest.approx(TRUE.context_us, rel=0.2)
    assert 0.005 < step_errors(found, steps(noise=0.05))["prompts"].median_error < 0.05


def test_times_that_are_not_sums_are_told_by_their_error():
    mixed = [
        MeasuredStep(tokens=s.tokens, pairs=s.pairs, rows=s.rows, context=s.context, us=2 * s.us)
        if s.kind == "mixed"
        else s
        for s in steps()
    ]
    assert step_errors(fit(steps()), mixed)["mixed"].median_error == pytest.approx(0.5)


def test_work_that_takes_no_time_costs_nothing():
    free = StepTimes(
        tokens_us=tuple(POINTS.items()), padded_to=32, pair_us=0.0, row_us=0.0, context_us=0.0
    )
    found = fit(steps(noise=0.02, times=free))
    assert min(found.pair_us, found.row_us, found.context_us) >= 0
    assert dict(found.tokens_us) == pytest.approx(POINTS, rel=0.05)


def test_steps_of_one_number_of_tokens_have_one_point():
    known = [MeasuredStep(rows=1, context=n, us=500.0 + 2 * n) for n in (10, 20, 40)]
    found = fit_steps(known, [1])
    assert foretold(found, MeasuredStep(rows=1, context=30, us=1.0)) == pytest.approx(560.0)


def test_a_negative_coefficient_is_left_out():
    columns = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 4.0]])
    found = not_negative(columns, np.array([9.0, 8.0, 6.0]))
    assert found[1] == 0
    assert found[0] > 6


def test_reads_have_a_rate_and_a_latency():
    reads = [MeasuredRead(n, 120 + n / 4_000) for n in (65_536, 1 << 20, 1 << 24)]
    wire = fit_reads(reads, message_us=200.0)
    assert wire.read_us == pytest.approx(120)
    assert wire.bytes_per_s == pytest.approx(4e9)
    assert wire.message_us == 200.0
    assert read_errors(wire, reads).worst_error < 1e-6


def test_steps_that_are_held_back_are_of_every_kind():
    held = [s for s in shapes(512, 1024) if s.held_back]
    assert [bool(s.tokens) for s in held] == [True, False, True]
    assert [bool(s.rows) for s in held] == [False, True, True]
    assert all(s.tokens <= 512 and s.start + s.tokens <= 1024 for s in shapes(512, 1024))


@pytest.mark.parametrize("most", [16, 24, 64, 128, 512, 1024])
def test_there_are_steps_around_every_point(most):
    """Otherwise its time is made up."""
    wanted = [s for s in shapes(most, 1024) if not s.held_back]
    for count in counts(most):
        assert any(s.tokens + s.rows == count for s in wanted), count
    assert max(s.tokens for s in wanted) <= most
    assert counts(most)[-1] == most
    assert all(n < PADDED_TO or n % PADDED_TO == 0 for n in COUNTS)


@given(st.lists(st.integers(1, 600), min_size=2, max_size=6, unique=True), st.integers(1, 1024))
def test_a_fit_reads_its_points_as_a_profile_does(counted, tokens):
    """Found from steps of the very counts, a profile says of others what lies between."""
    known = sorted(counted)
    us = {n: 1_000.0 + 7 * n + 50 * math.sin(n) for n in known}
    found = fit_steps([MeasuredStep(tokens=n, us=t) for n, t in us.items()], known)
    assert dict(found.tokens_us) == pytest.approx(us)
    if tokens <= known[-1]:
        line = np.interp(tokens, known, [us[n] for n in known])
        assert foretold(found, MeasuredStep(tokens=tokens, us=1.0)) == pytest.approx(line)


def test_the_median_of_each_shape_counts():
    shape = StepShape(rows=2, context=100)
    (step,) = medians([(shape, us) for us in (5.0, 900.0, 7.0)]).values()
    assert (step.rows, step.context, step.us) == (2, 200, 7.0)


def test_what_the_core_takes_between_steps_is_measured():
    turns = measured_turns()
    assert [turn.rows for turn in turns] == list(ROWS)
    assert all(turn.us > 0 for turn in turns)
    host = fit_turns([MeasuredStep(rows=n, us=80.0 + 11.0 * n) for n in ROWS])
    assert (host.turn_us, host.row_us) == (pytest.approx(80.0), pytest.approx(11.0))
