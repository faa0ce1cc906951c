"""The index of sparse attention: chooses the positions that a row attends to (DeepSeek-V3.2, 2025).

    score(row, position) = sum over index heads of weight(row, head) * relu(query(row, head) ·
    key(position))

A layer caches one small key for each token; a row attends to the `count` positions with the highest
scores among those up to its own. Scores are only compared, so factors that are equal for all
positions are left out.
"""

from collections.abc import Sequence
from typing import ClassVar

import msgspec
import numpy as np
import torch

from baton.core.errors import ConfigError
from baton.core.memory.state import DType, Placement, StateSpec, StateTable
from baton.engine.attention.interface import AttentionMetadata, Rows, Segment
from baton.engine.attention.reference import pool_view
from baton.engine.kernels.team import NO_TEAM, Team
from baton.ports.fabric import Pool

INDEX, SCALES = "index.k", "index.s"  # names of the specs
LARGEST = 448.0  # largest number in e4m3
TINY = 1e-10  # keeps the scale of a key of zeros from being zero
SCORES = 1 << 22  # computed at once: 16 MB of float32


class IndexRows(msgspec.Struct, frozen=True):
    """One batch's rows for a layer's index.

    Attributes:
        q: [rows, heads, dim]
        k: [rows, dim], the keys to cache
        weights: float32 [rows, heads]
        count: number of positions that a row attends to
    """

    q: torch.Tensor
    k: torch.Tensor
    weights: torch.Tensor
    count: int

    def at(self, index: slice | torch.Tensor) -> "IndexRows":
        return IndexRows(self.q[index], self.k[index], self.weights[index], self.count)

    def new_out(self) -> torch.Tensor:
        """Return an uninitialised output, int64 [rows, count]: positions, with -1 after the last
        one.

        If no row of a segment sees more than `count` positions, its rows begin with -1: they attend
        to all positions that they see, and the rest is not written.
        """
        return torch.empty((len(self.q), self.count), dtype=torch.int64)


class TopKIndex:
    """Implements AttentionBackend for index keys, as
    they are or in fp8 with scales (spec SCALES)."""

    rows: ClassVar[type[Rows]] = IndexRows
    beside: ClassVar[Sequence[str]] = (SCALES,)

    def __init__(
        self, pool: Pool, placement: Placement, spec: str = INDEX, team: Team = NO_TEAM
    ) -> None:
        self._keys = pool_view(pool, placement, spec)
        self._scales = pool_view(pool, placement, SCALES) if SCALES in placement.places else None
        self._tokens = placement.table.block_tokens

    def warm(self) -> None:
        """Do nothing: nothing is compiled."""

    def attend(
        self, rows: IndexRows, *, layer: int, metadata: AttentionMetadata, out: torch.Tensor
    ) -> None:
        self._write(layer, rows.k, metadata.slot_mapping)
        for s in metadata.segments:
            here = slice(s.first, s.first + s.count)
            if s.start + s.count > rows.count:
                self._choose(layer, rows.q[here], rows.weights[here], s, out[here])
            else:
                out[here, 0] = -1

    def _write(self, layer: int, k: torch.Tensor, slots: torch.Tensor) -> None:
        at = (slots // self._tokens, 0, layer, 0, slots % self._tokens)
        if self._scales is None:
            self._keys[at] = k
            return
        scales = k.float().abs().amax(1, keepdim=True).clamp_(min=TINY) / LARGEST
        self._keys.view(torch.uint8)[at] = (
            (k.float() / scales).to(self._keys.dtype).view(torch.uint8)
        )
        self._scales[at] = scales

    def _choose(
        self, layer: int, q: torch.Tensor, weights: torch.Tensor, s: Segment, out: torch.Tensor
    ) -> None:
        """Choose the positions for one segment's rows."""
        length = s.start + s.count
        keys = self._read(layer, s)[:length]
        step = max(1, SCORES // (length * q.shape[1]))
        for first in range(0, s.count, step):
            here = slice(first, min(first + step, s.count))
            products = torch.relu_(q[here].float() @ keys.T)  # [rows, heads, positions]
            scores = torch.bmm(weights[here, None], products)[:, 0]
            ahead = torch.arange(length) > s.start + torch.arange(here.start, here.stop)[:, None]
            best, at = first_best(scores.masked_fill_(ahead, float("-inf")), out.shape[1])
            out[here] = at.masked_fill(best == float("-inf"), -1)

    def _read(self, layer: int, s: Segment) -> torch.Tensor:
        """Read the keys of a segment's blocks: float32 [positions, dim]."""
        blocks = torch.from_numpy(s.block_table.astype(np.int64))
        dim = self._keys.shape[-1]
        if self._scales is None:
            return self._keys[blocks, 0, layer, 0].reshape(-1, dim).float()
        stored = (
            self._keys.view(torch.uint8)[blocks, 0, layer, 0]
            .reshape(-1, dim)
            .view(self._keys.dtype)
        )
        return stored.float() * self._scales[blocks, 0, layer, 0].reshape(-1, 1)


def first_best(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the `count` highest scores of each row and their positions; ties go to the first
    position.

    `torch.topk` breaks ties arbitrarily, and differently for different lengths. The positions that
    a row attends to would then depend on how its prompt was divided into chunks.

    Args:
        scores: [rows, positions], -inf for a position that a row may not see
        count: number of positions to choose
    """
    best, at = scores.topk(count, -1)
    last = best[:, -1:]
    tied = (scores == last).sum(1) > (best == last).sum(1)
    tied &= last[:, 0] > float("-inf")
    if tied.any():
        some, where = scores[tied].sort(dim=-1, descending=True, stable=True)
        best[tied], at[tied] = some[:, :count], where[:, :count]
    return best, at


def with_fp8_index(table: StateTable) -> StateTable:
    """Return a table whose index keys are e4m3, with one float32 scale a token in a second spec.

    Raises:
        ConfigError: the model has no index
    """
    specs: list[StateSpec] = []
    for spec in table.specs:
        if spec.name == INDEX:
            keys = msgspec.structs.replace(spec, dtype=DType.FP8)
            specs += [
                keys,
                msgspec.structs.replace(spec, name=SCALES, parts=("s",), row=1, dtype=DType.F32),
            ]
        else:
            specs.append(spec)
    if len(specs) == len(table.specs):
        raise ConfigError(
            "--index-dtype fp8: this model has no index; leave the flag away, "
            "or serve DeepSeek-V3.2 or GLM-5"
        )
    return msgspec.structs.replace(table, specs=tuple(specs))
