"""The product of each head with its own matrix: out[row, head] = scale * x[row, head] W[head].

    W[head]    [in, out]  ─▶  panels, as in panels.py
    an item    one head: its rows are gathered if there are several, because they are far apart and
               would map to few lines of a cache; each panel stays in the cache while rows pass

Sums are as in panels.py, and rounded once to the stored type, or not at all. If all heads have the
same rows (a stride of 0), it is one wide product, divided among threads.
"""

import numba
from numba.np.numpy_support import carray

from baton.engine.kernels import amx
from baton.engine.kernels.job import Job, fields, reader
from baton.engine.kernels.machine import floats, narrow, size_of, take, typed
from baton.engine.kernels.panels import row_block, some_rows
from baton.engine.kernels.vectors import PANEL, narrow_panel, scratch, unit_of


@fields
class ByHeadJob(Job):
    """The job of `by_head`. Sizes in elements unless said otherwise.

    Attributes:
        rows, heads: numbers of rows and heads of x and out
        x, x_row, x_head: address and strides, in words of 4 bytes: pairs, or float32 (`widened` in
            vectors.py)
        weight: the panels of all heads
        out, out_row, out_head: address and strides; float32 if `exact`, else as stored
        depth: depth of a panel, in units
        wide: columns of out
        together: address of a buffer for the rows of all heads; 0 = no need to gather
    """

    rows: int
    heads: int
    x: int
    x_row: int
    x_head: int
    weight: int
    out: int
    out_row: int
    out_head: int
    depth: int
    wide: int
    together: int
    exact: int
    scale: float


_job = reader(ByHeadJob)


@numba.njit(fastmath={"contract"})
def _keep(kind, job, sums, row, count, head, column):  # type: ignore[no-untyped-def]
    wide, scale = min(PANEL, job.wide - column), job.scale
    for r in range(count):
        at = (row + r) * job.out_row + head * job.out_head + column
        here, there = sums + 4 * r * PANEL, job.out + at * size_of(kind)
        line = carray(floats(here), (wide,))
        if job.exact:
            exact = carray(floats(job.out + 4 * at), (wide,))
            for d in range(wide):
                exact[d] = line[d] * scale
            continue
        for d in range(wide):
            line[d] *= scale
        if wide < PANEL or not narrow_panel(kind, here, there):
            out = carray(typed(kind, there), (wide,))
            for d in range(wide):
                out[d] = narrow(line[d], out[d])


@numba.njit(fastmath={"contract"})
def _together(job, head):  # type: ignore[no-untyped-def]
    """Gather the rows of a head; returns their address."""
    size = job.depth
    there = job.together + 4 * head * job.rows * size
    for row in range(job.rows):
        x = carray(floats(job.x + 4 * (row * job.x_row + head * job.x_head)), (size,))
        line = carray(floats(there + 4 * row * size), (size,))
        for d in range(size):
            line[d] = x[d]
    return there


@numba.njit(fastmath={"contract"})
def _panel(  # type: ignore[no-untyped-def]
    tiles, kind, job, x, step, row, past, weight, sums, head, column
):
    """Multiply rows row .. past with one panel.

    Args:
        x: address of the head's rows
        step: their stride in words
    """
    while row < past:
        at = x + 4 * row * step
        count = some_rows(tiles, kind, at, step, weight, sums, job.depth, past - row)
        _keep(kind, job, sums, row, count, head, column)
        row += count


@numba.njit(fastmath={"contract"})
def _items(tiles, kind, job):  # type: ignore[no-untyped-def]
    panels, panel = (job.wide + PANEL - 1) // PANEL, job.depth * PANEL * unit_of(kind)
    sums = scratch()
    while True:
        head = take(kind)
        if head >= job.heads:
            return
        x, step = job.x + 4 * head * job.x_head, job.x_row
        if job.together:
            x, step = _together(job, head), job.depth
        row = 0
        while row < job.rows:
            block = row + row_block(tiles, job.depth, job.rows - row)
            for n in range(panels):
                weight = job.weight + (head * panels + n) * panel
                _panel(tiles, kind, job, x, step, row, block, weight, sums, head, n * PANEL)
            row = block


def by_head(kind):  # type: ignore[no-untyped-def]
    """Make the kernel."""
    _items(False, kind, _job(kind))


@numba.njit(fastmath={"contract"})
def _between(kind, before):  # type: ignore[no-untyped-def]
    _items(True, kind, _job(kind))
    amx.end_tiles(before)


def by_head_on_amx(kind):  # type: ignore[no-untyped-def]
    """Make the kernel for bfloat16, if the processor has tile registers."""
    _between(kind, amx.begin_tiles())
