"""Which workers have which pages in their prefix caches, as far as a gateway knows.

    page  ──▶  a bit for each worker that has it

    prompt   page 0   page 1   page 2   page 3          worker A has 4 pages of it, B has 2, C has none
               AB       AB       A        A

An entry may be out of date. Then a request goes to a worker that has less of its prompt than was
thought, and is computed there: that takes time, and changes no token.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, NewType

Slot = NewType("Slot", int)  # the number of a worker's bit
PageId = NewType("PageId", int)  # the beginning of a page's hash

MOST_PAGES = 2_000_000  # of all workers together, at about 150 bytes


class Holders(NamedTuple):
    """Workers that have equally many pages of a prompt."""

    workers: int  # a bit for each
    pages: int


class CacheIndex:
    """Keeps the pages of each worker."""

    def __init__(self, most: int = MOST_PAGES) -> None:
        self._most, self._count = most, 0
        self._has: dict[PageId, int] = {}
        self._pages: dict[Slot, set[PageId]] = {}

    def __len__(self) -> int:
        """Return the number of pages, counted once for each worker that has them."""
        return self._count

    def count(self, slot: Slot) -> int:
        """Return how many pages a worker has."""
        return len(self._pages.get(slot, ()))

    def pages_of(self, slot: Slot) -> frozenset[PageId]:
        """Return the pages that a worker has."""
        return frozenset(self._pages.get(slot, ()))

    def entered(self, slot: Slot, pages: Iterable[PageId]) -> int:
        """A worker has these pages now. Returns how many of them are ignored because the index is
        full."""
        has, own, bit, ignored = self._has, self._pages.setdefault(slot, set()), 1 << slot, 0
        for page in pages:
            if page in own:
                continue
            if self._count >= self._most:
                ignored += 1
                continue
            own.add(page)
            has[page] = has.get(page, 0) | bit
            self._count += 1
        return ignored

    def left(self, slot: Slot, pages: Iterable[PageId]) -> None:
        """A worker does not have these pages any more. It need not have had them."""
        own, has, bit = self._pages.get(slot, set()), self._has, 1 << slot
        for page in pages:
            if page not in own:
                continue
            own.discard(page)
            self._count -= 1
            if rest := has[page] & ~bit:
                has[page] = rest
            else:
                del has[page]

    def forget(self, slot: Slot) -> None:
        """A worker is gone, or says afresh what it has."""
        self.left(slot, list(self._pages.get(slot, ())))
        self._pages.pop(slot, None)

    def depths(self, chain: Sequence[PageId]) -> list[Holders]:
        """Return how many pages of a chain workers have, from the first one on. Those that have
        none are in no group. A worker that lacks pages in between, because the index is out of
        date, may be in several: the one with the most pages counts."""
        if not chain:
            return []
        found: list[Holders] = []
        first = self._has.get(chain[0], 0)
        last = self._has.get(chain[-1], 0) & first
        self._between(chain, 0, len(chain) - 1, first, last, found)
        if last:
            found.append(Holders(last, len(chain)))
        return found

    def ends(self, chain: Sequence[PageId]) -> list[Holders]:
        """Return the last page of a chain that workers have, counted from 1, whether they have
        those before it or not. Each worker is in one group; those that have none are in no
        group."""
        found: list[Holders] = []
        seen = 0
        for at in range(len(chain), 0, -1):
            if has := self._has.get(chain[at - 1], 0) & ~seen:
                found.append(Holders(has, at))
                seen |= has
        return found

    def _between(
        self,
        chain: Sequence[PageId],
        first: int,
        last: int,
        has_first: int,
        has_last: int,
        found: list[Holders],
    ) -> None:
        """Find the workers that have page `first` and not page `last`. Whoever has a page has all
        before it, so no look is needed between two pages that the same workers have."""
        gone = has_first & ~has_last
        if not gone:
            return
        if last == first + 1:
            found.append(Holders(gone, last))
            return
        middle = (first + last) // 2
        has_middle = self._has.get(chain[middle], 0) & has_first
        self._between(chain, first, middle, has_first, has_middle, found)
        self._between(chain, middle, last, has_middle, has_last, found)


def slots_of(workers: int) -> Iterator[Slot]:
    """Yield the workers whose bits are set."""
    while workers:
        bit = workers & -workers
        yield Slot(bit.bit_length() - 1)
        workers ^= bit
