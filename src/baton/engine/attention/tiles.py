"""Attention of a prompt's rows, in tiles of positions (Dao et al. 2022).

The result of a row depends on its query, its position and the rows that it sees, never on other
rows of the batch. A *line* is one query head of one row. An item is a share of one kv head's lines.
"""

import numpy as np
from numba.core import types
from numba.extending import overload
from numba.np.numpy_support import carray

from baton.engine.attention.paged import (
    PagedJob,
    compiled,
    copy_words,
    inlined,
    pairs,
    words_of,
)
from baton.engine.attention.softmax import LOW, highest_of, line_of
from baton.engine.kernels import amx
from baton.engine.kernels.job import fields, reader
from baton.engine.kernels.machine import (
    exp2,
    floats,
    indices,
    narrow,
    size_of,
    take,
    typed,
)
from baton.engine.kernels.vectors import LANES, PANEL, ROWS, product, weigh_words, word

TILE = 512  # positions copied and multiplied together; a multiple of PANEL


@fields
class TilesJob(PagedJob):
    """The job of `tiles`.

    Attributes:
        rows: consecutive rows of one sequence, the first ones of q and out
        start: position of the first row
        table, begin: int32, places of the sequence's blocks from number `begin` on
        share: lines of an item, a multiple of the rows of a product
    """

    rows: int
    start: int
    table: int
    begin: int
    share: int


_job = reader(TilesJob)


def _value_words(values, row, at):  # type: ignore[no-untyped-def]
    raise NotImplementedError


@overload(_value_words)
def _value_words_of(values, row, at):  # type: ignore[no-untyped-def]
    """Convert row `at` of a tile of V to words; a pair has the same element of two adjacent rows,
    the first of which comes first."""

    def plain(values, row, at):  # type: ignore[no-untyped-def]
        for d in range(row.size):
            values[at, d] = word(row[d])

    def paired(values, row, at):  # type: ignore[no-untyped-def]
        line = values[at // 2]
        if at % 2 == 0:
            for d in range(row.size):
                line[d] = np.uint32(row[d])
        else:
            for d in range(row.size):
                line[d] |= np.uint32(row[d]) << np.uint32(16)

    return paired if values.dtype == types.uint32 else plain


@compiled
def _load(kind, unit, job, head, first, seen, keys, values):  # type: ignore[no-untyped-def]
    """Copy positions first .. first + seen of one head: K transposed, V row by row.

    Positions before the first block that is held become zeros.
    """
    tokens, dim, size = job.tokens, job.dim, size_of(kind)
    per_word, width = TILE // values.shape[0], keys.shape[0]
    table = carray(indices(job.table), ((first + seen + tokens - 1) // tokens - job.begin,))
    t = max(0, job.begin * tokens - first)
    keys[:, :t] = 0
    values[: (t + per_word - 1) // per_word] = 0
    while t < seen:
        skip = (first + t) % tokens
        at = job.base + head * job.head_stride + skip * dim
        at += table[(first + t) // tokens - job.begin] * job.block_stride
        rows = min(tokens - skip, seen - t)
        source = carray(typed(unit, job.pool + size * at), (rows, width))
        for d in range(width):
            for i in range(rows):
                keys[d, t + i] = word(source[i, d])
        for i in range(rows):
            value = job.pool + size * (at + job.part_stride + i * dim)
            _value_words(values, carray(typed(kind, value), (job.wide,)), t + i)
        t += rows


@inlined
def _on_vectors(like, a, a_row, b, b_row, c, c_row, depth, add):  # type: ignore[no-untyped-def]
    product(like, a, a_row, b, b_row, c, c_row, depth, add)


@inlined
def _on_amx(like, a, a_row, b, b_row, c, c_row, depth, add):  # type: ignore[no-untyped-def]
    amx.tile_product(a, a_row, b, b_row, c, c_row, depth, add)


_on_tiles = _on_amx if amx.FITS else _on_vectors  # it is not compiled for another processor


@inlined
def _multiply(step, like, a, a_row, b, b_row, c, c_row, depth, add):  # type: ignore[no-untyped-def]
    if step > 1:
        _on_tiles(like, a, a_row, b, b_row, c, c_row, depth, add)
    else:
        _on_vectors(like, a, a_row, b, b_row, c, c_row, depth, add)


@compiled
def _panel(  # type: ignore[no-untyped-def]
    step, q, keys, values, total, peak, weight, scores, weights, seen, window, scale, at
):
    """Compute lines at .. at + `seen.size` of an item's queries against one tile.

    Line at + i sees the last `window` of the positions before seen[i], which counts from the first
    position of the tile. So it sees none if seen[i] <= 0, or if the window begins after the tile.

    Rows are addressed, not sliced: a slice of an array counts references, which costs more than the
    softmax.
    """
    width, dims, most = q.shape[1], total.shape[1], min(seen[seen.size - 1], TILE)
    per_word = TILE // values.shape[0]
    deep = (most + per_word * step - 1) // (per_word * step) * step  # words of weights
    lines, sums = q.ctypes.data + 4 * at * width, total.ctypes.data + 4 * at * dims
    for t in range(0, most, PANEL):
        _multiply(
            step,
            q,
            lines,
            width,
            keys.ctypes.data + 4 * t,
            TILE,
            scores.ctypes.data + 4 * t,
            TILE,
            width,
            0,
        )
    for i in range(seen.size):
        here, row = min(seen[i], most), scores.ctypes.data + 4 * i * TILE
        unseen, words = max(seen[i] - window, 0), weights.ctypes.data + 4 * i * weights.shape[1]
        weighed = 0  # words
        if here > unseen:
            line = line_of(row, unseen)
            for t in range(unseen):
                line[t] = LOW  # of weight 0
            top = max(peak[at + i], highest_of(row, here) * scale)
            shrink = exp2(peak[at + i] - top)
            peak[at + i] = top
            count = (here + LANES - 1) // LANES * LANES  # the last ones are LOW, too
            weight[at + i] = weight[at + i] * shrink
            weight[at + i] += weigh_words(weights, row, words, count, scale, top)
            weighed = count // per_word
            if shrink < 1:
                line = line_of(sums + 4 * i * dims, dims)
                for d in range(dims):
                    line[d] *= shrink
        line = line_of(words, deep)
        for t in range(weighed, deep):
            line[t] = 0.0
    for d in range(0, dims, PANEL):
        _multiply(
            step,
            q,
            weights.ctypes.data,
            weights.shape[1],
            values.ctypes.data + 4 * d,
            dims,
            sums + 4 * d,
            dims,
            deep,
            1,
        )


@compiled
def _tiles(kind, unit, job, rows, step):  # type: ignore[no-untyped-def]
    """Compute items until there are none.

    Args:
        rows: rows of a product
        step: its depth is a multiple of this, in words; above 1 it is one on tile registers
    """
    per_word = size_of(unit) // size_of(kind)
    width, dims = job.dim // per_word, (job.wide + PANEL - 1) // PANEL * PANEL
    most = min(job.share, (job.rows * job.group + rows - 1) // rows * rows)
    # the memory belongs to this function: see `_single`
    _items(
        kind,
        unit,
        job,
        step,
        np.zeros((width, TILE), np.float32),
        np.zeros((TILE // per_word, dims), np.float32),
        np.empty((most, width), np.float32),
        np.zeros((rows, TILE // per_word), np.float32),
        np.empty((most, dims), np.float32),
    )


@compiled
def _as_words(unit, memory):  # type: ignore[no-untyped-def]
    return carray(words_of(unit, memory.ctypes.data), memory.shape)


@compiled
def _items(  # type: ignore[no-untyped-def]
    kind, unit, job, step, key_words, value_words, line_words, weight_words, total
):
    """Compute items until there are none.

    Args:
        step: as in `_tiles`
        key_words: words [width, TILE], K of a tile, transposed
        value_words: words [TILE / elements of a word, dims], V of a tile
        line_words: words [lines, width], the queries of an item
        weight_words: words [rows of a product, TILE / elements of a word]
        total: [lines, dims]
    """
    group, wide, size, window, most = (
        job.group,
        job.wide,
        size_of(kind),
        job.window,
        line_words.shape[0],
    )
    keys, values = _as_words(unit, key_words), _as_words(unit, value_words)
    lines, weights = _as_words(unit, line_words), _as_words(unit, weight_words)
    width, rows = keys.shape[0], weights.shape[0]
    scores = np.zeros((rows, TILE), np.float32)
    peak, weight = np.empty(most, np.float32), np.empty(most, np.float32)
    seen = np.empty(rows, np.int64)
    sinks = carray(floats(job.sinks), (job.kv_heads, group))
    used = job.rows * group
    shares = (used + job.share - 1) // job.share
    while True:
        item = take(kind)
        if item >= job.kv_heads * shares:
            return
        h, low = item // shares, item % shares * job.share
        count = min(job.share, used - low)
        lines[:] = 0
        for i in range(count):
            row, g = (low + i) // group, (low + i) % group
            at = job.q + size * (row * job.q_row + (h * group + g) * job.dim)
            copy_words(unit, at, lines[i].ctypes.data, 1, width, width)
            peak[i] = sinks[h, g]
            weight[i] = 1.0 if peak[i] > LOW else 0.0
        for i in range(count, most):
            peak[i], weight[i] = LOW, 0.0
        total[:] = 0.0
        # the positions that the rows of this item see
        begin = max(0, job.start + low // group + 1 - window)
        length = job.start + (low + count - 1) // group + 1
        for first in range(begin // TILE * TILE, length, TILE):
            _load(kind, unit, job, h, first, min(TILE, length - first), keys, values)
            line = max(0, ((first - job.start) * group - low) // rows * rows)
            for r in range(line, count, rows):
                if job.start + (low + r) // group + 1 - window >= first + TILE:
                    break  # the windows of this line and later ones begin in a later tile
                for i in range(rows):
                    seen[i] = min(job.start + (low + r + i) // group + 1, length) - first
                _panel(
                    step,
                    lines,
                    keys,
                    values,
                    total,
                    peak,
                    weight,
                    scores,
                    weights,
                    seen,
                    window,
                    job.scale,
                    r,
                )
        for i in range(count):
            row, g = (low + i) // group, (low + i) % group
            at = row * job.out_row + (h * group + g) * wide
            out, inverse = (
                carray(typed(kind, job.out + size * at), (wide,)),
                np.float32(1.0) / weight[i],
            )
            for d in range(wide):
                out[d] = narrow(total[i, d] * inverse, out[d])


def tiles(kind):  # type: ignore[no-untyped-def]
    """Make the kernel for elements that are multiplied one by one."""
    _tiles(kind, kind, _job(kind), ROWS, 1)


def tiles_of_pairs(kind):  # type: ignore[no-untyped-def]
    """Make the kernel for bfloat16, if the processor multiplies pairs."""
    _tiles(kind, pairs(kind), _job(kind), ROWS, 1)


@compiled
def _tiles_between(kind, before):  # type: ignore[no-untyped-def]
    _tiles(kind, pairs(kind), _job(kind), amx.AMX_ROWS, amx.AMX_DEPTH)
    amx.end_tiles(before)


def tiles_on_amx(kind):  # type: ignore[no-untyped-def]
    """Make the kernel for bfloat16, if the processor has tile registers; a row is a multiple of
    AMX_DEPTH words. A chunk of 512 tokens behind 1,536 takes 0.3 of the time of `tiles_of_pairs`.
    """
    _tiles_between(kind, amx.begin_tiles())
