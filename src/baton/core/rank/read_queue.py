"""Reads of one rank that wait for their turn: a fabric is given what it can carry soon, from each
source rank.

    ordered ──▶ waits; no deadline runs ──its turn──▶ with the fabric; its deadline runs ──▶ ended: the next one's turn

A deadline is to measure the wire and not how many reads want it. From one source at most `READS`
reads are with the fabric, and of large ones fewer: enough that the fabric always has the next one
at hand.
"""

from collections import deque
from collections.abc import Callable

import msgspec

from baton.core.ids import Key, RankId
from baton.core.rank.rank_effects import Read
from baton.core.work import Handle

READS = 4
# what is with the fabric at once, of several reads; and what a read's stated deadline is for
WINDOW_BYTES = 64 << 20


class SourceReads(msgspec.Struct):
    """The reads from one source rank."""

    waiting: deque[Read]  # oldest first
    given: dict[Handle, int]  # with the fabric: bytes of each


class ReadQueue:
    """Keeps a lane of reads for each source rank."""

    def __init__(self) -> None:
        self._lanes: dict[RankId, SourceReads] = {}

    def __len__(self) -> int:
        return sum(len(lane.waiting) + len(lane.given) for lane in self._lanes.values())

    def add(self, read: Read) -> list[Read]:
        """A read is ordered. Returns the reads whose turn it is."""
        lane = self._lanes.setdefault(read.peer, SourceReads(deque(), {}))
        lane.waiting.append(read)
        return _next(lane)

    def ended(self, handle: Handle) -> list[Read]:
        """A read that was with the fabric has ended. Returns the reads whose turn it is."""
        for peer, lane in self._lanes.items():
            if lane.given.pop(handle, None) is not None:
                turns = _next(lane)
                self._tidy(peer)
                return turns
        return []

    def drop(self, key: Key) -> list[Handle]:
        """A room ends, and its reads that no fabric ever had are forgotten. Returns their handles.

        Those that waited behind them have their turn when the next read ends.
        """
        return self._take_back(lambda read: read.key == key)

    def disconnect(self, peer: RankId) -> list[Handle]:
        """A source is not read from any more, and reads that no fabric ever had are forgotten.
        Returns their handles."""
        return self._take_back(lambda read: read.peer == peer)

    def _take_back(self, unwanted: Callable[[Read], bool]) -> list[Handle]:
        found: list[Handle] = []
        for peer, lane in list(self._lanes.items()):
            if gone := [read.handle for read in lane.waiting if unwanted(read)]:
                lane.waiting = deque(read for read in lane.waiting if not unwanted(read))
                self._tidy(peer)
                found += gone
        return found

    def _tidy(self, peer: RankId) -> None:
        lane = self._lanes[peer]
        if not lane.waiting and not lane.given:
            del self._lanes[peer]


def _next(lane: SourceReads) -> list[Read]:
    """Return the reads whose turn it is. The deadline of each covers those that the fabric has
    before it."""
    turns: list[Read] = []
    while lane.waiting and len(lane.given) < READS:
        ahead = sum(lane.given.values()) + lane.waiting[0].nbytes
        if lane.given and ahead > WINDOW_BYTES:
            break
        read = lane.waiting.popleft()
        lane.given[read.handle] = read.nbytes
        windows = 1 + (ahead - 1) // WINDOW_BYTES if ahead else 1
        turns.append(
            msgspec.structs.replace(read, deadline_ms=read.deadline_ms * windows)
            if windows > 1
            else read
        )
    return turns
