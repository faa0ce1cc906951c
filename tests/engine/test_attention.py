"""The CPU backend against the plain one, and each row against itself in other company."""

import mmap

import numpy as np
import pytest
import torch

from baton.core.ids import GroupName
from baton.core.memory.kinds import HOST
from baton.core.memory.state import (
    DType,
    Full,
    Group,
    Placement,
    StateSpec,
    StateTable,
    Unit,
    Window,
)
from baton.engine.attention.cpu import CpuAttention
from baton.engine.attention.interface import AttentionMetadata, AttentionRows, Seen, Segment
from baton.engine.attention.reference import ReferenceAttention, pool_view
from baton.engine.attention.tiles import TILE
from baton.engine.kernels.team import Team

FULL = Full()
KV, B, LAYERS = GroupName("full"), 16, 2
TORCH = {DType.F32: torch.float32, DType.BF16: torch.bfloat16, DType.F16: torch.float16}
WORST = {DType.F32: 1e-5, DType.BF16: 2e-2, DType.F16: 2e-3}


class MemoryPool:
    """Anonymous memory."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes, self.memory, self.fd = nbytes, HOST, None
        self._map = mmap.mmap(-1, nbytes)
        self.address = np.frombuffer(self._map, dtype=np.uint8).__array_interface__["data"][0]


class Case:
    """A pool with random pages, and a batch over it.

    contexts: (start, rows, how many of these were generated; none if it is not said)
    """

    def __init__(
        self,
        dtype: DType,
        heads: tuple[int, int],
        dim: int,
        contexts: list[tuple[int, ...]],
        *,
        b: int = B,
        k: int = 1,
        seen: Seen = FULL,
        sunk: bool = False,
    ) -> None:
        torch.manual_seed(0)
        self.b, self.dtype = b, dtype
        self.sinks = torch.linspace(-3, 6, heads[0]) if sunk else None
        spec = StateSpec("kv", KV, tuple(range(LAYERS)), ("k", "v"), heads[1], dim, dtype)
        table = StateTable(LAYERS, b, (Group(KV, Unit.PAGE, seen),), (spec,))
        self.placement = Placement(table, 1, 1, 0, 0, k)
        need = [-(-(start + count) // (b * k)) for start, count, *_ in contexts]  # pages
        order = np.random.default_rng(0).permutation(sum(need) + 3).astype(np.int32)
        slots = (order[:, None] * k + np.arange(k, dtype=np.int32)).astype(np.int32)
        self.pool = MemoryPool((sum(need) + 3) * self.placement.page_bytes(KV))
        self.view = pool_view(self.pool, self.placement)
        self.view.copy_(torch.randn(self.view.shape))
        self.segments, first, used = [], 0, 0
        for (start, count, *said), n in zip(contexts, need, strict=True):
            self.segments.append(
                Segment(
                    first=first,
                    count=count,
                    start=start,
                    block_table=slots[used : used + n].reshape(-1),
                    said=sum(said),
                )
            )
            first, used = first + count, used + n
        rows = (first, heads[0], dim)
        self.q = torch.randn(rows).to(TORCH[dtype])
        self.k, self.v = (torch.randn(first, heads[1], dim).to(TORCH[dtype]) for _ in range(2))

    def slots(self) -> torch.Tensor:
        at = [(s, np.arange(s.start, s.start + s.count)) for s in self.segments]
        return torch.from_numpy(
            np.concatenate(
                [s.block_table[p // self.b].astype(np.int64) * self.b + p % self.b for s, p in at]
            )
        )

    def run(self, backend: object, segments: list[Segment] | None = None) -> torch.Tensor:
        rows = AttentionRows(self.q, self.k, self.v, self.sinks)
        out = torch.full_like(self.q, 7.0)
        metadata = AttentionMetadata(self.segments if segments is None else segments, self.slots())
        backend.attend(rows, layer=1, metadata=metadata, out=out)
        return out


CONTEXTS = [
    (0, 1),
    (5, 1, 1),
    (15, 1, 1),
    (16, 1, 1),
    (200, 1, 1),
    (0, 17),
    (33, 40, 9),
    (2 * TILE + 21, 30),
    (7, 3, 3),
]


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
@pytest.mark.parametrize("heads", [(9, 3), (4, 4), (8, 1)])
@pytest.mark.parametrize("dim", [16, 64, 128])
def test_the_cpu_backend_agrees_with_the_plain_one(
    dtype: DType, heads: tuple[int, int], dim: int
) -> None:
    compare(Case(dtype, heads, dim, CONTEXTS))


@pytest.mark.parametrize(
    ("dtype", "dim", "b", "k"),
    [
        (DType.F16, 64, 16, 4),
        (DType.F16, 40, 8, 1),
        (DType.BF16, 64, 24, 3),
        (DType.BF16, 33, 16, 1),
    ],
)
def test_other_element_types_and_odd_shapes_agree(dtype: DType, dim: int, b: int, k: int) -> None:
    compare(Case(dtype, (4, 2), dim, CONTEXTS, b=b, k=k))


def compare(case: Case) -> None:
    expected = case.run(ReferenceAttention(case.pool, case.placement)).float()
    found = case.run(CpuAttention(case.pool, case.placement)).float()
    assert (found - expected).abs().max() <= WORST[case.dtype] * expected.abs().max()


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_a_row_does_not_depend_on_its_company(dtype: DType) -> None:
    case = Case(dtype, (9, 3), 64, CONTEXTS)
    backend = CpuAttention(case.pool, case.placement)
    together = case.run(backend)
    for segment in case.segments:
        alone = case.run(backend, [segment])
        rows = slice(segment.first, segment.first + segment.count)
        assert torch.equal(alone[rows], together[rows])


def test_writing_touches_the_written_rows_alone() -> None:
    case = Case(DType.BF16, (4, 2), 16, [(5, 3), (30, 1)])
    before = case.view.clone()
    case.run(CpuAttention(case.pool, case.placement))
    after = case.view.clone()
    for n, slot in enumerate(case.slots().tolist()):
        assert torch.equal(after[slot // B, :, 1, 0, slot % B], case.k[n])
        assert torch.equal(after[slot // B, :, 1, 1, slot % B], case.v[n])
        after[slot // B, :, 1, :, slot % B] = before[slot // B, :, 1, :, slot % B]
    assert torch.equal(after, before)


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
@pytest.mark.parametrize("other", [float("nan"), 1e30, -1e30])
def test_rows_past_a_context_are_never_read_into_it(dtype: DType, other: float) -> None:
    """What lies behind the last row in a block is another request's."""
    case = Case(
        dtype, (9, 3), 64, [(5, 1, 1), (15, 1), (20, 13, 4), (TILE + 1, 1, 1), (TILE - 7, 40)]
    )
    for s in case.segments:
        length = s.start + s.count
        case.view[int(s.block_table[(length - 1) // B]), :, :, :, (length - 1) % B + 1 :] = other
    compare(case)


def test_segments_may_come_in_any_order() -> None:
    case = Case(DType.BF16, (4, 2), 64, [(40, 1, 1), (7, 2), (90, 1, 1), (30, 9, 2)])
    backend = CpuAttention(case.pool, case.placement)
    assert torch.equal(case.run(backend), case.run(backend, case.segments[::-1]))


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_large_scores_neither_overflow_nor_vanish(dtype: DType) -> None:
    case = Case(dtype, (4, 2), 64, [(300, 1, 1), (TILE - 9, 50)])
    case.q *= 100
    compare(case)


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_a_row_of_a_chunk_does_not_depend_on_the_rows_after_it(dtype: DType) -> None:
    case = Case(dtype, (9, 3), 64, [(TILE - 20, 45)])
    backend = CpuAttention(case.pool, case.placement)
    (whole,) = case.segments
    expected = case.run(backend)
    for count in (7, 20, 21, 44):
        cut = Segment(first=0, count=count, start=whole.start, block_table=whole.block_table)
        assert torch.equal(case.run(backend, [cut])[:count], expected[:count])


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
@pytest.mark.parametrize("seen", [FULL, Window(21)])
def test_generated_rows_have_the_same_bits_one_by_one_and_together(
    dtype: DType, seen: Seen
) -> None:
    case = Case(dtype, (9, 3), 64, [(40, 12, 12), (TILE - 9, 30, 11)], seen=seen)
    backend = CpuAttention(case.pool, case.placement)
    together = case.run(backend)
    for s in case.segments:
        for n in range(s.count - s.said, s.count):
            one = Segment(
                first=s.first + n, count=1, start=s.start + n, block_table=s.block_table, said=1
            )
            assert torch.equal(case.run(backend, [one])[s.first + n], together[s.first + n])


WINDOWS = [1, 5, B, 3 * B + 1, TILE - 3, TILE, TILE + 40]
LONG = [
    (0, 1),
    (15, 1, 1),
    (200, 2, 2),
    (2 * TILE + 7, 1, 1),
    (0, 17),
    (33, 40, 11),
    (2 * TILE - 21, 60),
]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(("dtype", "dim"), [(DType.F32, 16), (DType.BF16, 64), (DType.F16, 40)])
def test_a_window_is_obeyed(dtype: DType, dim: int, window: int) -> None:
    compare(Case(dtype, (9, 3), dim, LONG, seen=Window(window)))


@pytest.mark.parametrize("window", WINDOWS)
def test_what_lies_before_a_window_is_not_looked_at(window: int) -> None:
    """The plain backend against the definition: other keys and values before the window change no
    bit."""
    case = Case(DType.F32, (4, 2), 16, [(TILE + 50, 1, 1)], seen=Window(window))
    for backend in (
        ReferenceAttention(case.pool, case.placement),
        CpuAttention(case.pool, case.placement),
    ):
        before = case.run(backend)
        kept = {}
        for at in range(TILE + 50 - window + 1):
            place = (
                int(case.segments[0].block_table[at // B]),
                slice(None),
                1,
                slice(None),
                at % B,
            )
            kept[at] = case.view[place].clone()
            case.view[place] = 50.0
        assert torch.equal(case.run(backend), before)
        for at, rows in kept.items():
            case.view[int(case.segments[0].block_table[at // B]), :, 1, :, at % B] = rows
        if window > 1:  # and the first position inside it does
            at = TILE + 50 - window + 1
            case.view[int(case.segments[0].block_table[at // B]), :, 1, 1, at % B] += 50.0
            assert not torch.equal(case.run(backend), before)
            case.view[int(case.segments[0].block_table[at // B]), :, 1, 1, at % B] -= 50.0


@pytest.mark.parametrize("window", [5, TILE - 3])
def test_a_row_with_a_window_depends_neither_on_its_company_nor_on_the_cut(window: int) -> None:
    case = Case(DType.BF16, (9, 3), 64, [*LONG[:4], (TILE - 20, 45)], seen=Window(window))
    backend = CpuAttention(case.pool, case.placement)
    together = case.run(backend)
    for s in case.segments:
        assert torch.equal(
            case.run(backend, [s])[s.first : s.first + s.count],
            together[s.first : s.first + s.count],
        )
    last = case.segments[-1]
    for count in (7, 20, 44):
        cut = Segment(first=last.first, count=count, start=last.start, block_table=last.block_table)
        assert torch.equal(
            case.run(backend, [cut])[last.first :][:count], together[last.first :][:count]
        )


# ---- sinks, and lists that begin later ----------------------------------------------------------


@pytest.mark.parametrize("seen", [FULL, Window(5), Window(TILE - 3)])
@pytest.mark.parametrize(("dtype", "dim"), [(DType.F32, 16), (DType.BF16, 64), (DType.F16, 40)])
def test_sinks_take_their_share(dtype: DType, dim: int, seen: Seen) -> None:
    compare(Case(dtype, (9, 3), dim, LONG, seen=seen, sunk=True))


def test_a_sink_is_a_score_without_a_value() -> None:
    """The plain backend against the definition: a key whose score it is, and whose value is zero,
    instead of the sink."""
    case = Case(DType.F32, (4, 2), 16, [(30, 1)], sunk=True)
    found = case.run(ReferenceAttention(case.pool, case.placement))
    blocks = torch.from_numpy(case.segments[0].block_table.astype(np.int64))
    for head in range(4):
        k, v = (case.view[blocks, head // 2, 1, part].reshape(-1, 16)[:31] for part in (0, 1))
        scores = torch.cat((k @ case.q[0, head] / 4, case.sinks[head : head + 1]))
        expected = scores.softmax(0) @ torch.cat((v, torch.zeros(1, 16)))
        assert torch.allclose(found[0, head], expected, atol=1e-6)


@pytest.mark.parametrize("window", [1, 5, 3 * B + 1, TILE + 40])
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_a_list_that_begins_with_the_window_gives_the_same_bits(dtype: DType, window: int) -> None:
    """And what lies before it, in pages that are another's now, may be anything."""
    case = Case(dtype, (9, 3), 64, LONG, seen=Window(window))
    for backend in (
        ReferenceAttention(case.pool, case.placement),
        CpuAttention(case.pool, case.placement),
    ):
        whole = case.run(backend)
        cut = []
        for s in case.segments:
            begin = max(0, s.start - window + 1) // B
            case.view[s.block_table[:begin].astype(np.int64)] = float("nan")
            cut.append(
                Segment(
                    first=s.first,
                    count=s.count,
                    start=s.start,
                    block_table=s.block_table[begin:],
                    begin=begin,
                    said=s.said,
                )
            )
        found = case.run(backend, cut)
        case.view.copy_(torch.randn(case.view.shape, generator=torch.Generator().manual_seed(9)))
        assert found.isfinite().all()
        if isinstance(backend, CpuAttention):
            assert torch.equal(found, whole)
        else:
            assert (found - whole).abs().max() <= WORST[dtype] * whole.abs().max()


# ---- threads ------------------------------------------------------------------------------------


@pytest.mark.parametrize("heads", [(9, 3), (4, 4), (8, 1)])
@pytest.mark.parametrize(("dtype", "dim"), [(DType.F32, 16), (DType.BF16, 64), (DType.F16, 40)])
@pytest.mark.parametrize("seen", [FULL, Window(TILE - 3)])
def test_a_row_has_the_same_bits_on_several_threads(
    dtype: DType, dim: int, heads: tuple[int, int], seen: Seen
) -> None:
    """What a thread leaves in its own memory must not get into its next item."""
    contexts = [(0, 200), (3000, 1, 1), (2 * TILE + 7, 190), (40, 3, 3), (4000, 5, 5)]
    case = Case(dtype, heads, dim, contexts, seen=seen, sunk=True)
    alone = case.run(CpuAttention(case.pool, case.placement))
    for threads in (2, 3):
        backend = CpuAttention(case.pool, case.placement, team=Team(threads))
        for _ in range(3):  # items fall to threads differently
            assert torch.equal(case.run(backend), alone)
