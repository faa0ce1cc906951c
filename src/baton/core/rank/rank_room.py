"""The states of a room on one rank: where its state lies, and what moves it.

ABSENT ──pages──▶ HELD ◀──────▶ FETCHING                blocks of it are read into its pages, and verified
                   │ ▲
                   ▼ └─── LOADING ◀───────────┐
                SAVING ──▶ SAVED ──vacate──▶ STORED     the host store has its state, and its pages are given to others

HELD ◀──▶ RESUMING      what was kept of an earlier prompt is copied into its pages; if that fails it vacates them, and is ABSENT

Dropped in any of these states, a room is QUIET when nothing of ours touches its pages any more.
"""

from collections.abc import Mapping
from enum import StrEnum

from baton.core.ids import Key


class RankRoomState(StrEnum):
    """What a rank knows of a room."""

    ABSENT = "absent"
    HELD = "held"  # it holds pages, and its state is in them as far as it has any
    FETCHING = "fetching"  # the rank has not voted yet on an order to read blocks of it
    SAVING = "saving"  # its state is being copied into the host store
    SAVED = "saved"  # the state is there, and in its pages as well, until they are vacated
    # the state is in the host store alone; the pages that it may hold are for its way back
    STORED = "stored"
    LOADING = "loading"  # its state is being copied back, and verified
    RESUMING = "resuming"  # what was kept of an earlier prompt is being copied into its pages
    DROPPED = "dropped"  # it has ended, and something of ours may touch its pages
    QUIET = "quiet"  # nothing does; the report says so, and the rank forgets it


class RankSaw(StrEnum):
    """What happens to a room on a rank."""

    HOLD = "hold"  # a plan gives it pages
    FETCH = "fetch"  # a plan orders blocks of it to be read
    FETCHED = "fetched"  # the rank has voted on all such orders
    SAVE = "save"  # a plan orders its state into the host store
    SAVED = "saved"
    RESTORE = "restore"  # a plan orders its state back
    RESTORED = "restored"
    RESUME = "resume"  # a plan orders what was kept of an earlier prompt into its pages
    RESUMED = "resumed"
    COPY_FAILED = "copy_failed"  # on the way there or back
    VACATE = "vacate"  # a plan gives its pages to others
    DROP = "drop"  # a plan says that it has ended
    QUIET = "quiet"  # no read, hash, copy or computation of ours touches its pages


_LIVE = [
    state for state in RankRoomState if state not in (RankRoomState.DROPPED, RankRoomState.QUIET)
]

# A room may be given up in the turn in which something is ordered of it: the plan then says both,
# and drops it first.
RANK_ROOM: Mapping[tuple[RankRoomState, RankSaw], RankRoomState] = {
    (RankRoomState.ABSENT, RankSaw.HOLD): RankRoomState.HELD,
    (RankRoomState.HELD, RankSaw.HOLD): RankRoomState.HELD,
    (RankRoomState.HELD, RankSaw.FETCH): RankRoomState.FETCHING,
    (RankRoomState.FETCHING, RankSaw.HOLD): RankRoomState.FETCHING,
    (RankRoomState.FETCHING, RankSaw.FETCH): RankRoomState.FETCHING,
    (RankRoomState.FETCHING, RankSaw.FETCHED): RankRoomState.HELD,
    (RankRoomState.HELD, RankSaw.SAVE): RankRoomState.SAVING,
    (RankRoomState.SAVING, RankSaw.SAVED): RankRoomState.SAVED,
    (RankRoomState.SAVING, RankSaw.COPY_FAILED): RankRoomState.HELD,
    (RankRoomState.SAVED, RankSaw.VACATE): RankRoomState.STORED,
    (RankRoomState.STORED, RankSaw.HOLD): RankRoomState.STORED,
    (RankRoomState.STORED, RankSaw.RESTORE): RankRoomState.LOADING,
    (RankRoomState.LOADING, RankSaw.RESTORED): RankRoomState.HELD,
    (RankRoomState.LOADING, RankSaw.COPY_FAILED): RankRoomState.STORED,
    (RankRoomState.HELD, RankSaw.RESUME): RankRoomState.RESUMING,
    (RankRoomState.RESUMING, RankSaw.RESUMED): RankRoomState.HELD,
    (RankRoomState.RESUMING, RankSaw.COPY_FAILED): RankRoomState.HELD,
    # on another rank it could not be resumed: its leader begins it anew
    (RankRoomState.HELD, RankSaw.VACATE): RankRoomState.ABSENT,
    **{(state, RankSaw.DROP): RankRoomState.DROPPED for state in _LIVE},
    (RankRoomState.DROPPED, RankSaw.HOLD): RankRoomState.DROPPED,
    (RankRoomState.DROPPED, RankSaw.FETCH): RankRoomState.DROPPED,
    (RankRoomState.DROPPED, RankSaw.SAVE): RankRoomState.DROPPED,
    (RankRoomState.DROPPED, RankSaw.RESTORE): RankRoomState.DROPPED,
    (RankRoomState.DROPPED, RankSaw.VACATE): RankRoomState.DROPPED,
    (RankRoomState.DROPPED, RankSaw.RESUME): RankRoomState.DROPPED,
    (RankRoomState.DROPPED, RankSaw.QUIET): RankRoomState.QUIET,
}


class RankRooms:
    """Knows where each room of one rank stands. Rooms that are absent or quiet are not kept."""

    def __init__(self) -> None:
        self._states: dict[Key, RankRoomState] = {}
        self.dropped: set[Key] = set()  # looked at after every event

    def __len__(self) -> int:
        return len(self._states)

    def state(self, key: Key) -> RankRoomState:
        """Return where a room stands. One of which nothing was heard is absent."""
        return self._states.get(key, RankRoomState.ABSENT)

    def see(self, key: Key, saw: RankSaw) -> RankRoomState:
        """Move a room along the table, and return where it stands now. A pair that the table lacks
        is our bug."""
        after = RANK_ROOM[self.state(key), saw]
        if after in (RankRoomState.QUIET, RankRoomState.ABSENT):
            del self._states[key]
            self.dropped.discard(key)
            return after
        self._states[key] = after
        if after is RankRoomState.DROPPED:
            self.dropped.add(key)
        return after
