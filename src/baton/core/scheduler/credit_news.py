"""When a worker states its capacity to the gateways, and what: an absolute statement of its own
books, never a permission.

Said when something in it has changed, at most every `PERIOD`. Each gateway is told how many of its
tickets the numbers know of, so that it can add those which are still under way.
"""

from collections.abc import Callable

import msgspec

from baton.core.ids import Boot, Micros, Stamp
from baton.core.messages import Credits

PERIOD = Micros(20_000)


class CreditNews:
    """What one worker says of itself, and to whom."""

    def __init__(self) -> None:
        self._tickets: dict[Boot, int] = {}  # heard since it connected, by gateway
        self._number = 0
        self._said: Credits | None = None
        self._said_at = Micros(0)
        self._owed = False  # there is news, and the last news is too fresh
        self.stamp = Stamp(0)  # the highest of all tickets that have come

    def joined(self, gateway: Boot) -> None:
        """A session with a gateway has begun: it knows nothing yet."""
        self._tickets[gateway] = 0
        self._said = None

    def left(self, gateway: Boot) -> None:
        """A session with a gateway has ended."""
        del self._tickets[gateway]

    def heard(self, gateway: Boot, stamp: Stamp) -> None:
        """A ticket has come."""
        self.stamp = max(self.stamp, stamp)
        if gateway in self._tickets:
            self._tickets[gateway] += 1
            self._owed = True

    def timer(self) -> Micros | None:
        """When `due` has something next."""
        return Micros(self._said_at + PERIOD) if self._owed else None

    def due(self, capacity: Callable[[], Credits], now: Micros) -> list[tuple[Boot, Credits]]:
        """What is to be said now. `capacity`: asked where it may have to be said."""
        if not self._tickets or (self._owed and now < self._said_at + PERIOD):
            self._owed = bool(self._tickets)
            return []
        credits = capacity()
        self._owed = self._owed or credits != self._said
        if not self._owed or now < self._said_at + PERIOD:
            return []
        self._number += 1
        self._owed, self._said_at, self._said = False, now, credits
        said = msgspec.structs.replace(credits, number=self._number)
        return [
            (gateway, msgspec.structs.replace(said, tickets=count))
            for gateway, count in self._tickets.items()
        ]
