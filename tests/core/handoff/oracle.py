"""A handoff worked out by brute force: each (layer, head, part, token) is moved alone, from an
address and to an address that are written down here from the documents, with nothing of
core/handoff/plan.py. What a plan moves is judged by it.
"""

import itertools
import random
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from tests.core.handoff.layouts import Layout, extent, heads_of, layers_of, placements

from baton.core.handoff.plan import PairPlan
from baton.core.ids import BlockIndex, GroupName, Page
from baton.core.memory.state import StateTable, Unit
from baton.core.messages import BlockRun

NOTHING = -1
REPLICA_TURN = 8  # adjacent blocks that come from the same replica


class Side(NamedTuple):
    """One worker's pages of one group, for blocks [start, past), in a pool of `pool` pages."""

    table: StateTable
    layout: Layout
    group: GroupName
    start: int
    past: int
    pages: tuple[int, ...]
    pool: int

    @property
    def tokens(self) -> int:
        return self.table.block_tokens if self.table.group(self.group).unit is Unit.PAGE else 1

    @property
    def k(self) -> int:
        return self.layout.k if self.table.group(self.group).unit is Unit.PAGE else 1


class Columns(NamedTuple):
    """A rank's block: its size, and where (spec, head, layer) begins in it."""

    size: int
    at: dict[tuple[int, int, int], int]


@lru_cache(1 << 12)
def columns(table: StateTable, layout: Layout, rank: int, group: GroupName) -> Columns:
    """Head by head, layer by layer, spec by spec."""
    tokens = table.block_tokens if table.group(group).unit is Unit.PAGE else 1
    at, end = {}, 0
    for s, spec in enumerate(table.specs):
        if spec.group != group:
            continue
        for head, layer in itertools.product(
            heads_of(spec, layout, rank), layers_of(table, spec, layout, rank)
        ):
            at[s, head, layer] = end
            end += len(spec.parts) * tokens * spec.row * spec.dtype.size
    return Columns(end, at)


@lru_cache(1 << 12)
def holders(
    table: StateTable, layout: Layout, group: GroupName
) -> dict[tuple[int, int, int], list[int]]:
    """The ranks that hold each (spec, head, layer), in rank order."""
    found: dict[tuple[int, int, int], list[int]] = {}
    for rank in range(layout.tp * layout.pp):
        for unit in columns(table, layout, rank, group).at:
            found.setdefault(unit, []).append(rank)
    return found


def pages_for(
    seed: int, table: StateTable, layout: Layout, group: GroupName, first: int, past: int
) -> Side:
    """Scattered pages for blocks [first, past), some of them adjacent."""
    k = layout.k if table.group(group).unit is Unit.PAGE else 1
    count = -(-past // k) - first // k
    pool = count + 4
    runs = [list(range(i, min(i + 3, pool))) for i in range(0, pool, 3)]
    random.Random(seed).shuffle(runs)
    return Side(table, layout, group, first, past, tuple(itertools.chain(*runs))[:count], pool)


def moved_alone(
    source: Side, target: Side, rank: int, blocks: list[int]
) -> tuple[np.ndarray, np.ndarray]:
    """For every byte of a target rank's pool: the source rank it comes from, and the byte of that
    rank's pool.

    `blocks` are the source's; NOTHING where a byte stays as it is.
    """
    author, origin = _untouched(target, rank)
    positions = (
        np.array(blocks, dtype=np.int64)[:, None] * source.tokens + np.arange(source.tokens)
    ).ravel()
    turn, from_blocks, to_blocks = (
        positions // source.tokens // REPLICA_TURN,
        _block(source, positions),
        _block(target, positions),
    )
    into, have = (
        columns(target.table, target.layout, rank, target.group),
        holders(source.table, source.layout, source.group),
    )
    for (s, head, layer), to in into.at.items():
        spec, ranks = source.table.specs[s], have[s, head, layer]
        row = spec.row * spec.dtype.size
        for n, holder in enumerate(ranks):
            mine = np.flatnonzero(turn % len(ranks) == n)
            if not mine.size:
                continue
            out = columns(source.table, source.layout, holder, source.group)
            from_place = (
                from_blocks[mine] * out.size
                + out.at[s, head, layer]
                + positions[mine] % source.tokens * row
            )
            to_place = to_blocks[mine] * into.size + to + positions[mine] % target.tokens * row
            for part in range(len(spec.parts)):
                from_row, to_row = (
                    from_place + part * source.tokens * row,
                    to_place + part * target.tokens * row,
                )
                for byte in range(row):
                    author[to_row + byte], origin[to_row + byte] = holder, from_row + byte
    return author, origin


def moved_by_plan(
    plan: PairPlan, source: Side, target: Side, rank: int, blocks: list[int]
) -> tuple[np.ndarray, np.ndarray]:
    """The same of what the plan orders. Asserts that it stays inside both pools and writes no byte
    twice."""
    author, origin = _untouched(target, rank)
    run = BlockRun(
        BlockIndex(source.start), BlockIndex(source.past), tuple(Page(p) for p in source.pages)
    )
    numbers, pages, moved = np.array(blocks, dtype=np.int64), np.array(target.pages), 0
    for leg in plan.legs_into(rank):
        mine = plan.owned(leg, target.group, numbers)
        size = (
            columns(source.table, source.layout, leg.source, source.group).size
            * source.k
            * source.pool
        )
        for copies in plan.bind(
            leg,
            target.group,
            source=run,
            target_pages=pages,
            target_start=target.start,
            blocks=mine,
        ):
            assert copies.nbytes.min() > 0
            assert copies.source.min() >= 0
            assert copies.target.min() >= 0
            assert (copies.source + copies.nbytes).max() <= size
            assert (copies.target + copies.nbytes).max() <= author.size
            total = int(copies.nbytes.sum())
            within = np.arange(total) - np.repeat(
                np.cumsum(copies.nbytes) - copies.nbytes, copies.nbytes
            )
            to = np.repeat(copies.target, copies.nbytes) + within
            author[to], origin[to] = leg.source, np.repeat(copies.source, copies.nbytes) + within
            moved += total
    assert moved == np.count_nonzero(author != NOTHING), (
        f"rank {rank} reads a byte of {target.group} twice"
    )
    return author, origin


def _untouched(side: Side, rank: int) -> tuple[np.ndarray, np.ndarray]:
    size = columns(side.table, side.layout, rank, side.group).size * side.k * side.pool
    return np.full(size, NOTHING), np.full(size, NOTHING)


def _block(side: Side, positions: np.ndarray) -> np.ndarray:
    """The pool's block that holds each position."""
    number = positions // side.tokens
    return np.array(side.pages)[number // side.k - side.start // side.k] * side.k + number % side.k


def check(plan: PairPlan, length: int, lacking: set[int] | None = None, *, seed: int = 0) -> None:
    """Compare the plan with the brute force for every group and every target rank, byte by byte.

    `lacking`: the source's blocks that the reader fetches; None for all. Slots are fetched always.
    """
    from_table, to_table = plan.source[0].table, plan.target[0].table
    from_layout, to_layout = (
        Layout(side[0].tp, side[0].pp, side[0].page_blocks) for side in (plan.source, plan.target)
    )
    assert list(plan.source) == placements(from_table, from_layout)
    assert list(plan.target) == placements(to_table, to_layout)
    for group in from_table.groups:
        first, past = extent(from_table, group.name, length)
        blocks = [
            b
            for b in range(first, past)
            if lacking is None or b in lacking or group.unit is Unit.SLOT
        ]
        source = pages_for(seed, from_table, from_layout, group.name, first, past)
        b, c = source.tokens, to_table.block_tokens if group.unit is Unit.PAGE else 1
        target = pages_for(
            seed + 1, to_table, to_layout, group.name, first * b // c, -(-past * b // c)
        )
        for rank in range(to_layout.tp * to_layout.pp):
            want, got = (
                moved_alone(source, target, rank, blocks),
                moved_by_plan(plan, source, target, rank, blocks),
            )
            for what, right, found in zip(
                ("source ranks", "bytes of them"), want, got, strict=True
            ):
                wrong = np.flatnonzero(right != found)[:4].tolist()
                assert not wrong, (
                    f"{what} for bytes {wrong} of {group.name} on rank {rank}: "
                    f"{found[wrong]}, not {right[wrong]}"
                )
