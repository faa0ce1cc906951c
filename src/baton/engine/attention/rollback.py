"""Takes drafts that were wrong back out of recurrent state.

    slots ──copied──▶ before        (those of sequences with drafts)
      │ every layer computes its rows, which are kept
      ▼
    settle: before ──▶ slots ──▶ every layer computes the rows that were right once more

A slot has the state after the last row only, so the way back is the way from its state before the
batch. The same rows are computed by the same backend: afterwards the slot has the bits that it
would have without drafts. Where all drafts were right nothing is done. One copy and a few rows of
each layer's input are much less than the state after each draft, which is as large as the slot.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from baton.engine.attention.interface import AttentionBackend, AttentionMetadata, Rows, Segment


class _Computed(NamedTuple):
    """What one layer has computed: its rows of the sequences with drafts, one after the other."""

    backend: AttentionBackend[Any]
    layer: int
    rows: Rows


class Rollback:
    """The way back of one batch in one group of slots."""

    def __init__(self, slots: NDArray[np.uint8], metadata: AttentionMetadata) -> None:
        """slots: uint8 [slots, bytes of one], before the batch has written to them"""
        self._slots = slots
        # by number in the batch
        self._drafted = {n: s for n, s in enumerate(metadata.segments) if s.undecided}
        self._before = slots[[_slot(s) for s in self._drafted.values()]]
        self._rows = _rows(list(self._drafted.values()))
        self._computed: list[_Computed] = []

    def computes(self, backend: AttentionBackend[Any], rows: Rows, *, layer: int) -> None:
        """A layer computes these rows of the batch; `layer` as for the backend."""
        self._computed.append(_Computed(backend, layer, rows.at(self._rows)))

    def settle(self, right: Sequence[int]) -> None:
        """Take back all rows but the first ones of each segment of the batch.

        right: how many of a segment's rows were of right tokens
        """
        first, kept, again = 0, list[Segment](), list[Segment]()
        for before, (n, s) in zip(self._before, self._drafted.items(), strict=True):
            assert s.count - s.undecided <= right[n] <= s.count, "only drafts may be wrong"
            if right[n] < s.count:
                self._slots[_slot(s)] = before
                said = max(0, s.said - s.count + right[n])
                cut = msgspec.structs.replace(s, count=right[n], said=said, undecided=0)
                kept.append(msgspec.structs.replace(cut, first=first))  # among the rows kept
                again.append(msgspec.structs.replace(cut, first=sum(c.count for c in again)))
            first += s.count
        if not again:
            return
        picked = _rows(kept)
        metadata = AttentionMetadata(again, torch.zeros(len(picked), dtype=torch.int64))
        for backend, layer, rows in self._computed:
            once_more = rows.at(picked)
            out = once_more.new_out()
            backend.attend(once_more, layer=layer, metadata=metadata, out=out)


def _slot(s: Segment) -> int:
    return int(s.block_table[0])


def _rows(segments: Sequence[Segment]) -> torch.Tensor:
    """Return the indexes of the rows of segments, int64 [rows]."""
    return torch.cat([torch.arange(s.first, s.first + s.count) for s in segments])
