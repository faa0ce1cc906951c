"""Gated-delta layers (linear attention with one slot of state for each request), and a plain
backend.

    x ──▶ convolution over the last rows, SiLU ──▶ q, k, v          conv.q, conv.k, conv.v: the inputs of the last rows
    S ◀── exp(decay) S + k ⊗ beta (v - k · exp(decay) S)            delta: S, [key dim, value dim] of each value head
    out = q · S

Yang, Kautz, Hatamizadeh 2024 (Gated Delta Networks). q and k are normalised to length 1, and q is
divided by sqrt(key dim). A slot has the state after the last row computed. The first row of a
sequence starts from zeros, whatever the slot contains.
"""

from collections.abc import Sequence
from typing import ClassVar

import msgspec
import torch

from baton.core.memory.state import Placement
from baton.engine.attention.interface import AttentionMetadata, Rows, Segment
from baton.engine.attention.reference import pool_view
from baton.engine.kernels.team import NO_TEAM, Team
from baton.ports.fabric import Pool

DELTA = "delta"  # name of the spec of the recurrent state
CONVOLVED = ("conv.q", "conv.k", "conv.v")  # names of the specs of the convolution's past inputs
NORM_EPS = 1e-6  # in the normalisation of q and k


class DeltaRows(msgspec.Struct, frozen=True):
    """One batch's rows of one layer on one rank.

    Attributes:
        x: [rows, columns], inputs of the convolution in the served dtype: q and k of all key heads,
            then v of all value heads; further columns are not read
        decay: float32 [rows, value heads], logarithms, at most 0
        beta: float32 [rows, value heads], the share of the state's error that is corrected
        filters: float32 [taps, columns of q, k, v]; the last tap belongs to the row itself
        value: elements of a value head
    """

    x: torch.Tensor
    decay: torch.Tensor
    beta: torch.Tensor
    filters: torch.Tensor
    value: int

    def at(self, index: slice | torch.Tensor) -> "DeltaRows":
        return DeltaRows(
            self.x[index], self.decay[index], self.beta[index], self.filters, self.value
        )

    def new_out(self) -> torch.Tensor:
        """Return an uninitialised output, float32 [rows, value heads, value]."""
        return self.decay.new_empty(*self.decay.shape, self.value)


class Slots:
    """Views of the state of one rank's gated-delta layers in the pool.

    Attributes:
        key_heads, value_heads: heads on this rank
        state: float32 [slots, value heads, layers, key dim * value dim]
        past: for each of q, k, v: [slots, heads, layers, (taps - 1) * dim], oldest input first
    """

    def __init__(self, pool: Pool, placement: Placement) -> None:
        places = [placement.places[name] for name in (DELTA, *CONVOLVED)]
        self.value_heads, self.key_heads = places[0].heads.size, places[1].heads.size
        self.state, *past = (
            pool_view(pool, placement, place.spec.name)[:, :, :, 0, 0] for place in places
        )
        self.past = tuple(past)

    def dims(self, rows: DeltaRows) -> tuple[int, int]:
        """Return (elements of a key, elements of a value)."""
        kept = rows.filters.shape[0] - 1
        return self.past[0].shape[-1] // kept, self.past[2].shape[-1] // kept

    def columns(self, rows: DeltaRows) -> tuple[tuple[int, int, int], ...]:
        """Return (heads, elements of a head, first column in `x`) for each of q, k and v."""
        key, value = self.dims(rows)
        keys = self.key_heads * key
        return (
            (self.key_heads, key, 0),
            (self.key_heads, key, keys),
            (self.value_heads, value, 2 * keys),
        )


class ReferenceDelta:
    """Implements AttentionBackend in plain torch: one segment and one row at a time, in float32."""

    rows: ClassVar[type[Rows]] = DeltaRows
    beside: ClassVar[Sequence[str]] = CONVOLVED

    def __init__(
        self, pool: Pool, placement: Placement, spec: str = DELTA, team: Team = NO_TEAM
    ) -> None:
        self._slots = Slots(pool, placement)

    def warm(self) -> None:
        """Do nothing: nothing is compiled."""

    def attend(
        self, rows: DeltaRows, *, layer: int, metadata: AttentionMetadata, out: torch.Tensor
    ) -> None:
        slots = self._slots
        key, value = slots.dims(rows)
        shared = slots.value_heads // slots.key_heads
        for s in metadata.segments:
            here = slice(s.first, s.first + s.count)
            q, k, v = (self._convolved(n, layer, rows, s) for n in range(3))
            q, k = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + NORM_EPS) for x in (q, k))
            q, k = (q * key**-0.5).repeat_interleave(shared, 1), k.repeat_interleave(shared, 1)
            state = slots.state[int(s.block_table[0]), :, layer].view(-1, key, value)
            state = state.clone() if s.start else torch.zeros_like(state)
            for n, row in enumerate(range(here.start, here.stop)):
                state = state * rows.decay[row].exp()[:, None, None]
                error = v[n] - (k[n][:, :, None] * state).sum(1)
                state = state + k[n][:, :, None] * (error * rows.beta[row][:, None])[:, None]
                out[row] = (q[n][:, :, None] * state).sum(1)
            slots.state[int(s.block_table[0]), :, layer] = state.view(slots.value_heads, -1)

    def _convolved(self, part: int, layer: int, rows: DeltaRows, s: Segment) -> torch.Tensor:
        """Compute q, k or v of a segment, and store the inputs of its last rows in the slot.

        Returns float32 [rows, heads, dim].
        """
        heads, dim, column = self._slots.columns(rows)[part]
        taps, width = rows.filters.shape[0], heads * dim
        past = self._slots.past[part][int(s.block_table[0]), :, layer].view(heads, taps - 1, dim)
        before = past.transpose(0, 1).reshape(taps - 1, width)
        x = rows.x[s.first : s.first + s.count, column : column + width]
        inputs = torch.cat((before if s.start else torch.zeros_like(before), x))
        filters = rows.filters[:, column : column + width]
        found = sum(filters[n] * inputs[n : n + s.count].float() for n in range(taps))
        past.copy_(inputs[s.count :].view(taps - 1, heads, dim).transpose(0, 1))
        return torch.nn.functional.silu(torch.as_tensor(found)).view(s.count, heads, dim)
