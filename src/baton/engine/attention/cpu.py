"""Paged attention on a CPU: an AttentionBackend over compiled kernels.

Rows of generated tokens are computed one by one, those of a prompt in tiles (Dao et al. 2022). The
two add up in different orders, so a row takes the kernel of what its token is, however many are
computed at once. If the layout of the pool allows it, rows are multiplied in place, without a copy
(`direct`).

What each of the two is worth, as processor time of a step of the model `llama` of
tools/decode_step.py (bfloat16, one thread, context 512): with tiles only, a decode step takes 1.17
times as long for one sequence and 1.54 times for eight; with copies always, 1.05 and 1.10 times.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from baton.core.memory.state import DType, Placement
from baton.engine.attention import kernels
from baton.engine.attention.interface import (
    ENDLESS,
    AttentionBackend,
    AttentionMetadata,
    AttentionRows,
    R,
    Rows,
    Segment,
    reach,
)
from baton.engine.attention.reference import pool_view
from baton.engine.kernels.vectors import LANES, PAIRS, PANEL, ROWS
from baton.ports.fabric import Pool

LOG2_E = 1.4426950408889634
BITS = {
    DType.F32: (torch.float32, np.float32),
    DType.BF16: (torch.int16, np.uint16),
    DType.F16: (torch.int16, np.int16),
}


class PagedRows:
    """The cached rows of one spec, and kernels over them, for float32, bfloat16 and float16; one
    thread.

    In a spec with one part, the rows are keys, and values are the first elements of keys. `scale`
    is the factor of the scores.
    """

    def __init__(self, pool: Pool, placement: Placement, spec: str, *, scale: float) -> None:
        place = placement.places[spec]
        size = place.spec.dtype.size
        self.view = pool_view(pool, placement, spec)
        self.dtype, self.tokens, self.dim = (
            self.view.dtype,
            placement.table.block_tokens,
            place.spec.row,
        )
        self.kv_heads, self._window = place.heads.size, reach(placement, spec)
        self._bits, self._stored = BITS[place.spec.dtype]
        block, parts = placement.block_bytes(place.spec.group), len(place.spec.parts)
        strides = (block, place.offset, place.head_stride, place.part_stride if parts > 1 else 0)
        # rows begin at whole pairs
        even = all(n % 4 == 0 for n in (*strides, place.layer_stride, place.row_bytes))
        self._paired = PAIRS and place.spec.dtype is DType.BF16 and even
        flat = self.view.as_strided((pool.nbytes // size,), (1,), 0)
        halves: NDArray[np.generic] = flat.view(self._bits).numpy().view(self._stored)
        block_stride, base, head_stride, part_stride = (n // size for n in strides)
        self._layers = [
            kernels.PagedLayer(
                words=self._words(halves),
                halves=halves,
                block_stride=block_stride,
                base=base + n * place.layer_stride // size,
                head_stride=head_stride,
                part_stride=part_stride,
                tokens=self.tokens,
                dim=self.dim,
            )
            for n in range(len(place.layers))
        ]
        self._width = self.dim // 2 if self._paired else self.dim
        self._deep = _up(self._width, LANES)
        multiplied = self._paired or place.spec.dtype is DType.F32
        self._direct = multiplied and self._deep == self._width and self.tokens % LANES == 0
        self._scale = np.float32(LOG2_E * scale)

    def store(
        self, layer: int, k: torch.Tensor, v: torch.Tensor, slot_mapping: torch.Tensor
    ) -> None:
        """Write rows to their slots.

        Args:
            layer: index among the layers of the spec on this rank
            k: [rows, kv heads, dim], in the served dtype
            v: as k; [rows, kv heads, 0] if only keys are cached
            slot_mapping: int64 [rows], block * tokens + token
        """
        kernels.store(
            self._layers[layer], self._stored_bits(k), self._stored_bits(v), slot_mapping.numpy()
        )

    def _words(self, halves: NDArray[np.generic]) -> NDArray[np.generic]:
        return halves.view(np.uint32) if self._paired else halves

    def _stored_bits(self, x: torch.Tensor) -> NDArray[np.generic]:
        return x.contiguous().view(self._bits).numpy().view(self._stored)

    def attend(
        self,
        layer: int,
        q: torch.Tensor,
        segments: Sequence[Segment],
        out: torch.Tensor,
        sinks: torch.Tensor | None = None,
    ) -> None:
        """Compute attention of each row over all positions that it sees.

        Args:
            layer: index among the layers of the spec on this rank
            q: [rows, heads, dim]
            segments: the sequences of the rows
            out: [rows, heads, dim of values], is written
            sinks: float32 [heads], or None
        """
        window, sunk = self._window, self._sunk(sinks, q.shape[1])
        said = sorted((s for s in segments if s.said), key=lambda s: s.first)
        if said:
            self._attend_each(layer, q, said, window, sunk, out)
        for s in segments:
            if s.said < s.count:
                rows = slice(s.first, s.first + s.count - s.said)
                self._attend_prompt(layer, q[rows], s, window, sunk, out[rows])

    def attend_gathered(
        self, q: torch.Tensor, rows: torch.Tensor, counts: torch.Tensor, out: torch.Tensor
    ) -> None:
        """Compute attention of each query over its own list of rows.

        Args:
            q: [queries, heads, dim]
            rows: [queries, most, dim]
            counts: int64 [queries], number of rows to attend to
            out: [queries, heads, dim of values], is written
        """
        most = _up(rows.shape[1], LANES)  # a whole number of vectors, so that rows need no copy
        rows = torch.nn.functional.pad(rows, (0, 0, 0, most - rows.shape[1]))
        halves = self._stored_bits(rows).reshape(-1)
        blocks = kernels.PagedLayer(
            self._words(halves), halves, most * self.dim, 0, 0, 0, tokens=most, dim=self.dim
        )
        table = np.arange(len(q), dtype=np.int32)[:, None]
        out.copy_(
            self._each(
                q,
                counts.numpy(),
                ENDLESS,
                self._sunk(None, q.shape[1]),
                table,
                blocks,
                out.shape[2],
            )
        )

    def _sunk(self, sinks: torch.Tensor | None, heads: int) -> NDArray[np.float32]:
        """Return sinks for the kernels: float32 [kv heads, group], times log2(e); LOW = no sink."""
        if sinks is None:
            return np.full((self.kv_heads, heads // self.kv_heads), kernels.LOW)
        scaled: NDArray[np.float32] = (sinks.float() * LOG2_E).view(self.kv_heads, -1).numpy()
        return scaled

    def _attend_each(
        self,
        layer: int,
        q: torch.Tensor,
        segments: Sequence[Segment],
        window: int,
        sunk: NDArray[np.float32],
        out: torch.Tensor,
    ) -> None:
        """Compute the rows of generated tokens."""
        past = [s.first + s.count for s in segments]
        rows = torch.tensor(
            [n for s, end in zip(segments, past, strict=True) for n in range(end - s.said, end)]
        )
        # Positions are counted from the first one held; scores do not depend on the offset.
        starts = [s.start - s.begin * self.tokens for s in segments]
        lengths = np.array(
            [
                start + n + 1
                for s, start in zip(segments, starts, strict=True)
                for n in range(s.count - s.said, s.count)
            ],
            np.int64,
        )
        tables = np.zeros((len(rows), max(len(s.block_table) for s in segments)), dtype=np.int32)
        n = 0
        for s in segments:
            tables[n : n + s.said, : len(s.block_table)] = s.block_table
            n += s.said
        mine = q if len(rows) == len(q) else q[rows]
        result = self._each(
            mine, lengths, window, sunk, tables, self._layers[layer], out.shape[2]
        ).to(out.dtype)
        if mine is q:
            out.copy_(result)
        else:
            out[rows] = result

    def _each(
        self,
        q: torch.Tensor,
        lengths: NDArray[np.int64],
        window: int,
        sunk: NDArray[np.float32],
        tables: NDArray[np.int32],
        layer: kernels.PagedLayer,
        wide: int,
    ) -> torch.Tensor:
        """Compute rows one by one, each over the first `lengths` positions of its own block table.

        Returns float32 [rows, heads, wide].
        """
        count, group, dims = len(q), q.shape[1] // self.kv_heads, _up(wide, PANEL)
        words = self._as_words(q.reshape(count, self.kv_heads, group, self.dim), self._deep)
        found = np.empty((count, self.kv_heads, group, dims), dtype=np.float32)
        direct = self._direct and dims == wide
        kernels.single(
            layer, words, found, lengths, window, sunk, tables, wide, direct, self._scale
        )
        return torch.from_numpy(found)[..., :wide].reshape(count, -1, wide)

    def _attend_prompt(
        self,
        layer: int,
        q: torch.Tensor,
        s: Segment,
        window: int,
        sunk: NDArray[np.float32],
        out: torch.Tensor,
    ) -> None:
        """Compute the rows of a segment's prompt, which are those in `q` and `out`."""
        group, count = q.shape[1] // self.kv_heads, len(q)
        used, wide = count * group, out.shape[2]
        queries = q.new_zeros(self.kv_heads, _up(used, ROWS), self.dim)
        queries[:, :used].view(self.kv_heads, count, group, self.dim).copy_(
            self._by_head(q).permute(1, 0, 2, 3)
        )
        found = np.empty((self.kv_heads, queries.shape[1], _up(wide, PANEL)), dtype=np.float32)
        words = self._as_words(queries, self._width)
        kernels.chunk(
            self._layers[layer],
            words,
            found,
            s.start,
            count,
            window,
            sunk,
            group,
            s.begin,
            s.block_table,
            wide,
            self._scale,
        )
        rows = torch.from_numpy(found)[:, :used, :wide].view(self.kv_heads, count, group, wide)
        self._by_head(out).copy_(rows.permute(1, 0, 2, 3))

    def _by_head(self, x: torch.Tensor) -> torch.Tensor:
        """View [rows, heads, dim] as [rows, kv heads, group, dim]."""
        return x.view(x.shape[0], self.kv_heads, -1, x.shape[2])

    def _as_words(self, x: torch.Tensor, width: int) -> NDArray[np.generic]:
        """Convert rows of queries to rows of `width` words, padded with zeros."""
        if not self._paired:
            x = torch.nn.functional.pad(x.float(), (0, width - x.shape[-1]))
            return x.contiguous().numpy()
        x = torch.nn.functional.pad(x, (0, 2 * width - x.shape[-1]))
        return x.contiguous().view(torch.int32).numpy().view(np.uint32)


class CpuAttention:
    """Implements AttentionBackend."""

    rows: ClassVar[type[Rows]] = AttentionRows
    beside: ClassVar[Sequence[str]] = ()

    def __init__(self, pool: Pool, placement: Placement, spec: str = "kv") -> None:
        self._pages = PagedRows(
            pool, placement, spec, scale=placement.places[spec].spec.row ** -0.5
        )

    def warm(self) -> None:
        pages = self._pages

        def zeros(count: int) -> AttentionRows:
            x = torch.zeros(count, pages.kv_heads, pages.dim, dtype=pages.dtype)
            return AttentionRows(x, x, x)

        run_on_zeros(self, zeros)

    def attend(
        self, rows: AttentionRows, *, layer: int, metadata: AttentionMetadata, out: torch.Tensor
    ) -> None:
        self._pages.store(layer, rows.k, rows.v, metadata.slot_mapping)
        self._pages.attend(layer, rows.q, metadata.segments, out, rows.sinks)


def run_on_zeros(backend: AttentionBackend[R], zeros: Callable[[int], R]) -> None:
    """Compile (or load) both kernels, by running them over the first block of the unused pool.

    Args:
        backend: the backend whose kernels are compiled
        zeros: makes a number of rows
    """
    for said in (0, 1):
        segment = Segment(
            first=0, count=1, start=0, block_table=np.zeros(1, dtype=np.int32), said=said
        )
        metadata = AttentionMetadata([segment], torch.zeros(1, dtype=torch.int64))
        rows = zeros(1)
        backend.attend(rows, layer=0, metadata=metadata, out=rows.new_out())


def _up(n: int, step: int) -> int:
    return -(-n // step) * step
