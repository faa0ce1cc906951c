"""The softmax of attention, over scores that lie in memory, in powers of two."""

import numpy as np
from numba.np.numpy_support import carray

from baton.engine.attention.paged import compiled, in_any_order, inlined
from baton.engine.kernels.machine import exp2, floats
from baton.engine.kernels.vectors import LANES, highest

LOW = np.float32(-3e38)


@compiled
def line_of(address, count):  # type: ignore[no-untyped-def]
    """View `count` float32."""
    return carray(floats(address), (count,))


@compiled
def highest_of(address, count):  # type: ignore[no-untyped-def]
    """Return the highest of `count` scores; overwrites those up to the next multiple of LANES."""
    row, past = line_of(address, (count + LANES - 1) // LANES * LANES), count
    while past < row.size:
        row[past] = LOW
        past += 1
    return highest(address, row.size)


@in_any_order
def weigh(scores, scale, top):  # type: ignore[no-untyped-def]
    """Turn scores into weights 2**(score * scale - top); returns their sum."""
    total = np.float32(0.0)
    for t in range(scores.size):
        scores[t] = exp2(scores[t] * scale - top)
        total += scores[t]
    return total


@inlined
def softmax(address, count, unseen, scale, sink):  # type: ignore[no-untyped-def]
    """Turn `count` scores into weights; the first `unseen` weights are 0.

    A sink adds to the softmax's denominator and has no weight.
    """
    line = line_of(address, count)
    for t in range(unseen):
        line[t] = LOW
    top = max(highest_of(address, count) * scale, sink)
    inverse = np.float32(1.0) / (weigh(line, scale, top) + exp2(sink - top))
    for t in range(count):
        line[t] *= inverse
    for t in range(unseen):
        line[t] = 0.0
