"""What must happen to pages of decode's prefix cache in which a bit was flipped, kept without the
code under test.

    flipped ──▶ hashed where it lies ──answered by every rank──▶ not cached any more, nor is what was computed above it
       └── after the bound: no room begins with it, whether it was hashed or not

Checked: if an order hashes a page after the flip, the page and those above it leave the cache when
all ranks have answered, and rooms that hold any of them end in that turn. No room begins with a
page that has been damaged for longer than the bound, nor with one that was not verified within the
bound.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from baton.core.agreement import StepPlan
from baton.core.ids import GroupName, Rank
from baton.dev.sim.collective import Collective

Where = tuple[GroupName, int]
SLACK = 1.001  # because clocks run at slightly different rates


class Kept(msgspec.Struct, eq=False):
    """A cached page: where it lies, which attempts computed its rows (the stamps of its positions),
    above which page it was computed, and when it was last right."""

    pages: Mapping[GroupName, int]
    stamps: tuple[int, ...]
    tainted: bool
    above: "Kept | None"
    entered: int
    verified: int  # when it entered, or when the last answered order to hash it was given
    twin: bool = False  # whether it, or a page beneath it, was cached before it was computed here

    def beneath(self) -> Iterable["Kept"]:
        """Yield this page and the pages above which it was computed."""
        one: Kept | None = self
        while one is not None:
            yield one
            one = one.above


class HashOrder(msgspec.Struct):
    """Pages that are being hashed where they lie."""

    at: int
    pages: list[Kept]
    damaged: set[Kept]  # those that were damaged before the order
    answered: set[Rank] = set()


class AtRest:
    """The cached pages of one decode worker."""

    def __init__(
        self, name: str, bound_us: int, collective: Collective, violate: Callable[[str, str], None]
    ) -> None:
        self._name, self._bound, self._collective, self._violate = (
            name,
            bound_us,
            collective,
            violate,
        )
        self._orders: dict[int, HashOrder] = {}
        self.due: set[Kept] = set()  # pages that must leave the cache

    @property
    def _now(self) -> int:
        return self._collective.world.heap.now

    def since(self, kept: Kept) -> int | None:
        """Return since when a cached page differs from what it was; None if it does not."""
        flipped = self._collective.flipped(kept.pages)
        return None if flipped is None else max(flipped, kept.entered)

    def too_long(self, kept: Kept) -> bool:
        """Whether a page has been damaged for longer than the bound."""
        since = self.since(kept)
        return bool(self._bound) and since is not None and self._now - since > self._bound * SLACK

    def overdue(self, kept: Kept) -> bool:
        """Whether a page was not verified within the bound."""
        return bool(self._bound) and self._now - kept.verified > self._bound / SLACK

    def begins(self, who: str, chain: Iterable[Kept]) -> None:
        """A room begins with these pages."""
        for kept in chain:
            if self.too_long(kept):
                self._violate(
                    "damage_found_in_time",
                    f"{self._name}: {who} begins with page {kept.pages}, damaged long ago",
                )
            if self._bound and self._now - kept.verified > self._bound * SLACK:
                since = (self._now - kept.verified) / 1000
                self._violate(
                    "verified_in_time",
                    f"{self._name}: {who} begins with page {kept.pages}, "
                    f"verified {since:.0f} ms ago",
                )

    # ---- orders ---------------------------------------------------------------------------------

    def ordered(self, plan: StepPlan, cached: Mapping[Where, Kept]) -> None:
        """A leader orders pages to be hashed."""
        for order in plan.inspect:
            kept = {
                cached[g, int(p)]: None
                for g, pages in order.pages.items()
                for p in pages
                if (g, int(p)) in cached
            }
            damaged = {k for k in kept if self._collective.flipped(k.pages) is not None}
            self._orders[order.order] = HashOrder(self._now, list(kept), damaged, set())

    def answered(self, rank: Rank, orders: Iterable[int], cached: Collection[Kept]) -> None:
        """A rank has sent its leader the sums of pages."""
        for number in orders:
            order = self._orders.get(number)
            if order is None:
                continue
            order.answered.add(rank)
            if len(order.answered) == self._collective.ranks:
                del self._orders[number]
                for kept in order.pages:
                    kept.verified = max(kept.verified, order.at)
                bad = {k for k in order.damaged if self._collective.flipped(k.pages) is not None}
                self.due |= {k for k in cached if not bad.isdisjoint(k.beneath())}

    def may_leave(self, kept: Kept) -> bool:
        """Whether a page may leave the cache although its place is not needed: it, or one beneath
        it, is damaged."""
        return any(self.since(one) is not None for one in kept.beneath())

    def turned(
        self,
        cached: Collection[Kept],
        left: Collection[Kept],
        rooms: Mapping[str, Collection[Kept]],
    ) -> None:
        """A leader's turn is over.

        cached: the pages that are cached now
        left: pages that have left the cache as damaged
        rooms: the pages that rooms hold
        """
        if stays := self.due.intersection(cached):
            pages = sorted(str(dict(k.pages)) for k in stays)
            self._violate(
                "damage_found_in_time",
                f"{self._name}: {pages} were found damaged, or are above such, and stay cached",
            )
        self.due.clear()
        for who, chain in rooms.items():
            if not set(chain).isdisjoint(left):
                self._violate(
                    "damage_leaves",
                    f"{self._name}: {who} holds a damaged page, or "
                    "one computed above it, and goes on",
                )
