"""Attention of generated rows, one by one: a pass over K and one over V, for all heads of a group
together.

The result of a row depends on its query, its position and the rows that it sees, never on other
rows of the batch. An item is a row of one kv head.
"""

import numpy as np
from numba.np.numpy_support import carray

from baton.engine.attention.paged import PagedJob, compiled, copy_words, pairs, words_of
from baton.engine.attention.softmax import softmax
from baton.engine.kernels.job import fields, reader
from baton.engine.kernels.machine import floats, indices, integers, narrow, size_of, take, typed
from baton.engine.kernels.vectors import HEADS, LANES, PANEL, blend, dots, prefetch, word

# blocks prefetched: without it, attention of 8 and 32 sequences at context 1,024 takes 1.4 and 1.3
# times as long
AHEAD = 2


@fields
class SingleJob(PagedJob):
    """The job of `single`.

    Attributes:
        rows: number of rows to compute
        places: int64 [rows], the index of each in q and out
        lengths: int64 [rows], number of positions up to each row's own
        tables, blocks: int32 [rows, blocks], places of each row's blocks
        direct: whether K and V can be multiplied in place, else block by block from a padded copy
    """

    rows: int
    places: int
    lengths: int
    tables: int
    blocks: int
    direct: int


_job = reader(SingleJob)


@compiled
def _prefetch(address, nbytes, share, shares):  # type: ignore[no-untyped-def]
    """Prefetch one of so many shares of some memory."""
    lines = (nbytes + 63) // 64
    for i in range(lines * share // shares, lines * (share + 1) // shares):
        prefetch(address + 64 * i)


@compiled
def _copy_values(kind, source, target, rows, dim, wide, step):  # type: ignore[no-untyped-def]
    for t in range(rows):
        row = carray(typed(kind, source + t * dim * size_of(kind)), (wide,))
        line = carray(floats(target + 4 * t * step), (wide,))
        for d in range(wide):
            line[d] = word(row[d])


@compiled
def _single(kind, unit, job):  # type: ignore[no-untyped-def]
    tokens, group = job.tokens, job.group
    width = job.dim * size_of(kind) // size_of(unit)
    deep, dims = (width + LANES - 1) // LANES * LANES, (job.wide + PANEL - 1) // PANEL * PANEL
    heads, most = (group + HEADS - 1) // HEADS * HEADS, job.blocks * tokens + LANES
    # Memory lives as long as a variable is used, and not as long as its address is: so it belongs
    # to this function, which returns after all use. What holds words has 4 bytes for each.
    _items(
        kind,
        unit,
        words_of(unit, 0),
        job,
        np.zeros((group, deep), np.float32),
        np.zeros((heads, most), np.float32),
        np.zeros((heads, dims), np.float32),
        np.zeros(((tokens + LANES - 1) // LANES * LANES, deep), np.float32),
        np.zeros((tokens, dims), np.float32),
    )


@compiled
def _items(kind, unit, words, job, lines, scores, total, keys, values):  # type: ignore[no-untyped-def]
    """Compute items until there are none.

    Args:
        words: a pointer of the type of words
        lines: words [group, deep], the queries of an item, padded with zeros
        scores: [heads, most], scores, then weights
        total: [heads, dims]
        keys, values: words [tokens, deep] and float32 [tokens, dims], a copy of a block
    """
    group, tokens, dim, size = job.group, job.tokens, job.dim, size_of(kind)
    width, deep, (heads, most), dims = (
        dim * size // size_of(unit),
        lines.shape[1],
        scores.shape,
        total.shape[1],
    )
    block = size * tokens * dim
    q, weights, sums = lines.ctypes.data, scores.ctypes.data, total.ctypes.data
    sinks = carray(floats(job.sinks), (job.kv_heads, group))
    while True:
        item = take(kind)
        if item >= job.rows * job.kv_heads:
            return
        n, h = item // job.kv_heads, item % job.kv_heads
        place = carray(integers(job.places), (job.rows,))[n]
        length = carray(integers(job.lengths), (job.rows,))[n]
        table = carray(indices(job.tables + 4 * n * job.blocks), (job.blocks,))
        blocks = (length + tokens - 1) // tokens
        first = max(0, length - job.window)
        # the first block to read; its first `unseen` positions are not seen
        begin = first // tokens
        unseen = first - begin * tokens
        start = job.pool + size * (job.base + h * job.head_stride)
        copy_words(
            unit, job.q + size * (place * job.q_row + h * group * dim), q, group, width, deep
        )
        for b in range(begin, blocks):
            source, step = start + size * table[b] * job.block_stride, width
            seen, ahead = min(tokens, length - b * tokens), b + AHEAD
            # behind the last keys come the first values
            value = ahead >= blocks
            ahead = min(begin + ahead - blocks, blocks - 1) if value else ahead
            coming = start + size * (table[ahead] * job.block_stride + value * job.part_stride)
            if not job.direct:
                copy_words(unit, source, keys.ctypes.data, seen, width, deep)
                source, step = keys.ctypes.data, deep
            for g in range(group):
                _prefetch(coming, block, g, group)
                for t in range(0, seen, LANES):
                    target = weights + 4 * (g * most + b * tokens + t)
                    dots(words, q + 4 * g * deep, source + 4 * t * step, step, deep, target)
        for g in range(group):
            address = weights + 4 * (g * most + begin * tokens)
            softmax(address, length - begin * tokens, unseen, job.scale, sinks[h, g])
        total[:] = 0.0
        for b in range(begin, blocks):
            source = start + size * (table[b] * job.block_stride + job.part_stride)
            seen, ahead = min(tokens, length - b * tokens), min(b + AHEAD, blocks - 1)
            coming = start + size * (table[ahead] * job.block_stride + job.part_stride)
            if not job.direct:
                _copy_values(kind, source, values.ctypes.data, seen, dim, job.wide, dims)
            for g in range(0, group, HEADS):
                line = weights + 4 * (g * most + b * tokens)
                for d in range(0, dims, PANEL):
                    share = (g // HEADS * dims + d) // PANEL
                    _prefetch(coming, block, share, heads // HEADS * dims // PANEL)
                    target = sums + 4 * (g * dims + d)
                    if job.direct:
                        blend(kind, source + size * d, dim, line, most, target, dims, seen)
                    else:
                        at = values.ctypes.data + 4 * d
                        blend(words_of(kind, 0), at, dims, line, most, target, dims, seen)
        for g in range(group):
            at = place * job.out_row + (h * group + g) * job.wide
            out = carray(typed(kind, job.out + size * at), (job.wide,))
            for d in range(job.wide):
                out[d] = narrow(total[g, d], out[d])


def single(kind):  # type: ignore[no-untyped-def]
    """Make the kernel for elements that are multiplied one by one."""
    _single(kind, kind, _job(kind))


def single_of_pairs(kind):  # type: ignore[no-untyped-def]
    """Make the kernel for bfloat16, if the processor multiplies pairs."""
    _single(kind, pairs(kind), _job(kind))
