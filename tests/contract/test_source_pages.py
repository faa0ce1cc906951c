"""The changes of source pages do what they say, or the end-to-end tests that use them prove
nothing."""

from types import SimpleNamespace

import numpy as np
import pytest
from tests.source_pages import Change, PageRule, SourcePages

from baton.core.ids import Epoch, Key, Room
from baton.core.messages import BlockRun, Doubt, Drawn, Offer, Record

PAGES, NBYTES = 4, 64
RECORD = Record(3, Drawn(5, None, ()), None)


class Inner:
    """A fabric, as far as it is asked."""

    name = "inner"

    def expose(self, pools: object) -> bytes:
        return b"exposed"


@pytest.fixture
def pool() -> np.ndarray:
    return np.arange(PAGES * NBYTES, dtype=np.uint8)


@pytest.fixture
def pages(pool: np.ndarray) -> SourcePages:
    pages = SourcePages()
    fabric = pages.fabric(Inner())
    assert fabric.name == "inner"
    assert (
        fabric.expose({"full": SimpleNamespace(nbytes=pool.nbytes, address=pool.ctypes.data)})
        == b"exposed"
    )
    pages.count_pages({"full": PAGES})
    return pages


def key(epoch: int) -> Key:
    return Key(Room("r"), Epoch(epoch))


def offer(page: int, *, epoch: int = 1, last: bool = True) -> Offer:
    return Offer(key(epoch), 1, {"full": BlockRun(0, 1, (page,))}, (), RECORD if last else None)


def differ(pool: np.ndarray) -> list[int]:
    """Pages that are not as they were."""
    return np.flatnonzero(
        (pool != np.arange(PAGES * NBYTES, dtype=np.uint8)).reshape(PAGES, NBYTES).any(axis=1)
    ).tolist()


def test_nothing_changes_without_an_order_before_the_last_offer_or_at_others_offers(
    pages: SourcePages, pool: np.ndarray
) -> None:
    pages.heed(offer(2), True)
    pages.order(PageRule(Change.FLIPPED))
    pages.heed(offer(2, last=False), True)
    pages.heed(offer(2), False)
    assert differ(pool) == []


def test_flipped_is_one_bit_of_the_page_as_often_as_it_says(
    pages: SourcePages, pool: np.ndarray
) -> None:
    own = pool.copy()
    pages.order(PageRule(Change.FLIPPED, count=2))
    for page in (1, 3, 2):
        pages.heed(offer(page), True)
    assert differ(pool) == [1, 3]
    assert int(np.unpackbits(pool ^ own).sum()) == 2


@pytest.mark.parametrize(("page", "like"), [(0, 1), (3, 2)])
def test_reused_is_the_content_of_another_page_for_good(
    pages: SourcePages, pool: np.ndarray, page: int, like: int
) -> None:
    pages.order(PageRule(Change.REUSED))
    pages.heed(offer(page), True)
    pages.heed(Doubt(key(1), 0, "full", (0,)), False)
    assert differ(pool) == [page]
    assert np.array_equal(*pool.reshape(PAGES, NBYTES)[[page, like]])


def test_lent_comes_back_when_that_very_room_is_doubted(
    pages: SourcePages, pool: np.ndarray
) -> None:
    pages.order(PageRule(Change.LENT))
    pages.heed(offer(1), True)
    assert differ(pool) == [1]
    pages.heed(Doubt(key(2), 0, "full", (0,)), False)
    assert differ(pool) == [1]
    pages.heed(Doubt(key(1), 0, "full", (0,)), False)
    assert differ(pool) == []
