"""The plain backend that others are tested against:
one segment and one head at a time, in float32."""

import ctypes
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch

from baton.core.memory.state import Placement, Unit
from baton.engine.attention.interface import AttentionMetadata, AttentionRows, Rows, reach
from baton.engine.kernels.team import NO_TEAM, Team
from baton.ports.fabric import Pool

TORCH = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "fp8": torch.float8_e4m3fn,
}


def pool_view(pool: Pool, placement: Placement, spec: str = "kv") -> torch.Tensor:
    """View the pool's rows of a spec as [block, head, layer, part, token, row], strided, without a
    copy.

    The dtype is that of the spec. A slot counts as a block of one token.
    """
    place = placement.places[spec]
    raw = np.ctypeslib.as_array((ctypes.c_uint8 * pool.nbytes).from_address(pool.address))
    flat = torch.from_numpy(raw).view(TORCH[place.spec.dtype.value])
    size = place.spec.dtype.size
    block = placement.block_bytes(place.spec.group)
    shape = (
        pool.nbytes // block,
        place.heads.size,
        len(place.layers),
        len(place.spec.parts),
        placement.table.block_tokens
        if placement.table.group(place.spec.group).unit is Unit.PAGE
        else 1,
        place.spec.row,
    )
    strides = (
        block,
        place.head_stride,
        place.layer_stride,
        place.part_stride,
        place.row_bytes,
        size,
    )
    return flat.as_strided(shape, tuple(s // size for s in strides), place.offset // size)


class ReferenceAttention:
    """Implements AttentionBackend."""

    rows: ClassVar[type[Rows]] = AttentionRows
    beside: ClassVar[Sequence[str]] = ()

    def __init__(
        self, pool: Pool, placement: Placement, spec: str = "kv", team: Team = NO_TEAM
    ) -> None:
        self._view = pool_view(pool, placement, spec)
        self._tokens, self._window = placement.table.block_tokens, reach(placement, spec)

    def warm(self) -> None:
        """Do nothing: nothing is compiled."""

    def attend(
        self, rows: AttentionRows, *, layer: int, metadata: AttentionMetadata, out: torch.Tensor
    ) -> None:
        blocks, tokens = metadata.slot_mapping // self._tokens, metadata.slot_mapping % self._tokens
        for head in range(rows.k.shape[1]):
            self._view[blocks, head, layer, 0, tokens] = rows.k[:, head]
            self._view[blocks, head, layer, 1, tokens] = rows.v[:, head]
        heads, dim = rows.q.shape[1], rows.q.shape[2]
        group = heads // self._view.shape[1]
        for s in metadata.segments:
            here = slice(s.first, s.first + s.count)
            before = s.begin * self._tokens
            length = s.start + s.count - before
            blocks = torch.from_numpy(s.block_table.astype(np.int64))
            # from a row back to a key
            back = s.start - before + torch.arange(s.count)[:, None] - torch.arange(length)[None]
            visible = (back >= 0) & (back < self._window)
            for head in range(heads):
                kv = self._view[blocks, head // group, layer].float()  # [blocks, part, token, row]
                k, v = (kv[:, n].reshape(-1, dim)[:length] for n in (0, 1))
                scores = (rows.q[here, head].float() @ k.T) * dim**-0.5
                scores = scores.masked_fill(~visible, float("-inf"))
                if rows.sinks is not None:
                    scores = torch.cat((scores, rows.sinks[head].expand(s.count, 1)), -1)
                out[here, head] = (scores.softmax(-1)[:, :length] @ v).to(out.dtype)
