"""Attention over latent rows: the compiled backend against the plain one, and the plain one against
what it stands for."""

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
from baton.engine.attention.interface import AttentionBackend, AttentionMetadata, Seen, Segment
from baton.engine.attention.latent import (
    LATENT,
    CpuLatentAttention,
    LatentRows,
    ReferenceLatentAttention,
)
from baton.engine.attention.reference import pool_view
from baton.engine.attention.tiles import TILE

FULL, B, LAYERS = GroupName("full"), 16, 2
TORCH = {DType.F32: torch.float32, DType.BF16: torch.bfloat16, DType.F16: torch.float16}
WORST = {DType.F32: 1e-5, DType.BF16: 2e-2, DType.F16: 2e-3}
CONTEXTS = [(0, 1), (15, 1, 1), (16, 1, 1), (200, 3, 3), (0, 17), (33, 40, 9), (2 * TILE + 21, 30)]


class MemoryPool:
    """Anonymous memory."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes, self.memory, self.fd = nbytes, HOST, None
        self._map = mmap.mmap(-1, nbytes)
        self.address = np.frombuffer(self._map, dtype=np.uint8).__array_interface__["data"][0]


class Case:
    """A pool with random rows, and a batch over it. size: elements of a row and of a value;
    contexts: as in test_attention.py."""

    def __init__(
        self,
        dtype: DType,
        heads: int,
        size: tuple[int, int],
        contexts: list[tuple[int, ...]] = CONTEXTS,
        *,
        k: int = 1,
        seen: Seen | None = None,
    ) -> None:
        torch.manual_seed(0)
        row, self.value = size
        spec = StateSpec(LATENT, FULL, tuple(range(LAYERS)), ("c",), 1, row, dtype)
        # what shares the pages must not be touched
        other = StateSpec("other", FULL, (0,), ("s",), 1, 3, dtype)
        table = StateTable(LAYERS, B, (Group(FULL, Unit.PAGE, seen or Full()),), (other, spec))
        self.placement = Placement(table, 1, 1, 0, 0, k)
        need = [-(-(start + count) // (B * k)) for start, count, *_ in contexts]  # pages
        order = np.random.default_rng(0).permutation(sum(need) + 3).astype(np.int32)
        slots = (order[:, None] * k + np.arange(k, dtype=np.int32)).astype(np.int32)
        self.pool = MemoryPool((sum(need) + 3) * self.placement.page_bytes(FULL))
        self.view = pool_view(self.pool, self.placement, LATENT)
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
        self.dtype = dtype
        self.q = (torch.randn(first, heads, row) * row**-0.5).to(TORCH[dtype])
        self.k = torch.randn(first, row).to(TORCH[dtype])

    def slots(self) -> torch.Tensor:
        at = [(s, np.arange(s.start, s.start + s.count)) for s in self.segments]
        return torch.from_numpy(
            np.concatenate([s.block_table[p // B].astype(np.int64) * B + p % B for s, p in at])
        )

    def run(
        self, backend: AttentionBackend[LatentRows], segments: list[Segment] | None = None
    ) -> torch.Tensor:
        rows = LatentRows(self.q, self.k, self.value)
        out = rows.new_out().fill_(7.0)
        metadata = AttentionMetadata(self.segments if segments is None else segments, self.slots())
        backend.attend(rows, layer=1, metadata=metadata, out=out)
        return out

    def compare(self) -> None:
        expected = self.run(ReferenceLatentAttention(self.pool, self.placement)).float()
        found = self.run(CpuLatentAttention(self.pool, self.placement)).float()
        assert (found - expected).abs().max() <= WORST[self.dtype] * expected.abs().max()


@pytest.mark.parametrize("dtype", list(TORCH))
@pytest.mark.parametrize(
    ("heads", "size"), [(1, (40, 32)), (5, (41, 7)), (16, (96, 64)), (3, (576, 512))]
)
def test_the_compiled_backend_agrees_with_the_plain_one(
    dtype: DType, heads: int, size: tuple[int, int]
) -> None:
    Case(dtype, heads, size, k=1 if heads == 3 else 3).compare()


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_a_window_is_obeyed(dtype: DType) -> None:
    Case(dtype, 4, (96, 64), seen=Window(21)).compare()


def test_absorbed_attention_is_that_of_expanded_keys_and_values() -> None:
    """The definition: keys W_uk c with the shared rotated key behind them, values W_uv c, and
    softmax over each head."""
    heads, rank, turned, still, value = 3, 24, 8, 10, 6
    case = Case(DType.F32, heads, (rank + turned, rank), [(20, 9)])
    q = torch.randn(9, heads, still + turned)
    key_up, value_up = torch.randn(heads, still, rank), torch.randn(heads, rank, value)
    case.q = (
        torch.cat((torch.einsum("rhs,hsc->rhc", q[..., :still], key_up), q[..., still:]), -1)
        * (still + turned) ** -0.5
    )
    attended = case.run(ReferenceLatentAttention(case.pool, case.placement))
    found = torch.einsum("rhc,hcv->rhv", attended, value_up)
    cached = case.view[
        torch.from_numpy(case.segments[0].block_table.astype(np.int64)), 0, 1, 0
    ].reshape(-1, rank + turned)[:29]
    keys = torch.cat(
        (
            torch.einsum("tc,hsc->hts", cached[:, :rank], key_up),
            cached[:, rank:].expand(heads, -1, -1),
        ),
        -1,
    )
    values = torch.einsum("tc,hcv->htv", cached[:, :rank], value_up)
    causal = torch.ones(9, 29, dtype=torch.bool).tril(20)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1), keys, values, attn_mask=causal
    )
    assert torch.allclose(found, expected.transpose(0, 1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_a_row_depends_neither_on_its_company_nor_on_the_cut(dtype: DType) -> None:
    case = Case(dtype, 5, (96, 64))
    backend = CpuLatentAttention(case.pool, case.placement)
    together = case.run(backend)
    for s in case.segments:
        assert torch.equal(
            case.run(backend, [s])[s.first : s.first + s.count],
            together[s.first : s.first + s.count],
        )
    last = case.segments[-1]
    for count in (7, 20):
        cut = Segment(first=last.first, count=count, start=last.start, block_table=last.block_table)
        assert torch.equal(
            case.run(backend, [cut])[last.first :][:count], together[last.first :][:count]
        )


@pytest.mark.parametrize("other", [float("nan"), 1e30])
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_rows_past_a_context_are_never_read_into_it(dtype: DType, other: float) -> None:
    case = Case(dtype, 4, (96, 64), [(5, 1, 1), (20, 13, 4), (TILE + 1, 1, 1), (TILE - 7, 40)])
    for s in case.segments:
        length = s.start + s.count
        case.view[int(s.block_table[(length - 1) // B]), :, :, :, (length - 1) % B + 1 :] = other
    case.compare()


def test_writing_touches_the_written_rows_alone() -> None:
    case = Case(DType.BF16, 4, (41, 32), [(5, 3), (30, 1)], k=2)
    flat = np.frombuffer(case.pool._map, dtype=np.uint16)
    before = flat.copy()
    case.run(CpuLatentAttention(case.pool, case.placement))
    written = case.view.clone()
    for n, slot in enumerate(case.slots().tolist()):
        assert torch.equal(written[slot // B, 0, 1, 0, slot % B], case.k[n])
    assert (flat != before).sum() <= case.k.numel()
    case.run(ReferenceLatentAttention(case.pool, case.placement))
    assert torch.equal(case.view, written)
