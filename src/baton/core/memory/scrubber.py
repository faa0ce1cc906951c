"""Verifies cached pages at rest: memory that changes is found within a stated time, whether it is
read or not.

    verified ──half of the interval──▶ due: hashed, many pages together ──as they were──▶ verified (as of the order)
        └───── the whole interval ───▶ not used before that (a room computes it, or fetches it)      └──▶ condemned

This gives the bound: no room is given a page that was damaged more than one interval before,
however late the hashing is done. One order is under way at a time. While rooms are open, at most
`BYTES_PER_S` are hashed on each rank: a small part of what one core can hash, so that the pump and
compute hardly notice.

Sans-IO: a leader calls `due` when the timer says so, and has its ranks hash the pages that it
returns.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import takewhile

from baton.core.ids import Micros
from baton.core.memory.prefix_cache import CachedPage, PrefixCache

ORDER_BYTES = 32 << 20  # on each rank, in one order: takes some milliseconds
BYTES_PER_S = 2 << 30
SOON = 8  # pages that are due within 1/SOON of the interval are hashed with those due now


class Scrubber:
    """Decides which cached pages of one worker are verified, and when. `interval_ms` 0: none."""

    def __init__(
        self, cache: PrefixCache, *, interval_ms: int, page_bytes: int, now: Callable[[], Micros]
    ) -> None:
        self._cache, self._interval, self._now = cache, interval_ms * 1000, now
        self._page_bytes = max(1, page_bytes)
        self._under_way: Sequence[CachedPage] = ()
        self._not_before = Micros(0)  # no order before this time while rooms are open
        self.verified = self.damaged = 0  # pages of each group

    @property
    def under_way(self) -> bool:
        """Whether pages are being hashed."""
        return bool(self._under_way)

    def entered(self, entry: CachedPage) -> None:
        """A page has entered the cache; it was computed or verified just now."""
        if self._interval and entry.sums:
            self._cache.enlist(entry, self._now())

    def seen(self, at: Micros, intact: Iterable[CachedPage]) -> None:
        """Pages were hashed for another reason, as they were at that moment, and are intact."""
        for entry in intact:
            self._cache.verified(entry, at)

    def fresh(self, chain: Iterable[CachedPage]) -> tuple[CachedPage, ...]:
        """Return the beginning of a chain, up to the first page not verified in the interval."""
        if not self._interval:
            return tuple(chain)
        oldest = self._now() - self._interval
        return tuple(
            takewhile(
                lambda entry: (at := self._cache.verified_at(entry)) is not None and at >= oldest,
                chain,
            )
        )

    def timer(self, *, busy: bool) -> Micros | None:
        """Return when `due` has something to hash; None if nothing is cached or under way."""
        if self._under_way or (oldest := self._cache.longest_ago()) is None:
            return None
        due = Micros(oldest + self._interval // 2)
        return max(due, self._not_before) if busy else due

    def due(self, *, busy: bool) -> list[CachedPage]:
        """Return the pages to hash now, longest ago first. They are under way until `ended`."""
        now, timer = self._now(), self.timer(busy=busy)
        if timer is None or timer > now:
            return []
        past = now - self._interval // 2 + self._interval // SOON
        most = max(1, ORDER_BYTES // self._page_bytes)
        self._under_way = self._cache.verified_before(Micros(past), most)
        self._not_before = Micros(
            now + len(self._under_way) * self._page_bytes * 1_000_000 // BYTES_PER_S
        )
        return list(self._under_way)

    def ended(self, ordered_at: Micros, damaged: Collection[CachedPage]) -> list[CachedPage]:
        """The pages under way were hashed. Returns those of the damaged ones that have been in the
        cache all the time."""
        here = [entry for entry in damaged if self._cache.holds(entry)]
        self.seen(ordered_at, (entry for entry in self._under_way if entry not in damaged))
        self.verified += len(self._under_way)
        self.damaged += len(here)
        self._under_way = ()
        return here
