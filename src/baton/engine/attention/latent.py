"""Attention over latent rows: every head's key is the cached row itself, its value what the row begins with.

    row   = [compressed keys and values | rotated key shared by all heads]        one per token, for all heads
    score = query · row                                                            the query is absorbed (models/latent.py)
    value = the row's first elements, as many as `out` has

DeepSeek-AI 2024 (DeepSeek-V2), section 2.1: multi-head latent attention, with the up-projections of keys and values moved to
the query and behind the sum. So a step reads each row once for all heads, and nothing is expanded. Queries come scaled.
"""

from collections.abc import Sequence

import numpy as np
import torch

from baton.core.state import Full, Placement
from baton.engine.attention import kernels
from baton.engine.attention.cpu import FEW_ROWS, LOG2_E, CpuAttention, Lies
from baton.engine.attention.interface import ENDLESS, Seen, Segment, reach
from baton.engine.attention.reference import pool_view
from baton.engine.kernels.vectors import LANES
from baton.ports.fabric import Pool

LATENT = "latent"  # the spec


class CpuLatentAttention(CpuAttention):
    """Implements AttentionBackend with the compiled kernels. q, k: [rows, heads, row], [rows, 1, row]; v is not read."""

    def __init__(self, pool: Pool, placement: Placement, spec: str = LATENT) -> None:
        super().__init__(pool, placement, spec)
        self._scale = np.float32(LOG2_E)

    def warm(self) -> None:
        """See AttentionBackend: over the first rows of the pool, which nobody owns yet."""
        for count in (1, FEW_ROWS + 1):
            blocks = np.zeros(-(-count // self._tokens), dtype=np.int32)
            row = torch.zeros(count, 1, self._dim, dtype=self._dtype)
            value = row[..., : -(-self._dim // 2)]
            self.write(layer=0, k=row, v=value, slots=torch.zeros(count, dtype=torch.int64))
            segment = Segment(first=0, count=count, start=0, blocks=blocks)
            out = torch.empty_like(value, memory_format=torch.contiguous_format)
            self.attend(layer=0, q=row, k=row, v=value, segments=[segment], seen=Full(), out=out)

    def write(self, *, layer: int, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
        """See AttentionBackend."""
        rows = self._stored_bits(k)
        kernels.store(self._halves, rows, rows[:, :, :0], slots.numpy(), self._places[layer], self._tokens)

    def attend_rows(self, q: torch.Tensor, rows: torch.Tensor, counts: torch.Tensor, out: torch.Tensor) -> None:
        """Each query over rows of its own. q: [queries, heads, row]; rows: [queries, most, row], of which the first `counts`,
        int64 [queries], are looked at; out: [queries, heads, value]."""
        most = -(-rows.shape[1] // LANES) * LANES  # a whole number of vectors: such rows are multiplied where they lie
        rows = torch.nn.functional.pad(rows, (0, 0, 0, most - rows.shape[1]))
        halves = self._stored_bits(rows).reshape(-1)
        words = halves.view(np.uint32) if self._paired else halves
        table = np.arange(len(q), dtype=np.int32)[:, None]
        lies = Lies(words, halves, np.array([most * self._dim, 0, 0, 0], dtype=np.int64), most)
        out.copy_(self._each(q, counts.numpy(), ENDLESS, self._sunk(None, q.shape[1]), table, lies, out.shape[2]))


class ReferenceLatentAttention:
    """Implements AttentionBackend plainly: one segment at a time, in float32."""

    def __init__(self, pool: Pool, placement: Placement, spec: str = LATENT) -> None:
        self._view = pool_view(pool, placement, spec)
        self._tokens = placement.table.block_tokens

    def warm(self) -> None:
        """Nothing is compiled."""

    def write(self, *, layer: int, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
        """See AttentionBackend."""
        self._view[slots // self._tokens, 0, layer, 0, slots % self._tokens] = k[:, 0]

    def attend(
        self,
        *,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        segments: Sequence[Segment],
        seen: Seen,
        out: torch.Tensor,
        sinks: torch.Tensor | None = None,
    ) -> None:
        """See AttentionBackend."""
        assert sinks is None, "no model with latent rows has sinks"
        for s in segments:
            back = s.start + torch.arange(s.count)[:, None] - torch.arange(s.start + s.count)  # positions from a row to a key
            self._attend_visible(layer, q, s, (back >= 0) & (back < reach(seen)), out)

    def _attend_visible(self, layer: int, q: torch.Tensor, s: Segment, visible: torch.Tensor, out: torch.Tensor) -> None:
        """visible: [rows of the segment, positions]."""
        rows, blocks = slice(s.first, s.first + s.count), torch.from_numpy(s.blocks.astype(np.int64))
        cached = self._view[blocks, 0, layer, 0].float().reshape(-1, q.shape[2])[: visible.shape[1]]
        scores = torch.einsum("rhd,td->hrt", q[rows].float(), cached)
        weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
        out[rows] = torch.einsum("hrt,td->rhd", weights, cached[:, : out.shape[2]]).to(out.dtype)
