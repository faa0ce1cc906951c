"""The product of each head with its own matrix: out[row, head] = scale * x[row, head] W[head].

    W[head]    [in, out]  ─▶  panels of PANEL columns, each stored depth by depth      `packed`
    an item    one head: its rows are gathered if there are several, because they are far apart and
               would map to few lines of a cache; each panel stays in the cache while rows pass,
               MOST at a time, then FEW, then one

Sums are float32, in the order of the depth for any number of rows, and rounded once to the stored
type, or not at all. If all heads have the same rows (a stride of 0), it is one wide product,
divided among threads.
"""

import numba
import torch
from numba.np.numpy_support import carray

from baton.core.memory.state import DType
from baton.engine.kernels.job import Job, fields, reader
from baton.engine.kernels.machine import floats, narrow, size_of, take, typed
from baton.engine.kernels.vectors import PAIRS, PANEL, scratch, tile_of, unit_of
from baton.engine.kernels.vectors import ROWS as MOST

FEW = 4
_most, _few, _one = (tile_of(rows, widened=True) for rows in (MOST, FEW, 1))


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


def paired(dtype: DType) -> bool:
    """Whether the processor multiplies two elements of the depth at once."""
    return PAIRS and dtype is DType.BF16


def packed(weight: torch.Tensor, dtype: DType) -> torch.Tensor:
    """Pack [heads, in, out] as [heads, panels, depth,
    PANEL, elements of a unit], padded with zeros."""
    heads, deep, wide = weight.shape
    unit = 2 if paired(dtype) else 1
    more = (0, -wide % PANEL, 0, -deep % unit)
    whole = torch.nn.functional.pad(weight, more) if any(more) else weight
    return (
        whole.view(heads, -1, unit, whole.shape[2] // PANEL, PANEL)
        .permute(0, 3, 1, 4, 2)
        .contiguous()
    )


@numba.njit(fastmath={"contract"})
def _keep(kind, job, sums, row, count, head, column):  # type: ignore[no-untyped-def]
    wide = min(PANEL, job.wide - column)
    scale = job.scale
    for r in range(count):
        at, line = (
            (row + r) * job.out_row + head * job.out_head + column,
            carray(floats(sums + 4 * r * PANEL), (wide,)),
        )
        if job.exact:
            exact = carray(floats(job.out + 4 * at), (wide,))
            for d in range(wide):
                exact[d] = line[d] * scale
        else:
            out = carray(typed(kind, job.out + at * size_of(kind)), (wide,))
            for d in range(wide):
                out[d] = narrow(line[d] * scale, out[d])


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
def _panel(kind, job, x, step, weight, sums, head, column):  # type: ignore[no-untyped-def]
    """Multiply all rows with one panel. x: address of
    the head's rows; step: their stride in words."""
    row, depth = 0, job.depth
    while row < job.rows:
        left, a = job.rows - row, x + 4 * row * step
        if left >= MOST:
            _most(kind, a, step, weight, sums, depth)
            count = MOST
        elif left >= FEW:
            _few(kind, a, step, weight, sums, depth)
            count = FEW
        else:
            _one(kind, a, step, weight, sums, depth)
            count = 1
        _keep(kind, job, sums, row, count, head, column)
        row += count


def by_head(kind):  # type: ignore[no-untyped-def]
    """Make the kernel."""
    job = _job(kind)
    panels, panel = (job.wide + PANEL - 1) // PANEL, job.depth * PANEL * unit_of(kind)
    sums = scratch()
    while True:
        head = take(kind)
        if head >= job.heads:
            return
        x, step = job.x + 4 * head * job.x_head, job.x_row
        if job.together:
            x, step = _together(job, head), job.depth
        for n in range(panels):
            _panel(
                kind, job, x, step, job.weight + (head * panels + n) * panel, sums, head, n * PANEL
            )
