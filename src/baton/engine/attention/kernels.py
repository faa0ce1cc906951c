"""Compiled kernels of paged attention. vectors.py defines *words*, which an array's dtype selects.

In both kernels, the result of a row depends on its query, its position and the rows that it sees,
never on other rows of the batch.
"""

from typing import NamedTuple

import numba
import numpy as np
from numba.core import types
from numba.extending import overload
from numpy.typing import NDArray

from baton.engine.kernels.machine import exp2, float_bits
from baton.engine.kernels.vectors import (
    HEADS,
    LANES,
    PANEL,
    ROWS,
    blend,
    dots,
    highest,
    pointer,
    prefetch,
    product,
    word,
)

TILE = 512  # positions copied and multiplied together in prefill; a multiple of PANEL
# blocks prefetched: without it, a decode step of eight sequences takes 1.08 times as long
AHEAD = 2
LOW = np.float32(-3e38)
_jit = numba.njit(nogil=True, cache=True, fastmath={"contract", "nsz"}, error_model="numpy")
# Always inlined. For a function that is called, a process that compiles has another copy than one
# that loads compiled code; since sums may be reordered, the two would differ in their last bits.
_any_order = numba.njit(
    forceinline=True, fastmath={"contract", "nsz", "reassoc", "nnan"}, error_model="numpy"
)


class PagedLayer(NamedTuple):
    """The location of one layer's cached rows in the pool.

    A value is the first `wide` elements of its row (`wide` is an argument of the kernels).

    Attributes:
        words: the pool as a flat array; an element is a word, or becomes one
        halves: the same memory in stored elements, which are the unit of the strides
        block_stride, base, head_stride: strides and start of keys
        part_stride: distance from a row's key to its value; 0 = they share the row (latent
            attention)
        tokens: tokens of a block
        dim: elements of a row
    """

    words: NDArray[np.generic]
    halves: NDArray[np.generic]
    block_stride: int
    base: int
    head_stride: int
    part_stride: int
    tokens: int
    dim: int


@_jit
def _array(like, address, count):  # type: ignore[no-untyped-def]
    return numba.carray(pointer(like, address), (count,))


@_jit
def _highest(scores, address, count):  # type: ignore[no-untyped-def]
    """Return the highest of `count` scores; overwrites those up to the next multiple of LANES."""
    row, past = _array(scores, address, (count + LANES - 1) // LANES * LANES), count
    while past < row.size:
        row[past] = LOW
        past += 1
    return highest(address, row.size)


@_any_order
def _weigh(scores, scale, top):  # type: ignore[no-untyped-def]
    """Turn scores into weights 2**(score * scale - top); returns their sum."""
    total = np.float32(0.0)
    for t in range(scores.size):
        scores[t] = exp2(scores[t] * scale - top)
        total += scores[t]
    return total


@numba.njit(forceinline=True, fastmath={"contract", "nsz"})
def _softmax(scores, address, count, unseen, scale, sink):  # type: ignore[no-untyped-def]
    """Turn `count` scores into weights; the first `unseen` weights are 0.

    A sink adds to the softmax's denominator and has no weight.
    """
    line = _array(scores, address, count)
    for t in range(unseen):
        line[t] = LOW
    top = max(_highest(scores, address, count) * scale, sink)
    inverse = np.float32(1.0) / (_weigh(line, scale, top) + exp2(sink - top))
    for t in range(count):
        line[t] *= inverse
    for t in range(unseen):
        line[t] = 0.0


@_jit
def store(layer, k, v, slots):  # type: ignore[no-untyped-def]
    """Write rows to their places.

    Args:
        k: [rows, heads, dim] in the stored type
        v: as k; dim 0 if there is no value
        slots: int64 [rows], block * tokens + token
    """
    pool, tokens, dim = layer.halves, layer.tokens, layer.dim
    for n in range(slots.size):
        first = slots[n] // tokens * layer.block_stride + layer.base + slots[n] % tokens * dim
        for h in range(k.shape[1]):
            at = first + h * layer.head_stride
            keys = pool[at : at + dim]
            values = pool[at + layer.part_stride : at + layer.part_stride + dim]
            for d in range(dim):
                keys[d] = k[n, h, d]
            for d in range(v.shape[2]):
                values[d] = v[n, h, d]


@_jit
def _copy_words(source, target, rows, width):  # type: ignore[no-untyped-def]
    for t in range(rows):
        for d in range(width):
            target[t, d] = word(source[t * width + d])


@_jit
def single(layer, q, out, lengths, window, sinks, tables, wide, direct, scale):  # type: ignore[no-untyped-def]
    """Compute rows one by one: a pass over K and one over V, for all heads of a group together.

    Args:
        q: words [rows, kv heads, group, deep], padded with zeros
        out: float32 [rows, kv heads, group, dims], is written; dims is a multiple of PANEL
        lengths: int64 [rows], number of positions up to each row's own
        window: a row sees the last `window` of these positions
        sinks: [kv heads, group], a score without a value for each head, times LOG2_E; LOW = none
        direct: whether K and V can be multiplied in place, else block by block from a padded copy
    """
    kv_heads, group, deep, dims = q.shape[1], q.shape[2], q.shape[3], out.shape[3]
    pool, halves, tokens, dim = layer.words, layer.halves, layer.tokens, layer.dim
    per_word = halves.size // pool.size
    width, size = dim // per_word, halves.itemsize
    padded, most = (tokens + LANES - 1) // LANES * LANES, tables.shape[1] * tokens + LANES
    heads = (group + HEADS - 1) // HEADS * HEADS
    scores, total = np.zeros((heads, most), np.float32), np.zeros((heads, dims), np.float32)
    keys, values = np.zeros((padded, deep), q.dtype), np.zeros((tokens, dims), np.float32)
    for row in range(lengths.size):
        length = lengths[row]
        blocks = (length + tokens - 1) // tokens
        first = max(0, length - window)
        # the first block to read; its first `unseen` positions are not seen
        begin = first // tokens
        unseen = first - begin * tokens
        for h in range(kv_heads):
            base = layer.base + h * layer.head_stride
            for b in range(begin, blocks):
                at = base + tables[row, b] * layer.block_stride
                if b + AHEAD < blocks:
                    line = halves.ctypes.data + size * (
                        base + tables[row, b + AHEAD] * layer.block_stride
                    )
                    for i in range(0, size * tokens * dim, 64):
                        prefetch(line + i)
                        prefetch(line + size * layer.part_stride + i)
                if direct:
                    source, step = halves.ctypes.data + size * at, width
                else:
                    _copy_words(
                        pool[at // per_word :], keys, min(tokens, length - b * tokens), width
                    )
                    source, step = keys.ctypes.data, deep
                for g in range(group):
                    for t in range(0, min(tokens, length - b * tokens), LANES):
                        target = scores.ctypes.data + 4 * (g * most + b * tokens + t)
                        dots(q, q[row, h, g].ctypes.data, source + 4 * t * step, step, deep, target)
            for g in range(group):
                address = scores.ctypes.data + 4 * (g * most + begin * tokens)
                _softmax(scores, address, length - begin * tokens, unseen, scale, sinks[h, g])
            total[:] = 0.0
            for b in range(begin, blocks):
                at = base + tables[row, b] * layer.block_stride + layer.part_stride
                seen = min(tokens, length - b * tokens)
                if not direct:
                    _copy_values(halves[at:], values, seen, dim, wide)
                for g in range(0, group, HEADS):
                    weights = scores.ctypes.data + 4 * (g * most + b * tokens)
                    for d in range(0, dims, PANEL):
                        target = total.ctypes.data + 4 * (g * dims + d)
                        if direct:
                            blend(
                                halves,
                                halves.ctypes.data + size * (at + d),
                                dim,
                                weights,
                                most,
                                target,
                                dims,
                                seen,
                            )
                        else:
                            blend(
                                values,
                                values.ctypes.data + 4 * d,
                                dims,
                                weights,
                                most,
                                target,
                                dims,
                                seen,
                            )
            out[row, h] = total[:group]


@_jit
def _copy_values(source, target, rows, dim, wide):  # type: ignore[no-untyped-def]
    for t in range(rows):
        for d in range(wide):
            target[t, d] = word(source[t * dim + d])


def _value_words(source, target, at, rows, dim, wide):  # type: ignore[no-untyped-def]
    raise NotImplementedError


@overload(_value_words)
def _value_words_of(source, target, at, rows, dim, wide):  # type: ignore[no-untyped-def]
    """Convert rows of a tile of V to words; a pair has the same element of two adjacent rows."""

    def plain(source, target, at, rows, dim, wide):  # type: ignore[no-untyped-def]
        for t in range(rows):
            for d in range(wide):
                target[at + t, d] = word(source[t * dim + d])

    def paired(source, target, at, rows, dim, wide):  # type: ignore[no-untyped-def]
        for t in range(rows):
            line = target[(at + t) // 2]
            if (at + t) % 2 == 0:
                for d in range(wide):
                    line[d] = np.uint32(source[t * dim + d])
            else:
                for d in range(wide):
                    line[d] |= np.uint32(source[t * dim + d]) << np.uint32(16)

    return paired if target.dtype == types.uint32 else plain


def _weight_words(scores, weights):  # type: ignore[no-untyped-def]
    raise NotImplementedError


@overload(_weight_words)
def _weight_words_of(scores, weights):  # type: ignore[no-untyped-def]
    """Convert a row of weights to words."""

    def plain(scores, weights):  # type: ignore[no-untyped-def]
        for t in range(scores.size):
            weights[t] = scores[t]

    def paired(scores, weights):  # type: ignore[no-untyped-def]
        for t in range(weights.size):
            low, high = (
                float_bits(scores[2 * t]) + np.int32(0x8000),
                float_bits(scores[2 * t + 1]) + np.int32(0x8000),
            )
            weights[t] = (np.uint32(low) >> np.uint32(16)) | (
                np.uint32(high) & np.uint32(0xFFFF0000)
            )

    return paired if weights.dtype == types.uint32 else plain


@_jit
def _load(layer, head, begin, table, wide, first, seen, keys, values):  # type: ignore[no-untyped-def]
    """Copy positions first .. first + seen of one head: K transposed, V row by row.

    Positions before block `begin` become zeros.
    """
    pool, halves, tokens, dim = layer.words, layer.halves, layer.tokens, layer.dim
    base = layer.base + head * layer.head_stride
    per_word = halves.size // pool.size
    width = dim // per_word
    t = max(0, begin * tokens - first)
    keys[:, :t] = 0
    values[: (t + per_word - 1) // per_word] = 0
    while t < seen:
        skip = (first + t) % tokens
        at = base + table[(first + t) // tokens - begin] * layer.block_stride + skip * dim
        rows = min(tokens - skip, seen - t)
        source = pool[at // per_word : at // per_word + rows * width]
        for d in range(width):
            line = keys[d, t : t + rows]
            for i in range(rows):
                line[i] = word(source[i * width + d])
        _value_words(
            halves[at + layer.part_stride : at + layer.part_stride + rows * dim],
            values,
            t,
            rows,
            dim,
            wide,
        )
        t += rows


@_jit
def _panel(q, keys, values, total, peak, weight, scores, weights, seen, window, scale, at):  # type: ignore[no-untyped-def]
    """Compute lines at .. at + ROWS of a head's queries against one tile.

    Line at + i sees the last `window` of the positions before seen[i], which counts from the first
    position of the tile. So it sees none if seen[i] <= 0, or if the window begins after the tile.

    Rows are addressed, not sliced: a slice of an array counts references, which costs more than the
    softmax.
    """
    width, dims, most = q.shape[1], total.shape[1], min(seen[ROWS - 1], TILE)
    per_word = TILE // values.shape[0]
    end = (most + per_word - 1) // per_word * per_word
    lines, sums = q.ctypes.data + 4 * at * width, total.ctypes.data + 4 * at * dims
    for t in range(0, most, PANEL):
        product(
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
    for i in range(ROWS):
        here, row = min(seen[i], most), scores.ctypes.data + 4 * i * TILE
        unseen = max(seen[i] - window, 0)
        if here > unseen:
            line = _array(scores, row, unseen)
            for t in range(unseen):
                line[t] = LOW
            top = max(peak[at + i], _highest(scores, row, here) * scale)
            shrink = exp2(peak[at + i] - top)
            peak[at + i] = top
            weight[at + i] = weight[at + i] * shrink + _weigh(_array(scores, row, here), scale, top)
            line = _array(scores, sums + 4 * i * dims, dims)
            for d in range(dims):
                line[d] *= shrink
        line = _array(scores, row, end)
        for t in range(min(unseen, end)):
            line[t] = 0.0
        for t in range(max(here, 0), end):
            line[t] = 0.0
        size = end // per_word
        _weight_words(line, _array(weights, weights.ctypes.data + 4 * i * weights.shape[1], size))
    for d in range(0, dims, PANEL):
        product(
            q,
            weights.ctypes.data,
            weights.shape[1],
            values.ctypes.data + 4 * d,
            dims,
            sums + 4 * d,
            dims,
            end // per_word,
            1,
        )


@_jit
def chunk(layer, q, out, start, rows, window, sinks, group, begin, table, wide, scale):  # type: ignore[no-untyped-def]
    """Compute consecutive rows in tiles of TILE positions.

    Args:
        q: words [kv heads, n, words of a row]; line r * group + g is head g of row r, followed by
            zeros up to a multiple of ROWS
        out: float32 [kv heads, n, dims], is written; dims is a multiple of PANEL
        start: position of the first row
        window: a row sees `window` positions up to its own
        sinks: as in `single`
        begin: number of the first block in `table`
    """
    kv_heads, count, width = q.shape
    dims = out.shape[2]
    per_word = layer.halves.size // layer.words.size
    length = start + rows
    keys, values = np.zeros((width, TILE), q.dtype), np.zeros((TILE // per_word, dims), q.dtype)
    scores, weights = (
        np.zeros((ROWS, TILE), np.float32),
        np.zeros((ROWS, TILE // per_word), q.dtype),
    )
    seen = np.empty(ROWS, np.int64)
    for h in range(kv_heads):
        peak, weight = np.empty(count, np.float32), np.zeros(count, np.float32)
        for r in range(count):
            peak[r] = sinks[h, r % group]
            if peak[r] > LOW:
                weight[r] = 1.0
        out[h] = 0.0
        for first in range(max(0, start + 1 - window) // TILE * TILE, length, TILE):
            _load(layer, h, begin, table, wide, first, min(TILE, length - first), keys, values)
            line = max(0, (first - start) * group // ROWS * ROWS)
            for r in range(line, count, ROWS):
                if start + r // group + 1 - window >= first + TILE:
                    break  # the windows of this line and later ones begin in a later tile
                for i in range(ROWS):
                    seen[i] = min(start + (r + i) // group + 1, length) - first
                _panel(
                    q[h],
                    keys,
                    values,
                    out[h],
                    peak,
                    weight,
                    scores,
                    weights,
                    seen,
                    window,
                    scale,
                    r,
                )
        for r in range(count):
            inverse = np.float32(1.0) / weight[r]
            for d in range(dims):
                out[h, r, d] *= inverse
