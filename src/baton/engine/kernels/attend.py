"""Attention over pages where they lie: one pass over the bytes, online softmax, float32 inside.

A pool's element (block, head, layer, part, token, d) of one layer lies at
    block's address + head * HEAD + part * PART + (token * DIM + d) elements

Two kernels: `single` for a room's one new token, where reading K and V is all the cost, and `tile` for chunks, where
arithmetic is. In both a token's result depends on its own query and the rows it sees, never on its neighbours.
"""

import numba
import numpy as np

from baton.engine.kernels.machine import PANEL, ROWS, exp2, floats, integers, job_of, micro, narrow, take, typed, widen

# Fields of a job, after the counter; strides of rows in elements, HEAD and PART in bytes.
ITEMS, TABLE, Q, Q_ROW, OUT, OUT_ROW, LAYER, HEAD, PART, DIM, GROUP, TOKENS = range(1, 13)
FIELDS = 13
# Columns of an item: first row in the batch, rows, position of the first row, kv head, address of its blocks' addresses.
FIRST, COUNT, START, KV_HEAD, BLOCKS, ITEM = range(6)
SEEN = 64  # positions in a tile of context
LOW = np.float32(-1e30)
ZERO = np.float32(0)
LOG2_E = 1.4426950408889634


@numba.njit(inline="always", fastmath={"contract", "reassoc"})
def _dot(a, b, at):  # type: ignore[no-untyped-def]
    total = ZERO
    for d in range(a.size):
        total += a[d] * widen(b[at + d])
    return total


@numba.njit(inline="always")
def _query(q, scale, out):  # type: ignore[no-untyped-def]
    for d in range(out.size):
        out[d] = widen(q[d]) * scale


@numba.njit
def _single(kind, job, item):  # type: ignore[no-untyped-def]
    dim, group, tokens = job[DIM], job[GROUP], job[TOKENS]
    length = item[START] + 1
    blocks = numba.carray(integers(item[BLOCKS]), ((length + tokens - 1) // tokens,))
    scale = np.float32(LOG2_E / np.sqrt(dim))
    q = np.empty((group, dim), np.float32)
    first = (item[FIRST] * job[Q_ROW] + item[KV_HEAD] * group * dim)
    stored = numba.carray(typed(kind, job[Q]), (first + group * dim,))
    for g in range(group):
        _query(stored[first + g * dim : first + (g + 1) * dim], scale, q[g])
    total, peak, weight = np.zeros((group, dim), np.float32), np.full(group, LOW), np.zeros(group, np.float32)
    scores = np.empty((group, tokens), np.float32)
    offset = job[LAYER] + item[KV_HEAD] * job[HEAD]
    for n in range(blocks.size):
        seen = min(tokens, length - n * tokens)
        k = numba.carray(typed(kind, blocks[n] + offset), (tokens * dim,))
        v = numba.carray(typed(kind, blocks[n] + offset + job[PART]), (tokens * dim,))
        for t in range(seen):
            for g in range(group):
                scores[g, t] = _dot(q[g], k, t * dim)
        for g in range(group):
            _weigh(scores[g, :seen], peak, weight, g, total[g])
        for t in range(seen):
            for g in range(group):
                p = scores[g, t]
                for d in range(dim):
                    total[g, d] += p * widen(v[t * dim + d])
    first = item[FIRST] * job[OUT_ROW] + item[KV_HEAD] * group * dim
    out = numba.carray(typed(kind, job[OUT]), (first + group * dim,))
    for g in range(group):
        for d in range(dim):
            out[first + g * dim + d] = narrow(total[g, d] / weight[g], stored[0])


@numba.njit(inline="always")
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


@numba.njit
def _load_tile(kind, address, rows, dim, out, at):  # type: ignore[no-untyped-def]
    stored = numba.carray(typed(kind, address), (rows * dim,))
    flat = out.reshape(-1)
    for i in range(rows * dim):
        flat[at * dim + i] = widen(stored[i])


@numba.njit
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
            weight[c] += scores[t, c]
    for t in range(seen, (seen + ROWS - 1) // ROWS * ROWS):
        for c in range(PANEL):
            scores[t, c] = ZERO


@numba.njit
def _tile(kind, job, item):  # type: ignore[no-untyped-def]
    """Columns are (row, head of the group); everything is held transposed, [dim or position][column], panel by panel."""
    dim, group, tokens = job[DIM], job[GROUP], job[TOKENS]
    columns = item[COUNT] * group
    panels = (columns + PANEL - 1) // PANEL
    length = item[START] + item[COUNT]
    blocks = numba.carray(integers(item[BLOCKS]), ((length + tokens - 1) // tokens,))
    stored = numba.carray(typed(kind, job[Q]), ((item[FIRST] + item[COUNT]) * job[Q_ROW],))
    scale = np.float32(LOG2_E / np.sqrt(dim))
    deep = (dim + ROWS - 1) // ROWS * ROWS
    query, total = np.zeros((panels, dim, PANEL), np.float32), np.zeros((panels, deep, PANEL), np.float32)
    peak, weight = np.full((panels, PANEL), LOW), np.zeros((panels, PANEL), np.float32)
    positions = np.full((panels, PANEL), length - 1)
    for c in range(columns):
        row, g = c // group, c % group
        at = (item[FIRST] + row) * job[Q_ROW] + (item[KV_HEAD] * group + g) * dim
        positions[c // PANEL, c % PANEL] = item[START] + row
        for d in range(dim):
            query[c // PANEL, d, c % PANEL] = widen(stored[at + d]) * scale
    k, v = np.zeros((SEEN, dim), np.float32), np.zeros((SEEN, deep), np.float32)
    scores, shrink = np.empty((SEEN, PANEL), np.float32), np.empty(PANEL, np.float32)
    offset = job[LAYER] + item[KV_HEAD] * job[HEAD]
    for first in range(0, length, SEEN):
        seen = min(SEEN, length - first)
        for t in range(0, seen, tokens):
            here = blocks[(first + t) // tokens] + offset
            rows = min(tokens, seen - t)
            _load_tile(kind, here, rows, dim, k, t)
            _load_tile(kind, here + job[PART], rows, dim, v, t)
        for p in range(panels):
            if positions[p, PANEL - 1] < first:
                continue
            _panel(query[p], total[p], k, v, scores, shrink, positions[p], peak[p], weight[p], first, seen)
    out = numba.carray(typed(kind, job[OUT]), ((item[FIRST] + item[COUNT]) * job[OUT_ROW],))
    for c in range(columns):
        row, g = c // group, c % group
        at = (item[FIRST] + row) * job[OUT_ROW] + (item[KV_HEAD] * group + g) * dim
        part = np.float32(1) / weight[c // PANEL, c % PANEL]
        for d in range(dim):
            out[at + d] = narrow(total[c // PANEL, d, c % PANEL] * part, stored[0])


@numba.njit(inline="always")
def _panel(query, total, k, v, scores, shrink, positions, peak, weight, first, seen):  # type: ignore[no-untyped-def]
    dim = query.shape[0]
    for t in range(0, seen, ROWS):
        micro(k[t:].ctypes.data, dim, 1, query.ctypes.data, scores[t:].ctypes.data, PANEL, dim, 0)
    _softmax(scores, seen, first, positions, peak, weight, shrink)
    for d in range(dim):
        for c in range(PANEL):
            total[d, c] *= shrink[c]
    for d in range(0, dim, ROWS):
        micro(v.ctypes.data + 4 * d, 1, v.shape[1], scores.ctypes.data, total[d:].ctypes.data, PANEL, seen, 1)


def tile(kind):  # type: ignore[no-untyped-def]
    """Kernel: each item is a run of rows of one segment and one kv head."""
    job = numba.carray(job_of(kind), (FIELDS,))
    table = numba.carray(integers(job[TABLE]), (job[ITEMS], ITEM))
    while True:
        n = take(kind)
        if n >= job[ITEMS]:
            return
        _tile(kind, job, table[n])
