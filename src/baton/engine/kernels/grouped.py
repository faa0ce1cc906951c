"""Products with several matrices of one size, each over its own rows: out[m] = x[m] W[m] + b[m].

    W[m]       [out, in]  ─▶  panels, as in by_head.py
    an item    SHARE panels of one matrix with rows; each panel stays in the cache while its rows
    pass

Matrices without rows are not read. Sums are float32, in the order of the depth for any number of
rows, and rounded once to the stored type.
"""

import ctypes

import numba
from numba.np.numpy_support import carray

from baton.engine.kernels.by_head import FEW
from baton.engine.kernels.job import Job, fields, reader
from baton.engine.kernels.machine import floats, narrow, size_of, take, typed, widen
from baton.engine.kernels.vectors import PANEL, scratch, tile_of, unit_of
from baton.engine.kernels.vectors import ROWS as MOST

SHARE = 4
_most, _few, _one = (tile_of(rows, widened=True) for rows in (MOST, FEW, 1))


@fields
class GroupedJob(Job):
    """The job of `grouped`.

    Attributes:
        x: address of contiguous rows of pairs, or of float32 (`widened` in vectors.py)
        out: address of contiguous rows
        depth: depth of a panel, in units
        wide: columns of out
        matrices, count: address and number of `CMatrix` structs, for the matrices that have rows
    """

    x: int
    out: int
    depth: int
    wide: int
    matrices: int
    count: int


@fields
class CMatrix(ctypes.Structure):
    """One matrix of the job.

    Attributes:
        weight: address of its panels
        bias: address of [wide] stored elements; 0 = no bias
        first, rows: first and number of its rows in x
    """

    weight: int
    bias: int
    first: int
    rows: int


MATRIX_BYTES = ctypes.sizeof(CMatrix)
_job, _matrix = reader(GroupedJob), reader(CMatrix)


@numba.njit(fastmath={"contract"})
def _keep(kind, job, sums, row, count, column, bias):  # type: ignore[no-untyped-def]
    wide, size = min(PANEL, job.wide - column), size_of(kind)
    for r in range(count):
        out = carray(typed(kind, job.out + ((row + r) * job.wide + column) * size), (wide,))
        line = carray(floats(sums + 4 * r * PANEL), (wide,))
        if bias:
            more = carray(typed(kind, bias + column * size), (wide,))
            for d in range(wide):
                out[d] = narrow(line[d] + widen(more[d]), out[d])
        else:
            for d in range(wide):
                out[d] = narrow(line[d], out[d])


@numba.njit(fastmath={"contract"})
def _panel(kind, job, matrix, weight, column, sums):  # type: ignore[no-untyped-def]
    """Multiply all rows of a matrix with one panel."""
    row, past, depth = matrix.first, matrix.first + matrix.rows, job.depth
    while row < past:
        x = job.x + 4 * row * depth
        if past - row >= MOST:
            _most(kind, x, depth, weight, sums, depth)
            count = MOST
        elif past - row >= FEW:
            _few(kind, x, depth, weight, sums, depth)
            count = FEW
        else:
            _one(kind, x, depth, weight, sums, depth)
            count = 1
        _keep(kind, job, sums, row, count, column, matrix.bias)
        row += count


def grouped(kind):  # type: ignore[no-untyped-def]
    """Make the kernel."""
    job = _job(kind)
    panels, panel = (job.wide + PANEL - 1) // PANEL, job.depth * PANEL * unit_of(kind)
    shares, sums = (panels + SHARE - 1) // SHARE, scratch()
    while True:
        item = take(kind)
        if item // shares >= job.count:
            return
        matrix = _matrix(job.matrices + item // shares * MATRIX_BYTES)
        begin = item % shares * SHARE
        for n in range(begin, min(begin + SHARE, panels)):
            _panel(kind, job, matrix, matrix.weight + n * panel, n * PANEL, sums)
