"""Attention over latent rows: the cached row is every head's key, and its beginning is the value.

    row   = [compressed keys and values | rotated key shared by all heads]        one per token, for all heads
    score = query · row                                                            the query is absorbed (models/latent.py)
    value = the row's first elements, as many as `out` has

DeepSeek-AI 2024 (DeepSeek-V2), section 2.1: multi-head latent attention, with the up-projection of
keys applied to the query and that of values applied after the sum. So a step reads each row once
for all heads, and no row is expanded. Queries are already scaled.
"""

from collections.abc import Sequence
from typing import ClassVar

import msgspec
import numpy as np
import torch

from baton.core.memory.state import Placement
from baton.engine.attention.cpu import PagedRows, run_on_zeros
from baton.engine.attention.interface import AttentionMetadata, Rows, Segment, reach
from baton.engine.attention.reference import pool_view
from baton.engine.kernels.team import NO_TEAM, Team
from baton.ports.fabric import Pool

LATENT = "latent"  # name of the spec
GATHERED = 32 << 20  # most bytes of chosen rows gathered at once


class LatentRows(msgspec.Struct, frozen=True):
    """Rows of latent attention.

    Attributes:
        q: [rows, heads, row], scaled; scores are not divided by sqrt(dim)
        cached: [rows, row], the rows to cache
        value: elements of a value, which are the first of a cached row
        chosen: int64 [rows, count], positions that a row attends to, from the index (index.py);
            None = all that it sees
    """

    q: torch.Tensor
    cached: torch.Tensor
    value: int
    chosen: torch.Tensor | None = None

    def at(self, index: slice | torch.Tensor) -> "LatentRows":
        chosen = None if self.chosen is None else self.chosen[index]
        return LatentRows(self.q[index], self.cached[index], self.value, chosen)

    def new_out(self) -> torch.Tensor:
        """Return an uninitialised output, [rows, heads, value]."""
        return self.q.new_empty(*self.q.shape[:2], self.value)

    def sparse(self, s: Segment) -> bool:
        """Whether a segment's rows see more positions than are chosen."""
        return self.chosen is not None and bool(self.chosen[s.first, 0] >= 0)


class CpuLatentAttention:
    """Implements AttentionBackend with the compiled kernels.

    Segments that see no more positions than would be chosen use dense attention. For the others the
    chosen rows are gathered, a few queries at a time.
    """

    rows: ClassVar[type[Rows]] = LatentRows
    beside: ClassVar[Sequence[str]] = ()

    def __init__(
        self, pool: Pool, placement: Placement, spec: str = LATENT, team: Team = NO_TEAM
    ) -> None:
        self._pages = PagedRows(pool, placement, spec, scale=1.0, team=team)

    def warm(self) -> None:
        dim, dtype = self._pages.dim, self._pages.dtype

        def zeros(count: int) -> LatentRows:
            return LatentRows(
                torch.zeros(count, 1, dim, dtype=dtype),
                torch.zeros(count, dim, dtype=dtype),
                -(-dim // 2),
            )

        run_on_zeros(self, zeros)

    def attend(
        self, rows: LatentRows, *, layer: int, metadata: AttentionMetadata, out: torch.Tensor
    ) -> None:
        keys = rows.cached[:, None]
        self._pages.store(layer, keys, keys[..., :0], metadata.slot_mapping)
        segments = metadata.segments
        if rows.chosen is not None:
            segments = [s for s in segments if not rows.sparse(s)]
        self._pages.attend(layer, rows.q, segments, out)
        for s in metadata.segments:
            if rows.chosen is None or not rows.sparse(s):
                continue
            step = max(
                1, GATHERED // (rows.chosen.shape[1] * self._pages.dim * self._pages.view.itemsize)
            )
            for first in range(s.first, s.first + s.count, step):
                here = slice(first, min(first + step, s.first + s.count))
                self._attend_chosen(layer, rows.q[here], s, rows.chosen[here], out[here])

    def _attend_chosen(
        self, layer: int, q: torch.Tensor, s: Segment, positions: torch.Tensor, out: torch.Tensor
    ) -> None:
        blocks, tokens = torch.from_numpy(s.block_table.astype(np.int64)), self._pages.tokens
        at = positions.clamp(min=0)  # entries after a row's last position are not read
        # [queries, count, row]
        rows = self._pages.view[blocks[at // tokens], 0, layer, 0, at % tokens]
        self._pages.attend_gathered(q, rows, (positions >= 0).sum(1), out)


class ReferenceLatentAttention:
    """Implements AttentionBackend in plain float32:
    scores every position, and masks unseen ones."""

    rows: ClassVar[type[Rows]] = LatentRows
    beside: ClassVar[Sequence[str]] = ()

    def __init__(
        self, pool: Pool, placement: Placement, spec: str = LATENT, team: Team = NO_TEAM
    ) -> None:
        """One thread."""
        self._view = pool_view(pool, placement, spec)
        self._tokens, self._window = placement.table.block_tokens, reach(placement, spec)

    def warm(self) -> None:
        """Do nothing: nothing is compiled."""

    def attend(
        self, rows: LatentRows, *, layer: int, metadata: AttentionMetadata, out: torch.Tensor
    ) -> None:
        slots = metadata.slot_mapping
        self._view[slots // self._tokens, 0, layer, 0, slots % self._tokens] = rows.cached
        for s in metadata.segments:
            here, length = slice(s.first, s.first + s.count), s.start + s.count
            # distance from a row back to a key
            back = s.start + torch.arange(s.count)[:, None] - torch.arange(length)
            visible = (back >= 0) & (back < self._window)
            if rows.chosen is not None and rows.sparse(s):
                picked = torch.zeros(s.count, length + 1, dtype=torch.bool)
                # -1 maps to an extra column after the last
                picked.scatter_(1, rows.chosen[here] % (length + 1), True)
                visible &= picked[:, :length]
            blocks = torch.from_numpy(s.block_table.astype(np.int64))
            cached = self._view[blocks, 0, layer, 0].float().reshape(-1, rows.q.shape[2])[:length]
            scores = torch.einsum("rhd,td->hrt", rows.q[here].float(), cached)
            weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
            out[here] = torch.einsum("hrt,td->rhd", weights, cached[:, : rows.value]).to(out.dtype)
