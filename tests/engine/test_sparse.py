"""The index of sparse attention and attention to what it chooses, against their definitions."""

import mmap
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from baton.core.errors import ConfigError
from baton.core.ids import GroupName
from baton.core.memory.kinds import HOST
from baton.core.memory.state import DType, Full, Group, Placement, StateSpec, StateTable, Unit
from baton.engine.attention.index import INDEX, SCALES, IndexRows, TopKIndex, with_fp8_index
from baton.engine.attention.interface import AttentionBackend, AttentionMetadata, Segment
from baton.engine.attention.latent import (
    LATENT,
    CpuLatentAttention,
    LatentRows,
    ReferenceLatentAttention,
)
from baton.engine.attention.reference import pool_view

FULL, B, LAYERS = GroupName("full"), 16, 3
TORCH = {DType.F32: torch.float32, DType.BF16: torch.bfloat16, DType.F16: torch.float16}
WORST = {DType.F32: 1e-5, DType.BF16: 2e-2, DType.F16: 2e-3}
COUNT = 24
CONTEXTS = [(0, 1), (COUNT - 1, 1), (COUNT, 1), (200, 3), (0, 17), (10, 40), (90, 30)]


class MemoryPool:
    """Anonymous memory."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes, self.memory, self.fd = nbytes, HOST, None
        self._map = mmap.mmap(-1, nbytes)
        self.address = np.frombuffer(self._map, dtype=np.uint8).__array_interface__["data"][0]


class Case:
    """A pool with rows and index keys, and a batch over it. Layers 0 and 2 have an index."""

    def __init__(
        self, dtype: DType, *, heads: int = 4, size: tuple[int, int] = (96, 64), fp8: bool = False
    ) -> None:
        torch.manual_seed(0)
        row, self.value = size
        specs = (
            StateSpec(LATENT, FULL, tuple(range(LAYERS)), ("c",), 1, row, dtype),
            StateSpec(INDEX, FULL, (0, 2), ("k",), 1, 20, dtype),
        )
        table = StateTable(LAYERS, B, (Group(FULL, Unit.PAGE, Full()),), specs)
        self.placement = Placement(with_fp8_index(table) if fp8 else table, 1, 1, 0, 0, 1)
        need = [-(-(start + count) // B) for start, count in CONTEXTS]
        order = np.random.default_rng(0).permutation(sum(need) + 3).astype(np.int32)
        self.pool = MemoryPool(len(order) * self.placement.page_bytes(FULL))
        self.rows = pool_view(self.pool, self.placement, LATENT)
        self.rows.copy_(torch.randn(self.rows.shape))
        self.segments, first, used = [], 0, 0
        for (start, count), n in zip(CONTEXTS, need, strict=True):
            self.segments.append(
                Segment(first=first, count=count, start=start, block_table=order[used : used + n])
            )
            first, used = first + count, used + n
        self.q = (torch.randn(first, heads, row) * row**-0.5).to(TORCH[dtype])
        self.cached = torch.randn(first, row).to(TORCH[dtype])
        self.index_q, self.weights = (
            torch.randn(first, 6, 20).to(TORCH[dtype]),
            torch.randn(first, 6),
        )
        self.dtype, self.keys = (
            dtype,
            [torch.randn(s.start + s.count, 20).to(TORCH[dtype]) for s in self.segments],
        )

    def slots(self, s: Segment, at: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(s.block_table[at // B].astype(np.int64) * B + at % B)

    def metadata(self, segments: Sequence[Segment] | None = None) -> AttentionMetadata:
        """slot_mapping covers the rows of all segments, whichever are asked for."""
        slots = [self.slots(s, np.arange(s.start, s.start + s.count)) for s in self.segments]
        return AttentionMetadata(self.segments if segments is None else segments, torch.cat(slots))

    def index(self) -> TopKIndex:
        """With the keys of every position in it."""
        made = TopKIndex(self.pool, self.placement)
        for s, keys in zip(self.segments, self.keys, strict=True):
            rows = IndexRows(keys[:, None], keys, torch.ones(len(keys), 1), COUNT)
            made.attend(
                rows,
                layer=1,
                metadata=AttentionMetadata([], self.slots(s, np.arange(len(keys)))),
                out=rows.new_out(),
            )
        return made

    def choose(self, index: TopKIndex, segments: Sequence[Segment] | None = None) -> torch.Tensor:
        rows = IndexRows(
            self.index_q,
            torch.cat([k[s.start :] for k, s in zip(self.keys, self.segments, strict=True)]),
            self.weights,
            COUNT,
        )
        out = rows.new_out()
        index.attend(rows, layer=1, metadata=self.metadata(segments), out=out)
        return out

    def attend(
        self,
        backend: AttentionBackend[LatentRows],
        chosen: torch.Tensor,
        segments: Sequence[Segment] | None = None,
    ) -> torch.Tensor:
        rows = LatentRows(self.q, self.cached, self.value, chosen)
        out = rows.new_out().fill_(7.0)
        backend.attend(rows, layer=2, metadata=self.metadata(segments), out=out)
        return out


def best(case: Case, s: Segment, row: int, keys: torch.Tensor) -> set[int]:
    """By the definition, in float64, one position at a time."""
    n = s.first + row
    q, weights = case.index_q[n].double(), case.weights[n].double()
    scores = [
        float((weights * torch.relu(q @ key)).sum()) for key in keys[: s.start + row + 1].double()
    ]
    return set(np.argsort(scores)[::-1][:COUNT].tolist())


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_the_positions_with_the_highest_scores_are_chosen(dtype: DType, fp8: bool) -> None:
    case = Case(dtype, fp8=fp8)
    chosen = case.choose(case.index())
    for s, keys in zip(case.segments, case.keys, strict=True):
        found = chosen[s.first : s.first + s.count]
        if s.start + s.count <= COUNT:
            assert (found[:, 0] == -1).all()
            continue
        seen = keys.float()
        # rounded as e4m3 rounds, with a scale that makes the largest element of each key 448
        if fp8:
            scales = seen.abs().amax(1, keepdim=True) / 448
            seen = (seen / scales).to(torch.float8_e4m3fn).float() * scales
        for row in range(s.count):
            positions = [p for p in found[row].tolist() if p >= 0]
            assert len(positions) == len(set(positions)) == min(COUNT, s.start + row + 1)
            assert set(positions) == best(case, s, row, seen)


def test_of_equal_scores_the_first_positions_are_chosen_however_a_prompt_is_cut() -> None:
    case = Case(DType.F32)
    case.keys = [keys[torch.arange(len(keys)) % 3] for keys in case.keys]  # three scores in all
    case.index_q[5:] = 0.0  # and one
    chosen = case.choose(case.index())
    for s, keys in zip(case.segments, case.keys, strict=True):
        for row in range(s.count if s.start + s.count > COUNT else 0):
            n = s.first + row
            scores = torch.relu(keys[: s.start + row + 1] @ case.index_q[n].T) @ case.weights[n]
            order = sorted(range(len(scores)), key=lambda p: (-round(float(scores[p]), 3), p))
            assert {p for p in chosen[n].tolist() if p >= 0} == set(order[:COUNT])


@pytest.mark.parametrize("dtype", list(TORCH))
@pytest.mark.parametrize(("heads", "size"), [(4, (96, 64)), (3, (41, 7)), (2, (576, 512))])
def test_attention_to_them_is_that_of_a_mask(
    dtype: DType, heads: int, size: tuple[int, int]
) -> None:
    case = Case(dtype, heads=heads, size=size)
    chosen, backend = case.choose(case.index()), CpuLatentAttention(case.pool, case.placement)
    expected = case.attend(ReferenceLatentAttention(case.pool, case.placement), chosen).float()
    assert (case.attend(backend, chosen).float() - expected).abs().max() <= WORST[
        dtype
    ] * expected.abs().max()


def test_a_row_depends_neither_on_its_company_nor_on_the_pieces_it_is_computed_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Case(DType.BF16)
    index, backend = case.index(), CpuLatentAttention(case.pool, case.placement)
    chosen = case.choose(index)
    together = case.attend(backend, chosen)
    monkeypatch.setattr("baton.engine.attention.latent.GATHERED", 3 * COUNT * 96 * 2)
    assert torch.equal(case.attend(backend, chosen), together)
    for s in case.segments:
        alone = case.choose(index, [s])
        rows = slice(s.first, s.first + s.count)
        assert torch.equal(alone[rows, 0], chosen[rows, 0])
        assert torch.equal(case.attend(backend, alone, [s])[rows], together[rows])


def test_keys_touch_nothing_else() -> None:
    case = Case(DType.BF16, fp8=True)
    before = case.rows.clone()
    case.index()
    assert torch.equal(case.rows, before)
    keys = pool_view(case.pool, case.placement, INDEX).view(torch.uint8)
    scales = pool_view(case.pool, case.placement, SCALES)
    assert keys[:, 0, 0].count_nonzero() == scales[:, 0, 0].count_nonzero() == 0
    assert scales[:, 0, 1].count_nonzero() == sum(len(k) for k in case.keys)


def test_a_model_without_an_index_has_none_to_round() -> None:
    spec = StateSpec("kv", FULL, (0,), ("k", "v"), 1, 8, DType.BF16)
    with pytest.raises(ConfigError, match="no index"):
        with_fp8_index(StateTable(1, B, (Group(FULL, Unit.PAGE, Full()),), (spec,)))
