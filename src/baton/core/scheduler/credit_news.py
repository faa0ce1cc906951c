"""Decides when a worker states its capacity to the gateways, and what it states: its own books in
absolute figures, never a permission.

It sends them when something in them has changed, at most once in `PERIOD`. Each gateway is told how
many of its tickets the figures include, so that it can add those that are still under way.
"""

from collections.abc import Callable

import msgspec

from baton.core.ids import Boot, Micros, Stamp
from baton.core.messages import Credits
from baton.core.prefill_cost import Backlog

PERIOD = Micros(20_000)


class CreditNews:
    """Keeps what one worker has last told its gateways."""

    def __init__(self) -> None:
        self._tickets: dict[Boot, int] = {}  # by gateway: how many came since it connected
        self._number = 0
        self._said: Credits | None = None
        self._said_at = Micros(0)
        self._owed = False  # there is news, but the last was sent too short a time ago
        self.stamp = Stamp(0)  # the highest stamp of all tickets that have come

    def joined(self, gateway: Boot) -> None:
        """A session with a gateway has begun. The gateway knows nothing yet."""
        self._tickets[gateway] = 0
        self._said = None

    def left(self, gateway: Boot) -> None:
        """A session with a gateway has ended."""
        del self._tickets[gateway]

    def heard(self, gateway: Boot, stamp: Stamp) -> None:
        """A ticket has come from a gateway."""
        self.stamp = max(self.stamp, stamp)
        if gateway in self._tickets:
            self._tickets[gateway] += 1
            self._owed = True

    def timer(self) -> Micros | None:
        """Return when `due` will have something to send; None if there is nothing."""
        return Micros(self._said_at + PERIOD) if self._owed else None

    def due(self, capacity: Callable[[], Credits], now: Micros) -> list[tuple[Boot, Credits]]:
        """Return what is to be sent now, with the gateways it goes to. `capacity` is called only
        where it may have to be sent."""
        if not self._tickets or (self._owed and now < self._said_at + PERIOD):
            self._owed = bool(self._tickets)
            return []
        credits = capacity()
        # What is still to be computed gets less by itself, and the receiver knows how fast. It is
        # told when a prompt is done: otherwise it takes the worker for stuck.
        undone = Backlog(prompts=credits.backlog.prompts)
        lasting = msgspec.structs.replace(credits, backlog=undone, prefill_cost=None)
        self._owed = self._owed or lasting != self._said
        if not self._owed or now < self._said_at + PERIOD:
            return []
        self._number += 1
        self._owed, self._said_at, self._said = False, now, lasting
        said = msgspec.structs.replace(credits, number=self._number)
        return [
            (gateway, msgspec.structs.replace(said, tickets=count))
            for gateway, count in self._tickets.items()
        ]
