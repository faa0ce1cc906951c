"""Rooms with a common beginning: the first one leads and the others follow, so that the common part
is computed once and sent once.

    leader    ──takes memory──▶ ... ──▶ the common pages are in the cache
    follower  QUEUED, holding nothing ──────────▶ takes memory for the rest
                 ├── the leader ends otherwise: the next one leads
                 └── its patience ends: it goes alone

Where prompts are computed, a page enters the cache at the end of its chunk; on decode, when its
room is committed. Leaders of all roles ask the same question here. A follower holds no pages, so no
cycle of waiting can arise. It waits for at most half of the time in which it must be admitted, and
has the other half to be admitted alone.
"""

from collections.abc import Iterable, Sequence
from itertools import takewhile

import msgspec

from baton.core.ids import Key, Micros
from baton.core.marks import Mark, Marks
from baton.core.memory.prefix_cache import PageHash
from baton.core.scheduler.reuse import Reuse
from baton.core.scheduler.room import OpenRoom


class Wait(msgspec.Struct, frozen=True):
    """What a follower waits for: the last page that it has in common with its leader."""

    leader: Key
    page: PageHash
    until: Micros


class Followers:
    """Knows which rooms of one worker wait for which others."""

    def __init__(self, reuse: Reuse) -> None:
        self._reuse = reuse
        self._waits: dict[Key, Wait] = {}
        self._alone: set[Key] = set()  # rooms whose patience has ended

    def __contains__(self, key: Key) -> bool:
        return key in self._waits

    def __len__(self) -> int:
        return len(self._waits) + len(self._alone)

    def waits(self, room: OpenRoom, leading: Iterable[OpenRoom], marks: Marks) -> bool:
        """Whether a room that holds nothing yet lets another one go first.

        leading: rooms that hold memory, and whose pages are not in the cache yet
        """
        if not self._reuse.on or room.computes_all or room.key in self._alone:
            return False
        if self._reuse.keeps and room.computes:
            return False  # the end of another prompt is hardly ever within this one
        bring = {other.key: other for other in leading if other.enters}
        before = self._waits.get(room.key)
        if before is not None and before.leader in bring and not self._reuse.has(before.page):
            return True
        wait = self._next(room, bring.values())
        if wait is None:
            self._waits.pop(room.key, None)
            return False
        self._waits[room.key] = wait
        marks[Mark.FOLLOWED] += before is None
        return True

    def look(
        self,
        queued: Iterable[OpenRoom],
        leading: Sequence[OpenRoom],
        marks: Marks,
    ) -> None:
        """Call `waits` for each of these rooms, so followers are known before any admission."""
        for room in queued:
            self.waits(room, leading, marks)

    def _next(self, room: OpenRoom, leading: Iterable[OpenRoom]) -> Wait | None:
        """Return a wait for the first of the leading rooms that brings a page which this one lacks;
        None if none does. As a page's hash covers all before it, two chains are equal up to some
        page and differ from there on."""
        ours, has = self._reuse.chain(room), len(self._reuse.find(room))
        for other in leading if has < len(ours) else ():
            theirs = self._reuse.chain(other, leaving=0)
            if ours[has] in theirs[has : has + 1]:
                common = sum(
                    1
                    for _ in takewhile(
                        lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False)
                    )
                )
                return Wait(other.key, ours[common - 1], Micros((room.born + room.admit_by) // 2))
        return None

    def lose_patience(self, now: Micros, marks: Marks) -> None:
        """Let rooms go alone that have followed for as long as they may."""
        for key in [key for key, wait in self._waits.items() if now >= wait.until]:
            del self._waits[key]
            self._alone.add(key)
            marks[Mark.FOLLOWED_IN_VAIN] += 1

    def timer(self) -> Micros | None:
        """Return when the next room loses its patience; None if no room follows another."""
        return min(wait.until for wait in self._waits.values()) if self._waits else None

    def forget(self, key: Key) -> None:
        """The room is over, or holds memory now."""
        self._waits.pop(key, None)
        self._alone.discard(key)
