"""Fits times to what they depend on, and says how well: pure functions."""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from baton.dev.fleet.profile import FitQuality, StepTimes, WireTimes, between, padded


class MeasuredStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that was timed.

    Attributes:
        tokens: of prompts
        pairs: of such a token and a position up to it
        rows: answers of which it generated a token
        context: positions of these answers
        us: microseconds, the median of several
    """

    tokens: int = 0
    pairs: float = 0.0
    rows: int = 0
    context: int = 0
    us: float

    @property
    def kind(self) -> str:
        """What was in it, in a word."""
        if self.tokens and self.rows:
            return "mixed"
        return "prompts" if self.tokens else "answers"


class MeasuredRead(msgspec.Struct, frozen=True):
    """A read that was timed: microseconds, the median of several."""

    nbytes: int
    us: float


def not_negative(columns: NDArray[np.float64], times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the coefficients, none below 0, with the least sum of squared relative errors.

    A column whose coefficient would be negative is left out, the most negative one first: it stands
    for work that takes no time that can be told from the others'.

    columns: float64 [measured, coefficients]; times: float64 [measured], above 0
    """
    relative = columns / times[:, None]
    scale = np.maximum(relative.max(axis=0), 1e-300)  # columns differ by many orders of magnitude
    used = list(range(columns.shape[1]))
    found = np.zeros(columns.shape[1])
    while used:
        fitted = np.linalg.lstsq(relative[:, used] / scale[used], np.ones(len(times)))[0]
        if fitted.min() >= 0:
            found[used] = fitted / scale[used]
            return found
        del used[int(fitted.argmin())]
    return found


def fit_steps(
    steps: Sequence[MeasuredStep], counts: Sequence[int], *, padded_to: int = 1
) -> StepTimes:
    """Return the times that describe steps best.

    counts: of tokens, rising, for which there are points; steps have about as many
    """
    columns = [
        [*_weights(counts, padded(s.tokens + s.rows, padded_to)), s.pairs, s.rows, s.context]
        for s in steps
    ]
    *points, pair, row, context = not_negative(
        np.array(columns, dtype=np.float64), np.array([s.us for s in steps])
    ).tolist()
    return StepTimes(
        tokens_us=tuple(zip(counts, points, strict=True)),
        padded_to=padded_to,
        pair_us=pair,
        row_us=row,
        context_us=context,
    )


def _weights(counts: Sequence[int], tokens: int) -> list[float]:
    """Return the part that each point has in the time of so many tokens: two points, or one."""
    found, (point, along) = [0.0] * len(counts), between(counts, tokens)
    found[point] = 1 - along
    if along:
        found[point + 1] = along
    return found


def foretold(times: StepTimes, step: MeasuredStep) -> float:
    """Return the microseconds that a step should take."""
    return (
        times.of_tokens(step.tokens + step.rows)
        + times.pair_us * step.pairs
        + times.row_us * step.rows
        + times.context_us * step.context
    )


def fit_reads(reads: Sequence[MeasuredRead], *, message_us: float) -> WireTimes:
    """Return the rate and the latency that describe reads best."""
    columns = np.array([[1.0, read.nbytes] for read in reads], dtype=np.float64)
    latency, byte = not_negative(columns, np.array([read.us for read in reads])).tolist()
    assert byte > 0, "a larger read takes longer"
    return WireTimes(bytes_per_s=1e6 / byte, read_us=latency, message_us=message_us)


def read_errors(times: WireTimes, reads: Sequence[MeasuredRead]) -> FitQuality:
    """Return how well a rate and a latency describe reads."""
    return quality(
        [times.read_us + 1e6 * read.nbytes / times.bytes_per_s for read in reads],
        [read.us for read in reads],
    )


def step_errors(times: StepTimes, steps: Sequence[MeasuredStep]) -> dict[str, FitQuality]:
    """Return how well times describe steps, by what is in them."""
    kinds = dict.fromkeys(step.kind for step in steps)
    return {
        kind: quality(
            [foretold(times, step) for step in steps if step.kind == kind],
            [step.us for step in steps if step.kind == kind],
        )
        for kind in kinds
    }


def quality(foretold: Sequence[float], measured: Sequence[float]) -> FitQuality:
    """Compare what a fit foretells with what was measured."""
    errors = [abs(a - b) / b for a, b in zip(foretold, measured, strict=True)]
    return FitQuality(
        measured=len(errors), median_error=float(np.median(errors)), worst_error=max(errors)
    )
