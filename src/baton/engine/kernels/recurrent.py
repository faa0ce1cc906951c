"""The norm and gate of the output of a recurrent state.

As in pointwise.py, items are runs of RUN rows, and rows are independent of each other. (torch
computes whole vectors differently from the remainder, so a row's bits would depend on the rows
before it.)
"""

import numba
import numpy as np
from numba.np.numpy_support import carray

from baton.engine.kernels.job import Job, fields, reader
from baton.engine.kernels.machine import exp2, floats, narrow, size_of, typed, widen
from baton.engine.kernels.pointwise import LOG2_E, ONE, by_runs


@fields
class GatedNormJob(Job):
    """out[row, head] = rms_norm(x[row, head]) * weight * silu(z[row, head]).

    Attributes:
        rows: number of rows
        x: float32 [rows, heads, dim]
        z, z_row: [rows, heads, dim] as stored, and the stride of rows in elements
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


_gated_norm_job = reader(GatedNormJob)


@numba.njit(forceinline=True, fastmath={"contract"})
def _sigmoid(x):  # type: ignore[no-untyped-def]
    e = exp2(-abs(x) * LOG2_E)
    return (ONE if x >= 0 else e) / (ONE + e)


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
    """Make the kernel: norm of each head, times its gate."""
    by_runs(kind, _gated_norm_job(kind), _gated_norm_row)
