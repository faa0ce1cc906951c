"""What the engine asks of an attention backend.

A backend works on the pages where they lie: a request's K and V are never gathered into a tensor of their own.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from baton.core.state import Full, Window

Seen = Full | Window  # which of the positions up to its own a row attends to
ENDLESS = 1 << 40  # positions; more than any sequence has


def reach(seen: Seen) -> int:
    """Positions that a row attends to at most, its own included."""
    return seen.tokens if isinstance(seen, Window) else ENDLESS


class Segment(msgspec.Struct, frozen=True):
    """One room's rows in a flattened batch.

    Attributes:
        first: index of its first row
        count: rows (1 at decode, the chunk's length at prefill)
        start: position of the first row; row i sees positions 0 .. start + i, or as many of the last as its layer's window has
        blocks: int32, slot in the pool (page * k + j) of blocks begin, begin + 1, ... of the sequence
        begin: the first block that is still held; rows see nothing before it
    """

    first: int
    count: int
    start: int
    blocks: NDArray[np.int32]
    begin: int = 0


class AttentionBackend(Protocol):
    """Paged causal attention over one rank's pool of K and V."""

    def warm(self) -> None:
        """Compile whatever would otherwise be compiled inside the first request."""
        ...

    def write(self, *, layer: int, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
        """Store rows. k, v: [rows, kv heads, dim]; slots: int64 [rows], block slot * B + token in block.

        On latent rows there is one head, and v is the first elements of k.
        """
        ...

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
        """Causal softmax(q k^T / sqrt(dim)) v. q: [rows, heads, dim], out: [rows, heads, dim of v]; layer counts those of this
        spec on this rank. On latent rows (latent.py) nothing is divided: queries come scaled.

        A row at position p attends to positions 0 .. p, or with a window of w tokens to p - w + 1 .. p.

        sinks: float32 [heads], a score without a value that takes part in each head's softmax (gpt-oss); None: there is none.

        k, v are the rows just written, for backends that would rather not read them back.
        """
        ...
