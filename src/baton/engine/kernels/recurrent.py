"""What lies around a recurrent state: how much of it is kept and corrected, and the norm and gate of what it answers.

As in pointwise.py, items are runs of RUN rows, and rows are independent of each other. (torch's functions take whole vectors one
way and what is left over another, so a row's bits would depend on how many rows lie before it.)
"""

import math

import numba
import numpy as np
from numba.np.numpy_support import carray

from baton.engine.kernels.job import Job, fields, reader
from baton.engine.kernels.machine import exp2, floats, narrow, size_of, typed, widen
from baton.engine.kernels.pointwise import LOG2_E, ONE, by_runs


@fields
class RatesJob(Job):
    """decay = rate * softplus(a + shift), beta = sigmoid(b).

    Attributes:
        rows: of the batch
        a, b, ab_row: [rows, heads] as stored, ab_row elements from a row to the next
        rate, shift: float32 [heads]
        decay, beta: float32 [rows, heads]
    """

    rows: int
    a: int
    b: int
    ab_row: int
    heads: int
    rate: int
    shift: int
    decay: int
    beta: int


@fields
class GatedNormJob(Job):
    """out[row, head] = rms_norm(x[row, head]) * weight * silu(z[row, head]).

    Attributes:
        rows: of the batch
        x: float32 [rows, heads, dim]
        z, z_row: [rows, heads, dim] as stored, z_row elements from a row to the next
        weight: float32 [dim]
        out: [rows, heads, dim] as stored
    """

    rows: int
    x: int
    z: int
    z_row: int
    heads: int
    dim: int
    weight: int
    out: int
    eps: float


_rates_job, _gated_norm_job = reader(RatesJob), reader(GatedNormJob)


@numba.njit(forceinline=True, fastmath={"contract"})
def _sigmoid(x):  # type: ignore[no-untyped-def]
    e = exp2(-abs(x) * LOG2_E)
    return (ONE if x >= 0 else e) / (ONE + e)


@numba.njit(fastmath={"contract"})
def _rates_row(kind, job, row):  # type: ignore[no-untyped-def]
    heads, at = job.heads, row * job.ab_row * size_of(kind)
    a, b = carray(typed(kind, job.a + at), (heads,)), carray(typed(kind, job.b + at), (heads,))
    rate, shift = carray(floats(job.rate), (heads,)), carray(floats(job.shift), (heads,))
    decay = carray(floats(job.decay + 4 * row * heads), (heads,))
    beta = carray(floats(job.beta + 4 * row * heads), (heads,))
    for h in range(heads):
        x = widen(a[h]) + shift[h]
        decay[h] = rate[h] * (max(x, np.float32(0)) + np.float32(math.log1p(exp2(-abs(x) * LOG2_E))))
        beta[h] = _sigmoid(widen(b[h]))


def rates(kind):  # type: ignore[no-untyped-def]
    """Kernel: logarithm of what is kept of a state, and the share of its error that is corrected."""
    by_runs(kind, _rates_job(kind), _rates_row)


@numba.njit(forceinline=True, fastmath={"contract", "reassoc"})
def _squares(x):  # type: ignore[no-untyped-def]
    total = np.float32(0)
    for d in range(x.size):
        total += x[d] * x[d]
    return total


@numba.njit(fastmath={"contract"})
def _gated_norm_row(kind, job, row):  # type: ignore[no-untyped-def]
    dim = job.dim
    weight = carray(floats(job.weight), (dim,))
    for head in range(job.heads):
        at = (row * job.heads + head) * dim
        x = carray(floats(job.x + 4 * at), (dim,))
        z = carray(typed(kind, job.z + (row * job.z_row + head * dim) * size_of(kind)), (dim,))
        out = carray(typed(kind, job.out + at * size_of(kind)), (dim,))
        factor = ONE / np.sqrt(_squares(x) / np.float32(dim) + job.eps)
        for d in range(dim):
            gate = widen(z[d])
            out[d] = narrow(x[d] * factor * weight[d] * (gate * _sigmoid(gate)), out[d])


def gated_norm(kind):  # type: ignore[no-untyped-def]
    """Kernel: norm of each head, times its gate."""
    by_runs(kind, _gated_norm_job(kind), _gated_norm_row)
