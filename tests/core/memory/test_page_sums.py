"""Sums of another engine's pages: kept from the first seal until the page is computed anew."""

import numpy as np
from tests.core.build import KV

from baton.core.ids import Page, Rank
from baton.core.memory.page_sums import PageSums

PAGES = [Page(4), Page(1)]


def rows(*numbers: int) -> dict[Rank, np.ndarray]:
    """Sums of so many blocks on two ranks, with two units and one."""
    column = np.array(numbers, dtype=np.uint64)
    return {Rank(0): np.stack((column, column + np.uint64(5)), axis=1), Rank(1): column[:, None]}


def known() -> PageSums:
    sums = PageSums({KV: 6})
    sums.learn(KV, PAGES, rows(7, 8))
    return sums


def test_a_page_with_other_sums_is_wrong_on_whichever_rank() -> None:
    sums = known()
    assert sums.wrong(KV, PAGES, rows(7, 8)) == []
    assert sums.wrong(KV, PAGES, rows(7, 9)) == [1]
    assert sums.wrong(KV, PAGES[::-1], rows(7, 8)) == [0, 1]
    for rank in (0, 1):
        other = rows(7, 8)
        other[Rank(rank)][0, -1] += np.uint64(1)
        assert sums.wrong(KV, PAGES, other) == [0]


def test_an_unknown_page_is_not_wrong() -> None:
    assert PageSums({KV: 6}).wrong(KV, PAGES, rows(1, 2)) == []
    assert known().wrong(KV, [Page(0), Page(1)], rows(1, 8)) == []


def test_the_sums_of_the_first_seal_stay() -> None:
    sums = known()
    sums.learn(KV, [Page(1), Page(2)], rows(1, 2))
    assert sums.wrong(KV, [Page(1), Page(2)], rows(8, 2)) == []


def test_a_page_that_is_computed_into_is_unknown_again() -> None:
    sums = known()
    sums.refuse(KV, [Page(4)])
    assert sums.wrong(KV, PAGES, rows(7, 8)) == [0], "refused, whatever its bytes"
    sums.forget({KV: [Page(4)]})
    assert sums.wrong(KV, PAGES, rows(1, 8)) == []
    sums.learn(KV, [Page(4)], rows(1))
    assert sums.wrong(KV, PAGES, rows(1, 8)) == []
    assert sums.wrong(KV, PAGES, rows(7, 8)) == [0]


def test_no_pages_are_no_matter() -> None:
    sums = known()
    sums.forget({KV: []})
    sums.learn(KV, [], rows())
    assert sums.wrong(KV, [], rows()) == []
