"""Products of several matrices of one size, each over rows of its own: out[rows of m] = x[rows of m] W[m] + b[m].

    W[m]       [out, in]  ─▶  panels, as those of `by_head`
    an item    SHARE panels of one matrix that has rows; panel after panel stays in the cache while its rows pass

Matrices without rows are not read. Sums are float32, in the order of the depth whatever number of rows goes together, and rounded
once to the stored type.
"""

import numba
from numba.np.numpy_support import carray

from baton.engine.kernels.by_head import FEW
from baton.engine.kernels.machine import floats, integers, job_of, narrow, size_of, take, typed, widen
from baton.engine.kernels.vectors import PANEL, scratch, tile_of, unit_of
from baton.engine.kernels.vectors import ROWS as MOST

SHARE = 4
_most, _few, _one = tile_of(MOST), tile_of(FEW), tile_of(1)

# Fields of the job, after the counter: x and out, whose rows lie one after the other; DEPTH: of a panel, in its units; WIDE:
# columns of out; TABLE: address of int64 [GROUPS, 4]: of a matrix the address, that of its bias (0: none), first row and rows.
X, OUT, DEPTH, WIDE, TABLE, GROUPS = range(1, 7)
FIELDS = 7


@numba.njit(fastmath={"contract"})
def _keep(kind, job, sums, row, count, column, bias):  # type: ignore[no-untyped-def]
    wide, size = min(PANEL, job[WIDE] - column), size_of(kind)
    for r in range(count):
        out = carray(typed(kind, job[OUT] + ((row + r) * job[WIDE] + column) * size), (wide,))
        line = carray(floats(sums + 4 * r * PANEL), (wide,))
        if bias:
            more = carray(typed(kind, bias + column * size), (wide,))
            for d in range(wide):
                out[d] = narrow(line[d] + widen(more[d]), out[d])
        else:
            for d in range(wide):
                out[d] = narrow(line[d], out[d])


@numba.njit(fastmath={"contract"})
def _panel(kind, job, weight, bias, first, rows, column, sums):  # type: ignore[no-untyped-def]
    """All rows of a matrix against one panel."""
    row, past, depth = first, first + rows, job[DEPTH]
    while row < past:
        x = job[X] + row * depth * unit_of(kind)
        if past - row >= MOST:
            _most(kind, x, depth, weight, sums, depth)
            count = MOST
        elif past - row >= FEW:
            _few(kind, x, depth, weight, sums, depth)
            count = FEW
        else:
            _one(kind, x, depth, weight, sums, depth)
            count = 1
        _keep(kind, job, sums, row, count, column, bias)
        row += count


def grouped(kind):  # type: ignore[no-untyped-def]
    """Kernel."""
    job = carray(job_of(kind), (FIELDS,))
    panels, panel = (job[WIDE] + PANEL - 1) // PANEL, job[DEPTH] * PANEL * unit_of(kind)
    shares, sums = (panels + SHARE - 1) // SHARE, scratch()
    table = carray(integers(job[TABLE]), (job[GROUPS], 4))
    while True:
        item = take(kind)
        group = item // shares
        if group >= job[GROUPS]:
            return
        begin = item % shares * SHARE
        for n in range(begin, min(begin + SHARE, panels)):
            weight = table[group, 0] + n * panel
            _panel(kind, job, weight, table[group, 1], table[group, 2], table[group, 3], n * PANEL, sums)
