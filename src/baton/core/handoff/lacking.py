"""What a reader still has to fetch of an offer if it already holds the beginning of the sequence
(pure).

offered   [start ───────────────────▶ end)      pages  start // k .. (end - 1) // k
held      [0 ────────▶ first)
lacking              [first ────────▶ end)      pages  first // k .. (end - 1) // k
"""

from collections.abc import Callable, Mapping

import msgspec

from baton.core.ids import BlockIndex, GroupName
from baton.core.messages import BlockRun, LegSums, Offer


def lacking(
    offer: Offer, first: Mapping[GroupName, BlockIndex], page_blocks: Callable[[GroupName], int]
) -> Offer:
    """Return the part of an offer that is left to fetch.

    first: by group, the first block that is not held; nothing is held of a group that is missing
        here
    page_blocks: returns the number of blocks in a page of the source
    """
    if not first:
        return offer
    left = {g: _from(run, first.get(g, run.start), page_blocks(g)) for g, run in offer.runs.items()}
    runs = {g: run for g, run in left.items() if run.start < run.end}
    sums = tuple(
        kept
        for leg in offer.sums
        if (kept := _sums_from(leg, first.get(leg.group, BlockIndex(0)))).blocks
    )
    return msgspec.structs.replace(offer, runs=runs, sums=sums)


def _from(run: BlockRun, first: BlockIndex, page_blocks: int) -> BlockRun:
    start = BlockIndex(min(max(run.start, first), run.end))
    return BlockRun(start, run.end, run.pages[start // page_blocks - run.start // page_blocks :])


def _sums_from(leg: LegSums, first: BlockIndex) -> LegSums:
    kept = [(b, s) for b, s in zip(leg.blocks, leg.seals, strict=True) if b >= first]
    return msgspec.structs.replace(
        leg, blocks=tuple(b for b, _ in kept), seals=tuple(s for _, s in kept)
    )
