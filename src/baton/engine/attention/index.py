"""The index of sparse attention: which of the cached positions a row attends to (DeepSeek-AI 2025: DeepSeek-V3.2).

    score(row, position) = sum over index heads of weight(row, head) * relu(query(row, head) · key(position))

A layer caches one small key a token; a row attends to the `count` positions with the highest scores among those up to its own.
Scores are compared only, so factors that are the same for all positions are left out.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
import torch

from baton.core.state import Placement
from baton.engine.attention.interface import Segment
from baton.engine.attention.reference import pool_view
from baton.ports.fabric import Pool

INDEX = "index.k"  # the spec
SCORES = 1 << 22  # computed at once: 16 MB of float32


class Chosen(msgspec.Struct, frozen=True):
    """Positions to attend to.

    Attributes:
        by_segment: for each segment int64 [its rows, count], -1 behind the last of a row that sees fewer; None where no row sees
            more than that, so that all are attended to
    """

    by_segment: tuple[torch.Tensor | None, ...]


class Index:
    """The index keys of one rank's layers; `layer` counts those that have some."""

    def __init__(self, pool: Pool, placement: Placement) -> None:
        self._view = pool_view(pool, placement, INDEX)
        self._tokens = placement.table.block_tokens

    def write(self, *, layer: int, k: torch.Tensor, slots: torch.Tensor) -> None:
        """Store keys. k: [rows, dim]; slots: int64 [rows], block slot * B + token in block."""
        self._view[slots // self._tokens, 0, layer, 0, slots % self._tokens] = k

    def choose(self, *, layer: int, q: torch.Tensor, weights: torch.Tensor, segments: Sequence[Segment], count: int) -> Chosen:
        """Up to `count` positions for each row. q: [rows, heads, dim]; weights: float32 [rows, heads]."""
        return Chosen(tuple(self._choose(layer, q, weights, s, count) for s in segments))

    def _choose(self, layer: int, q: torch.Tensor, weights: torch.Tensor, s: Segment, count: int) -> torch.Tensor | None:
        length = s.start + s.count
        if length <= count:
            return None
        blocks = torch.from_numpy(s.blocks.astype(np.int64))
        keys = self._view[blocks, 0, layer, 0].reshape(-1, q.shape[2])[:length].float()
        found = torch.empty((s.count, count), dtype=torch.int64)
        step = max(1, SCORES // (length * q.shape[1]))
        for first in range(0, s.count, step):
            some = slice(first, min(first + step, s.count))
            here = slice(s.first + some.start, s.first + some.stop)
            products = torch.relu_(q[here].float() @ keys.T)  # [rows, heads, positions]
            scores = torch.bmm(weights[here, None], products)[:, 0]
            ahead = torch.arange(length) > s.start + torch.arange(some.start, some.stop)[:, None]
            best, at = scores.masked_fill_(ahead, float("-inf")).topk(count, -1)
            found[some] = at.masked_fill(best == float("-inf"), -1)
        return found
