"""The books of the prefix cache: which pages hold which beginnings of sequences, who uses them, and
which are evicted first.

    tokens ──page_hashes──▶ a chain of hashes ──find──▶ the longest chain of entries that is here

    entry 0 ◀── entry 1 ◀── entry 2 ◀── entry 3           an entry is one complete page of every group that lasts; each was
    pins 2      pins 2      pins 1      pins 0            computed above the very pages of those before it

A page's hash covers all tokens up to its end, the model, its weights and the request's salt: equal
hashes mean equal state. If the cache does not take a room's page, because it has another one with
the same hash, it takes none of the pages computed above it either. So the descendants of a damaged
page are exactly the pages that were computed above it.

Invariants (`audit`):
- A parent is in the cache for as long as its child is, and whoever pins an entry pins all entries
  before it in its chain. So an entry without pins has no pinned descendants, and may be evicted at
  any time.
- Entries without pins are evicted in the order of their last use, a child always before its parent.
- An entry that was dropped is no longer found. Its pages return with its last pin.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from typing import NewType

import msgspec
import numpy as np
from numpy.typing import NDArray

from baton.core.errors import Bug
from baton.core.ids import GroupName, Micros, Page, Rank, TokenId

PageHash = NewType("PageHash", bytes)
Sums = Mapping[tuple[Rank, GroupName], NDArray[np.uint64]]  # uint64 [blocks of the page, units]

_HASH_BYTES = 32


def root_hash(model: str, weights: str, salt: str) -> PageHash:
    """Return the hash with which every chain of this model, weights identity and salt begins."""
    fields = b"".join(
        len(raw).to_bytes(4, "little") + raw for raw in (f.encode() for f in (model, weights, salt))
    )
    return PageHash(blake2b(fields, digest_size=_HASH_BYTES, person=b"baton-root-1").digest())


def page_hash(before: PageHash, tokens: Sequence[TokenId]) -> PageHash:
    """Return the hash of the page that holds `tokens`, after the page with hash `before`."""
    return _page_hash(before, np.asarray(tokens, dtype="<u4").tobytes())


def _page_hash(before: PageHash, raw: bytes) -> PageHash:
    return PageHash(blake2b(before + raw, digest_size=_HASH_BYTES, person=b"baton-page-1").digest())


def twin_hash(page: PageHash, name: bytes) -> PageHash:
    """Return another hash for a page whose own hash a page of another computation has. name: of the
    computation"""
    return PageHash(blake2b(page + name, digest_size=_HASH_BYTES, person=b"baton-twin-1").digest())


def page_hashes(root: PageHash, tokens: Sequence[TokenId], page_tokens: int) -> list[PageHash]:
    """Return the hashes of all complete pages of a sequence, in order."""
    found, before, size = [], root, 4 * page_tokens
    raw = np.asarray(tokens, dtype="<u4").tobytes()
    for start in range(0, len(raw) - size + 1, size):
        before = _page_hash(before, raw[start : start + size])
        found.append(before)
    return found


class CachedPage:
    """One complete page of every group that lasts, its sums, and its pins. Compared by identity."""

    __slots__ = ("children", "digest", "number", "pages", "parent", "pins", "sums")

    def __init__(
        self,
        digest: PageHash,
        parent: "CachedPage | None",
        pages: Mapping[GroupName, Page],
        sums: Sums,
    ) -> None:
        # the number of the page in its sequence, from 0
        self.number: int = parent.number + 1 if parent is not None else 0
        self.digest, self.parent, self.pages, self.sums = digest, parent, dict(pages), sums
        self.pins = 0
        self.children: dict[PageHash, CachedPage] = {}

    def chain(self) -> "tuple[CachedPage, ...]":
        """Return the pages above which this one was computed, from the first on, and itself."""
        found, one = [self], self.parent
        while one is not None:
            found.append(one)
            one = one.parent
        return tuple(reversed(found))


class PageText(msgspec.Struct, frozen=True, gc=False):
    """What a page says, for those who do not know its hash."""

    tokens: tuple[TokenId, ...]  # of this page alone
    salt: str  # of its sequence; empty for all but the first page, whose hash hands it on


class CacheChange(msgspec.Struct, frozen=True, gc=False):
    """A page has entered the cache, or has left it."""

    page: PageHash
    entered: bool
    parent: PageHash | None = None  # the page before it; None: it is the first, or it has left
    text: PageText | None = None  # of a page that has entered, where somebody wants to know it


class PrefixCache:
    """The cached pages of one worker. The ledger holds the pages themselves; the cache only knows
    their numbers."""

    def __init__(self) -> None:
        self._entries: dict[PageHash, CachedPage] = {}
        self._idle: dict[CachedPage, None] = {}  # without pins, in the order of eviction
        self._condemned: dict[CachedPage, None] = {}  # dropped while pinned
        # entries that are verified from time to time, and when they last were; longest ago first
        self._verified: dict[CachedPage, Micros] = {}
        self.evicted = 0  # entries that were evicted to make room
        self.left = 0  # entries that `find` cannot find any more, for whatever reason
        self._changes: list[CacheChange] = []

    def __len__(self) -> int:
        """Return the number of entries, including those that were dropped and are still pinned."""
        return len(self._entries) + len(self._condemned)

    @property
    def idle(self) -> int:
        """The number of entries without pins: each can give back a page of every group."""
        return len(self._idle)

    def take_changes(self) -> "list[CacheChange]":
        """Return which entries can be found or not found any more since the last call, in order."""
        changes, self._changes = self._changes, []
        return changes

    @property
    def pins(self) -> int:
        """The number of all pins."""
        return sum(e.pins for e in self._entries.values()) + sum(e.pins for e in self._condemned)

    def find(self, hashes: Iterable[PageHash]) -> tuple[CachedPage, ...]:
        """Return the longest chain that is cached, from its first page on."""
        found: list[CachedPage] = []
        for h in hashes:
            entry = self._entries.get(h)
            if entry is None:
                break
            found.append(entry)
        return tuple(found)

    def pin(self, chain: Iterable[CachedPage]) -> None:
        """Pin these entries, which are a chain from its first page on."""
        for entry in chain:
            entry.pins += 1
            self._idle.pop(entry, None)

    def unpin(self, chain: Sequence[CachedPage]) -> list[CachedPage]:
        """Remove one pin from each entry of a chain. Returns the entries whose pages are free now,
        because they were dropped before.

        Raises:
            Bug: one of them is not pinned
        """
        gone = []
        for entry in reversed(chain):  # a child goes before its parent
            if entry.pins < 1:
                raise Bug(
                    f"page {entry.pages} of the prefix cache is unpinned, and nobody has pinned it"
                )
            entry.pins -= 1
            if entry.pins:
                continue
            if entry in self._condemned:
                del self._condemned[entry]
                gone.append(entry)
            else:
                self._idle[entry] = None
        return gone

    def add(
        self,
        digest: PageHash,
        parent: CachedPage | None,
        pages: Mapping[GroupName, Page],
        sums: Sums,
        text: PageText | None = None,
    ) -> CachedPage | None:
        """Add a page after `parent`, with one pin for the room that brings it. Returns None if it
        may not enter: another page has its hash, or its parent was dropped.

        text: kept until `take_changes`
        """
        if digest in self._entries or (parent is not None and parent in self._condemned):
            return None
        entry = self._entries[digest] = CachedPage(digest, parent, pages, sums)
        if parent is not None:
            parent.children[digest] = entry
        entry.pins = 1
        before = parent.digest if parent is not None else None
        self._changes.append(CacheChange(digest, entered=True, parent=before, text=text))
        return entry

    def evict(self) -> CachedPage:
        """Remove the entry that was used longest ago, among those without pins and children."""
        entry = next(iter(self._idle))
        self._take_out(entry)
        self.evicted += 1
        return entry

    def drop(self, entry: CachedPage) -> list[CachedPage]:
        """Remove an entry and all its descendants, and return them, children first. The pages of
        those that are pinned return with their last pin."""
        if self._entries.get(entry.digest) is not entry:
            return []  # it was dropped before
        found = [entry]
        for one in found:
            found += one.children.values()
        found.reverse()
        for one in found:
            self._take_out(one)
            if one.pins:
                self._condemned[one] = None
        return found

    def drop_all(self) -> list[CachedPage]:
        """Remove everything, as `drop` does."""
        return [
            gone
            for root in [e for e in self._entries.values() if e.parent is None]
            for gone in self.drop(root)
        ]

    def _take_out(self, entry: CachedPage) -> None:
        del self._entries[entry.digest]
        self.left += 1
        self._changes.append(CacheChange(entry.digest, entered=False))
        self._idle.pop(entry, None)
        self._verified.pop(entry, None)
        if entry.parent is not None:
            entry.parent.children.pop(entry.digest, None)

    # ---- verification ---------------------------------------------------------------------------

    def enlist(self, entry: CachedPage, at: Micros) -> None:
        """A new entry, which is known to be right, is to be verified from time to time."""
        self._verified[entry] = at

    def verified(self, entry: CachedPage, at: Micros) -> None:
        """An entry was right at that moment. It may have gone since. If two orders hashed it at the
        same time, they may be answered in either order, so the later moment counts."""
        if (before := self._verified.pop(entry, None)) is not None:
            self._verified[entry] = max(before, at)

    def verified_at(self, entry: CachedPage) -> Micros | None:
        """Return when an entry was last known to be right; None if it is never verified."""
        return self._verified.get(entry)

    def longest_ago(self) -> Micros | None:
        """Return the earliest time at which an entry was last verified; None if there is none."""
        return next(iter(self._verified.values()), None)

    def verified_before(self, past: Micros, most: int) -> list[CachedPage]:
        """Return up to `most` entries, longest ago first, that were last verified before `past`."""
        return [entry for entry, at in islice(self._verified.items(), most) if at < past]

    def holds(self, entry: CachedPage) -> bool:
        """Whether an entry's pages have belonged to the cache ever since it came."""
        return entry in self._condemned or self._entries.get(entry.digest) is entry

    def has(self, entry: CachedPage) -> bool:
        """Whether `find` can find exactly this entry."""
        return self._entries.get(entry.digest) is entry

    def hashes(self) -> Iterable[PageHash]:
        """Return the hash of every entry that `find` can find, a parent always before its child."""
        return self._entries.keys()

    def live(self) -> Iterable[CachedPage]:
        """Return every entry that `find` can find."""
        return self._entries.values()

    def all(self) -> list[CachedPage]:
        """Return every entry whose pages belong to the cache."""
        return [*self._entries.values(), *self._condemned]

    def audit(self, pins: Mapping[CachedPage, int]) -> None:
        """Check the invariants at the head of this module. pins: the pins of each entry, by the
        books of those who pin

        Raises:
            Bug: one of them does not hold
        """
        for entry in self.all():
            if entry.pins != pins.get(entry, 0):
                raise Bug(
                    f"page {entry.pages} of the prefix cache has {entry.pins} pins, and "
                    f"{pins.get(entry, 0)} rooms hold it"
                )
        if not set(pins) <= set(self.all()):
            raise Bug("a room pins a page that is not in the prefix cache")
        if gone := [
            entry for entry in self._verified if self._entries.get(entry.digest) is not entry
        ]:
            raise Bug(f"page {gone[0].pages} is to be verified, and has left the prefix cache")
        for entry in self._entries.values():
            if (
                entry.parent is not None
                and self._entries.get(entry.parent.digest) is not entry.parent
            ):
                raise Bug(f"page {entry.pages} of the prefix cache has lost its parent")
            if (entry in self._idle) != (entry.pins == 0):
                raise Bug(
                    f"page {entry.pages} of the prefix cache has {entry.pins} pins, and "
                    "its place in line says otherwise"
                )
        seen: set[CachedPage] = set()
        for entry in self._idle:
            if not set(entry.children.values()) <= seen:
                raise Bug(
                    f"page {entry.pages} of the prefix cache would go before one that "
                    "descends from it"
                )
            seen.add(entry)
