"""The plan along each axis, all of it, and over products of all axes, against the brute force of
oracle.py.

Widths, stages and specs decide which ranges of a block a leg has, lengths, pages and prefixes which
blocks: the two meet in `bind` alone, as a sum. So each is gone through with the other drawn,
instead of the 250 million products.
"""

import itertools
import json
import random
import re

import pytest
from msgspec.structs import replace
from tests.core.build import manifest
from tests.core.handoff.layouts import FULL, Layout, mixed, placements
from tests.core.handoff.oracle import check

from baton.core.errors import ConfigError
from baton.core.handoff.pairing import Partners
from baton.core.handoff.plan import PairPlan, pair
from baton.core.handoff.plans import Plans
from baton.core.ids import Boot, Micros
from baton.core.manifest import Manifest, RankManifest
from baton.core.memory.state import DType, Full, Group, StateSpec, StateTable, Unit

WIDTHS = (1, 2, 3, 4, 6, 8, 16)
HEADS = (1, 2, 3, 4, 6, 8, 12, 16)
STAGES = (1, 2, 3, 4)
LAYERS = range(1, 10)
LENGTHS = range(1, 131)
PAGES = (1, 2, 3, 4)
BLOCK = 16


def fits(heads: int, tp: int) -> bool:
    return heads % tp == 0 or tp % heads == 0


def kv(heads: int, layers: int, block_tokens: int) -> StateTable:
    """Attention alone, rows of one byte."""
    spec = StateSpec("kv", FULL, tuple(range(layers)), ("k", "v"), heads, 1, DType.FP8)
    return StateTable(layers, block_tokens, (Group(FULL, Unit.PAGE, Full()),), (spec,))


def plan_of(table: StateTable, source: Layout, target: Layout) -> PairPlan:
    return pair(placements(table, source), placements(table, target))


# ---- one axis at a time -------------------------------------------------------------------------


@pytest.mark.parametrize("heads", HEADS)
def test_every_pair_of_widths(heads: int) -> None:
    """Over 130 blocks, so that each of 16 replicas has its turn."""
    legal = [tp for tp in WIDTHS if fits(heads, tp)]
    table = mixed(heads, layers=2, block_tokens=1)
    for source, target in itertools.product(legal, legal):
        check(plan_of(table, Layout(source, 1, 2), Layout(target, 1, 1)), length=130)


@pytest.mark.parametrize("layers", LAYERS)
def test_every_division_of_the_layers_into_stages(layers: int) -> None:
    for source, target in itertools.product([pp for pp in STAGES if pp <= layers], repeat=2):
        check(plan_of(mixed(2, layers), Layout(2, source, 1), Layout(1, target, 2)), length=5)
        check(plan_of(mixed(2, layers), Layout(1, source, 1), Layout(4, target, 1)), length=5)


def lengths_pages_and_prefixes(pages: list[tuple[int, int]]):
    """(length, blocks in a page on both sides, blocks that the reader holds already)."""
    for length, (source, target) in itertools.product(LENGTHS, pages):
        for held in range(-(-length // BLOCK) + 1):
            yield length, source, target, held


def walk(table: StateTable, pages: list[tuple[int, int]]) -> None:
    plans = {k: plan_of(table, Layout(1, 1, k[0]), Layout(2, 1, k[1])) for k in pages}
    for length, source, target, held in lengths_pages_and_prefixes(pages):
        check(plans[source, target], length, set(range(held, 9)), seed=length)


def test_every_length_over_pages_of_every_kind_and_every_prefix() -> None:
    walk(mixed(2, layers=2, block_tokens=BLOCK), [(1, 4), (4, 1), (2, 3), (3, 2)])


@pytest.mark.slow
def test_every_length_over_every_two_page_sizes_and_every_prefix() -> None:
    walk(mixed(2, layers=3, block_tokens=BLOCK), list(itertools.product(PAGES, PAGES)))


# ---- blocks of unequal size ---------------------------------------------------------------------


def test_unequal_blocks_are_refused_at_the_handshake() -> None:
    """The sums of an offer are of the source's blocks."""
    partners = Partners(worker("decode", 1, kv(2, 2, 16), 1))
    meet, why = partners.introduce(
        worker("prefill", 100, kv(2, 2, 32), 1), Plans(), until=Micros(0)
    )
    assert meet is None
    assert (
        why == "table.block_tokens differs: ours is 16, theirs is 32: run the same version on both"
    )


# ---- widths that do not fit ---------------------------------------------------------------------


def worker(role: str, boot: int, table: StateTable, tp: int) -> Manifest:
    ranks = tuple(RankManifest(Boot(boot + r), r, r, 0, (), {"shm": b""}) for r in range(tp))
    return replace(manifest(role, boot), table=table, tp=tp, ranks=ranks)


@pytest.mark.parametrize(
    ("heads", "tp"), [(h, tp) for h in HEADS for tp in WIDTHS if not fits(h, tp)]
)
def test_other_widths_are_refused_at_the_handshake_with_those_that_fit(heads: int, tp: int) -> None:
    table = kv(heads, 2, BLOCK)
    partners = Partners(worker("decode", 1, table, 1))
    meet, why = partners.introduce(worker("prefill", 100, table, tp), Plans(), until=Micros(0))
    assert meet is None
    found = re.fullmatch(
        rf"state 'kv': {heads} heads cannot be divided over tensor parallel width {tp}; widths "
        rf"that fit: (.*)",
        why,
    )
    assert found, why
    listed = json.loads(found[1])
    assert [n for n in WIDTHS if n in listed] == [
        n for n in WIDTHS if fits(heads, n) and n <= 4 * heads
    ]
    assert all(fits(heads, n) for n in listed)


def test_widths_that_fit_are_not_refused() -> None:
    for heads, tp in itertools.product(HEADS, WIDTHS):
        table = kv(heads, 2, BLOCK)
        partners = Partners(worker("decode", 1, table, 1))
        assert (
            partners.introduce(worker("prefill", 100, table, tp), Plans(), until=Micros(0))[1] == ""
        ) == fits(heads, tp)


@pytest.mark.parametrize(("layers", "pp"), [(1, 2), (2, 3), (3, 4)])
def test_more_stages_than_layers_are_refused(layers: int, pp: int) -> None:
    with pytest.raises(
        ConfigError, match=f"pipeline width {pp} exceeds the model's {layers} layers"
    ):
        placements(kv(2, layers, BLOCK), Layout(1, pp, 1))


# ---- products -----------------------------------------------------------------------------------


def drawn_placement(chance: random.Random) -> tuple[int, int, Layout, Layout]:
    """Heads, layers and both layouts."""
    heads, layers = chance.choice(HEADS), chance.choice(LAYERS)

    def layout() -> Layout:
        tp = chance.choice([tp for tp in WIDTHS if fits(heads, tp)])
        return Layout(
            tp, chance.choice([pp for pp in STAGES if pp <= layers]), chance.choice(PAGES)
        )

    return heads, layers, layout(), layout()


def check_product(
    chance: random.Random, heads: int, layers: int, source: Layout, target: Layout
) -> None:
    """One length and prefix of one placement."""
    block = chance.choice((1, 2, 4, BLOCK))
    length = chance.choice(LENGTHS)
    blocks = -(-length // block)
    table = mixed(heads, layers, block) if chance.random() < 0.25 else kv(heads, layers, block)
    lacking = set(range(chance.randint(0, blocks), blocks)) if chance.random() < 0.5 else None
    check(plan_of(table, source, target), length, lacking, seed=chance.randrange(1 << 30))


@pytest.mark.parametrize("part", range(8))
def test_products_of_all_axes(part: int) -> None:
    """2,000 in all."""
    chance = random.Random(part)
    for _ in range(250):
        check_product(chance, *drawn_placement(chance))


@pytest.mark.slow
@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("heads", HEADS)
def test_every_placement(heads: int, layers: int) -> None:
    """All widths and stages of both sides, 23,000 pairs in all; page sizes, length, prefix and
    block size drawn for each."""
    chance = random.Random(heads * 100 + layers)
    legal = [(tp, pp) for tp in WIDTHS if fits(heads, tp) for pp in STAGES if pp <= layers]
    for source, target in itertools.product(legal, legal):
        sides = (Layout(*side, chance.choice(PAGES)) for side in (source, target))
        check_product(chance, heads, layers, *sides)
