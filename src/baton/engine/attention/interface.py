"""The interface between a model and its cached state, and of the backend for one kind of state.

    model ── attend(rows, layer) ──▶ Backends (registry.py) ── rows, block tables ──▶ the backend of that kind of state
          ◀─────── out ────────────                         ◀──────── out ──────────

A backend works on pages and slots in place: a sequence's state is not gathered into a tensor.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol, Self, TypeVar

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from baton.core.memory.state import Full, Placement, Window

Seen = Full | Window  # the positions, up to its own, that a row attends to
ENDLESS = 1 << 40  # positions; more than any sequence has


def reach(placement: Placement, spec: str) -> int:
    """Return the most positions that a row attends to, its own included: the group's window."""
    extent = placement.table.group(placement.places[spec].spec.group).extent
    return extent.tokens if isinstance(extent, Window) else ENDLESS


class Segment(msgspec.Struct, frozen=True):
    """One sequence's rows in a flattened batch.

    Attributes:
        first: index of its first row
        count: rows (1 at decode, the chunk's length at prefill)
        start: position of the first row; row i sees positions 0 .. start + i, or those of them that
            are in its window
        block_table: int32, places in the pool (page * k + j) of blocks begin, begin + 1, ... of the
            sequence; for recurrent state, the sequence's one slot
        begin: the first block that is still held; rows do not see positions before it
        said: rows, the last ones, of tokens that were generated; a row has the same bits whether
            these are computed one by one or together
        undecided: rows, the last ones, of drafts, which may turn out to be wrong
    """

    first: int
    count: int
    start: int
    block_table: NDArray[np.int32]
    begin: int = 0
    said: int = 0
    undecided: int = 0


class AttentionMetadata(msgspec.Struct, frozen=True):
    """The places of a batch's sequences in one group of the state table.

    Attributes:
        segments: the sequences
        slot_mapping: int64 [rows], the place to write each row: block place * B + token in block
    """

    segments: Sequence[Segment]
    slot_mapping: torch.Tensor


class Rows(Protocol):
    """The rows that a layer passes to one kind of state:
    tensors [rows, ...]. One struct for each kind."""

    def at(self, index: slice | torch.Tensor) -> Self:
        """Return the rows at these indexes: a view for a slice, a copy for a tensor."""
        ...

    def new_out(self) -> torch.Tensor:
        """Return an uninitialised tensor for the output, [rows, ...]."""
        ...


# (rows, layer of this rank) -> output, with the shape of `new_out`
Attend = Callable[[Rows, int], torch.Tensor]


class AttentionRows(msgspec.Struct, frozen=True):
    """Rows of grouped-query attention: causal softmax(q k^T / sqrt(dim)) v.

    Attributes:
        q: [rows, heads, dim]
        k, v: [rows, kv heads, dim]
        sinks: float32 [heads], a score without a value in each head's softmax (gpt-oss); None = no
            sinks
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    sinks: torch.Tensor | None = None

    def at(self, index: slice | torch.Tensor) -> "AttentionRows":
        return AttentionRows(self.q[index], self.k[index], self.v[index], self.sinks)

    def new_out(self) -> torch.Tensor:
        """Return an uninitialised output, [rows, heads, dim]."""
        return self.q.new_empty(self.q.shape)


R = TypeVar("R", bound=Rows, contravariant=True)


class AttentionBackend(Protocol[R]):
    """One kind of state in one rank's pool.

    A row's output does not depend on other sequences of the batch.

    Attributes:
        rows: type of the rows that it takes
        beside: other specs of the state table that it maintains beside its own
    """

    rows: ClassVar[type[Rows]]
    beside: ClassVar[Sequence[str]]

    def warm(self) -> None:
        """Compile whatever would otherwise be compiled inside the first request."""
        ...

    def attend(
        self, rows: R, *, layer: int, metadata: AttentionMetadata, out: torch.Tensor
    ) -> None:
        """Add the rows to the state, then compute their outputs from it.

        `layer` is the index among the layers of the spec on this rank.
        """
        ...
