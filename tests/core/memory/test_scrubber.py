"""When cached pages are hashed again, how many at a time, and which may be used meanwhile."""

import numpy as np
import pytest
from tests.core.build import KV

from baton.core.errors import Bug
from baton.core.ids import Micros, Page, Rank
from baton.core.memory import scrubber as module
from baton.core.memory.prefix_cache import CachedPage, PageHash, PrefixCache
from baton.core.memory.scrubber import Scrubber

SUMS = {(Rank(0), KV): np.zeros((1, 1), dtype=np.uint64)}
S = 1_000_000


class Bench:
    """A cache that is verified within 60 seconds, and a clock that is set."""

    def __init__(self, *, interval_s: int = 60, page_bytes: int = 1000) -> None:
        self.cache, self.now = PrefixCache(), 0
        now = lambda: Micros(self.now)  # noqa: E731
        self.scrubber = Scrubber(
            self.cache, interval_ms=interval_s * 1000, page_bytes=page_bytes, now=now
        )

    def enter(
        self, n: int, at: int, *, parent: CachedPage | None = None, sums: bool = True
    ) -> CachedPage:
        """Page n enters after `at` seconds; nobody pins it."""
        self.now = at * S
        entry = self.cache.add(
            PageHash(bytes([n]) * 32), parent, {KV: Page(n)}, SUMS if sums else {}
        )
        assert entry is not None
        self.cache.unpin((entry,))
        self.scrubber.entered(entry)
        return entry

    def due(self, at: float, *, busy: bool = False) -> list[CachedPage]:
        self.now = int(at * S)
        return self.scrubber.due(busy=busy)

    def timer(self, *, busy: bool = False) -> float | None:
        found = self.scrubber.timer(busy=busy)
        return None if found is None else found / S


def test_pages_are_due_at_half_of_the_interval_and_take_along_what_is_due_soon() -> None:
    b = Bench()
    assert b.timer() is None
    first, soon, _ = b.enter(1, 0), b.enter(2, 7), b.enter(3, 8)
    assert b.timer() == 30
    assert b.due(29.9) == []
    assert b.due(30) == [first, soon]


def test_one_order_is_under_way_and_what_it_finds_right_was_so_when_it_was_given() -> None:
    b = Bench()
    first, later = b.enter(1, 0), b.enter(2, 20)
    assert b.due(31) == [first]
    assert b.timer() is None
    assert b.due(55) == []
    assert b.scrubber.ended(Micros(31 * S), []) == []
    assert b.cache.verified_at(first) == 31 * S, (
        "what changes after it was read must not count as verified"
    )
    assert b.timer() == 50
    assert b.due(50) == [later]
    assert (b.scrubber.verified, b.scrubber.damaged) == (1, 0)


def test_what_was_hashed_for_another_reason_is_verified_and_is_so_when_an_earlier_order_ends_later() -> (
    None
):
    b = Bench()
    entry, other = b.enter(1, 0), b.enter(2, 0)
    assert b.due(30) == [entry, other]
    b.scrubber.seen(Micros(40 * S), [entry])
    assert b.cache.verified_at(entry) == 40 * S
    assert b.scrubber.ended(Micros(30 * S), []) == []
    assert (b.cache.verified_at(entry), b.cache.verified_at(other)) == (40 * S, 30 * S)
    b.now = 95 * S
    assert b.scrubber.fresh((entry,)) == (entry,)
    b.cache.evict()
    b.scrubber.seen(Micros(96 * S), [entry, other])
    b.cache.audit({})


def test_what_was_not_verified_in_time_is_not_used_nor_is_what_is_above_it() -> None:
    b = Bench()
    root = b.enter(1, 10)
    child = b.enter(2, 0, parent=root)
    above = b.enter(3, 10, parent=child)
    chain = (root, child, above)
    b.now = 60 * S
    assert b.scrubber.fresh(chain) == chain
    b.now += 1
    assert b.scrubber.fresh(chain) == (root,)


def test_what_has_no_sums_is_never_hashed_and_not_used() -> None:
    b = Bench()
    entry = b.enter(1, 0, sums=False)
    assert b.due(1000) == []
    assert b.scrubber.fresh((entry,)) == ()


def test_while_rooms_are_open_so_many_bytes_a_second_are_hashed_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ORDER_BYTES", 2000)
    monkeypatch.setattr(module, "BYTES_PER_S", 1000)
    b = Bench()
    entries = [b.enter(n, 0) for n in range(5)]
    assert b.due(30, busy=True) == entries[:2]
    b.scrubber.ended(Micros(30 * S), [])
    assert b.timer(busy=True) == 32
    assert b.due(31.9, busy=True) == []
    assert b.due(31.9, busy=False) == entries[2:4], "nothing else is to be done"


def test_a_page_larger_than_an_order_is_hashed_all_the_same() -> None:
    b = Bench(page_bytes=1 << 40)
    entry = b.enter(1, 0)
    assert b.due(30) == [entry]


def test_a_page_that_went_meanwhile_is_not_damaged() -> None:
    """Another room has written into it while it was hashed, and may have left a page with the same
    beginning."""
    b = Bench()
    gone, stays = b.enter(1, 0), b.enter(2, 0)
    assert b.due(30) == [gone, stays]
    b.cache.drop(gone)
    again = b.enter(1, 31)
    assert b.scrubber.ended(Micros(30 * S), [gone, stays]) == [stays]
    assert b.cache.verified_at(again) == 31 * S
    assert b.scrubber.damaged == 1


def test_a_page_that_was_dropped_and_is_pinned_is_still_what_it_was() -> None:
    b = Bench()
    entry = b.enter(1, 0)
    assert b.due(30) == [entry]
    b.cache.pin((entry,))
    b.cache.drop(entry)
    assert b.scrubber.ended(Micros(30 * S), [entry]) == [entry]


def test_off_nothing_is_due_and_everything_may_be_used() -> None:
    b = Bench(interval_s=0)
    entry = b.enter(1, 0)
    assert b.due(10_000) == []
    assert b.scrubber.fresh((entry,)) == (entry,)


def test_what_has_left_the_cache_is_forgotten() -> None:
    b = Bench()
    entry = b.enter(1, 0)
    b.cache.evict()
    assert b.timer() is None
    b.cache.audit({})
    b.cache.enlist(entry, Micros(0))
    with pytest.raises(Bug, match="is to be verified, and has left"):
        b.cache.audit({})
