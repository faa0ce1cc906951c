"""Our own memory hashed again: what was ordered of the ranks, and how what they find compares with
the sums that were known.

    leader ──Rehash (blocks of a room), Inspect (cached pages)──▶ every rank ──Rehashed──▶ differing rows ──▶ whoever asked

What is compared are the sums that blocks had when they were computed, or verified: at birth, for
short.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from baton.core.agreement import Inspect, Rehashed, unpack_sums
from baton.core.ids import GroupName, Rank
from baton.core.memory.prefix_cache import CachedPage, Sums
from baton.core.memory.state import Placement

# [blocks], in the order in which they were ordered
Differing = Mapping[tuple[Rank, GroupName], NDArray[np.bool_]]


class OpenInspection(msgspec.Struct):
    """An order that some rank has not answered yet."""

    birth: Sums  # of ranks that hold something of the group, and of no others
    done: Callable[[Differing], None]
    answers: dict[Rank, Rehashed] = {}


class Inspections:
    """All of one worker."""

    def __init__(self, placements: Sequence[Placement]) -> None:
        self._placements = placements
        self._open: dict[int, OpenInspection] = {}

    def __len__(self) -> int:
        return len(self._open)

    def expect(self, order: int, birth: Sums, done: Callable[[Differing], None]) -> None:
        """Ranks were ordered to hash blocks, which once had these sums; `done` is called when all
        of them have answered."""
        self._open[order] = OpenInspection(birth, done)

    def inspect(
        self, order: int, entries: Sequence[CachedPage], done: Callable[[list[CachedPage]], None]
    ) -> Inspect:
        """The order to hash cached pages, which have sums; `done` is called with those that are not
        what they were."""

        def judge(differing: Differing) -> None:
            wrong = np.zeros(len(entries), dtype=np.bool_)
            for rows in differing.values():
                wrong |= rows.reshape(len(entries), -1).any(axis=1)
            done([entry for entry, bad in zip(entries, wrong.tolist(), strict=True) if bad])

        held = [(r, g) for r, g in entries[0].sums if self._placements[r].block_bytes(g)]
        self.expect(
            order,
            {where: np.concatenate([entry.sums[where] for entry in entries]) for where in held},
            judge,
        )
        pages = {
            group: tuple(entry.pages[group] for entry in entries) for group in entries[0].pages
        }
        return Inspect(order, tuple(entry.number for entry in entries), pages)

    def take(self, rank: Rank, answers: Iterable[Rehashed]) -> None:
        """A rank has hashed."""
        for answer in answers:
            asked = self._open[answer.order]
            asked.answers[rank] = answer
            if len(asked.answers) == len(self._placements):
                del self._open[answer.order]
                asked.done({where: self._differing(asked, where) for where in asked.birth})

    def _differing(self, asked: OpenInspection, where: tuple[Rank, GroupName]) -> NDArray[np.bool_]:
        rank, group = where
        now = unpack_sums(asked.answers[rank].sums[group], self._placements[rank].unit_count(group))
        found: NDArray[np.bool_] = (now != asked.birth[where]).any(axis=1)
        return found
