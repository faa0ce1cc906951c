"""Pages that are spoken for, by whom: sums that are kept while single entries come and go."""

from collections import Counter
from collections.abc import Hashable, Mapping

from baton.core.ids import GroupName

Pages = dict[GroupName, int]


class PageReservations:
    """Keeps entries in the order in which they came, and their sum."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, Pages] = {}
        self._sum: Counter[GroupName] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, name: Hashable, pages: Pages) -> None:
        """Pages are reserved under a name; what was reserved under it before is forgotten."""
        self.drop(name)
        self._entries[name] = pages
        self._sum.update(pages)

    def drop(self, name: Hashable) -> Pages | None:
        """An entry goes. Returns its pages, or None if there was none."""
        pages = self._entries.pop(name, None)
        if pages is not None:
            self._sum.subtract(pages)
        return pages

    def drop_to(self, number: int) -> None:
        """All entries go whose name is a number up to this one."""
        for name in [n for n in self._entries if isinstance(n, int) and n <= number]:
            self.drop(name)

    def clear(self) -> None:
        """All entries go."""
        self._entries.clear()
        self._sum.clear()

    def leaves(self, free: Mapping[GroupName, int], want: Pages, *more: "PageReservations") -> bool:
        """Return whether what is free holds `want` beside all entries, here and in `more`. A group
        that is not named is not short."""
        return all(
            g not in free or free[g] - self._sum[g] - sum(t._sum[g] for t in more) >= n
            for g, n in want.items()
        )
