"""Paged attention on a CPU: an AttentionBackend over compiled kernels.

Rows of generated tokens are computed one by one, those of a prompt in tiles (Dao et al. 2022). The
two add up in different orders, so a row takes the kernel of what its token is, however many are
computed at once. If the layout of the pool allows it, rows are multiplied in place, without a copy
(`direct`).

What each of the two is worth, as processor time of a step of the model `llama` of
tools/decode_step.py (bfloat16, one thread, context 512): with tiles only, a decode step takes 1.17
times as long for one sequence and 1.54 times for eight; with copies always, 1.05 and 1.10 times.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from baton.core.memory.state import DType, Placement
from baton.engine.attention.interface import (
    ENDLESS,
    AttentionBackend,
    AttentionMetadata,
    AttentionRows,
    R,
    Rows,
    Segment,
    reach,
)
from baton.engine.attention.paged import PagedJob, StoreJob, store
from baton.engine.attention.reference import pool_view
from baton.engine.attention.single import SingleJob, single, single_of_pairs
from baton.engine.attention.softmax import LOW
from baton.engine.attention.tiles import TilesJob, tiles, tiles_of_pairs, tiles_on_amx
from baton.engine.kernels import amx
from baton.engine.kernels.team import NO_TEAM, Task, Team
from baton.engine.kernels.vectors import LANES, PAIRS, PANEL, ROWS
from baton.ports.fabric import Pool

ALONE = 1 << 20  # below this many multiplications, a second thread costs more than it gains
LOG2_E = 1.4426950408889634
BITS = {
    DType.F32: (torch.float32, np.float32),
    DType.BF16: (torch.int16, np.uint16),
    DType.F16: (torch.int16, np.int16),
}


class _Generated(NamedTuple):
    """The rows of generated tokens in a batch, as the kernel takes them.

    Attributes:
        segments: of which they are
        places: int64 [rows], index of each among the rows of the batch
        lengths: int64 [rows], positions up to each row's own, from the first block that is held
        tables: int32 [rows, blocks]
    """

    segments: Sequence[Segment]
    places: NDArray[np.int64]
    lengths: NDArray[np.int64]
    tables: NDArray[np.int32]


class _Where(NamedTuple):
    """Where rows lie: the fields of PagedJob, without the layer's start."""

    pool: int
    block_stride: int
    head_stride: int
    part_stride: int
    tokens: int


class PagedRows:
    """The cached rows of one spec, and kernels over them, for float32, bfloat16 and float16; they
    run on one compute thread and its team.

    In a spec with one part, the rows are keys, and values are the first elements of keys. `scale`
    is the factor of the scores.
    """

    def __init__(
        self, pool: Pool, placement: Placement, spec: str, *, scale: float, team: Team
    ) -> None:
        place, stored = placement.places[spec], placement.places[spec].spec.dtype
        self.view = pool_view(pool, placement, spec)
        self.dtype, self.tokens, self.dim = (
            self.view.dtype,
            placement.table.block_tokens,
            place.spec.row,
        )
        self.kv_heads, self._window, self._team = place.heads.size, reach(placement, spec), team
        block, parts = placement.block_bytes(place.spec.group), len(place.spec.parts)
        strides = (block, place.offset, place.head_stride, place.part_stride if parts > 1 else 0)
        # rows begin at whole pairs
        even = all(n % 4 == 0 for n in (*strides, place.layer_stride, place.row_bytes))
        paired = PAIRS and stored is DType.BF16 and even
        self._store = Task(store, stored, StoreJob)
        self._single = Task(single_of_pairs if paired else single, stored, SingleJob)
        on_amx = paired and amx.available() and self.dim // 2 % amx.AMX_DEPTH == 0
        in_tiles = tiles_on_amx if on_amx else tiles_of_pairs if paired else tiles
        self._tiles = Task(in_tiles, stored, TilesJob)
        self._lines = amx.AMX_ROWS if on_amx else ROWS  # of a product
        block_stride, base, head_stride, part_stride = (n // stored.size for n in strides)
        self._where = _Where(pool.address, block_stride, head_stride, part_stride, self.tokens)
        self._bases = [
            base + n * place.layer_stride // stored.size for n in range(len(place.layers))
        ]
        width = self.dim // 2 if paired else self.dim
        multiplied = paired or stored is DType.F32
        self._direct = multiplied and width % LANES == 0 and self.tokens % LANES == 0
        self._single.job.scale = self._tiles.job.scale = LOG2_E * scale
        self._found: _Generated | None = None  # of the batch whose layers are being computed

    def store(
        self, layer: int, k: torch.Tensor, v: torch.Tensor, slot_mapping: torch.Tensor
    ) -> None:
        """Write rows to their slots.

        Args:
            layer: index among the layers of the spec on this rank
            k: [rows, kv heads, dim], in the served dtype
            v: as k; [rows, kv heads, 0] if only keys are cached
            slot_mapping: int64 [rows], block * tokens + token
        """
        k, v, job = self._rows(k), self._rows(v), self._store.job
        self._place(job, self._where, self._bases[layer])
        job.rows, job.wide, job.slots = len(k), v.shape[2], slot_mapping.data_ptr()
        job.k, job.k_row, job.v, job.v_row = k.data_ptr(), k.stride(0), v.data_ptr(), v.stride(0)
        self._store.alone()

    def attend(
        self,
        layer: int,
        q: torch.Tensor,
        segments: Sequence[Segment],
        out: torch.Tensor,
        sinks: torch.Tensor | None = None,
    ) -> None:
        """Compute attention of each row over all positions that it sees.

        Args:
            layer: index among the layers of the spec on this rank
            q: [rows, heads, dim], in the served dtype
            segments: the sequences of the rows
            out: [rows, heads, dim of values], is written; each row is contiguous
            sinks: float32 [heads], or None
        """
        q, sunk = self._rows(q), self._sunk(sinks, q.shape[1])
        base = self._bases[layer]
        if self._found is None or self._found.segments is not segments:
            self._found = generated(segments, self.tokens)
        if len(self._found.places):
            self._each(q, self._found, self._window, sunk, self._where, base, out)
        for s in segments:
            if s.said < s.count:
                self._attend_prompt(base, q, s, sunk, out)

    def attend_gathered(
        self, q: torch.Tensor, rows: torch.Tensor, counts: torch.Tensor, out: torch.Tensor
    ) -> None:
        """Compute attention of each query over its own list of rows.

        Args:
            q: [queries, heads, dim]
            rows: [queries, most, dim]
            counts: int64 [queries], number of rows to attend to
            out: [queries, heads, dim of values], is written; each row is contiguous
        """
        most = _up(rows.shape[1], LANES)  # a whole number of vectors, so that rows need no copy
        rows = torch.nn.functional.pad(rows, (0, 0, 0, most - rows.shape[1])).contiguous()
        listed = _Generated(
            (),
            np.arange(len(q), dtype=np.int64),
            counts.numpy(),
            np.arange(len(q), dtype=np.int32)[:, None],
        )
        where = _Where(rows.data_ptr(), most * self.dim, 0, 0, most)
        sunk = self._sunk(None, q.shape[1])
        self._each(self._rows(q), listed, ENDLESS, sunk, where, 0, out)

    def _rows(self, x: torch.Tensor) -> torch.Tensor:
        """Return rows of heads that lie one behind the other; a row need not follow on another."""
        assert x.dtype is self.dtype, f"rows of {x.dtype} where {self.dtype} is cached"
        return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()

    def _place(self, job: PagedJob, where: _Where, base: int) -> None:
        job.pool, job.block_stride, job.head_stride, job.part_stride, job.tokens = where
        job.base, job.dim, job.kv_heads = base, self.dim, self.kv_heads

    def _sunk(self, sinks: torch.Tensor | None, heads: int) -> NDArray[np.float32]:
        """Return sinks for the kernels: float32 [heads], times log2(e); LOW = no sink."""
        if sinks is None:
            return np.full(heads, LOW)
        scaled: NDArray[np.float32] = (sinks.float() * LOG2_E).numpy()
        return scaled

    def _run(self, task: Task[Any], pairs: int) -> None:
        """Run a kernel that looks at so many pairs of a row and a position."""
        job = task.job
        if pairs * job.kv_heads * job.group * (job.dim + job.wide) < ALONE:
            task.alone()
        else:
            self._team.run(task)

    def _each(
        self,
        q: torch.Tensor,
        rows: _Generated,
        window: int,
        sunk: NDArray[np.float32],
        where: _Where,
        base: int,
        out: torch.Tensor,
    ) -> None:
        """Compute rows one by one, each over the first positions of its own block table."""
        job, wide = self._single.job, out.shape[2]
        self._place(job, where, base)
        job.group, job.wide, job.window = q.shape[1] // self.kv_heads, wide, window
        job.q, job.q_row, job.out, job.out_row = (
            q.data_ptr(),
            q.stride(0),
            out.data_ptr(),
            out.stride(0),
        )
        job.sinks, job.direct = sunk.ctypes.data, self._direct and wide % PANEL == 0
        job.rows, job.blocks = rows.tables.shape
        job.places, job.lengths, job.tables = (
            rows.places.ctypes.data,
            rows.lengths.ctypes.data,
            rows.tables.ctypes.data,
        )
        self._run(self._single, int(rows.lengths.sum()))

    def _attend_prompt(
        self,
        base: int,
        q: torch.Tensor,
        s: Segment,
        sunk: NDArray[np.float32],
        out: torch.Tensor,
    ) -> None:
        """Compute the rows of a segment's prompt."""
        job, group = self._tiles.job, q.shape[1] // self.kv_heads
        self._place(job, self._where, base)
        job.group, job.wide, job.window = group, out.shape[2], self._window
        q, out = q[s.first :], out[s.first :]
        job.q, job.q_row, job.out, job.out_row = (
            q.data_ptr(),
            q.stride(0),
            out.data_ptr(),
            out.stride(0),
        )
        job.sinks, job.rows, job.start, job.begin = (
            sunk.ctypes.data,
            s.count - s.said,
            s.start,
            s.begin,
        )
        job.table = s.block_table.ctypes.data
        # where heads do not divide equally, each thread gets a share of each head
        shares = 1 if self.kv_heads % self._team.threads == 0 else 2 * self._team.threads
        job.share = _up(-(-job.rows * group // shares), self._lines)
        self._run(self._tiles, job.rows * (s.start + s.count))


def generated(segments: Sequence[Segment], tokens: int) -> _Generated:
    """Return the rows of generated tokens in a batch, in their order, with blocks of so many
    tokens."""
    said = sorted((s for s in segments if s.said), key=lambda s: s.first)
    counts = [s.said for s in said]
    tables = np.zeros((sum(counts), max((len(s.block_table) for s in said), default=0)), np.int32)
    places: list[int] = []
    lengths: list[int] = []
    n = 0
    for s in said:
        past = s.first + s.count
        places += range(past - s.said, past)
        # Positions are counted from the first one held; scores do not depend on the offset.
        end = s.start - s.begin * tokens + s.count
        lengths += range(end - s.said + 1, end + 1)
        tables[n : n + s.said, : len(s.block_table)] = s.block_table
        n += s.said
    return _Generated(segments, np.array(places, np.int64), np.array(lengths, np.int64), tables)


class CpuAttention:
    """Implements AttentionBackend."""

    rows: ClassVar[type[Rows]] = AttentionRows
    beside: ClassVar[Sequence[str]] = ()

    def __init__(
        self, pool: Pool, placement: Placement, spec: str = "kv", team: Team = NO_TEAM
    ) -> None:
        scale = placement.places[spec].spec.row ** -0.5
        self._pages = PagedRows(pool, placement, spec, scale=scale, team=team)

    def warm(self) -> None:
        pages = self._pages

        def zeros(count: int) -> AttentionRows:
            x = torch.zeros(count, pages.kv_heads, pages.dim, dtype=pages.dtype)
            return AttentionRows(x, x, x)

        run_on_zeros(self, zeros)

    def attend(
        self, rows: AttentionRows, *, layer: int, metadata: AttentionMetadata, out: torch.Tensor
    ) -> None:
        self._pages.store(layer, rows.k, rows.v, metadata.slot_mapping)
        self._pages.attend(layer, rows.q, metadata.segments, out, rows.sinks)


def run_on_zeros(backend: AttentionBackend[R], zeros: Callable[[int], R]) -> None:
    """Compile (or load) both kernels, by running them over the first block of the unused pool.

    Args:
        backend: the backend whose kernels are compiled
        zeros: makes a number of rows
    """
    for said in (0, 1):
        segment = Segment(
            first=0, count=1, start=0, block_table=np.zeros(1, dtype=np.int32), said=said
        )
        metadata = AttentionMetadata([segment], torch.zeros(1, dtype=torch.int64))
        rows = zeros(1)
        backend.attend(rows, layer=0, metadata=metadata, out=rows.new_out())


def _up(n: int, step: int) -> int:
    return -(-n // step) * step
