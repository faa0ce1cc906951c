"""When a worker states its capacity to the gateways, and what: an absolute statement of its own books, never a permission.

Said when something in it has changed, at most every `PERIOD`. Each gateway is told how many of its tickets the numbers
know of, so that it can add those which are still under way.
"""

from collections.abc import Sequence

import msgspec

from baton.core.ids import Boot, GroupName, Micros
from baton.core.messages import Credits
from baton.core.pages import Ledger
from baton.core.room import RoomState

PERIOD = Micros(20_000)


class CreditNews:
    """What one worker says of itself, and to whom."""

    def __init__(self, max_rooms: int) -> None:
        self._max_rooms = max_rooms
        self._tickets: dict[Boot, int] = {}  # heard since it connected, by gateway
        self._number = 0
        self._said: Credits | None = None
        self._said_at = Micros(0)
        self._owed = False  # there is news, and the last news is too fresh

    def joined(self, gateway: Boot) -> None:
        """A session with a gateway has begun: it knows nothing yet."""
        self._tickets[gateway] = 0
        self._said = None

    def left(self, gateway: Boot) -> None:
        """A session with a gateway has ended."""
        del self._tickets[gateway]

    def heard(self, gateway: Boot) -> None:
        """A ticket has come."""
        if gateway in self._tickets:
            self._tickets[gateway] += 1
            self._owed = True

    def timer(self) -> Micros | None:
        """When `due` has something next."""
        return Micros(self._said_at + PERIOD) if self._owed else None

    def due(
        self, ledger: Ledger, states: Sequence[RoomState], ahead_pages: dict[GroupName, int], now: Micros
    ) -> list[tuple[Boot, Credits]]:
        """What is to be said now. `states`: of all open rooms."""
        if not self._tickets or (self._owed and now < self._said_at + PERIOD):
            self._owed = bool(self._tickets)
            return []
        queued, ending = states.count(RoomState.QUEUED), states.count(RoomState.ENDING)
        running = len(states) - queued
        credits = Credits(
            number=self._number,
            free_pages=ledger.free(),
            total_pages=ledger.totals(),
            waiting=queued,
            running=running,
            free_rooms=max(0, self._max_rooms - running + ending),
            ahead_pages=ahead_pages,
        )
        self._owed = self._owed or credits != self._said
        if not self._owed or now < self._said_at + PERIOD:
            return []
        self._number += 1
        self._owed, self._said_at = False, now
        self._said = msgspec.structs.replace(credits, number=self._number)
        return [(gateway, msgspec.structs.replace(self._said, tickets=count)) for gateway, count in self._tickets.items()]
