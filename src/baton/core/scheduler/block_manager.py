"""Which pages a room holds while its sequence grows: its block tables, which every rank keeps too.

    full      [0 ─────────────────────────▶ past)      all from the first on
    window    . . . passed . . . [gone ───▶ past)      what no later step looks back on is given up
    slot      one, whatever the length

A prompt's window moves within pages that were taken before its first chunk: pages that it passes
are reused at its end, so a room that computes never waits for memory. While a room generates, pages
that the window passes return to the pool.
"""

from collections.abc import Mapping, Sequence

from baton.core.agreement import Hold
from baton.core.ids import GroupName, Key
from baton.core.memory.pages import Ledger, PageState
from baton.core.memory.prefix_cache import CachedPage
from baton.core.memory.span import Span
from baton.core.scheduler.generating_room import GeneratingRoom
from baton.core.scheduler.room import OpenRoom


class BlockManager:
    """Takes pages for the rooms of one worker and gives them back. Ranks learn it by `changes`."""

    def __init__(self, ledger: Ledger, span: Span) -> None:
        self._ledger, self._span = ledger, span
        self._changes: list[Hold] = []

    def changes(self) -> list[Hold]:
        """Return what has changed since the last call. It goes out with the plan of the turn."""
        changes, self._changes = self._changes, []
        return changes

    def take(
        self,
        room: OpenRoom,
        want: Mapping[GroupName, int],
        state: PageState,
        *,
        position: int = 0,
        reuse: Sequence[CachedPage] = (),
    ) -> bool:
        """Give a room its first pages: `want` pages of each group, from the first one that a step
        at `position` looks back on. Returns False, and takes nothing, if they are not free.

        reuse: cached pages that its tables begin with, which are part of `want`
        """
        begins = {g: n for g, n in self._span.gone(position).items() if n}
        own = self._ledger.beyond(want, reuse)
        taken = self._ledger.take(room.key, own, state, begins=begins, reuse=reuse)
        if taken is None:
            return False
        shared = dict.fromkeys(sorted(self._ledger.cached), len(reuse)) if reuse else {}
        self._changes.append(Hold(room.key, taken, begins, shared))
        return True

    def lodge(
        self, key: Key, want: Mapping[GroupName, int], begins: Mapping[GroupName, int]
    ) -> bool:
        """Give a key pages beside those of rooms: `want` of each group, behind the first `begins`
        of its sequence. Returns False, and takes nothing, if they are not free."""
        begins = {g: n for g, n in begins.items() if n}
        taken = self._ledger.take(key, want, PageState.COMMITTED, begins=begins)
        if taken is not None:
            self._changes.append(Hold(key, taken, begins))
        return taken is not None

    def slide(self, room: OpenRoom, position: int, *, tokens: int) -> None:
        """Positions before `position` are computed on all ranks. Pages that the windows have passed
        move to the end of the room's tables, as far as a sequence of `tokens` tokens needs them;
        the others return to the pool."""
        passed = self._ledger.let_pass(room.key, self._span.gone(position))
        if not passed:
            return
        lacking = self._lacking(room, tokens)
        more = {g: min(n, lacking[g]) for g, n in passed.items()}
        taken = self._ledger.take(room.key, more, self._ledger.state(room.key))
        assert taken is not None, "the room held them a moment ago"
        self._changes.append(Hold(room.key, taken, passed))

    def grow(self, room: GeneratingRoom, position: int) -> bool:
        """The next step computes `position`: give up pages that it does not look back on, and take
        a page for it. Returns False if none is free."""
        if room.covered == position - 1 and not self._span.moves(position):  # nearly always
            room.covered = position
        if room.covered == position:
            return True
        passed = self._ledger.let_pass(room.key, self._span.gone(position))
        more = {g: n for g, n in self._lacking(room, position + 1).items() if n > 0}
        taken = self._ledger.take(room.key, more, PageState.COMMITTED) if more else {}
        if passed or taken:
            self._changes.append(Hold(room.key, taken or {}, passed))
        room.covered = position if taken is not None else None
        return taken is not None

    def stretch(self, room: GeneratingRoom, want: Mapping[GroupName, int]) -> None:
        """Append free pages to a room's tables, ahead of its tokens."""
        taken = self._ledger.take(room.key, want, PageState.COMMITTED)
        assert taken is not None, "they are free"
        self._changes.append(Hold(room.key, taken, {}))

    def beyond(self, room: GeneratingRoom, position: int) -> dict[GroupName, int]:
        """Return the pages that the room's tables lack for tokens up to a position."""
        return {g: n for g, n in self._lacking(room, position + 1).items() if n > 0}

    def _lacking(self, room: OpenRoom, tokens: int) -> dict[GroupName, int]:
        """Return how many pages the room's tables lack for a sequence of this many tokens."""
        past, begins, held = (
            self._span.past(tokens),
            self._ledger.begins(room.key),
            self._ledger.held(room.key),
        )
        return {g: past[g] - begins[g] - len(held[g]) for g in past}
