"""The page ledger of one worker: every page has one owner, and leaving a state returns what the state held.

    target page:  FREE -> FETCHING(key) -> COMMITTED(key) -> FREE
    source page:  FREE -> COMPUTING(key) -> FULL(key) -> FREE

Page numbers are the same on all ranks of the worker, so the leader keeps the only ledger.
Invariants (`audit`): a page is free or owned by exactly one key; a key's list and the owners' table agree.
"""

from collections.abc import Mapping
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from baton.core.errors import Bug
from baton.core.ids import GroupName, Key, Page


class PageState(Enum):
    """What a page is held for."""

    FETCHING = "fetching"
    COMMITTED = "committed"
    COMPUTING = "computing"
    FULL = "full"


class PagePool:
    """The pages of one group."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free: NDArray[np.bool_] = np.ones(total, dtype=np.bool_)
        self._owner: dict[Page, Key] = {}

    @property
    def free(self) -> int:
        """Pages without an owner."""
        return self.total - len(self._owner)

    def take(self, key: Key, count: int) -> tuple[Page, ...]:
        """Give `count` pages to `key`, in as few adjacent runs as possible (adjacent pages travel as one range).

        Raises:
            Bug: fewer are free; the caller looks first
        """
        if count > self.free:
            raise Bug(f"{count} pages taken of {self.free} free")
        pages = tuple(Page(int(p)) for p in self._choose(count))
        for page in pages:
            self._owner[page] = key
        self._free[list(pages)] = False
        return pages

    def _choose(self, count: int) -> NDArray[np.int64]:
        if count == 0:
            return np.zeros(0, dtype=np.int64)
        padded = np.concatenate(([False], self._free, [False]))
        edges = np.flatnonzero(padded[1:] != padded[:-1])
        starts, sizes = edges[::2], edges[1::2] - edges[::2]
        fitting = np.flatnonzero(sizes >= count)
        if fitting.size:  # the tightest run that holds all
            best = fitting[np.argmin(sizes[fitting])]
            return np.arange(starts[best], starts[best] + count)
        chosen = [np.arange(starts[i], starts[i] + sizes[i]) for i in np.argsort(-sizes, kind="stable")]
        return np.concatenate(chosen)[:count]

    def give_back(self, key: Key, pages: tuple[Page, ...]) -> None:
        """Return pages. Raises Bug if one is not the key's."""
        for page in pages:
            if self._owner.pop(page, None) != key:
                raise Bug(f"page {page} returned by {key}, which does not own it")
        self._free[list(pages)] = True

    def owner(self, page: Page) -> Key | None:
        """Who holds the page."""
        return self._owner.get(page)

    def owners(self) -> Mapping[Page, Key]:
        """All held pages."""
        return self._owner


class Ledger:
    """All groups' pages, by owner."""

    def __init__(self, totals: Mapping[GroupName, int]) -> None:
        self.pools = {g: PagePool(n) for g, n in totals.items()}
        self._held: dict[Key, dict[GroupName, tuple[Page, ...]]] = {}
        self._begins: dict[Key, dict[GroupName, int]] = {}
        self._state: dict[Key, PageState] = {}

    def fits(self, want: Mapping[GroupName, int]) -> bool:
        """Whether that many are free now."""
        return all(self.pools[g].free >= n for g, n in want.items())

    def could_ever_fit(self, want: Mapping[GroupName, int]) -> bool:
        """Whether an empty pool would hold that many."""
        return all(self.pools[g].total >= n for g, n in want.items())

    def take(
        self, key: Key, want: Mapping[GroupName, int], state: PageState, *, begins: Mapping[GroupName, int] | None = None
    ) -> dict[GroupName, tuple[Page, ...]] | None:
        """Pages of all groups at once or nothing; appended to what the key holds.

        begins: pages of the sequence before those of a list that begins now, where it does not begin with the first
        """
        if not self.fits(want):
            return None
        taken = {g: self.pools[g].take(key, n) for g, n in want.items()}
        held = self._held.setdefault(key, dict.fromkeys(self.pools, ()))
        self._begins.setdefault(key, dict.fromkeys(self.pools, 0) | dict(begins or {}))
        for g, pages in taken.items():
            held[g] = held[g] + pages
        self._state[key] = state
        return taken

    def let_pass(self, key: Key, gone: Mapping[GroupName, int]) -> dict[GroupName, int]:
        """Give back those of the key's pages that are among the first `gone` of its sequence; how many were, where any."""
        held, begins, passed = self._held[key], self._begins[key], {}
        for g, n in gone.items():
            more = n - begins[g]
            if more > 0:
                self.pools[g].give_back(key, held[g][:more])
                held[g], begins[g], passed[g] = held[g][more:], n, more
        return passed

    def move(self, key: Key, state: PageState) -> None:
        """The key's pages enter another state."""
        if key not in self._held:
            raise Bug(f"{key} holds no pages")
        self._state[key] = state

    def held(self, key: Key) -> Mapping[GroupName, tuple[Page, ...]]:
        """The key's page lists, each from its first page that is not passed; empty lists if it holds nothing."""
        return self._held.get(key, dict.fromkeys(self.pools, ()))

    def begins(self, key: Key) -> Mapping[GroupName, int]:
        """Pages of the key's sequence before the first of each list."""
        return self._begins.get(key, dict.fromkeys(self.pools, 0))

    def state(self, key: Key) -> PageState:
        """What the key's pages are held for."""
        return self._state[key]

    def give_back(self, key: Key) -> None:
        """All pages of the key become free; a key that holds nothing is no error."""
        self._state.pop(key, None)
        self._begins.pop(key, None)
        for g, pages in self._held.pop(key, {}).items():
            self.pools[g].give_back(key, pages)

    def free(self) -> dict[GroupName, int]:
        """Free pages per group."""
        return {g: p.free for g, p in self.pools.items()}

    def totals(self) -> dict[GroupName, int]:
        """All pages per group."""
        return {g: p.total for g, p in self.pools.items()}

    def view(self) -> dict[GroupName, dict[str, int]]:
        """Pages per group and state name, `free` and `total` among them."""
        found = {g: {s.value: 0 for s in PageState} | {"free": p.free, "total": p.total} for g, p in self.pools.items()}
        for key, held in self._held.items():
            for g, pages in held.items():
                found[g][self._state[key].value] += len(pages)
        return found

    @property
    def clean(self) -> bool:
        """Whether nothing is held."""
        return not self._held

    def audit(self) -> None:
        """Raise Bug where the owners' table and the keys' lists disagree."""
        for g, pool in self.pools.items():
            listed = {p: k for k, held in self._held.items() for p in held[g]}
            if listed != dict(pool.owners()):
                raise Bug(f"ledger of group {g}: lists {listed} and owners {dict(pool.owners())} disagree")
            if pool.free != int(pool._free.sum()):
                raise Bug(f"ledger of group {g}: {pool.free} free by owners, {int(pool._free.sum())} by map")
