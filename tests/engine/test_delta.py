"""Gated-delta layers: the compiled backend against the plain one, slots that begin and go on, their
table and their seal."""

import mmap
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from tests.core.handoff.layouts import Layout, placements
from tests.core.handoff.oracle import check
from tests.engine.whole import Request, Rig
from tests.tiny import make_tiny

from baton.cli.pool_size import Use, pool_pages
from baton.core.handoff.plan import pair
from baton.core.ids import BlockIndex
from baton.core.memory.kinds import HOST
from baton.core.memory.state import DType, Group, Placement, StateTable, Unit, Whole
from baton.core.work import DigestDone, DigestOrder, Job
from baton.engine.attention.delta import DeltaRows, ReferenceDelta
from baton.engine.attention.delta_cpu import CHUNK, CpuDelta
from baton.engine.attention.interface import AttentionBackend, AttentionMetadata, Segment
from baton.engine.models.base import DTYPES, KV, SLOT
from baton.engine.models.gated_delta import delta_specs
from baton.engine.models.qwen3_next import Qwen3NextFamily
from baton.engine.models.qwen3_next_config import DeltaSettings

SIZES = {"shared": (2, 6, 12, 20, 4), "alone": (3, 3, 16, 8, 2)}
# (start, rows, how many of them were generated): steps, a scan of less than a chunk, of one, and of
# more, and steps after a scan; beginnings and continuations of each
CONTEXTS = [
    (0, 1, 1),
    (5, 1, 1),
    (9, 8, 8),
    (0, 3, 0),
    (0, 9, 3),
    (70, CHUNK, 0),
    (3, 2 * CHUNK + 7, 20),
    (0, CHUNK + 1, 0),
]
LAYERS, LAYER = (1, 2, 4), 1  # of the model's; the second of them is used
WIDTHS = [(1, 1), (2, 1), (4, 1), (2, 2)]  # of tensor parallelism, and stages
PUBLISHED = {  # of Qwen3-Next-80B-A3B
    "architectures": ["Qwen3NextForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "vocab_size": 151_936,
    "max_position_embeddings": 262_144,
}


class MemoryPool:
    """Anonymous memory."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes, self.memory, self.fd = nbytes, HOST, None
        self._map = mmap.mmap(-1, nbytes)
        self.bytes = np.frombuffer(self._map, dtype=np.uint8)
        self.address = self.bytes.__array_interface__["data"][0]


class Case:
    """Slots full of what no request wrote, and a batch over some of them."""

    def __init__(self, size: str, dtype: DType) -> None:
        settings = DeltaSettings(
            **dict(
                zip(("key_heads", "value_heads", "key", "value", "taps"), SIZES[size], strict=True)
            )
        )
        table = StateTable(
            6, 16, (Group(SLOT, Unit.SLOT, Whole()),), delta_specs(settings, LAYERS, SLOT, dtype)
        )
        self.placement = Placement(table, 1, 1, 0, 0, 1)
        self.settings, self.dtype, count = settings, DTYPES[dtype], sum(n for _, n, _ in CONTEXTS)
        generator = torch.Generator().manual_seed(0)
        self.initial = torch.randint(
            0x30, 0x3F, (11 * self.placement.block_bytes(SLOT),), generator=generator
        ).numpy()
        width = 2 * settings.key_heads * settings.key + settings.value_heads * settings.value

        def noise(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator)

        self.rows = DeltaRows(
            noise(count, width + 5).to(self.dtype),
            -noise(count, settings.value_heads).abs() * 0.1,
            noise(count, settings.value_heads).sigmoid(),
            noise(settings.taps, width),
            settings.value,
        )
        slots, first, self.segments = [9, 3, 0, 7, 1, 10, 5, 2], 0, []
        for slot, (start, n, said) in zip(slots, CONTEXTS, strict=True):
            table = np.array([slot], dtype=np.int32)
            self.segments.append(
                Segment(first=first, count=n, start=start, block_table=table, said=said)
            )
            first += n

    def run(
        self, make: type[AttentionBackend[DeltaRows]], segments: list[Segment] | None = None
    ) -> tuple[torch.Tensor, np.ndarray]:
        """What the rows find, and the pool's bytes after them."""
        pool = MemoryPool(11 * self.placement.block_bytes(SLOT))
        pool.bytes[:] = self.initial
        out = torch.full((len(self.rows.x), self.settings.value_heads, self.settings.value), 7.0)
        metadata = AttentionMetadata(
            segments or self.segments, torch.zeros(len(out), dtype=torch.int64)
        )
        make(pool, self.placement).attend(self.rows, layer=LAYER, metadata=metadata, out=out)
        return out, pool.bytes.copy()

    def written(self, pool: np.ndarray, segment: Segment) -> np.ndarray:
        """What a segment may have written: its slot, of the layer."""
        slot = pool.reshape(11, -1)[segment.block_table[0]]
        places = self.placement.places.values()
        parts = (
            slot[p.offset : p.offset + p.nbytes].reshape(p.heads.size, len(LAYERS), -1)[:, 1]
            for p in places
        )
        return np.concatenate([part.ravel() for part in parts])

    def slots(self, pool: np.ndarray) -> list[torch.Tensor]:
        """Of each spec its elements: [slots, ...]."""
        slots = pool.reshape(11, -1)
        places = self.placement.places.values()
        stored = {"f32": torch.float32, "bf16": torch.bfloat16}
        cut = (np.ascontiguousarray(slots[:, p.offset : p.offset + p.nbytes]) for p in places)
        return [
            torch.from_numpy(x).view(stored[p.spec.dtype.value]).float()
            for x, p in zip(cut, places, strict=True)
        ]


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
@pytest.mark.parametrize("size", SIZES)
def test_the_compiled_backend_agrees_with_the_plain_one(size: str, dtype: DType) -> None:
    case = Case(size, dtype)
    (expected, theirs), (found, ours) = case.run(ReferenceDelta), case.run(CpuDelta)
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()
    state, *past = zip(case.slots(ours), case.slots(theirs), strict=True)
    assert (state[0] - state[1]).abs().max() <= 1e-4 * state[1].abs().max()
    assert all(torch.equal(a, b) for a, b in past)
    # Other slots, and other layers of these, are as they were.
    begun = {int(s.block_table[0]) for s in case.segments}
    untouched = [n for n in range(11) if n not in begun]
    assert np.array_equal(ours.reshape(11, -1)[untouched], case.initial.reshape(11, -1)[untouched])
    for place in case.placement.places.values():
        layers = (
            x.reshape(11, -1)[:, place.offset : place.offset + place.nbytes]
            for x in (ours, case.initial)
        )
        after, before = (x.reshape(11, place.heads.size, len(LAYERS), -1) for x in layers)
        assert np.array_equal(after[:, :, ::2], before[:, :, ::2])


@pytest.mark.parametrize("make", [CpuDelta, ReferenceDelta])
def test_a_row_finds_the_same_bits_in_any_company_and_a_beginning_does_not_read_its_slot(
    make: type[AttentionBackend[DeltaRows]],
) -> None:
    case = Case("shared", DType.F32)
    together, pool = case.run(make)
    for segment in case.segments:
        if segment.start == 0:  # whoever had the slot before
            case.initial = np.roll(case.initial, 1)
        alone, after = case.run(make, [segment])
        if segment.start == 0:
            case.initial = np.roll(case.initial, -1)
        here = slice(segment.first, segment.first + segment.count)
        assert torch.equal(alone[here], together[here])
        assert np.array_equal(case.written(after, segment), case.written(pool, segment))


# ---- the table ----------------------------------------------------------------------------------


def test_a_slots_rows_are_cut_by_their_own_heads() -> None:
    """Qwen3-Next-80B-A3B: q and k by 16 key heads, v and the matrices by 32 value heads; sizes are
    counted by hand."""
    table = Qwen3NextFamily().table(PUBLISHED, block_tokens=16, dtype=DType.BF16)
    assert [(s.name, s.heads, s.row, s.dtype, len(s.layers)) for s in table.specs] == [
        ("kv", 2, 256, DType.BF16, 12),
        ("delta", 32, 128 * 128, DType.F32, 36),
        ("conv.q", 16, 3 * 128, DType.BF16, 36),
        ("conv.k", 16, 3 * 128, DType.BF16, 36),
        ("conv.v", 32, 3 * 128, DType.BF16, 36),
    ]
    for tp, rank, keys, values in [
        (1, 0, (0, 16), (0, 32)),
        (4, 1, (4, 8), (8, 16)),
        (32, 5, (2, 3), (5, 6)),
    ]:
        places = Placement(table, tp, 1, rank, 0, 1).places
        heads = {name: (p.heads.start, p.heads.end) for name, p in places.items() if name != "kv"}
        assert heads == {"delta": values, "conv.q": keys, "conv.k": keys, "conv.v": values}
        each = (
            36 * (values[1] - values[0]) * (128 * 128 * 4 + 3 * 128 * 2)
            + 36 * 2 * (keys[1] - keys[0]) * 3 * 128 * 2
        )
        assert Placement(table, tp, 1, rank, 0, 1).block_bytes(SLOT) == each


@pytest.mark.parametrize("source", WIDTHS)
def test_slots_go_between_unequal_widths_and_stages_byte_by_byte(source: tuple[int, int]) -> None:
    """q and k have 2 heads, v and the matrices 4: at width 4 the first are repeated and the others
    divided."""
    specs = delta_specs(
        DeltaSettings(key_heads=2, value_heads=4, key=2, value=4, taps=3), LAYERS, SLOT, DType.BF16
    )
    table = StateTable(6, 16, (Group(SLOT, Unit.SLOT, Whole()),), specs)
    for target in WIDTHS:
        check(
            pair(placements(table, Layout(*source, 1)), placements(table, Layout(*target, 4))),
            length=21,
        )


def test_slots_are_as_many_as_rooms_and_at_most_half_of_the_memory() -> None:
    table = Qwen3NextFamily().table(PUBLISHED, block_tokens=16, dtype=DType.BF16)
    placement = Placement(table, 1, 1, 0, 0, 1)
    slot, page, use = (
        placement.page_bytes(SLOT),
        placement.page_bytes(KV),
        Use(rooms=8, tokens=4096, step=512),
    )
    assert pool_pages(placement, use, pages=100, budget=0) == {KV: 100, SLOT: 8}
    assert pool_pages(placement, use, pages=3, budget=0) == {KV: 3, SLOT: 3}
    assert pool_pages(placement, use, pages=None, budget=40 * slot) == {
        KV: 32 * slot // page,
        SLOT: 8,
    }
    assert pool_pages(placement, use, pages=None, budget=10 * slot) == {
        KV: 5 * slot // page,
        SLOT: 5,
    }
    assert pool_pages(placement, use, pages=None, budget=slot + page) == {KV: 1, SLOT: 1}
    stage = Placement(table, 1, 16, 0, 0, 1)  # three layers, none of which attends
    assert pool_pages(stage, use, pages=None, budget=4 * stage.page_bytes(SLOT))[SLOT] == 2


# ---- the seal -----------------------------------------------------------------------------------


def test_a_slot_is_sealed_as_it_lies_after_the_last_token_and_with_their_number(
    tmp_path: Path,
) -> None:
    rig, length = Rig(make_tiny(tmp_path, "qwen3_5")), 21
    request = Request(1, list(range(40, 40 + length)), [9, 3])
    for start, end in pairwise([0, 7, length]):
        row = request.chunk(start, end, draw=end == length)
        final = (
            {KV: (BlockIndex(0), BlockIndex(2)), SLOT: (BlockIndex(0), BlockIndex(1))}
            if end == length
            else {}
        )
        (done,) = rig.run([msgspec.structs.replace(row, final=final)])
    for number, same in [(length, True), (0, False), (length - 1, False)]:
        rig.engine.digest(DigestOrder(Job(number), SLOT, np.array([9]), np.array([number])))
        (found,) = rig.wait()
        assert isinstance(found, DigestDone)
        assert np.array_equal(found.sums, done.sums[SLOT]) == same
    rig.run([request.next(5, 1)])
    rig.engine.digest(DigestOrder(Job(99), SLOT, np.array([9]), np.array([length])))
    (found,) = rig.wait()
    assert isinstance(found, DigestDone)
    assert not (found.sums == done.sums[SLOT]).any()  # the next token changes every unit
    rig.close()
