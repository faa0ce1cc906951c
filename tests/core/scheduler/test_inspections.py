"""Cached pages hashed by all ranks: which blocks each of them looks at, and which pages differ for
whom."""

import numpy as np
import pytest
from msgspec.structs import replace
from tests.core.build import KV, key, manifest
from tests.core.driven import T0, report_of
from tests.core.scheduler.test_doubt_stages import INDEX, TABLE

from baton.core.agreement import Hold, Inspect, Rehashed, StepPlan
from baton.core.ids import Boot, Page, Rank, Seq
from baton.core.memory.prefix_cache import CachedPage, PageHash, PrefixCache
from baton.core.rank.rank import RankCore
from baton.core.rank.rank_effects import Digest
from baton.core.scheduler.inspections import Inspections
from baton.core.work import DigestDone

ONE = replace(manifest("decode", 3, page_blocks=2), table=TABLE)
RANKS = (ONE.ranks[0], replace(ONE.ranks[0], boot=Boot(20), rank=1, pp_rank=1))
# two stages, of which the first has no layer of group `index`
WORKER = replace(ONE, pp=2, ranks=RANKS)
PLACEMENTS = [WORKER.placement(0), WORKER.placement(1)]
INSPECT = Inspect(7, (0, 5), {KV: (Page(3), Page(9)), INDEX: (Page(4), Page(8))})


def sums(rank: int, group: str, *rows: int) -> np.ndarray:
    """A row for each block."""
    units = PLACEMENTS[rank].unit_count(group)  # type: ignore[arg-type]
    return np.array([[row] * units for row in rows], dtype=np.uint64).reshape(len(rows), units)


def cached() -> list[CachedPage]:
    """A page and the next one of a sequence, each of two blocks of every group."""
    cache, found = PrefixCache(), list[CachedPage]()
    for n, (kv, index) in enumerate(((3, 4), (9, 8))):
        birth = {(Rank(r), g): sums(r, g, 10 * n, 10 * n + 1) for r in (0, 1) for g in (KV, INDEX)}
        parent = found[-1] if found else None
        entry = cache.add(
            PageHash(bytes([n]) * 32), parent, {KV: Page(kv), INDEX: Page(index)}, birth
        )
        assert entry is not None
        found.append(entry)
    return found


def test_an_order_names_pages_of_all_groups_and_their_places_in_the_sequence() -> None:
    order = Inspections(PLACEMENTS).inspect(7, cached(), lambda damaged: None)
    assert order == Inspect(7, (0, 1), INSPECT.pages)


@pytest.mark.parametrize("wrong", [None, (0, KV, 0), (1, KV, 3), (1, INDEX, 2)])
def test_a_page_is_damaged_when_any_block_of_it_differs_on_any_rank(
    wrong: tuple[int, str, int] | None,
) -> None:
    inspections, found, entries = Inspections(PLACEMENTS), list[list[CachedPage]](), cached()
    inspections.inspect(7, entries, found.append)
    for rank in (0, 1):
        assert found == [], "not before the last rank has answered"
        answer = {}
        for group in (KV, INDEX) if rank else (KV,):
            rows = [0, 1, 10, 11]
            if wrong is not None and wrong[:2] == (rank, group):
                rows[wrong[2]] ^= 1
            answer[group] = sums(rank, group, *rows).tobytes()
        inspections.take(Rank(rank), [Rehashed(7, answer)])
    assert found == [[] if wrong is None else [entries[wrong[2] // 2]]]
    assert len(inspections) == 0


@pytest.mark.parametrize(("rank", "groups"), [(0, {KV}), (1, {KV, INDEX})])
def test_a_rank_hashes_whole_pages_of_the_groups_that_it_holds_and_answers_once(
    rank: int, groups: set[str]
) -> None:
    core = RankCore(rank=Rank(rank), boot=RANKS[rank].boot, placements=PLACEMENTS, seal=True)
    digests = [
        e for e in core.step(StepPlan(Seq(1), inspect=(INSPECT,)), T0) if isinstance(e, Digest)
    ]
    assert {d.order.group for d in digests} == groups
    for d in digests:
        first, second = INSPECT.pages[d.order.group]
        assert d.order.slots.tolist() == [2 * first, 2 * first + 1, 2 * second, 2 * second + 1]
        assert d.order.numbers.tolist() == [0, 1, 10, 11]
        assert d.passing
    report_of(core)
    for n, d in enumerate(digests):
        assert report_of(core) is None, f"{n} of {len(digests)} groups are hashed"
        core.step(DigestDone(d.order.job, sums(rank, d.order.group, 1, 2, 3, 4)), T0)
    report = report_of(core)
    assert report is not None
    (answer,) = report.rehashed
    assert answer.order == 7
    assert answer.sums.keys() == groups


def test_pages_that_are_hashed_keep_no_room_from_being_quiet() -> None:
    core = RankCore(rank=Rank(1), boot=RANKS[1].boot, placements=PLACEMENTS, seal=True)
    core.step(
        StepPlan(
            Seq(1),
            inspect=(INSPECT,),
            hold=(Hold(key(1), {KV: (Page(3),), INDEX: (Page(4),)}, {}, {KV: 1, INDEX: 1}),),
        ),
        T0,
    )
    report_of(core)
    core.step(StepPlan(Seq(2), drop=(key(1),)), T0)
    report = report_of(core)
    assert report is not None
    assert report.quiet == (key(1),)
