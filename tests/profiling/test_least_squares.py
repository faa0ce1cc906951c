"""Fits: known times are found again, and what is wrong with a fit is said."""

import random

import numpy as np
import pytest

from baton.dev.fleet.profile import StepTimes
from baton.dev.profiling.core_turns import ROWS, fit_turns, measured_turns
from baton.dev.profiling.engine_steps import StepShape, medians, shapes
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

TRUE = StepTimes(step_us=9_000.0, token_us=480.0, pair_us=0.2, row_us=700.0, context_us=1.8)


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
        us = foretold(times, blank) * (1 + chance.uniform(-noise, noise))
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


def test_known_times_are_found_again():
    found = fit_steps(steps())
    for name in StepTimes.__struct_fields__:
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=1e-6)
    errors = step_errors(found, steps())
    assert set(errors) == {"prompts", "answers", "mixed"}
    assert all(e.worst_error < 1e-6 for e in errors.values())


def test_noise_moves_them_little_and_shows_as_error():
    found = fit_steps(steps(noise=0.05))
    for name in ("step_us", "token_us", "row_us"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=0.1)
    assert 0.005 < step_errors(found, steps(noise=0.05))["prompts"].median_error < 0.05


def test_times_that_are_not_sums_are_told_by_their_error():
    mixed = [
        MeasuredStep(tokens=s.tokens, pairs=s.pairs, rows=s.rows, context=s.context, us=2 * s.us)
        if s.kind == "mixed"
        else s
        for s in steps()
    ]
    assert step_errors(fit_steps(steps()), mixed)["mixed"].median_error == pytest.approx(0.5)


def test_work_that_takes_no_time_costs_nothing():
    free = StepTimes(step_us=5_000.0, token_us=100.0, pair_us=0.0, row_us=50.0, context_us=0.0)
    found = fit_steps(steps(noise=0.02, times=free))
    assert min(getattr(found, name) for name in StepTimes.__struct_fields__) >= 0
    assert found.token_us == pytest.approx(100.0, rel=0.1)


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
