"""The ledger against a brute-force model: a dictionary from page to owner."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.core.errors import Bug
from baton.core.ids import Epoch, GroupName, Key, Page, Room
from baton.core.memory.pages import Ledger, PagePool, PageState

KV, WIN = GroupName("full"), GroupName("window")


def key(n: int) -> Key:
    return Key(Room(f"{n:032x}"), Epoch(1))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.integers(0, 4)), max_size=60))
def test_every_page_has_one_owner(steps: list[tuple[int, int, int]]) -> None:
    ledger = Ledger({KV: 16, WIN: 6})
    owner: dict[tuple[str, int], Key] = {}
    for who, full, window in steps:
        k = key(who)
        if full == 0:
            ledger.give_back(k)
            owner = {p: o for p, o in owner.items() if o != k}
        else:
            fits = (
                sum(g == KV for g, _ in owner) + full <= 16
                and sum(g == WIN for g, _ in owner) + window <= 6
            )
            taken = ledger.take(k, {KV: full, WIN: window}, PageState.FETCHING)
            assert (taken is not None) == fits
            for group, pages in (taken or {}).items():
                for page in pages:
                    assert (group, page) not in owner
                    owner[group, page] = k
        ledger.audit()
        assert ledger.free() == {
            KV: 16 - sum(g == KV for g, _ in owner),
            WIN: 6 - sum(g == WIN for g, _ in owner),
        }
        assert ledger.clean == (not owner)


def test_adjacent_pages_are_preferred() -> None:
    pool = PagePool(12)
    first, second, third = pool.take(key(1), 3), pool.take(key(2), 2), pool.take(key(3), 4)
    assert (first, second, third) == ((0, 1, 2), (3, 4), (5, 6, 7, 8))
    pool.give_back(key(2), second)
    assert pool.take(key(4), 2) == (3, 4), "the tightest run that fits"
    pool.give_back(key(1), first)
    assert pool.take(key(5), 5) == (0, 1, 2, 9, 10), "no run fits: the largest ones first"


def test_all_groups_at_once_or_nothing() -> None:
    ledger = Ledger({KV: 4, WIN: 1})
    assert ledger.take(key(1), {KV: 2, WIN: 2}, PageState.COMPUTING) is None
    assert ledger.clean
    assert ledger.free() == {KV: 4, WIN: 1}


def test_returning_anothers_page_is_a_bug() -> None:
    pool = PagePool(4)
    pool.take(key(1), 2)
    with pytest.raises(Bug, match="does not own"):
        pool.give_back(key(2), (Page(0),))


def test_growth_appends_and_the_view_adds_up() -> None:
    ledger = Ledger({KV: 8})
    ledger.take(key(1), {KV: 2}, PageState.FETCHING)
    ledger.take(key(2), {KV: 1}, PageState.FETCHING)
    ledger.take(key(1), {KV: 1}, PageState.COMMITTED)
    assert ledger.held(key(1))[KV] == (0, 1, 3)
    assert ledger.view()[KV] == {
        "fetching": 1,
        "committed": 3,
        "computing": 0,
        "full": 0,
        "cached": 0,
        "shared": 0,
        "free": 4,
        "total": 8,
    }
