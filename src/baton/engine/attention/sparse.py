"""Attention to chosen positions: latent rows with an index beside them.

Segments that see no more positions than are chosen go the dense way, so that a short context costs nothing and has the same
bits whoever shares the batch. For the others the chosen rows are brought together, a few queries at a time.
"""

from collections.abc import Sequence
from typing import NoReturn, Protocol

import numpy as np
import torch

from baton.core.errors import Bug
from baton.core.state import Full, Placement
from baton.engine.attention.index import Chosen, Index
from baton.engine.attention.interface import Segment
from baton.engine.attention.latent import LATENT, CpuLatentAttention, ReferenceLatentAttention
from baton.engine.attention.reference import pool_view
from baton.ports.fabric import Pool

GATHERED = 32 << 20  # bytes of rows brought together at once


class SparseBackend(Protocol):
    """Index keys and attention to chosen positions over one rank's pool."""

    def write_keys(self, *, layer: int, k: torch.Tensor, slots: torch.Tensor) -> None:
        """Store index keys. k: [rows, dim]; slots: int64 [rows], block slot * B + token in block; layer counts those with an
        index."""
        ...

    def choose(self, *, layer: int, q: torch.Tensor, weights: torch.Tensor, segments: Sequence[Segment], count: int) -> Chosen:
        """Up to `count` positions for each row. q: [rows, heads, dim]; weights: float32 [rows, heads]."""
        ...

    def attend_chosen(
        self, *, layer: int, q: torch.Tensor, segments: Sequence[Segment], chosen: Chosen, out: torch.Tensor
    ) -> None:
        """As AttentionBackend's attend on latent rows, over these positions only."""
        ...


class NoSparse:
    """Implements SparseBackend for models without an index, which never ask."""

    def write_keys(self, *, layer: int, k: torch.Tensor, slots: torch.Tensor) -> None:
        """See SparseBackend."""
        self._refuse()

    def choose(self, *, layer: int, q: torch.Tensor, weights: torch.Tensor, segments: Sequence[Segment], count: int) -> Chosen:
        """See SparseBackend."""
        self._refuse()

    def attend_chosen(
        self, *, layer: int, q: torch.Tensor, segments: Sequence[Segment], chosen: Chosen, out: torch.Tensor
    ) -> None:
        """See SparseBackend."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise Bug("this model's state table has no index")


class CpuSparse(CpuLatentAttention):
    """Implements SparseBackend with the compiled kernels."""

    def __init__(self, pool: Pool, placement: Placement) -> None:
        super().__init__(pool, placement)
        self._index, self._rows = Index(pool, placement), pool_view(pool, placement, LATENT)

    def write_keys(self, *, layer: int, k: torch.Tensor, slots: torch.Tensor) -> None:
        """See SparseBackend."""
        self._index.write(layer=layer, k=k, slots=slots)

    def choose(self, *, layer: int, q: torch.Tensor, weights: torch.Tensor, segments: Sequence[Segment], count: int) -> Chosen:
        """See SparseBackend."""
        return self._index.choose(layer=layer, q=q, weights=weights, segments=segments, count=count)

    def attend_chosen(
        self, *, layer: int, q: torch.Tensor, segments: Sequence[Segment], chosen: Chosen, out: torch.Tensor
    ) -> None:
        """See SparseBackend."""
        dense = [s for s, positions in zip(segments, chosen.by_segment, strict=True) if positions is None]
        self.attend(layer=layer, q=q, k=q, v=q, segments=dense, seen=Full(), out=out)
        for s, positions in zip(segments, chosen.by_segment, strict=True):
            if positions is not None:
                step = max(1, GATHERED // (positions.shape[1] * self._dim * self._rows.itemsize))
                for first in range(0, s.count, step):
                    here = slice(s.first + first, s.first + min(first + step, s.count))
                    self._attend_gathered(layer, q[here], s, positions[first : first + step], out[here])

    def _attend_gathered(self, layer: int, q: torch.Tensor, s: Segment, positions: torch.Tensor, out: torch.Tensor) -> None:
        blocks = torch.from_numpy(s.blocks.astype(np.int64))
        at = positions.clamp(min=0)  # what lies behind a row's last is not looked at
        rows = self._rows[blocks[at // self._tokens], 0, layer, 0, at % self._tokens]  # [queries, count, row]
        self.attend_rows(q, rows, (positions >= 0).sum(1), out)


class ReferenceSparse(ReferenceLatentAttention):
    """Implements SparseBackend plainly: everything is scored, and what is not chosen is masked."""

    def __init__(self, pool: Pool, placement: Placement) -> None:
        super().__init__(pool, placement)
        self._index = Index(pool, placement)

    def write_keys(self, *, layer: int, k: torch.Tensor, slots: torch.Tensor) -> None:
        """See SparseBackend."""
        self._index.write(layer=layer, k=k, slots=slots)

    def choose(self, *, layer: int, q: torch.Tensor, weights: torch.Tensor, segments: Sequence[Segment], count: int) -> Chosen:
        """See SparseBackend."""
        return self._index.choose(layer=layer, q=q, weights=weights, segments=segments, count=count)

    def attend_chosen(
        self, *, layer: int, q: torch.Tensor, segments: Sequence[Segment], chosen: Chosen, out: torch.Tensor
    ) -> None:
        """See SparseBackend."""
        for s, positions in zip(segments, chosen.by_segment, strict=True):
            length = s.start + s.count
            visible = torch.ones(s.count, length, dtype=torch.bool).tril(s.start)
            if positions is not None:
                picked = torch.zeros(s.count, length + 1, dtype=torch.bool).scatter_(1, positions % (length + 1), True)
                visible &= picked[:, :length]  # -1 has gone to the column behind the last
            self._attend_visible(layer, q, s, visible, out)
