"""Gated-delta layers on a CPU: compiled steps for rows of generated tokens, a chunked scan for
those of a prompt.

So a generated token has the same bits, however many are computed at once. With scans only, a decode
step of the model `qwen3_next` of tools/decode_step.py (bfloat16, one thread) takes 1.2 times the
processor time for one sequence, and 1.5 times for eight.
"""

from collections.abc import Sequence
from typing import ClassVar

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from baton.core.memory.state import Placement
from baton.engine.attention import delta_kernels as kernels
from baton.engine.attention.cpu import BITS
from baton.engine.attention.delta import CONVOLVED, DELTA, NORM_EPS, DeltaRows, Slots
from baton.engine.attention.interface import AttentionMetadata, Rows, Segment
from baton.engine.kernels.team import NO_TEAM, Team
from baton.engine.ops import padded
from baton.ports.fabric import Pool

CHUNK = 64  # rows whose corrections are solved together


class CpuDelta:
    """Implements AttentionBackend, one thread."""

    rows: ClassVar[type[Rows]] = DeltaRows
    beside: ClassVar[Sequence[str]] = CONVOLVED

    def __init__(
        self, pool: Pool, placement: Placement, spec: str = DELTA, team: Team = NO_TEAM
    ) -> None:
        self._slots = Slots(pool, placement)
        self._stored, self._numpy = BITS[placement.places[CONVOLVED[0]].spec.dtype]
        self._state = _flat(self._slots.state, pool).numpy()
        self._past = _flat(self._slots.past[0], pool).view(self._stored).numpy().view(self._numpy)
        self._layers = {name: _layers(placement, name) for name in (DELTA, *CONVOLVED)}

    def warm(self) -> None:
        """Compile (or load) the kernels, by running them over an empty list of segments."""
        none, rows = np.zeros(0, dtype=kernels.SEGMENT), torch.zeros(1, 1)
        stored = torch.zeros(1, 1, dtype=self._slots.past[0].dtype)
        nothing = DeltaRows(stored, rows, rows, torch.zeros(2, 1), 1)
        out = np.zeros((1, 1), dtype=np.float32)
        self._convolve(0, nothing, none, out, [(1, 1, 0)])
        self._step(0, nothing, none, out, out[None], 1)

    def attend(
        self, rows: DeltaRows, *, layer: int, metadata: AttentionMetadata, out: torch.Tensor
    ) -> None:
        (key, value), count = self._slots.dims(rows), len(out)
        columns = self._slots.columns(rows)
        mixed = np.empty((count, rows.filters.shape[1]), dtype=np.float32)
        self._convolve(layer, rows, _table(metadata.segments), mixed, columns)
        for s in metadata.segments:
            if (prompt := s.count - s.said) > 0:
                here = slice(s.first, s.first + prompt)
                state = self._slots.state[int(s.block_table[0]), :, layer].view(-1, key, value)
                before = state if s.start else torch.zeros_like(state)
                q, k, v = (
                    torch.from_numpy(mixed[here, column : column + heads * dim]).view(
                        prompt, heads, dim
                    )
                    for heads, dim, column in columns
                )
                out[here], after = scan(q, k, v, rows.decay[here], rows.beta[here], before)
                state.copy_(after)
        said = _table([_said(s) for s in metadata.segments if s.said])
        self._step(layer, rows, said, mixed, out.numpy(), key)

    def _convolve(
        self,
        layer: int,
        rows: DeltaRows,
        table: NDArray[np.void],
        mixed: NDArray[np.float32],
        columns: Sequence[tuple[int, int, int]],
    ) -> None:
        x, filters = (
            rows.x.contiguous().view(self._stored).numpy().view(self._numpy),
            rows.filters.numpy(),
        )
        eps = np.float32(NORM_EPS)
        for part, (heads, dim, column) in enumerate(columns):
            scale, here = (
                np.float32((dim**-0.5, 1.0, 1.0)[part]),
                self._layers[CONVOLVED[part]][layer],
            )
            kernels.convolve(
                self._past, x, filters, mixed, table, here, heads, dim, column, part < 2, scale, eps
            )

    def _step(
        self,
        layer: int,
        rows: DeltaRows,
        table: NDArray[np.void],
        mixed: NDArray[np.float32],
        out: NDArray[np.float32],
        key: int,
    ) -> None:
        decay, beta = rows.decay.contiguous().numpy(), rows.beta.contiguous().numpy()
        kernels.step(
            self._state,
            mixed,
            decay,
            beta,
            out,
            table,
            self._layers[DELTA][layer],
            self._slots.key_heads,
            key,
        )


def scan(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the recurrence in chunks.

    In a chunk, the corrections of all rows are a triangular system (Yang et al. 2024, section 3).
    All tensors are float32. Rows that pad the last chunk leave the state unchanged.

    Args:
        q, k: [rows, key heads, key]
        v: [rows, value heads, value]
        decay, beta: [rows, value heads]
        state: [value heads, key, value], before the first row

    Returns:
        The outputs [rows, value heads, value], and the state after the last row
    """
    count, heads, value = v.shape
    size = min(CHUNK, count)

    def chunks(x: torch.Tensor) -> torch.Tensor:
        """Reshape to [value heads, chunks, size, ...]."""
        x = padded(x, -count % size).repeat_interleave(heads // x.shape[1], 1)
        return x.transpose(0, 1).reshape(heads, -1, size, *x.shape[2:])

    q, k, v, beta = chunks(q), chunks(k), chunks(v), chunks(beta)[..., None]
    since = chunks(decay).cumsum(-1)[..., None]  # log of the decay since the chunk's first state
    between = since - since.transpose(-1, -2)
    between = between.masked_fill(
        torch.ones(size, size, dtype=torch.bool).triu(1), float("-inf")
    ).exp()  # decay from an earlier row to a later one
    left = since.exp()
    system = k @ k.transpose(-1, -2) * beta * between
    solved = torch.linalg.solve_triangular(
        system, torch.cat((v, k * left), -1) * beta, upper=False, unitriangular=True
    )
    written, read = solved.split((value, k.shape[-1]), -1)
    seen, asked = q @ k.transpose(-1, -2) * between, q * left
    last = since[..., -1:, :]
    told, kept = (k * (last - since).exp()).transpose(-1, -2), last.exp()
    found = torch.empty_like(v)
    for n in range(v.shape[1]):
        new = written[:, n] - read[:, n] @ state
        found[:, n] = asked[:, n] @ state + seen[:, n] @ new
        state = state * kept[:, n] + told[:, n] @ new
    return found.flatten(1, 2).transpose(0, 1)[:count], state


def _said(s: Segment) -> Segment:
    """Return the part of a segment that was generated."""
    prompt = s.count - s.said
    return msgspec.structs.replace(s, first=s.first + prompt, count=s.said, start=s.start + prompt)


def _table(segments: Sequence[Segment]) -> NDArray[np.void]:
    """Convert segments to the array that the kernels take."""
    return np.array(
        [(s.first, s.count, s.block_table[0], not s.start) for s in segments], dtype=kernels.SEGMENT
    )


def _flat(view: torch.Tensor, pool: Pool) -> torch.Tensor:
    """View a pool's memory as elements of the dtype of `view`."""
    return view.as_strided((pool.nbytes // view.itemsize,), (1,), 0)


def _layers(placement: Placement, name: str) -> list[kernels.SlotLayer]:
    """Return the location of each layer of a spec."""
    place = placement.places[name]
    slot, size = placement.block_bytes(place.spec.group), place.spec.dtype.size
    starts = (place.offset + n * place.layer_stride for n in range(len(place.layers)))
    return [
        kernels.SlotLayer(slot // size, start // size, place.head_stride // size)
        for start in starts
    ]
