"""What a model hands to a layer's cached state, and what a backend for one kind of state does with it.

    model ── attend(rows, layer) ──▶ Backends (registry.py) ── rows, block tables ──▶ the backend of that kind of state
          ◀─────── out ────────────                         ◀──────── out ──────────

A backend works on pages and slots where they lie: a sequence's state is never gathered into a tensor of its own.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol, Self, TypeVar

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from baton.core.memory.state import Full, Placement, Window

Seen = Full | Window  # which of the positions up to its own a row attends to
ENDLESS = 1 << 40  # positions; more than any sequence has


def reach(placement: Placement, spec: str) -> int:
    """Positions that a row attends to at most, its own included: the window of the spec's group."""
    extent = placement.table.group(placement.places[spec].spec.group).extent
    return extent.tokens if isinstance(extent, Window) else ENDLESS


class Segment(msgspec.Struct, frozen=True):
    """One sequence's rows in a flattened batch.

    Attributes:
        first: index of its first row
        count: rows (1 at decode, the chunk's length at prefill)
        start: position of the first row; row i sees positions 0 .. start + i, or the last of them that lie in its window
        block_table: int32, slots in the pool (page * k + j) of blocks begin, begin + 1, ... of the sequence; of recurrent
            state the sequence's one slot
        begin: the first block that is still held; rows see nothing before it
    """

    first: int
    count: int
    start: int
    block_table: NDArray[np.int32]
    begin: int = 0


class AttentionMetadata(msgspec.Struct, frozen=True):
    """Where one group of the state table keeps the sequences of a batch.

    Attributes:
        segments: the sequences
        slot_mapping: int64 [rows], where each row is written: block slot * B + token in block
    """

    segments: Sequence[Segment]
    slot_mapping: torch.Tensor


class Rows(Protocol):
    """What one layer hands to one kind of state: tensors of [rows, ...]. Each kind has a struct of its own."""

    def first(self, count: int) -> Self:
        """The first `count` rows."""
        ...

    def new_out(self) -> torch.Tensor:
        """An uninitialised tensor for the answer, [rows, ...]."""
        ...


Attend = Callable[[Rows, int], torch.Tensor]  # rows, layer of this rank -> the answer, as `new_out` shapes it


class AttentionRows(msgspec.Struct, frozen=True):
    """Rows of grouped-query attention: causal softmax(q k^T / sqrt(dim)) v.

    Attributes:
        q: [rows, heads, dim]
        k, v: [rows, kv heads, dim]
        sinks: float32 [heads], a score without a value that takes part in each head's softmax (gpt-oss); None: there is none
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    sinks: torch.Tensor | None = None

    def first(self, count: int) -> "AttentionRows":
        return AttentionRows(self.q[:count], self.k[:count], self.v[:count], self.sinks)

    def new_out(self) -> torch.Tensor:
        """[rows, heads, dim]."""
        return self.q.new_empty(self.q.shape)


R = TypeVar("R", bound=Rows, contravariant=True)


class AttentionBackend(Protocol[R]):
    """One kind of state over one rank's pool. A row's answer does not depend on other sequences of the batch.

    Attributes:
        rows: what it is handed
        beside: other specs of the state table that it keeps along with its own
    """

    rows: ClassVar[type[Rows]]
    beside: ClassVar[Sequence[str]]

    def warm(self) -> None:
        """Compile whatever would otherwise be compiled inside the first request."""
        ...

    def attend(self, rows: R, *, layer: int, metadata: AttentionMetadata, out: torch.Tensor) -> None:
        """Add the rows to the state, then answer them from it. layer counts those of the spec on this rank."""
        ...
