"""What lies between matrix products: norms, rotation, gate. Rows are independent of each other.

Each kernel's items are runs of RUN rows; sums are float32 and results are rounded once to the stored type.
"""

import numba
import numpy as np
from numba.np.numpy_support import carray

from baton.engine.kernels.machine import exp2, floats, integers, job_of, narrow, size_of, take, typed, widen
from baton.engine.kernels.vectors import SCRATCH, scratch

RUN = 8
ROWS = 1  # field of every job, after the counter: rows of the batch
LOG2_E = np.float32(1.4426950408889634)
ONE = np.float32(1)

# norm: out = rms_norm(x += add) * (offset + weight), over the last axis; ADD 0 = none; WEIGHT in the stored type; NUMBERS are
# eps and offset, float32; EXACT: whether x is float32, whatever is stored.
NORM_X, NORM_ADD, NORM_WEIGHT, NORM_OUT, NORM_DIM, NORM_NUMBERS, NORM_EXACT = range(2, 9)
NORM_FIELDS = 9

# rotate: the first TURNED elements of x[row, head] in place, first halves against second; PLACES int64 [rows]; COS, SIN
# float32 [positions, TURNED / 2].
# Heads before QUERIES are normed by WEIGHT_Q, the others by WEIGHT_K, if those are not 0.
ROT_X, ROT_ROW, ROT_HEADS, ROT_QUERIES, ROT_DIM, ROT_PLACES, ROT_COS, ROT_SIN, ROT_WEIGHT_Q, ROT_WEIGHT_K, ROT_NUMBERS = range(
    2, 13
)
ROT_TURNED = 13
ROT_FIELDS = 14

# weigh: out[row] = sum of WEIGHTS[row, n] * x[PLACES[row, n]] for n < COUNT, in this order; a place below 0 adds nothing; x as
# stored, WEIGHTS float32 and PLACES int64 [rows, COUNT].
WEIGH_X, WEIGH_WEIGHTS, WEIGH_PLACES, WEIGH_COUNT, WEIGH_OUT, WEIGH_DIM = range(2, 8)
WEIGH_FIELDS = 8

# gate: out = silu(x[:, :DIM]) * x[:, DIM:]
GATE_X, GATE_OUT, GATE_DIM = range(2, 5)
GATE_FIELDS = 5


@numba.njit(forceinline=True, fastmath={"contract", "reassoc"})
def _squares(kind, x):  # type: ignore[no-untyped-def]
    total = np.float32(0)
    for d in range(x.size):
        value = widen(x[d])
        total += value * value
    return total


@numba.njit(forceinline=True, fastmath={"contract"})
def _scaled(kind, x, weight_address, numbers, out):  # type: ignore[no-untyped-def]
    weight = carray(typed(kind, weight_address), (x.size,))
    factor = ONE / np.sqrt(_squares(kind, x) / np.float32(x.size) + numbers[0])
    for d in range(x.size):
        out[d] = narrow(widen(x[d]) * factor * (numbers[1] + widen(weight[d])), out[d])


@numba.njit(forceinline=True, fastmath={"contract"})
def _normed(kind, job, row, x):  # type: ignore[no-untyped-def]
    at = row * x.size * size_of(kind)
    if job[NORM_ADD]:
        add = carray(typed(kind, job[NORM_ADD] + at), (x.size,))
        for d in range(x.size):
            x[d] = narrow(widen(x[d]) + widen(add[d]), x[d])
    out = carray(typed(kind, job[NORM_OUT] + at), (x.size,))
    _scaled(kind, x, job[NORM_WEIGHT], carray(floats(job[NORM_NUMBERS]), (2,)), out)


@numba.njit(fastmath={"contract"})
def _norm_row(kind, job, row):  # type: ignore[no-untyped-def]
    if job[NORM_EXACT]:
        _normed(kind, job, row, carray(floats(job[NORM_X] + row * job[NORM_DIM] * 4), (job[NORM_DIM],)))
    else:
        _normed(kind, job, row, carray(typed(kind, job[NORM_X] + row * job[NORM_DIM] * size_of(kind)), (job[NORM_DIM],)))


def norm(kind):  # type: ignore[no-untyped-def]
    """Kernel: residual sum and RMS norm."""
    job = carray(job_of(kind), (NORM_FIELDS,))
    while True:
        first = take(kind) * RUN
        if first >= job[ROWS]:
            return
        for row in range(first, min(first + RUN, job[ROWS])):
            _norm_row(kind, job, row)


@numba.njit(fastmath={"contract"})
def _rotate_row(kind, job, row):  # type: ignore[no-untyped-def]
    dim, half = job[ROT_DIM], job[ROT_TURNED] // 2
    place = carray(integers(job[ROT_PLACES]), (job[ROWS],))[row]
    cos = carray(floats(job[ROT_COS] + 4 * half * place), (half,))
    sin = carray(floats(job[ROT_SIN] + 4 * half * place), (half,))
    for head in range(job[ROT_HEADS]):
        address = job[ROT_X] + (row * job[ROT_ROW] + head * dim) * size_of(kind)
        x = carray(typed(kind, address), (dim,))
        weight = job[ROT_WEIGHT_Q] if head < job[ROT_QUERIES] else job[ROT_WEIGHT_K]
        if weight:
            _scaled(kind, x, weight, carray(floats(job[ROT_NUMBERS]), (2,)), x)
        later = carray(typed(kind, address + half * size_of(kind)), (half,))
        for d in range(half):
            a, b = widen(x[d]), widen(later[d])
            x[d] = narrow(a * cos[d] - b * sin[d], x[d])
            later[d] = narrow(b * cos[d] + a * sin[d], x[d])


def rotate(kind):  # type: ignore[no-untyped-def]
    """Kernel: norms of heads and rotary positions."""
    job = carray(job_of(kind), (ROT_FIELDS,))
    while True:
        first = take(kind) * RUN
        if first >= job[ROWS]:
            return
        for row in range(first, min(first + RUN, job[ROWS])):
            _rotate_row(kind, job, row)


@numba.njit
def _weigh_row(kind, job, row):  # type: ignore[no-untyped-def]
    dim, count, size, sums = job[WEIGH_DIM], job[WEIGH_COUNT], size_of(kind), carray(floats(scratch()), (SCRATCH,))
    places = carray(integers(job[WEIGH_PLACES] + 8 * row * count), (count,))
    weights = carray(floats(job[WEIGH_WEIGHTS] + 4 * row * count), (count,))
    for first in range(0, dim, SCRATCH):
        width = min(SCRATCH, dim - first)
        total = sums[:width]
        for d in range(width):
            total[d] = np.float32(0)
        for n in range(count):
            if places[n] >= 0:
                x, weight = carray(typed(kind, job[WEIGH_X] + (places[n] * dim + first) * size), (width,)), weights[n]
                for d in range(width):
                    total[d] += weight * widen(x[d])
        out = carray(typed(kind, job[WEIGH_OUT] + (row * dim + first) * size), (width,))
        for d in range(width):
            out[d] = narrow(total[d], out[d])


def weigh(kind):  # type: ignore[no-untyped-def]
    """Kernel: weighted sums of rows."""
    job = carray(job_of(kind), (WEIGH_FIELDS,))
    while True:
        first = take(kind) * RUN
        if first >= job[ROWS]:
            return
        for row in range(first, min(first + RUN, job[ROWS])):
            _weigh_row(kind, job, row)


@numba.njit(fastmath={"contract"})
def _gate_row(kind, job, row):  # type: ignore[no-untyped-def]
    dim = job[GATE_DIM]
    size = dim * size_of(kind)
    x = carray(typed(kind, job[GATE_X] + 2 * row * size), (dim,))
    up = carray(typed(kind, job[GATE_X] + (2 * row + 1) * size), (dim,))
    out = carray(typed(kind, job[GATE_OUT] + row * size), (dim,))
    for d in range(dim):
        value = widen(x[d])
        e = exp2(-abs(value) * LOG2_E)
        part = (ONE if value >= 0 else e) / (ONE + e)
        out[d] = narrow(value * part * widen(up[d]), out[d])


def gate(kind):  # type: ignore[no-untyped-def]
    """Kernel: the gated linear unit's product."""
    job = carray(job_of(kind), (GATE_FIELDS,))
    while True:
        first = take(kind) * RUN
        if first >= job[ROWS]:
            return
        for row in range(first, min(first + RUN, job[ROWS])):
            _gate_row(kind, job, row)
