"""The page ledger of one worker: every page has one owner, and leaving a state returns what was
held for it.

    target page:  FREE -> FETCHING(key) -> COMMITTED(key) -> CACHED(hash, pins) -> FREE
    source page:  FREE -> COMPUTING(key) -> FULL(key) -> CACHED(hash, pins) -> FREE          or FREE without the cache

    a key's list:  [cached, pinned by the key | its own]      alike in every group whose pages are cached;
                   [its own]                                  in the others

Page numbers are the same on all ranks of the worker, so the leader keeps the only ledger.

Invariants (`audit`): a page is free, belongs to the cache, or is owned by exactly one key. A key's
lists and the table of owners agree. An entry of the cache has one pin for each key whose lists
begin with it, and one for each loan of it. Cached pages without pins are as good as free: when a
key takes pages they are evicted as needed, those used longest ago first (prefix_cache.py).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum

import numpy as np

from baton.core.errors import Bug
from baton.core.ids import GroupName, Key, Page
from baton.core.memory.prefix_cache import CachedPage, PageHash, PageText, PrefixCache, Sums


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
        # 1 = free; there is a 0 at both ends, so page p is at p + 1
        self._free = bytearray((0, *[1] * total, 0))
        self._owner: dict[Page, Key] = {}
        self._cached: set[Page] = set()

    @property
    def free(self) -> int:
        """The number of pages without an owner."""
        return self.total - len(self._owner) - len(self._cached)

    def take(self, key: Key, count: int) -> tuple[Page, ...]:
        """Give `count` pages to `key`, in as few adjacent runs as possible (adjacent pages are
        transferred as one range).

        Raises:
            Bug: fewer are free; the caller must check first
        """
        if count > self.free:
            raise Bug(f"{count} pages taken of {self.free} free")
        pages = tuple(map(Page, self._choose(count)))
        for page in pages:
            self._owner[page] = key
            self._free[page + 1] = 0
        return pages

    def _choose(self, count: int) -> Sequence[int]:
        if count == 0:
            return ()
        free = np.frombuffer(self._free, dtype=np.uint8)
        edges = (free[1:] != free[:-1]).nonzero()[0]
        starts, sizes = edges[::2], edges[1::2] - edges[::2]
        fitting = (sizes >= count).nonzero()[0]
        if fitting.size:  # take the smallest run that holds all
            start = int(starts[fitting[sizes[fitting].argmin()]])
            return range(start, start + count)
        chosen = [
            np.arange(starts[i], starts[i] + sizes[i]) for i in np.argsort(-sizes, kind="stable")
        ]
        return list(np.concatenate(chosen)[:count].tolist())

    def give_back(self, key: Key, pages: tuple[Page, ...]) -> None:
        """Return pages of a key.

        Raises:
            Bug: one of them is not the key's
        """
        for page in pages:
            if self._owner.pop(page, None) != key:
                raise Bug(f"page {page} returned by {key}, which does not own it")
            self._free[page + 1] = 1

    def to_cache(self, key: Key, page: Page) -> None:
        """Move a page from its key to the cache.

        Raises:
            Bug: the page is not the key's
        """
        if self._owner.pop(page, None) != key:
            raise Bug(f"page {page} was cached by {key}, which does not own it")
        self._cached.add(page)

    def from_cache(self, page: Page) -> None:
        """Free a page that the cache gives up.

        Raises:
            Bug: the cache does not have it
        """
        if page not in self._cached:
            raise Bug(f"page {page} was given up by the cache, which does not own it")
        self._cached.discard(page)
        self._free[page + 1] = 1

    def cached(self) -> frozenset[Page]:
        """Return the pages that belong to the cache."""
        return frozenset(self._cached)

    def owner(self, page: Page) -> Key | None:
        """Return the key that holds the page; None if there is none."""
        return self._owner.get(page)

    def owners(self) -> Mapping[Page, Key]:
        """Return all held pages, with their keys."""
        return self._owner


class Ledger:
    """The pages of all groups, by owner."""

    def __init__(
        self, totals: Mapping[GroupName, int], cached: Collection[GroupName] | None = None
    ) -> None:
        """cached: the groups whose pages the cache may hold; None = all"""
        self.cached = tuple(totals if cached is None else cached)  # in order, as orders name them
        self.pools = {g: PagePool(n) for g, n in totals.items()}
        self._totals = dict(totals)
        self._held: dict[Key, dict[GroupName, tuple[Page, ...]]] = {}
        self._begins: dict[Key, dict[GroupName, int]] = {}
        self._state: dict[Key, PageState] = {}
        self.cache = PrefixCache()
        # the entries that a key pins: the first pages of its lists
        self._chains: dict[Key, list[CachedPage]] = {}
        # entries pinned while another worker reads them for a key
        self._loans: dict[Key, tuple[CachedPage, ...]] = {}

    def fits(
        self,
        want: Mapping[GroupName, int],
        *,
        reuse: Collection[CachedPage] = (),
        ended: Collection[Key] = (),
    ) -> bool:
        """Whether these pages are free now, or would be after the cache has evicted what it can.

        reuse: entries that are to be pinned as well, and so cannot be evicted
        ended: keys that are counted as if they had given back what they hold
        """
        spare = self.cache.idle - sum(not entry.pins for entry in reuse)
        back: Counter[GroupName] = Counter()
        pins: Counter[CachedPage] = Counter()
        for key in ended:
            pins.update(self._chains.get(key, []))
            back.update({g: len(own) for g, own in self._own(key).items()})
        stay = set(reuse)
        spare += sum(entry.pins == n and entry not in stay for entry, n in pins.items())
        return all(
            self.pools[g].free + back[g] + spare * (g in self.cached) >= n for g, n in want.items()
        )

    def beyond(
        self, want: Mapping[GroupName, int], reuse: Sequence[CachedPage]
    ) -> dict[GroupName, int]:
        """Return how many of the wanted pages must be a key's own: those that are not reused."""
        return {g: n - len(reuse) * (g in self.cached) for g, n in want.items()}

    def _own(self, key: Key) -> dict[GroupName, tuple[Page, ...]]:
        """Return those pages of a key's lists that belong to it alone."""
        shared = self.shared(key)
        return {
            g: pages[shared * (g in self.cached) :] for g, pages in self._held.get(key, {}).items()
        }

    def could_ever_fit(self, want: Mapping[GroupName, int]) -> bool:
        """Whether empty pools would hold these pages."""
        return all(self.pools[g].total >= n for g, n in want.items())

    def take(
        self,
        key: Key,
        want: Mapping[GroupName, int],
        state: PageState,
        *,
        begins: Mapping[GroupName, int] | None = None,
        reuse: Sequence[CachedPage] = (),
    ) -> dict[GroupName, tuple[Page, ...]] | None:
        """Take pages of all groups, or none, and append them to the key's lists. Returns the
        appended pages; None if not all are free.

        begins: for lists that begin now, how many pages of the sequence come before their first
            page
        reuse: entries of the cache with which the lists begin now; they are pinned, and the pages
            of `want` follow them
        """
        if not self.fits(want, reuse=reuse):
            return None
        if reuse:
            if key in self._held:
                raise Bug(f"{key} holds pages already, and lists only begin with what is cached")
            self.cache.pin(reuse)
            self._chains[key] = list(reuse)
        self._make_room(want)
        taken = {g: self.pools[g].take(key, n) for g, n in want.items()}
        if reuse:
            for g in self.cached:
                taken[g] = tuple(entry.pages[g] for entry in reuse) + taken.get(g, ())
        held = self._held.setdefault(key, dict.fromkeys(self.pools, ()))
        self._begins.setdefault(key, dict.fromkeys(self.pools, 0) | dict(begins or {}))
        for g, pages in taken.items():
            held[g] = held[g] + pages
        self._state[key] = state
        return taken

    def _make_room(self, want: Mapping[GroupName, int]) -> None:
        """Evict cached pages until the wanted ones are free."""
        while any(self.pools[g].free < n for g, n in want.items()):
            self._release([self.cache.evict()])

    def _release(self, entries: Iterable[CachedPage]) -> None:
        """Free the pages of entries that have left the cache."""
        for entry in entries:
            for g, page in entry.pages.items():
                self.pools[g].from_cache(page)

    # ---- the prefix cache -----------------------------------------------------------------------

    def shared(self, key: Key) -> int:
        """Return how many pages belong to the cache, at the front of each of the key's lists whose
        pages are cached."""
        return len(self._chains.get(key, ()))

    def enter(
        self, key: Key, page_hash: PageHash, sums: Sums, text: PageText | None = None
    ) -> bool:
        """Move the first of the key's own pages, one of every group that is cached, to the cache;
        the key keeps a pin. Returns False, and leaves the pages to the key, if the cache has
        another page with that hash or has dropped the pages before it.

        text: what the change of the cache says of the page
        """
        chain = self._chains.setdefault(key, [])
        pages = {g: self._held[key][g][len(chain)] for g in self.cached}
        entry = self.cache.add(page_hash, chain[-1] if chain else None, pages, sums, text)
        if entry is None:
            return False
        for g, page in pages.items():
            self.pools[g].to_cache(key, page)
        chain.append(entry)
        return True

    def condemn(self, key: Key, at: int) -> set[Key]:
        """The page `at` of the key's lists is damaged: it leaves the cache with all its
        descendants. Returns the keys whose lists hold any of them."""
        chain = self._chains.get(key, [])
        if at >= len(chain):
            return {key}  # the page is its own, and so are those computed above it
        return self.condemn_cached(chain[at])

    def condemn_cached(self, entry: CachedPage) -> set[Key]:
        """An entry is damaged: it leaves the cache with all its descendants. Returns the keys whose
        lists hold any of them."""
        # drops nothing if a reset came first; the entry may have holders even then
        self._drop(self.cache.drop(entry))
        # whoever pins a descendant pins this entry too
        return {key for key, held in self._chains.items() if entry in held}

    def chain(self, key: Key) -> Sequence[CachedPage]:
        """Return the cached pages with which the key's lists begin."""
        return self._chains.get(key, ())

    def loan(self, key: Key) -> Sequence[CachedPage]:
        """Return the pages that are lent for the key, from the first page of its sequence on."""
        return self._loans.get(key, ())

    def lend(self, key: Key, chain: Sequence[CachedPage]) -> None:
        """Pin entries until `end_loan`, because another worker reads them for the key.

        Raises:
            Bug: the key has a loan already
        """
        if key in self._loans:
            raise Bug(f"{key} has a loan already")
        self.cache.pin(chain)
        self._loans[key] = tuple(chain)

    def lends(self, key: Key) -> bool:
        """Whether the key has a loan."""
        return key in self._loans

    def end_loan(self, key: Key) -> None:
        """End the key's loan, if it has one: nothing reads its pages any more."""
        self._release(self.cache.unpin(self._loans.pop(key, ())))

    def forget_cached(self) -> None:
        """Empty the cache, so that nothing in it is reused. Pages that keys pin return with their
        last pin."""
        self._drop(self.cache.drop_all())

    def _drop(self, entries: Iterable[CachedPage]) -> None:
        self._release(entry for entry in entries if not entry.pins)

    # ---- pages of keys --------------------------------------------------------------------------

    def let_pass(self, key: Key, gone: Mapping[GroupName, int]) -> dict[GroupName, int]:
        """Give back those of the key's pages that are among the first `gone` pages of its sequence.
        Returns how many these were, for groups that had any."""
        held, begins, passed = self._held[key], self._begins[key], {}
        for g, n in gone.items():
            more = n - begins[g]
            if more > 0:
                self.pools[g].give_back(key, held[g][:more])
                held[g], begins[g], passed[g] = held[g][more:], n, more
        return passed

    def move(self, key: Key, state: PageState) -> None:
        """Set what the key's pages are held for.

        Raises:
            Bug: the key holds no pages
        """
        if key not in self._held:
            raise Bug(f"{key} holds no pages")
        self._state[key] = state

    def held(self, key: Key) -> Mapping[GroupName, tuple[Page, ...]]:
        """Return the key's page lists, each from its first page that is not passed; empty lists if
        it holds nothing."""
        return self._held.get(key, dict.fromkeys(self.pools, ()))

    def begins(self, key: Key) -> Mapping[GroupName, int]:
        """Return how many pages of the key's sequence come before the first page of each list."""
        return self._begins.get(key, dict.fromkeys(self.pools, 0))

    def state(self, key: Key) -> PageState:
        """Return what the key's pages are held for."""
        return self._state[key]

    def give_back(self, key: Key) -> None:
        """Free the key's own pages and remove its pins. The key need not hold anything."""
        for g, pages in self._own(key).items():
            self.pools[g].give_back(key, pages)
        self._state.pop(key, None)
        self._begins.pop(key, None)
        self._held.pop(key, None)
        self._release(self.cache.unpin(self._chains.pop(key, [])))

    def free(self) -> dict[GroupName, int]:
        """Return the pages per group that a key can have now: free ones, and those that the cache
        would evict."""
        idle = self.cache.idle
        return {g: p.free + idle * (g in self.cached) for g, p in self.pools.items()}

    def totals(self) -> dict[GroupName, int]:
        """Return the number of all pages per group."""
        return self._totals.copy()

    def count(
        self, keys: Iterable[Key], *, beside: Iterable[CachedPage] = ()
    ) -> dict[GroupName, int]:
        """Return the pages per group that these keys hold together, including those of the entries
        `beside`. Each page is counted once."""
        entries, own = set(beside), dict.fromkeys(self.pools, 0)
        for key in keys:
            entries.update(self._chains.get(key, []))
            for g, pages in self._own(key).items():
                own[g] += len(pages)
        return {g: n + len(entries) * (g in self.cached) for g, n in own.items()}

    @property
    def pins(self) -> int:
        """The number of pins on cached pages."""
        return self.cache.pins

    def view(self) -> dict[GroupName, dict[str, int]]:
        """Return the number of pages per group and state name, each page counted once, and `total`.
        `cached` counts cached pages without pins, `shared` those with pins; pages in the other
        states belong to rooms."""
        idle, shared = self.cache.idle, len(self.cache) - self.cache.idle
        found = {}
        for g, p in self.pools.items():
            cached = g in self.cached
            books = {"cached": idle * cached, "shared": shared * cached}
            found[g] = {s.value: 0 for s in PageState} | books | {"free": p.free, "total": p.total}
        for key in self._held:
            for g, pages in self._own(key).items():
                found[g][self._state[key].value] += len(pages)
        return found

    @property
    def clean(self) -> bool:
        """Whether nothing but cache is held."""
        return not self._held and not self.cache.pins

    def audit(self) -> None:
        """Check that the table of owners, the keys' lists and the cache agree.

        Raises:
            Bug: they do not
        """
        for g, pool in self.pools.items():
            listed = {p: k for k in self._held for p in self._own(k)[g]}
            if listed != dict(pool.owners()):
                raise Bug(
                    f"ledger of group {g}: lists {listed} and owners {dict(pool.owners())} disagree"
                )
            cached = [entry.pages[g] for entry in self.cache.all() if g in self.cached]
            if (
                len(cached) != len(pool.cached())
                or set(cached) != pool.cached()
                or not pool.cached().isdisjoint(listed)
            ):
                raise Bug(
                    f"ledger of group {g}: the cache's entries hold {sorted(cached)}, its "
                    f"pages are {sorted(pool.cached())}"
                )
            if pool.free != pool._free.count(1):
                raise Bug(
                    f"ledger of group {g}: {pool.free} free by owners, {pool._free.count(1)} by map"
                )
        for key, chain in self._chains.items():
            for g in self.cached if key in self._held else ():
                pages = self._held[key][g]
                if list(pages[: len(chain)]) != [entry.pages[g] for entry in chain]:
                    raise Bug(
                        f"ledger of group {g}: the list of {key} does not begin with "
                        "the pages that it pins"
                    )
        users = [*self._chains.values(), *self._loans.values()]
        self.cache.audit(Counter(entry for chain in users for entry in chain))
