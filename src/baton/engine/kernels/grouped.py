"""Products with several matrices of one size, each over its own rows: out[m] = x[m] W[m] + b[m].

    W[m]       [out, in]  ─▶  panels, as in panels.py
    an item    SHARE panels of one matrix with rows; each panel stays in the cache while its rows
               pass, and these do while the panels of the item pass

Matrices without rows are not read. Sums are as in panels.py, and rounded once to the stored type.
"""

import ctypes

import numba
from numba.np.numpy_support import carray

from baton.engine.kernels import amx
from baton.engine.kernels.job import Job, fields, reader
from baton.engine.kernels.machine import floats, narrow, size_of, take, typed, widen
from baton.engine.kernels.panels import row_block, some_rows
from baton.engine.kernels.vectors import PANEL, narrow_panel, scratch, unit_of

SHARE = 4


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
    more = carray(typed(kind, bias + column * size), (wide if bias else 0,))
    for r in range(count):
        there, here = job.out + ((row + r) * job.wide + column) * size, sums + 4 * r * PANEL
        line = carray(floats(here), (wide,))
        if bias:
            for d in range(wide):
                line[d] += widen(more[d])
        if wide < PANEL or not narrow_panel(kind, here, there):
            out = carray(typed(kind, there), (wide,))
            for d in range(wide):
                out[d] = narrow(line[d], out[d])


@numba.njit(fastmath={"contract"})
def _panel(tiles, kind, job, row, past, bias, weight, column, sums):  # type: ignore[no-untyped-def]
    """Multiply rows row .. past with one panel."""
    depth = job.depth
    while row < past:
        x = job.x + 4 * row * depth
        count = some_rows(tiles, kind, x, depth, weight, sums, depth, past - row)
        _keep(kind, job, sums, row, count, column, bias)
        row += count


@numba.njit(fastmath={"contract"})
def _items(tiles, kind, job):  # type: ignore[no-untyped-def]
    panels, panel = (job.wide + PANEL - 1) // PANEL, job.depth * PANEL * unit_of(kind)
    shares, sums = (panels + SHARE - 1) // SHARE, scratch()
    while True:
        item = take(kind)
        if item // shares >= job.count:
            return
        matrix = _matrix(job.matrices + item // shares * MATRIX_BYTES)
        begin = item % shares * SHARE
        row, past = matrix.first, matrix.first + matrix.rows
        while row < past:
            block = row + row_block(tiles, job.depth, past - row)
            for n in range(begin, min(begin + SHARE, panels)):
                weight = matrix.weight + n * panel
                _panel(tiles, kind, job, row, block, matrix.bias, weight, n * PANEL, sums)
            row = block


def grouped(kind):  # type: ignore[no-untyped-def]
    """Make the kernel."""
    _items(False, kind, _job(kind))


@numba.njit(fastmath={"contract"})
def _between(kind, before):  # type: ignore[no-untyped-def]
    _items(True, kind, _job(kind))
    amx.end_tiles(before)


def grouped_on_amx(kind):  # type: ignore[no-untyped-def]
    """Make the kernel for bfloat16, if the processor has tile registers."""
    _between(kind, amx.begin_tiles())
