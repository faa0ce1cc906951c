"""Hashes our own memory again: knows what was ordered of the ranks, and compares what they find
with the sums that were known.

    leader ──Rehash (blocks of a room), Inspect (cached pages)──▶ every rank ──Rehashed──▶ differing rows ──▶ whoever asked

The known sums are those that blocks had when they were computed or verified: their sums at birth,
for short.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from baton.core.agreement import Inspect, Rehashed, unpack_sums
from baton.core.ids import GroupName, Rank
from baton.core.memory.prefix_cache import CachedPage, Sums
from baton.core.memory.state import Placement

# by rank and group: [blocks], in the order of the request; True where the sums differ
Differing = Mapping[tuple[Rank, GroupName], NDArray[np.bool_]]


class OpenInspection(msgspec.Struct):
    """An order that some rank has not answered yet."""

    birth: Sums  # only of ranks that hold a part of the group
    done: Callable[[Differing], None]
    answers: dict[Rank, Rehashed] = {}


class Inspections:
    """The open inspections of one worker."""

    def __init__(self, placements: Sequence[Placement]) -> None:
        self._placements = placements
        self._open: dict[int, OpenInspection] = {}

    def __len__(self) -> int:
        return len(self._open)

    def expect(self, order: int, birth: Sums, done: Callable[[Differing], None]) -> None:
        """Ranks were ordered to hash blocks that once had these sums. `done` is called when all
        have answered."""
        self._open[order] = OpenInspection(birth, done)

    def inspect(
        self, order: int, entries: Sequence[CachedPage], done: Callable[[list[CachedPage]], None]
    ) -> Inspect:
        """Return the order to hash cached pages, which must have sums. `done` is called with the
        pages whose sums have changed."""

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
        """Take the sums that a rank has found."""
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
