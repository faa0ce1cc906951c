"""What `baton bench transfer` reads: the ranges of a handoff, applied to real pools, and the
picture of its figures."""

import msgspec
import numpy as np
import pytest

from baton.core.errors import ConfigError
from baton.core.handoff.plan import leg_seals
from baton.core.handoff.seal import block_sums
from baton.core.memory.state import DType
from baton.dev.bench.transfer import show
from baton.dev.bench.transfer.figures import Figures, Slices
from baton.dev.bench.transfer.layout import (
    GROUP,
    PARTS,
    Case,
    Geometry,
    Handoff,
    Layout,
    Pages,
    Side,
)

SMALL = Geometry(layers=4, kv_heads=4, head_dim=2, dtype=DType.BF16)
SIDES = [
    (Side(1, 1, 1), Side(1, 1, 1)),
    (Side(1, 1, 1), Side(2, 1, 1)),
    (Side(4, 1, 1), Side(1, 1, 1)),
    (Side(8, 1, 1), Side(1, 1, 1)),  # each head twice in the source
    (Side(1, 1, 2), Side(8, 1, 1)),
    (Side(2, 2, 1), Side(1, 3, 4)),
]


def handoff(sides: tuple[Side, Side], case: Case, *, room: int = 320) -> Handoff:
    layout = Layout(SMALL, *sides, max(room, case.tokens))
    return Handoff(layout, layout.plan(), case)


def pools(h: Handoff, side: Side, *, filled: bool) -> list[np.ndarray]:
    sizes = [h.layout.pool_bytes(side, rank) for rank in range(side.tp * side.pp)]
    rng = np.random.default_rng(1)
    return [rng.integers(0, 256, n, np.uint8) if filled else np.zeros(n, np.uint8) for n in sizes]


@pytest.mark.parametrize("pages", Pages)
@pytest.mark.parametrize("tokens", [1, 131, 320])
@pytest.mark.parametrize("sides", SIDES, ids=str)
def test_what_is_read_has_the_seals_of_the_source(sides, tokens, pages):
    h = handoff(sides, Case(tokens, pages))
    source, target = pools(h, sides[0], filled=True), pools(h, sides[1], filled=False)
    moved = 0
    for leg in h.plan.legs:
        for c in h.bind()[leg.index]:
            for s, t, n in zip(
                c.source.tolist(), c.target.tolist(), c.nbytes.tolist(), strict=True
            ):
                assert 0 <= s <= source[leg.source].size - n
                assert 0 <= t <= target[leg.target].size - n
                target[leg.target][t : t + n] = source[leg.source][s : s + n]
                moved += n
    numbers = np.arange(h.case.blocks)
    ends = (source, sides[0], h.plan.source), (target, sides[1], h.plan.target)
    theirs, ours = (
        [
            block_sums(p, place, GROUP, h.slots(side, numbers), numbers, 0)
            for p, place in zip(held, places, strict=True)
        ]
        for held, side, places in ends
    )
    for leg in h.plan.legs:
        mine = h.blocks(leg)
        sent = leg_seals(theirs[leg.source][mine], h.plan.source_units(leg, GROUP))
        assert np.array_equal(
            leg_seals(ours[leg.target][mine], h.plan.target_units(leg, GROUP)), sent
        )
    assert moved == h.case.blocks * sum(p.block_bytes(GROUP) for p in h.plan.target)
    assert moved <= min(pool[0].size for pool in (source, target)), (
        "one range of all that moves fits both ranks 0"
    )


def test_pages_lie_apart_in_both_pools_when_scattered_and_together_when_not():
    adjacent, scattered = (handoff(SIDES[0], Case(256, pages), room=4096) for pages in Pages)
    assert [c.nbytes.size for c in adjacent.bind()[0]] == [1]
    assert [c.nbytes.size for c in scattered.bind()[0]] == [16]
    assert sorted(scattered.source_pages) != list(range(16)), "drawn from the whole pool"
    assert list(scattered.source_pages) != list(scattered.target_pages)
    assert (
        adjacent.ranges_before_merging()
        == scattered.ranges_before_merging()
        == 16 * SMALL.layers * SMALL.kv_heads
    )


@pytest.mark.parametrize("pages", Pages)
@pytest.mark.parametrize("sides", SIDES[:5], ids=str)
def test_token_slices_are_the_same_bytes_cut_finer(sides, pages):
    h = handoff(sides, Case(150, pages), room=160)
    for leg in h.plan.legs:
        cut, count = h.token_slices(leg, 1 << 30)
        share = leg.shares[0]
        row = SMALL.head_dim * SMALL.dtype.size
        assert count == cut.nbytes.size == 150 * len(share.layers) * len(PARTS)
        assert set(cut.nbytes.tolist()) == {share.heads.size * row}
        for offsets, size in (
            (cut.source, h.layout.pool_bytes(sides[0], leg.source)),
            (cut.target, h.layout.pool_bytes(sides[1], leg.target)),
        ):
            ordered = np.sort(offsets)
            assert ordered[0] >= 0
            assert ordered[-1] + cut.nbytes[0] <= size
            assert (np.diff(ordered) >= cut.nbytes[0]).all(), "no two overlap"
        first, same = h.token_slices(leg, 7)
        assert same == count
        assert np.array_equal(first.source, cut.source[:7])


def test_a_layout_that_cannot_be_is_refused_with_its_numbers():
    with pytest.raises(ConfigError, match=r"4 heads .* width 3; widths that fit: \[1, 2, 4, 8"):
        handoff((Side(1, 1, 1), Side(3, 1, 1)), Case(16, Pages.ADJACENT))
    with pytest.raises(ConfigError, match="pipeline width 5 exceeds the model's 4 layers"):
        handoff((Side(1, 5, 1), Side(1, 1, 1)), Case(16, Pages.ADJACENT))


FIGURES = Figures(
    fabric="shm",
    prefill_tp=1,
    prefill_pp=1,
    decode_tp=4,
    decode_pp=2,
    prefill_page_size=16,
    decode_page_size=64,
    context_len=2048,
    pages=Pages.SCATTERED,
    legs=8,
    bytes=268_435_456,
    descriptors_before_coalescing=32768,
    descriptors=512,
    gb_per_s=10.0,
    median_gb_per_s=9.5,
    single_range_gb_per_s=12.5,
    ratio=0.8,
    memcpy_gb_per_s=14.25,
    socket_gb_per_s=None,
    seal_gb_per_s=26.5,
    verify_gb_per_s=27.5,
    bind_us=321.0,
    cpu_s=0.0275,
    source_cpu_s=0.0,
    single_range_cpu_s=0.02225,
    token_slices=Slices(131072, 512, 65536, 1.75),
)


def test_the_tables_show_every_figure_and_what_is_void(capsys):
    from baton.dev.bench.show import paper

    paper().print(show.tables([FIGURES], void_below=12.6))
    out = capsys.readouterr().out
    wanted = [
        "tp1 -> tp4 pp2",
        "2,048",
        "16 -> 64",
        "268.4",
        "512",
        "32,768",
        "10.00",
        "12.50 void",
        "0.80",
        "14.25",
        "131,072",
    ]
    wanted += ["1.75", "9.50", "26.5", "27.5", "321", "27.5", "22.2"]
    assert [w for w in wanted if w not in out] == []
    paper().print(show.tables([FIGURES], void_below=12.4))
    assert "void" not in capsys.readouterr().out


def test_a_bar_ends_at_its_rate_and_the_mark_stands_at_one_range():
    slow = msgspec.structs.replace(FIGURES, gb_per_s=6.25)
    lines = str(show.bars([FIGURES, slow])).splitlines()
    start = lines[0].index("█")
    assert [line.count("█") for line in lines] == [48, 30]  # of 60 for 12.5
    assert [line.index("|") - start for line in lines] == [60, 60]
    assert "10.00" in show.as_svg([FIGURES])
