"""The page lists of a rank's rooms: per group the pages from a first one on, those before it having
been passed."""

import numpy as np
from numpy.typing import NDArray

from baton.core.agreement import Hold
from baton.core.errors import Bug
from baton.core.ids import BlockIndex, GroupName, Key
from baton.core.memory.state import Placement

NO_PAGES: NDArray[np.int32] = np.zeros(0, dtype=np.int32)


class BlockTables:
    """Keeps the lists as plans say. A list that has changed is a new array: a batch under way keeps
    the one that it was given."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._pages: dict[Key, dict[GroupName, NDArray[np.int32]]] = {}
        self._begins: dict[Key, dict[GroupName, int]] = {}  # pages passed

    def __len__(self) -> int:
        return len(self._pages)

    def __getitem__(self, key: Key) -> dict[GroupName, NDArray[np.int32]]:
        """Return the pages that a room holds now."""
        return self._pages[key]

    def add(self, hold: Hold) -> None:
        """A plan gives a room pages: those that were passed go from the front, and the new ones
        come to the end."""
        lists = self._pages.setdefault(hold.key, {})
        begins = self._begins.setdefault(hold.key, {})
        for group, passed in hold.passed.items():
            lists[group] = lists.get(group, NO_PAGES)[passed:]
            begins[group] = begins.get(group, 0) + passed
        for group, more in hold.pages.items():
            lists[group] = np.concatenate(
                (lists.get(group, NO_PAGES), np.asarray(more, dtype=np.int32))
            )

    def drop(self, key: Key) -> None:
        """A room holds no pages any more. It need not have held any."""
        self._pages.pop(key, None)
        self._begins.pop(key, None)

    def begins(self, key: Key) -> dict[GroupName, BlockIndex]:
        """Return the block with which each list begins, of those that do not begin with the
        first."""
        found = self._begins[key].items()
        return {
            g: BlockIndex(passed * self._placement.blocks_per_page(g))
            for g, passed in found
            if passed
        }

    def slots(self, key: Key, group: GroupName, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where these blocks of the sequence lie in the pool: page * k + j.

        Raises:
            Bug: one of them was passed
        """
        k = self._placement.blocks_per_page(group)
        passed = self._begins[key].get(group, 0)
        at = blocks if k == 1 else blocks // k
        if passed and (at := at - passed).size and np.minimum.reduce(at) < 0:
            raise Bug(
                f"blocks {blocks.tolist()} of group {group!r} are wanted of {key}, and "
                "its window has passed some of them"
            )
        pages = self._pages[key][group][at].astype(np.int64)
        return pages if k == 1 else pages * k + blocks % k
