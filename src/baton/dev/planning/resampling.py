"""How far figures of a run can be trusted: a bootstrap over blocks of requests.

Requests that come close together share their fate, as they meet the same queues. So what is drawn
again and again is not single requests but blocks of them that follow each other.
"""

import random
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

BLOCKS = 30  # into which requests are divided
DRAWS, PERCENTILE_DRAWS = 4_000, 400
DOUBT = 0.05  # intervals contain the true figure but for this part


class Estimate(msgspec.Struct, frozen=True):
    """A figure, and the bounds between which it lies as far as the requests tell."""

    value: float
    low: float
    high: float


class Resampling:
    """Draws blocks of the same requests for every figure, so that figures can be compared."""

    def __init__(self, count: int, seed: int) -> None:
        """count: requests, in the order in which they came"""
        chance, blocks = random.Random(f"blocks {seed}"), min(BLOCKS, count)
        # [count], the block of each request
        self._block = np.arange(count, dtype=np.int64) * blocks // count
        self._sizes = np.bincount(self._block, minlength=blocks)
        # [draws, blocks], how often a block is in a draw
        self._times = np.array(
            [
                np.bincount([chance.randrange(blocks) for _ in range(blocks)], minlength=blocks)
                for _ in range(DRAWS)
            ],
            dtype=np.float64,
        )

    def share(self, met: Sequence[bool]) -> Estimate:
        """Return the share of requests of which something is true."""
        return _interval(float(np.mean(met)), self._shares(met), DOUBT)

    def difference(self, ours: Sequence[bool], theirs: Sequence[bool], *, doubt: float) -> Estimate:
        """Return by how much one share of the same requests is larger than another."""
        value = float(np.mean(ours) - np.mean(theirs))
        return _interval(value, self._shares(ours) - self._shares(theirs), doubt)

    def percentile(self, values: NDArray[np.float64], share: float) -> Estimate:
        """Return the value that this share of requests does not exceed. values: float64 [count],
        NaN for requests that have none; all zero if none has"""
        there = ~np.isnan(values)
        if not there.any():
            return Estimate(0.0, 0.0, 0.0)
        order = np.argsort(values[there], kind="stable")
        known, blocks = values[there][order], self._block[there][order]
        found = []
        for times in self._times[:PERCENTILE_DRAWS]:
            weights = np.cumsum(times[blocks])
            if weights[-1] > 0:
                at = int(np.searchsorted(weights, share * weights[-1]))
                found.append(known[min(at, len(known) - 1)])
        value = float(known[min(len(known) - 1, int(share * len(known)))])
        return _interval(value, np.asarray(found), DOUBT)

    def _shares(self, met: Sequence[bool]) -> NDArray[np.float64]:
        """Return the share in each draw: float64 [draws]."""
        by_block = np.bincount(self._block, weights=np.asarray(met, dtype=np.float64))
        shares: NDArray[np.float64] = (self._times @ by_block) / (self._times @ self._sizes)
        return shares


def _interval(value: float, drawn: NDArray[np.float64], doubt: float) -> Estimate:
    low, high = np.quantile(drawn, (doubt / 2, 1 - doubt / 2))
    return Estimate(value, float(low), float(high))
