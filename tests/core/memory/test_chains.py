"""Chains of page hashes: how far one is known, and the pages of those that are under way."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.core.memory.chains import PagesUnderWay, known

CHAIN = st.lists(st.integers(0, 9), max_size=8, unique=True)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 40), st.integers(0, 40))
def test_as_much_is_known_as_a_loop_finds(length: int, has: int) -> None:
    found = 0
    for page in range(length):
        if page >= has:
            break
        found += 1
    assert known(range(length), lambda page: page < has) == found


def test_a_chain_of_which_nothing_is_known_costs_one_look_and_a_long_one_few() -> None:
    looks = list[int]()

    def has(page: int) -> bool:
        looks.append(page)
        return page < 700

    assert known(range(1000, 2000), has) == 0
    assert looks == [1000]
    assert known(range(1024), has) == 700
    assert len(looks) <= 1 + 1 + 11


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(CHAIN, st.integers(0, 30)), max_size=16))
def test_a_page_is_under_way_as_long_as_any_request_has_it(
    steps: list[list[int] | int],
) -> None:
    """Each step: a request with this chain begins, or one of those that are open ends."""
    pages, opened = PagesUnderWay[int](), list[list[int]]()

    def counted() -> Counter[int]:
        return Counter(page for chain in opened for page in chain)

    for step in steps:
        before = set(counted())
        if isinstance(step, list):
            fresh = pages.add(step)
            opened.append(step)
            assert fresh == [page for page in step if page not in before]
        elif opened:
            chain = opened.pop(step % len(opened))
            assert pages.drop(chain) == [page for page in chain if page not in counted()]
        assert len(pages) == len(set(counted()))
        assert {page for page in range(10) if page in pages} == set(counted())
    for chain in opened:
        pages.drop(chain)
    assert len(pages) == 0


def test_what_was_not_added_cannot_be_dropped() -> None:
    pages = PagesUnderWay[int]()
    pages.add([1, 2])
    with pytest.raises(KeyError):
        pages.drop([1, 2, 3])
