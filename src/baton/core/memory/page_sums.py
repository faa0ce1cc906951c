"""What is known of another engine's pages: the sums of their blocks at birth, and which of them may
not be used any more.

    computed into ──▶ unknown ──sealed──▶ known ──bytes differ from it──▶ refused
          ▲              │                                                  │
          └──────────────┴───────── the engine computes into it ────────────┘

An engine with a prefix cache hands out a page long after it was computed. Its bytes may have
changed meanwhile, and a sum that is taken then would seal the change. So the sums of the first seal
are kept, by page, until the engine computes into the page anew. A page holds one block. What is
kept is bounded by the number of pages.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from baton.core.ids import GroupName, Page, Rank

Sums = Mapping[Rank, NDArray[np.uint64]]  # [blocks, units], one block for each page


class PageSums:
    """The sums of the pages of all groups, on every rank."""

    def __init__(self, totals: Mapping[GroupName, int]) -> None:
        self._totals = dict(totals)
        self._known = {g: np.zeros(n, dtype=np.bool_) for g, n in totals.items()}
        self._refused = {g: np.zeros(n, dtype=np.bool_) for g, n in totals.items()}
        self._sums: dict[tuple[Rank, GroupName], NDArray[np.uint64]] = {}

    def forget(self, pages: Mapping[GroupName, Sequence[Page]]) -> None:
        """The engine computes into these pages: what was known of them is over."""
        for group, some in pages.items():
            at = _indices(some)
            self._known[group][at] = self._refused[group][at] = False

    def learn(self, group: GroupName, pages: Sequence[Page], sums: Sums) -> None:
        """These pages have been sealed. Where a page has sums already, they stay."""
        at = _indices(pages)
        new = ~self._known[group][at]
        for rank, rows in sums.items():
            kept = self._sums.get((rank, group))
            if kept is None:
                shape = (self._totals[group], rows.shape[1])
                kept = self._sums[rank, group] = np.zeros(shape, dtype=np.uint64)
            kept[at[new]] = rows[new]
        self._known[group][at] = True

    def refuse(self, group: GroupName, pages: Sequence[Page]) -> None:
        """These pages are damaged, or were computed from such."""
        self._refused[group][_indices(pages)] = True

    def wrong(self, group: GroupName, pages: Sequence[Page], sums: Sums) -> list[int]:
        """Return which of these pages, by their places in the list, are refused, or have other sums
        now than at birth. A page without known sums is not among them."""
        at = _indices(pages)
        found = self._refused[group][at]
        for rank, rows in sums.items():
            if (kept := self._sums.get((rank, group))) is not None:
                found = found | (self._known[group][at] & (kept[at] != rows).any(axis=1))
        return [int(i) for i in found.nonzero()[0]]


def _indices(pages: Sequence[Page]) -> NDArray[np.int64]:
    return np.array(pages, dtype=np.int64)
