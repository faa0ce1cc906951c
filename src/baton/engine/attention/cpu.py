"""Attention on a CPU, on the pages where they lie.

Few query rows (decode): a compiled kernel goes once over a request's blocks with an online softmax (Milakov and
Gimelshein 2018), all query heads of a K/V head together, so each byte of K and V is read once. Many rows (prefill): the
chunk's own keys through torch's flash kernel, and its context in tiles of `TILE_BLOCKS` blocks, merged by their
log-sum-exp (Dao et al. 2022).
"""

import math
from collections.abc import Sequence

import numba
import numpy as np
import torch
from numpy.typing import NDArray

from baton.core.state import DType, Placement
from baton.engine.attention.interface import Segment
from baton.engine.attention.reference import pool_view
from baton.ports.fabric import Pool

FEW_ROWS = 4  # up to so many rows the compiled kernel is faster
TILE_BLOCKS = 32
FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


@numba.njit(nogil=True, fastmath=True, boundscheck=False, inline="always")
def _dot(a, at, b, to, dim):  # type: ignore[no-untyped-def]
    total = np.float32(0.0)
    for d in range(dim):
        total += a[at + d] * b[to + d]
    return total


@numba.njit(nogil=True, cache=True, fastmath=True, boundscheck=False)
def _decode(raw, bits, floats, q, out, rows, positions, tables, place, heads, group, tokens, scale, shift):  # type: ignore[no-untyped-def]
    """One query row after the other, so that a row's bits do not depend on its company.

    raw: the pool's elements as unsigned integers; bits, floats: scratch for one block of K and V, uint32 and float32 views
    of one memory; q, out: float32 [rows, heads * group * dim]; place: element offsets (block, base, head, part).
    """
    block_stride, base, head_stride, part_stride = place[0], place[1], place[2], place[3]
    size = bits.size // 2
    dim = size // tokens
    width = group * dim
    query, acc, scores = np.empty(width, np.float32), np.empty(width, np.float32), np.empty(tokens, np.float32)
    top, total = np.empty(group, np.float32), np.empty(group, np.float32)
    for n in range(rows.size):
        row, length = rows[n], positions[n] + 1
        for h in range(heads):
            for i in range(width):
                query[i] = q[row, h * width + i] * scale
                acc[i] = 0.0
            for g in range(group):
                top[g], total[g] = -3.0e38, 0.0
            for b in range((length + tokens - 1) // tokens):
                at = tables[n, b] * block_stride + base + h * head_stride
                used = min(tokens, length - b * tokens)
                keys, values = raw[at : at + size], raw[at + part_stride : at + part_stride + size]
                for i in range(size):
                    bits[i] = np.uint32(keys[i]) << shift
                for i in range(size):
                    bits[size + i] = np.uint32(values[i]) << shift
                for g in range(group):
                    best = top[g]
                    for t in range(used):
                        scores[t] = _dot(query, g * dim, floats, t * dim, dim)
                        best = max(best, scores[t])
                    shrink = np.exp(top[g] - best)
                    top[g] = best
                    part = np.float32(0.0)
                    for t in range(used):
                        scores[t] = np.exp(scores[t] - best)
                    for t in range(used):
                        part += scores[t]
                    total[g] = total[g] * shrink + part
                    mine = acc[g * dim : (g + 1) * dim]
                    for d in range(dim):
                        mine[d] *= shrink
                    for t in range(used):
                        weight = scores[t]
                        value = floats[size + t * dim : size + (t + 1) * dim]
                        for d in range(dim):
                            mine[d] += weight * value[d]
            for g in range(group):
                inverse = np.float32(1.0) / total[g]
                for d in range(dim):
                    out[row, h * width + g * dim + d] = acc[g * dim + d] * inverse


@numba.njit(nogil=True, cache=True, boundscheck=False)
def _store(raw, k, v, slots, place, tokens):  # type: ignore[no-untyped-def]
    """Rows to their places; k, v: [rows, heads, dim] in the pool's own element type."""
    block_stride, base, head_stride, part_stride = place[0], place[1], place[2], place[3]
    dim = k.shape[2]
    for n in range(slots.size):
        block, token = slots[n] // tokens, slots[n] % tokens
        for h in range(k.shape[1]):
            at = block * block_stride + base + h * head_stride + token * dim
            for d in range(dim):
                raw[at + d] = k[n, h, d]
                raw[at + part_stride + d] = v[n, h, d]


class CpuAttention:
    """Implements AttentionBackend for bfloat16 and float32."""

    def __init__(self, pool: Pool, placement: Placement) -> None:
        place = placement.places["kv"]
        self._view = pool_view(pool, placement)
        self._tokens, self._dim, self._kv_heads = placement.table.block_tokens, place.spec.row, place.heads.size
        self._bits = torch.int16 if place.spec.dtype is DType.BF16 else torch.int32
        unsigned = np.uint16 if place.spec.dtype is DType.BF16 else np.uint32
        size = place.spec.dtype.size
        flat = self._view.as_strided((pool.nbytes // size,), (1,), 0).view(self._bits).numpy()
        self._raw: NDArray[np.generic] = flat.view(unsigned)
        block = placement.block_bytes(place.spec.group)
        self._places = [
            np.array([block, place.offset + n * place.layer_stride, place.head_stride, place.part_stride], dtype=np.int64) // size
            for n in range(len(place.layers))
        ]
        scratch = np.empty(2 * self._tokens * self._dim, dtype=np.uint32)
        self._tile = (scratch, scratch.view(np.float32))
        self._scale = np.float32(self._dim**-0.5)
        self._unsigned = unsigned
        self._shift = np.uint32(32 - 8 * size)  # a bfloat16 is the upper half of a float32

    def warm(self) -> None:
        """Compile by running once over row 0 of block 0, which nobody owns yet."""
        row = torch.zeros(1, self._kv_heads, self._dim, dtype=self._view.dtype)
        self.write(layer=0, k=row, v=row, slots=torch.zeros(1, dtype=torch.int64))
        segment = Segment(first=0, count=1, start=0, blocks=np.zeros(1, dtype=np.int32))
        self.attend(layer=0, q=row, k=row, v=row, segments=[segment], out=torch.empty_like(row))

    def write(self, *, layer: int, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
        """See AttentionBackend."""
        _store(self._raw, self._as_bits(k), self._as_bits(v), slots.numpy(), self._places[layer], self._tokens)

    def _as_bits(self, x: torch.Tensor) -> NDArray[np.generic]:
        return x.contiguous().view(self._bits).numpy().view(self._unsigned)

    def attend(
        self,
        *,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        segments: Sequence[Segment],
        out: torch.Tensor,
    ) -> None:
        """See AttentionBackend."""
        few = [s for s in segments if s.count <= FEW_ROWS]
        if few:
            self._attend_few(layer, q, few, out)
        for s in segments:
            if s.count > FEW_ROWS:
                rows = slice(s.first, s.first + s.count)
                out[rows] = self._attend_many(layer, q[rows], k[rows], v[rows], s)

    def _attend_few(self, layer: int, q: torch.Tensor, segments: Sequence[Segment], out: torch.Tensor) -> None:
        rows = np.concatenate([np.arange(s.first, s.first + s.count) for s in segments])
        positions = np.concatenate([np.arange(s.start, s.start + s.count) for s in segments])
        tables = np.zeros((rows.size, max(len(s.blocks) for s in segments)), dtype=np.int64)
        n = 0
        for s in segments:
            tables[n : n + s.count, : len(s.blocks)] = s.blocks
            n += s.count
        heads, dim = q.shape[1], q.shape[2]
        found = np.empty((len(q), heads, dim), dtype=np.float32)
        _decode(
            self._raw,
            *self._tile,
            q.float().reshape(len(q), -1).numpy(),
            found.reshape(len(q), -1),
            rows,
            positions,
            tables,
            self._places[layer],
            self._kv_heads,
            heads // self._kv_heads,
            self._tokens,
            self._scale,
            self._shift,
        )
        out[rows] = torch.from_numpy(found[rows]).to(out.dtype)

    def _attend_many(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, s: Segment) -> torch.Tensor:
        """q: [rows, heads, dim]; k, v: the chunk's own rows. Query heads of one K/V head form a batch."""
        count, heads, dim = q.shape
        shape = (self._kv_heads, heads // self._kv_heads)
        queries = q.view(count, *shape, dim).permute(1, 2, 0, 3)
        parts = [self._flash(queries, k.permute(1, 0, 2), v.permute(1, 0, 2), causal=True)]
        for first in range(0, s.start, TILE_BLOCKS * self._tokens):
            tokens = min(s.start - first, TILE_BLOCKS * self._tokens)
            begin = first // self._tokens
            blocks = torch.from_numpy(s.blocks[begin : begin - (-tokens // self._tokens)].astype(np.int64))
            tile = self._view[blocks, :, layer]  # [blocks, heads, part, token, dim]: this tile alone is copied
            keys, values = (tile[:, :, n].transpose(0, 1).reshape(self._kv_heads, -1, dim)[:, :tokens] for n in (0, 1))
            parts.append(self._flash(queries, keys, values, causal=False))
        return _merge(parts).permute(2, 0, 1, 3).reshape(count, heads, dim).to(q.dtype)

    def _flash(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """q: [kv heads, group, rows, dim]; k, v: [kv heads, tokens, dim]. Returns output and log-sum-exp."""
        wide = (q.shape[0], q.shape[1], k.shape[1], k.shape[2])
        found: tuple[torch.Tensor, torch.Tensor] = FLASH(
            q, k[:, None].expand(wide), v[:, None].expand(wide), 0.0, causal, scale=1 / math.sqrt(q.shape[-1])
        )
        return found


def _merge(parts: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Outputs over disjoint sets of keys as one, in float32."""
    if len(parts) == 1:
        return parts[0][0]
    sums = torch.stack([lse for _, lse in parts])
    weights = (sums - sums.logsumexp(0)).exp()[..., None]
    merged = sum((w * out.float() for w, (out, _) in zip(weights, parts, strict=True)), torch.zeros(()))
    assert isinstance(merged, torch.Tensor)
    return merged
