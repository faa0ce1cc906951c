"""Operations between matrix products: norms, rotation, gate. Rows are independent of each other.

An item of each kernel is a run of RUN rows. Sums are float32; results are rounded once to the
stored type.
"""

import numba
import numpy as np
from numba.np.numpy_support import carray

from baton.engine.kernels.job import Job, fields, reader
from baton.engine.kernels.machine import exp2, floats, integers, narrow, size_of, take, typed, widen
from baton.engine.kernels.vectors import SCRATCH, scratch

RUN = 8
LOG2_E = np.float32(1.4426950408889634)
ONE = np.float32(1)


@fields
class NormJob(Job):
    """out = rms_norm(x += add) * (offset + weight), over the last axis; 16-bit weights are widened
    before the sum.

    Attributes:
        rows: number of rows
        x: [rows, dim], float32 if `exact`, else as stored
        add: [rows, dim]; 0 = nothing is added
        weight: [dim]
        out: [rows, dim]
    """

    rows: int
    x: int
    add: int
    weight: int
    out: int
    dim: int
    exact: int
    eps: float
    offset: float


@fields
class RotateJob(Job):
    """Rotates the first `turned` elements of x[row, head] in place, their first half against the
    second.

    Attributes:
        rows: number of rows
        x, x_row: [rows, heads, dim], and the stride of rows in elements
        queries: heads before it are normed by weight_q, the others by weight_k; 0: they are not
        positions: int64 [rows]
        cos, sin: float32 [positions, turned / 2]
        weight_q, weight_k, eps, offset: as in NormJob, over each head
    """

    rows: int
    x: int
    x_row: int
    heads: int
    queries: int
    dim: int
    turned: int
    positions: int
    cos: int
    sin: int
    weight_q: int
    weight_k: int
    eps: float
    offset: float


@fields
class WeighJob(Job):
    """out[row] = sum of weights[row, n] * x[places[row, n]] for n < count, in this order; a place
    below 0 adds nothing.

    Attributes:
        rows: rows of out
        x: [*, dim]
        weights, places: float32 and int64 [rows, count]
    """

    rows: int
    x: int
    weights: int
    places: int
    count: int
    out: int
    dim: int


@fields
class GateJob(Job):
    """out = silu(x[:, :dim]) * x[:, dim:]. x: [rows, 2 * dim]; out: [rows, dim]."""

    rows: int
    x: int
    out: int
    dim: int


_norm_job, _rotate_job, _weigh_job, _gate_job = (
    reader(job) for job in (NormJob, RotateJob, WeighJob, GateJob)
)


@numba.njit(forceinline=True)  # a function that is passed to one that is called cannot be cached
def by_runs(kind, job, row):  # type: ignore[no-untyped-def]
    """Call row(kind, job, n) for every row n. Threads of a team take runs of RUN rows."""
    while True:
        first = take(kind) * RUN
        if first >= job.rows:
            return
        for n in range(first, min(first + RUN, job.rows)):
            row(kind, job, n)


@numba.njit(forceinline=True, fastmath={"contract", "reassoc"})
def _squares(kind, x):  # type: ignore[no-untyped-def]
    total = np.float32(0)
    for d in range(x.size):
        value = widen(x[d])
        total += value * value
    return total


@numba.njit(forceinline=True, fastmath={"contract"})
def _scaled(kind, job, x, weight_address, out):  # type: ignore[no-untyped-def]
    weight = carray(typed(kind, weight_address), (x.size,))
    factor = ONE / np.sqrt(_squares(kind, x) / np.float32(x.size) + job.eps)
    for d in range(x.size):
        out[d] = narrow(widen(x[d]) * factor * (job.offset + widen(weight[d])), out[d])


@numba.njit(forceinline=True, fastmath={"contract"})
def _normed(kind, job, row, x):  # type: ignore[no-untyped-def]
    at = row * x.size * size_of(kind)
    if job.add:
        add = carray(typed(kind, job.add + at), (x.size,))
        for d in range(x.size):
            x[d] = narrow(widen(x[d]) + widen(add[d]), x[d])
    out = carray(typed(kind, job.out + at), (x.size,))
    _scaled(kind, job, x, job.weight, out)


@numba.njit(fastmath={"contract"})
def _norm_row(kind, job, row):  # type: ignore[no-untyped-def]
    if job.exact:
        _normed(kind, job, row, carray(floats(job.x + row * job.dim * 4), (job.dim,)))
    else:
        _normed(
            kind, job, row, carray(typed(kind, job.x + row * job.dim * size_of(kind)), (job.dim,))
        )


def norm(kind):  # type: ignore[no-untyped-def]
    """Make the kernel: residual sum and RMS norm."""
    by_runs(kind, _norm_job(kind), _norm_row)


@numba.njit(fastmath={"contract"})
def _rotate_row(kind, job, row):  # type: ignore[no-untyped-def]
    dim, half = job.dim, job.turned // 2
    place = carray(integers(job.positions), (job.rows,))[row]
    cos = carray(floats(job.cos + 4 * half * place), (half,))
    sin = carray(floats(job.sin + 4 * half * place), (half,))
    for head in range(job.heads):
        address = job.x + (row * job.x_row + head * dim) * size_of(kind)
        x = carray(typed(kind, address), (dim,))
        weight = job.weight_q if head < job.queries else job.weight_k
        if weight:
            _scaled(kind, job, x, weight, x)
        later = carray(typed(kind, address + half * size_of(kind)), (half,))
        for d in range(half):
            a, b = widen(x[d]), widen(later[d])
            x[d] = narrow(a * cos[d] - b * sin[d], x[d])
            later[d] = narrow(b * cos[d] + a * sin[d], x[d])


def rotate(kind):  # type: ignore[no-untyped-def]
    """Make the kernel: norms of heads and rotary positions."""
    by_runs(kind, _rotate_job(kind), _rotate_row)


@numba.njit
def _weigh_row(kind, job, row):  # type: ignore[no-untyped-def]
    dim, count, size, sums = (
        job.dim,
        job.count,
        size_of(kind),
        carray(floats(scratch()), (SCRATCH,)),
    )
    places = carray(integers(job.places + 8 * row * count), (count,))
    weights = carray(floats(job.weights + 4 * row * count), (count,))
    for first in range(0, dim, SCRATCH):
        width = min(SCRATCH, dim - first)
        total = sums[:width]
        for d in range(width):
            total[d] = np.float32(0)
        for n in range(count):
            if places[n] >= 0:
                x, weight = (
                    carray(typed(kind, job.x + (places[n] * dim + first) * size), (width,)),
                    weights[n],
                )
                for d in range(width):
                    total[d] += weight * widen(x[d])
        out = carray(typed(kind, job.out + (row * dim + first) * size), (width,))
        for d in range(width):
            out[d] = narrow(total[d], out[d])


def weigh(kind):  # type: ignore[no-untyped-def]
    """Make the kernel: weighted sums of rows."""
    by_runs(kind, _weigh_job(kind), _weigh_row)


@numba.njit(fastmath={"contract"})
def _gate_row(kind, job, row):  # type: ignore[no-untyped-def]
    dim = job.dim
    size = dim * size_of(kind)
    x = carray(typed(kind, job.x + 2 * row * size), (dim,))
    up = carray(typed(kind, job.x + (2 * row + 1) * size), (dim,))
    out = carray(typed(kind, job.out + row * size), (dim,))
    for d in range(dim):
        value = widen(x[d])
        e = exp2(-abs(value) * LOG2_E)
        part = (ONE if value >= 0 else e) / (ONE + e)
        out[d] = narrow(value * part * widen(up[d]), out[d])


def gate(kind):  # type: ignore[no-untyped-def]
    """Make the kernel: the gated linear unit's product."""
    by_runs(kind, _gate_job(kind), _gate_row)
