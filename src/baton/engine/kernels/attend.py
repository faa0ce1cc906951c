"""Attention over pages where they lie: one pass over the bytes, online softmax, float32 inside.

An element (block, head, part, token, d) of one layer lies at
    the block's address + LAYER + head * HEAD + part * PART + (token * DIM + d) elements

Two kernels: `single` for a room's one new token, where reading K and V is all the cost, and `tile` for chunks, where
arithmetic is. In both a token's result depends on its own query and the rows it sees, never on its neighbours.
Arrays are made at the very address where a loop begins: an index that starts above 0 would keep LLVM from vectors.
"""

import numba
import numpy as np

from baton.engine.kernels.machine import (
    PANEL,
    ROWS,
    dots,
    exp2,
    integers,
    job_of,
    micro4,
    micro8,
    narrow,
    prefetch,
    size_of,
    take,
    typed,
    widen,
)

# Fields of a job, after the counter; Q_ROW and OUT_ROW in elements, LAYER, HEAD and PART in bytes.
ITEMS, TABLE, Q, Q_ROW, OUT, OUT_ROW, LAYER, HEAD, PART, DIM, GROUP, TOKENS = range(1, 13)
FIELDS = 13
# Columns of an item: first row in the batch, rows, position of the first row, kv head, address of its blocks' addresses.
FIRST, COUNT, START, KV_HEAD, BLOCKS, ITEM = range(6)
AHEAD = 2  # blocks asked for before they are read
SEEN = 64  # positions in a tile of context
LOW = np.float32(-1e30)
ZERO = np.float32(0)
LOG2_E = 1.4426950408889634


@numba.njit(forceinline=True, fastmath={"contract"})
def _widened(kind, address, out):  # type: ignore[no-untyped-def]
    stored = numba.carray(typed(kind, address), (out.size,))
    for i in range(out.size):
        out[i] = widen(stored[i])


@numba.njit(forceinline=True, fastmath={"contract"})
def _row(job, item, g, kind, base, stride):  # type: ignore[no-untyped-def]
    """Address of head g of the item's group in its first row."""
    return job[base] + size_of(kind) * (item[FIRST] * job[stride] + (item[KV_HEAD] * job[GROUP] + g) * job[DIM])


@numba.njit(fastmath={"contract"})
def _single(kind, job, item):  # type: ignore[no-untyped-def]
    dim, group, tokens = job[DIM], job[GROUP], job[TOKENS]
    length = item[START] + 1
    blocks = numba.carray(integers(item[BLOCKS]), ((length + tokens - 1) // tokens,))
    deep, heads, steps = _up(dim, PANEL), _up(group, 4), _up(tokens, ROWS)
    scale = np.float32(LOG2_E / np.sqrt(dim))
    q, total = np.zeros((heads, deep), np.float32), np.zeros((heads, deep), np.float32)
    peak, weight = np.full(heads, LOW), np.zeros(heads, np.float32)
    scores, k, v = np.zeros((heads, steps), np.float32), np.zeros((steps, deep), np.float32), np.zeros((steps, deep), np.float32)
    for g in range(group):
        _widened(kind, _row(job, item, g, kind, Q, Q_ROW), q[g, :dim])
        for d in range(dim):
            q[g, d] *= scale
    offset = job[LAYER] + item[KV_HEAD] * job[HEAD]
    for n in range(blocks.size):
        if n + AHEAD < blocks.size:
            for line in range(0, job[PART], 64):
                prefetch(blocks[n + AHEAD] + offset + line)
                prefetch(blocks[n + AHEAD] + offset + job[PART] + line)
        seen = min(tokens, length - n * tokens)
        for t in range(seen):
            _widened(kind, blocks[n] + offset + t * size_of(kind) * dim, k[t, :dim])
            _widened(kind, blocks[n] + offset + job[PART] + t * size_of(kind) * dim, v[t, :dim])
        for g in range(group):
            for t in range(0, seen, ROWS):
                dots(q[g:].ctypes.data, k[t:].ctypes.data, deep, deep, scores[g, t:].ctypes.data)
            _weigh(scores[g, :seen], peak, weight, g, total[g])
        for g in range(0, group, 4):
            for d in range(0, deep, PANEL):
                micro4(
                    scores[g:].ctypes.data, steps, 1, v.ctypes.data + 4 * d, deep, total[g:].ctypes.data + 4 * d, deep, seen, 1
                )
    for g in range(group):
        out = numba.carray(typed(kind, _row(job, item, g, kind, OUT, OUT_ROW)), (dim,))
        part = np.float32(1) / weight[g]
        for d in range(dim):
            out[d] = narrow(total[g, d] * part, out[d])


@numba.njit(forceinline=True)
def _up(n, step):  # type: ignore[no-untyped-def]
    return (n + step - 1) // step * step


@numba.njit(forceinline=True, fastmath={"contract"})
def _weigh(scores, peak, weight, g, total):  # type: ignore[no-untyped-def]
    """Scores to weights, older sums rescaled where the peak rises."""
    top = peak[g]
    for t in range(scores.size):
        top = max(top, scores[t])
    if top > peak[g]:
        shrink = exp2(peak[g] - top)
        peak[g] = top
        weight[g] *= shrink
        for d in range(total.size):
            total[d] *= shrink
    for t in range(scores.size):
        scores[t] = exp2(scores[t] - top)
    for t in range(scores.size):
        weight[g] += scores[t]


def single(kind):  # type: ignore[no-untyped-def]
    """Kernel: each item is one row and one kv head."""
    job = numba.carray(job_of(kind), (FIELDS,))
    table = numba.carray(integers(job[TABLE]), (job[ITEMS], ITEM))
    while True:
        n = take(kind)
        if n >= job[ITEMS]:
            return
        _single(kind, job, table[n])


@numba.njit(fastmath={"contract"})
def _softmax(scores, seen, first, positions, peak, weight, shrink):  # type: ignore[no-untyped-def]
    """One panel's scores [seen, PANEL] at positions first ... to weights; column c sees up to positions[c]."""
    if first + seen - 1 > positions[0]:
        for t in range(seen):
            for c in range(PANEL):
                if first + t > positions[c]:
                    scores[t, c] = LOW
    for c in range(PANEL):
        shrink[c] = peak[c]
    for t in range(seen):
        for c in range(PANEL):
            peak[c] = max(peak[c], scores[t, c])
    for c in range(PANEL):
        shrink[c] = exp2(shrink[c] - peak[c])
        weight[c] *= shrink[c]
    for t in range(seen):
        for c in range(PANEL):
            scores[t, c] = exp2(scores[t, c] - peak[c])
    for t in range(seen):
        for c in range(PANEL):
            weight[c] += scores[t, c]


@numba.njit(fastmath={"contract"})
def _tile(kind, job, item):  # type: ignore[no-untyped-def]
    """Columns are (row, head of the group); everything is held transposed, [dim or position][column], panel by panel."""
    dim, group, tokens = job[DIM], job[GROUP], job[TOKENS]
    columns = item[COUNT] * group
    panels = (columns + PANEL - 1) // PANEL
    length = item[START] + item[COUNT]
    blocks = numba.carray(integers(item[BLOCKS]), ((length + tokens - 1) // tokens,))
    deep = (dim + ROWS - 1) // ROWS * ROWS
    query, total = np.zeros((panels, dim, PANEL), np.float32), np.zeros((panels, deep, PANEL), np.float32)
    peak, weight = np.full((panels, PANEL), LOW), np.zeros((panels, PANEL), np.float32)
    positions = np.full((panels, PANEL), length - 1)
    _load_queries(kind, job, item, query, positions)
    k, v = np.zeros((SEEN, dim), np.float32), np.zeros((SEEN, deep), np.float32)
    scores, shrink = np.empty((SEEN, PANEL), np.float32), np.empty(PANEL, np.float32)
    offset = job[LAYER] + item[KV_HEAD] * job[HEAD]
    for first in range(0, length, SEEN):
        seen = min(SEEN, length - first)
        for t in range(seen):
            here = blocks[(first + t) // tokens] + offset + size_of(kind) * dim * ((first + t) % tokens)
            _widened(kind, here, k[t])
            _widened(kind, here + job[PART], v[t, :dim])
        for p in range(panels):
            if positions[p, PANEL - 1] >= first:
                _panel(query[p], total[p], k, v, scores, shrink, positions[p], peak[p], weight[p], first, seen)
    _store(kind, job, item, total, weight)


@numba.njit(fastmath={"contract"})
def _load_queries(kind, job, item, query, positions):  # type: ignore[no-untyped-def]
    dim, group = job[DIM], job[GROUP]
    scale = np.float32(LOG2_E / np.sqrt(dim))
    for c in range(item[COUNT] * group):
        row, g = c // group, c % group
        address = _row(job, item, g, kind, Q, Q_ROW) + size_of(kind) * row * job[Q_ROW]
        stored = numba.carray(typed(kind, address), (dim,))
        positions[c // PANEL, c % PANEL] = item[START] + row
        for d in range(dim):
            query[c // PANEL, d, c % PANEL] = widen(stored[d]) * scale


@numba.njit(fastmath={"contract"})
def _store(kind, job, item, total, weight):  # type: ignore[no-untyped-def]
    dim, group = job[DIM], job[GROUP]
    for c in range(item[COUNT] * group):
        row, g = c // group, c % group
        address = _row(job, item, g, kind, OUT, OUT_ROW) + size_of(kind) * row * job[OUT_ROW]
        out = numba.carray(typed(kind, address), (dim,))
        part = np.float32(1) / weight[c // PANEL, c % PANEL]
        for d in range(dim):
            out[d] = narrow(total[c // PANEL, d, c % PANEL] * part, out[d])


@numba.njit(fastmath={"contract"})
def _panel(query, total, k, v, scores, shrink, positions, peak, weight, first, seen):  # type: ignore[no-untyped-def]
    dim = query.shape[0]
    for t in range(0, seen, ROWS):
        micro8(k[t:].ctypes.data, dim, 1, query.ctypes.data, PANEL, scores[t:].ctypes.data, PANEL, dim, 0)
    _softmax(scores, seen, first, positions, peak, weight, shrink)
    for d in range(dim):
        for c in range(PANEL):
            total[d, c] *= shrink[c]
    for d in range(0, dim, ROWS):
        micro8(v.ctypes.data + 4 * d, 1, v.shape[1], scores.ctypes.data, PANEL, total[d:].ctypes.data, PANEL, seen, 1)


def tile(kind):  # type: ignore[no-untyped-def]
    """Kernel: each item is a run of rows of one segment and one kv head."""
    job = numba.carray(job_of(kind), (FIELDS,))
    table = numba.carray(integers(job[TABLE]), (job[ITEMS], ITEM))
    while True:
        n = take(kind)
        if n >= job[ITEMS]:
            return
        _tile(kind, job, table[n])
