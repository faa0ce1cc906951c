"""Sums of what was fetched, put together from orders that end in any order."""

import numpy as np
import pytest
from tests.core.build import KV

from baton.core.handoff.brought import Brought
from baton.core.ids import BlockIndex, GroupName, Page, Rank
from baton.core.messages import BlockRun

OTHER = GroupName("other")
UNITS = {(Rank(0), KV): 2, (Rank(1), KV): 1}


def rows(first: int, past: int, units: int = 2) -> np.ndarray:
    return np.array(
        [[100 * b + u for u in range(units)] for b in range(first, past)], dtype=np.uint64
    ).reshape(-1, units)


def add(brought: Brought, first: int, past: int) -> None:
    run = BlockRun(BlockIndex(first), BlockIndex(past), tuple(Page(b) for b in range(first, past)))
    brought.add({KV: run}, {r: {KV: rows(first, past, n).tobytes()} for (r, _), n in UNITS.items()})


def sums(brought: Brought, first: int, past: int, cached: int | None = None) -> dict | None:
    known = (
        {where: rows(0, first if cached is None else cached, n) for where, n in UNITS.items()}
        if first
        else {}
    )
    return brought.sums(known, BlockIndex(first), BlockIndex(past), UNITS)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
@pytest.mark.parametrize("past", [5, 8, 9])
def test_orders_end_in_any_order(order: tuple[int, ...], past: int) -> None:
    parts = [(2, 4), (4, 5), (5, 9)]
    brought = Brought()
    for n in order:
        add(brought, *parts[n])
    found = sums(brought, 2, past)
    assert found is not None
    for where, n in UNITS.items():
        assert np.array_equal(found[where], rows(0, past, n))


def test_all_may_be_cached_and_none_may_be() -> None:
    found = sums(Brought(), 3, 3)
    assert found is not None
    assert np.array_equal(found[Rank(0), KV], rows(0, 3))
    none = sums(Brought(), 0, 0)
    assert none is not None
    assert none[Rank(0), KV].shape == (0, 2)


def test_nothing_is_said_where_a_block_is_unknown() -> None:
    """One that came otherwise, or a hit whose sums nobody has."""
    gap = Brought()
    add(gap, 2, 4)
    add(gap, 5, 6)
    assert sums(gap, 2, 6) is None
    assert sums(gap, 2, 4) is not None
    unknown = Brought()
    add(unknown, 2, 4)
    assert unknown.sums({}, BlockIndex(2), BlockIndex(4), UNITS) is None


def test_a_rank_without_a_part_of_a_group_has_rows_of_nothing() -> None:
    brought = Brought()
    run = BlockRun(BlockIndex(0), BlockIndex(2), (Page(0), Page(1)))
    brought.add({OTHER: run}, {Rank(0): {OTHER: b""}})
    found = brought.sums({}, BlockIndex(0), BlockIndex(2), {(Rank(0), OTHER): 0})
    assert found is not None
    assert found[Rank(0), OTHER].shape == (2, 0)
