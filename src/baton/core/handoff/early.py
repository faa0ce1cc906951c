"""Keeps messages of prefill about a room whose ticket has not come yet: offers, and the question
what is cached of its prompt.

They wait in a bounded table, without pages, until the ticket comes or their time is over. Only the
ticket says which worker they must come from, so until then the messages of each worker are kept
apart.
"""

import msgspec

from baton.core.ids import Boot, Key, Micros
from baton.core.messages import Borrow, Offer

ROOMS = 1024
OFFERS = 4096  # for one room: more than any prompt has chunks
LIFE = Micros(5_000_000)


class HeldOffers(msgspec.Struct):
    """One worker's offers for one room."""

    until: Micros
    offers: dict[int, Offer]
    borrow: Borrow | None = None


class EarlyOffers:
    """The table of one decode worker."""

    def __init__(self) -> None:
        self._rooms: dict[tuple[Key, Boot], HeldOffers] = {}

    def keep(self, sender: Boot, offer: Offer, now: Micros) -> bool:
        """Keep an offer. Returns False if there is no space for it."""
        waiting = self._rooms.get((offer.key, sender))
        if waiting is None:
            if len(self._rooms) >= ROOMS:
                return False
            waiting = self._rooms[offer.key, sender] = HeldOffers(Micros(now + LIFE), {})
        if len(waiting.offers) >= OFFERS:
            return False
        waiting.offers[offer.number] = offer
        return True

    def keep_borrow(self, sender: Boot, borrow: Borrow, now: Micros) -> bool:
        """Keep a question. Returns False if there is no space for it."""
        waiting = self._rooms.get((borrow.key, sender))
        if waiting is None:
            if len(self._rooms) >= ROOMS:
                return False
            waiting = self._rooms[borrow.key, sender] = HeldOffers(Micros(now + LIFE), {})
        waiting.borrow = borrow
        return True

    def borrow(self, key: Key, sender: Boot) -> Borrow | None:
        """Return the question that a worker has asked; None without one."""
        waiting = self._rooms.get((key, sender))
        return waiting.borrow if waiting is not None else None

    def take(self, key: Key, sender: Boot) -> dict[int, Offer]:
        """The ticket has come: return the offers of the worker that it names, by number, and forget
        those of others."""
        waiting = self._rooms.pop((key, sender), None)
        for other in [at for at in self._rooms if at[0] == key]:
            del self._rooms[other]
        return waiting.offers if waiting is not None else {}

    def withdraw(self, key: Key, sender: Boot) -> None:
        """A worker withdraws what it offered for a room: forget it."""
        self._rooms.pop((key, sender), None)

    def expired(self, now: Micros) -> list[tuple[Key, Boot]]:
        """Forget the rooms whose time is over. Returns each once, with the worker that offered."""
        over = [at for at, w in self._rooms.items() if now >= w.until]
        for at in over:
            del self._rooms[at]
        return over

    def lost(self, sender: Boot) -> None:
        """A worker is gone: forget what it offered."""
        self._rooms = {at: w for at, w in self._rooms.items() if at[1] != sender}

    def overdue(self, now: Micros) -> list[Key]:
        """Return the rooms whose time ended before now."""
        return [key for (key, _), w in self._rooms.items() if w.until < now]

    def timer(self) -> Micros | None:
        """Return when `expired` has something next; None if nothing waits."""
        return min((w.until for w in self._rooms.values()), default=None)
