"""What lies around a recurrent state: how much of it is kept and corrected, and the norm and gate of what it answers.

As in pointwise.py, items are runs of RUN rows, and rows are independent of each other. (torch's functions take whole vectors one
way and what is left over another, so a row's bits would depend on how many rows lie before it.)
"""

import math

import numba
import numpy as np
from numba.np.numpy_support import carray

from baton.engine.kernels.machine import exp2, floats, job_of, narrow, size_of, take, typed, widen
from baton.engine.kernels.pointwise import LOG2_E, ONE, ROWS, RUN

# rates: decay = RATE * softplus(a + SHIFT), beta = sigmoid(b); a, b in the stored type, AB_ROW elements from a row to the next;
# the others float32, [rows, HEADS] or [HEADS].
RATE_A, RATE_B, AB_ROW, RATE_HEADS, RATE_RATE, RATE_SHIFT, RATE_DECAY, RATE_BETA = range(2, 10)
RATE_FIELDS = 10

# gated_norm: out[row, head] = rms_norm(x[row, head]) * weight * silu(z[row, head]); x float32, z in the stored type, Z_ROW
# elements from a row to the next; WEIGHT float32 [DIM]; EPS: address of a float32.
GN_X, GN_Z, GN_Z_ROW, GN_HEADS, GN_DIM, GN_WEIGHT, GN_OUT, GN_EPS = range(2, 10)
GN_FIELDS = 10


@numba.njit(forceinline=True, fastmath={"contract"})
def _sigmoid(x):  # type: ignore[no-untyped-def]
    e = exp2(-abs(x) * LOG2_E)
    return (ONE if x >= 0 else e) / (ONE + e)


@numba.njit(fastmath={"contract"})
def _rates_row(kind, job, row):  # type: ignore[no-untyped-def]
    heads, at = job[RATE_HEADS], row * job[AB_ROW] * size_of(kind)
    a, b = carray(typed(kind, job[RATE_A] + at), (heads,)), carray(typed(kind, job[RATE_B] + at), (heads,))
    rate, shift = carray(floats(job[RATE_RATE]), (heads,)), carray(floats(job[RATE_SHIFT]), (heads,))
    decay = carray(floats(job[RATE_DECAY] + 4 * row * heads), (heads,))
    beta = carray(floats(job[RATE_BETA] + 4 * row * heads), (heads,))
    for h in range(heads):
        x = widen(a[h]) + shift[h]
        decay[h] = rate[h] * (max(x, np.float32(0)) + np.float32(math.log1p(exp2(-abs(x) * LOG2_E))))
        beta[h] = _sigmoid(widen(b[h]))


def rates(kind):  # type: ignore[no-untyped-def]
    """Kernel: logarithm of what is kept of a state, and the share of its error that is corrected."""
    job = carray(job_of(kind), (RATE_FIELDS,))
    while True:
        first = take(kind) * RUN
        if first >= job[ROWS]:
            return
        for row in range(first, min(first + RUN, job[ROWS])):
            _rates_row(kind, job, row)


@numba.njit(forceinline=True, fastmath={"contract", "reassoc"})
def _squares(x):  # type: ignore[no-untyped-def]
    total = np.float32(0)
    for d in range(x.size):
        total += x[d] * x[d]
    return total


@numba.njit(fastmath={"contract"})
def _gated_norm_row(kind, job, row):  # type: ignore[no-untyped-def]
    dim = job[GN_DIM]
    weight, eps = carray(floats(job[GN_WEIGHT]), (dim,)), carray(floats(job[GN_EPS]), (1,))[0]
    for head in range(job[GN_HEADS]):
        at = (row * job[GN_HEADS] + head) * dim
        x = carray(floats(job[GN_X] + 4 * at), (dim,))
        z = carray(typed(kind, job[GN_Z] + (row * job[GN_Z_ROW] + head * dim) * size_of(kind)), (dim,))
        out = carray(typed(kind, job[GN_OUT] + at * size_of(kind)), (dim,))
        factor = ONE / np.sqrt(_squares(x) / np.float32(dim) + eps)
        for d in range(dim):
            gate = widen(z[d])
            out[d] = narrow(x[d] * factor * weight[d] * (gate * _sigmoid(gate)), out[d])


def gated_norm(kind):  # type: ignore[no-untyped-def]
    """Kernel: norm of each head, times its gate."""
    job = carray(job_of(kind), (GN_FIELDS,))
    while True:
        first = take(kind) * RUN
        if first >= job[ROWS]:
            return
        for row in range(first, min(first + RUN, job[ROWS])):
            _gated_norm_row(kind, job, row)
