"""What is left to fetch of an offer, against block-by-block counting."""

from hypothesis import given
from hypothesis import strategies as st
from tests.core.build import KV, key

from baton.core.handoff.lacking import lacking
from baton.core.ids import BlockIndex, GroupName, Page, Seal
from baton.core.messages import BlockRun, LegSums, Offer

OTHER = GroupName("window")


def places(run: BlockRun, k: int) -> dict[int, tuple[int, int]]:
    """Where each block of a run lies: its page, and its place there."""
    assert len(run.pages) == (run.end - 1) // k - run.start // k + 1
    return {b: (run.pages[b // k - run.start // k], b % k) for b in range(run.start, run.end)}


def offer(runs: dict[GroupName, BlockRun], sums: tuple[LegSums, ...] = ()) -> Offer:
    return Offer(key(), 1, runs, sums, None)


@given(st.integers(0, 40), st.integers(1, 20), st.integers(0, 70), st.integers(1, 5), st.randoms())
def test_what_is_left_lies_where_it_lay(start, size, first, k, random):
    end = start + size
    pages = random.sample(range(1000), (end - 1) // k - start // k + 1)
    run = BlockRun(BlockIndex(start), BlockIndex(end), tuple(Page(p) for p in pages))
    left = lacking(offer({KV: run, OTHER: run}), {KV: BlockIndex(first)}, lambda group: k).runs
    found = places(left[KV], k) if KV in left else {}
    assert found == {b: at for b, at in places(run, k).items() if b >= first}
    assert left[OTHER] == run, "nothing of it is held"


def test_sums_of_what_is_left_stay_with_their_blocks():
    sums = tuple(
        LegSums(
            leg, group, tuple(map(BlockIndex, blocks)), tuple(Seal(100 * leg + b) for b in blocks)
        )
        for leg, group, blocks in (
            (0, KV, range(8)),
            (1, KV, range(8, 12)),
            (0, OTHER, range(6, 12)),
        )
    )
    run = BlockRun(BlockIndex(0), BlockIndex(12), tuple(map(Page, range(12))))
    whole = offer({KV: run, OTHER: run}, sums)
    left = lacking(whole, {KV: BlockIndex(9)}, lambda group: 1).sums
    assert {
        (s.leg, s.group, b): v for s in left for b, v in zip(s.blocks, s.seals, strict=True)
    } == {
        **{(1, KV, b): 100 + b for b in range(9, 12)},
        **{(0, OTHER, b): b for b in range(6, 12)},
    }
    assert lacking(whole, {}, lambda group: 1) == whole
