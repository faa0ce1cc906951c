"""The prefix cache's books: which pages hold which beginnings of sequences, who uses them, and
which go first.

    tokens ──page_hashes──▶ a chain of hashes ──find──▶ the longest chain of entries that is here

    entry 0 ◀── entry 1 ◀── entry 2 ◀── entry 3           an entry is one complete page of every group; each was
    pins 2      pins 2      pins 1      pins 0            computed above the very pages of those before it

A page's hash covers all tokens up to its end, the model, its weights and the request's salt: equal
hashes are equal state. A chain is of one piece: whoever computed a page above pages of its own,
which the cache did not take because it had others with the same hash, keeps it to itself. So what
descends from a damaged page is what was computed above it, and nothing else.

Invariants (`audit`):
- a parent is in the cache as long as its child, and whoever pins an entry pins all before it in its
  chain; so what nobody pins has nothing pinned beneath it, and may go at any time;
- entries that nobody pins go in the order of their last use, a child always before its parent;
- what was dropped is found by nobody any more; its pages return when its last pin does.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from typing import NewType

import numpy as np
from numpy.typing import NDArray

from baton.core.errors import Bug
from baton.core.ids import GroupName, Micros, Page, Rank, TokenId

PageHash = NewType("PageHash", bytes)
Sums = Mapping[tuple[Rank, GroupName], NDArray[np.uint64]]  # uint64 [blocks of the page, units]

_HASH_BYTES = 32


def root_hash(model: str, weights: str, salt: str) -> PageHash:
    """What every chain of one model, one weights identity and one salt begins with."""
    fields = b"".join(
        len(raw).to_bytes(4, "little") + raw for raw in (f.encode() for f in (model, weights, salt))
    )
    return PageHash(blake2b(fields, digest_size=_HASH_BYTES, person=b"baton-root-1").digest())


def page_hash(before: PageHash, tokens: Sequence[TokenId]) -> PageHash:
    """Of the page that holds `tokens`, after the page of hash `before`."""
    raw = np.asarray(tokens, dtype="<u4").tobytes()
    return PageHash(blake2b(before + raw, digest_size=_HASH_BYTES, person=b"baton-page-1").digest())


def page_hashes(root: PageHash, tokens: Sequence[TokenId], page_tokens: int) -> list[PageHash]:
    """Of all complete pages of a sequence, in order."""
    found, before = [], root
    for start in range(0, len(tokens) - page_tokens + 1, page_tokens):
        before = page_hash(before, tokens[start : start + page_tokens])
        found.append(before)
    return found


class CachedPage:
    """One complete page of every group, its sums, and who uses it. Equal to itself alone."""

    __slots__ = ("children", "digest", "number", "pages", "parent", "pins", "sums")

    def __init__(
        self,
        digest: PageHash,
        parent: "CachedPage | None",
        pages: Mapping[GroupName, Page],
        sums: Sums,
    ) -> None:
        # of the page in its sequence
        self.number: int = parent.number + 1 if parent is not None else 0
        self.digest, self.parent, self.pages, self.sums = digest, parent, dict(pages), sums
        self.pins = 0
        self.children: dict[PageHash, CachedPage] = {}


class PrefixCache:
    """Cached pages of one worker. Pages are the ledger's; here it is only said which."""

    def __init__(self) -> None:
        self._entries: dict[PageHash, CachedPage] = {}
        self._idle: dict[CachedPage, None] = {}  # pinned by nobody, in the order in which they go
        self._condemned: dict[CachedPage, None] = {}  # dropped while pinned
        # those that are hashed from time to time: when last, the longest ago first
        self._verified: dict[CachedPage, Micros] = {}
        self.evicted = 0  # entries that went to make room

    def __len__(self) -> int:
        """Entries, those among them that were dropped and are pinned still."""
        return len(self._entries) + len(self._condemned)

    @property
    def idle(self) -> int:
        """Entries that nobody pins: each can give back a page of every group."""
        return len(self._idle)

    @property
    def pins(self) -> int:
        """All pins."""
        return sum(e.pins for e in self._entries.values()) + sum(e.pins for e in self._condemned)

    def find(self, hashes: Iterable[PageHash]) -> tuple[CachedPage, ...]:
        """The longest chain that is here, from its first page on."""
        found: list[CachedPage] = []
        for h in hashes:
            entry = self._entries.get(h)
            if entry is None:
                break
            found.append(entry)
        return tuple(found)

    def pin(self, chain: Iterable[CachedPage]) -> None:
        """Somebody uses these entries: a chain from its first page on."""
        for entry in chain:
            entry.pins += 1
            self._idle.pop(entry, None)

    def unpin(self, chain: Sequence[CachedPage]) -> list[CachedPage]:
        """Somebody uses this chain no more; returns entries whose pages are nobody's now, as they
        were dropped before.

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
    ) -> CachedPage | None:
        """A page enters behind `parent`, pinned once, by whoever brings it; None where it may not:
        another one has its hash, or its parent was dropped."""
        if digest in self._entries or (parent is not None and parent in self._condemned):
            return None
        entry = self._entries[digest] = CachedPage(digest, parent, pages, sums)
        if parent is not None:
            parent.children[digest] = entry
        entry.pins = 1
        return entry

    def evict(self) -> CachedPage:
        """Take out the entry that was used longest ago, of those that nobody pins and nothing
        descends from."""
        entry = next(iter(self._idle))
        self._take_out(entry)
        self.evicted += 1
        return entry

    def drop(self, entry: CachedPage) -> list[CachedPage]:
        """Take out an entry and all that descends from it; returns all of them, children first. The
        pages of those that are pinned return when the last pin does."""
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
        """Take out everything, as `drop` does."""
        return [
            gone
            for root in [e for e in self._entries.values() if e.parent is None]
            for gone in self.drop(root)
        ]

    def _take_out(self, entry: CachedPage) -> None:
        del self._entries[entry.digest]
        self._idle.pop(entry, None)
        self._verified.pop(entry, None)
        if entry.parent is not None:
            entry.parent.children.pop(entry.digest, None)

    # ---- verification ---------------------------------------------------------------------------

    def enlist(self, entry: CachedPage, at: Micros) -> None:
        """An entry that has come, and is right, is to be verified from time to time."""
        self._verified[entry] = at

    def verified(self, entry: CachedPage, at: Micros) -> None:
        """An entry was as it should be at that moment; one that has gone since is no error. Two
        orders may have hashed it at the same time, and be answered in either order: the later
        moment counts."""
        if (before := self._verified.pop(entry, None)) is not None:
            self._verified[entry] = max(before, at)

    def verified_at(self, entry: CachedPage) -> Micros | None:
        """When an entry was last known to be right; None if it is not verified at all."""
        return self._verified.get(entry)

    def longest_ago(self) -> Micros | None:
        """When the entry was verified that is the next to be."""
        return next(iter(self._verified.values()), None)

    def verified_before(self, past: Micros, most: int) -> list[CachedPage]:
        """So many of the next ones, as far as they were verified before that moment."""
        return [entry for entry, at in islice(self._verified.items(), most) if at < past]

    def holds(self, entry: CachedPage) -> bool:
        """Whether the pages of an entry are the cache's, and so have been since it came."""
        return entry in self._condemned or self._entries.get(entry.digest) is entry

    def live(self) -> Iterable[CachedPage]:
        """Every entry that `find` may find."""
        return self._entries.values()

    def all(self) -> list[CachedPage]:
        """Every entry whose pages are the cache's."""
        return [*self._entries.values(), *self._condemned]

    def audit(self, pins: Mapping[CachedPage, int]) -> None:
        """Raise Bug where the books are not what the head of this module says. pins: by the books
        of those who pin."""
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
                    f"its place in line says otherwise"
                )
        seen: set[CachedPage] = set()
        for entry in self._idle:
            if not set(entry.children.values()) <= seen:
                raise Bug(
                    f"page {entry.pages} of the prefix cache would go before one that "
                    f"descends from it"
                )
            seen.add(entry)
