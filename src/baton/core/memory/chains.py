"""How far a chain of page hashes is known, and the pages of chains that are under way.

Whoever knows a page of a chain knows all pages before it, because a page's hash covers them. So the
end of what is known is found by bisection.
"""

from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

H = TypeVar("H", bound=Hashable)


def known(chain: Sequence[H], has: Callable[[H], bool]) -> int:
    """Return the number of pages, from the first one on, that `has` knows."""
    if not chain or not has(chain[0]):
        return 0
    return bisect_left(chain, True, key=lambda page: not has(page))


class PagesUnderWay(Generic[H]):
    """Counts, for each page, the open requests whose chains contain it."""

    def __init__(self) -> None:
        self._count: dict[H, int] = {}

    def __len__(self) -> int:
        return len(self._count)

    def __contains__(self, page: H) -> bool:
        return page in self._count

    def add(self, chain: Sequence[H]) -> list[H]:
        """A request begins. Returns the pages that no other request has."""
        count, fresh = self._count, []
        for page in chain:
            n = count.get(page, 0)
            count[page] = n + 1
            if not n:
                fresh.append(page)
        return fresh

    def drop(self, chain: Sequence[H]) -> list[H]:
        """A request that was added has ended. Returns the pages that no other request has."""
        count, gone = self._count, []
        for page in chain:
            if count[page] == 1:
                del count[page]
                gone.append(page)
            else:
                count[page] -= 1
        return gone
