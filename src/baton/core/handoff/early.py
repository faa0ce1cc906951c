"""What prefill says of a room before its ticket has come, offers and the question what is cached of
its prompt: they wait in a bounded table, holding no pages, until it comes or their time is over.
Whose they are is known with the ticket; until then each worker's wait for themselves."""

import msgspec

from baton.core.ids import Boot, Key, Micros
from baton.core.messages import Borrow, Offer

ROOMS = 1024
OFFERS = 4096  # of one room: more than the chunks of any prompt
LIFE = Micros(5_000_000)


class HeldOffers(msgspec.Struct):
    """One worker's offers for one room."""

    until: Micros
    offers: dict[int, Offer]
    borrow: Borrow | None = None


class EarlyOffers:
    """The table."""

    def __init__(self) -> None:
        self._rooms: dict[tuple[Key, Boot], HeldOffers] = {}

    def keep(self, sender: Boot, offer: Offer, now: Micros) -> bool:
        """Keep an offer; False where there is no room for it."""
        waiting = self._rooms.get((offer.key, sender))
        if waiting is None:
            if len(self._rooms) >= ROOMS:
                return False
            waiting = self._rooms[offer.key, sender] = HeldOffers(Micros(now + LIFE), {})
        if len(waiting.offers) >= OFFERS:
            return False
        waiting.offers[offer.number] = offer
        return True

    def keep_borrow(self, sender: Boot, borrow: Borrow) -> bool:
        """Keep a question beside the offers that came before it; False where there are none of that
        worker's."""
        waiting = self._rooms.get((borrow.key, sender))
        if waiting is None:
            return False
        waiting.borrow = borrow
        return True

    def borrow(self, key: Key, sender: Boot) -> Borrow | None:
        """What a worker that made offers has asked beside them."""
        waiting = self._rooms.get((key, sender))
        return waiting.borrow if waiting is not None else None

    def take(self, key: Key, sender: Boot) -> dict[int, Offer]:
        """The ticket has come: the offers of the worker that it names, by number; those of others
        go."""
        waiting = self._rooms.pop((key, sender), None)
        for other in [at for at in self._rooms if at[0] == key]:
            del self._rooms[other]
        return waiting.offers if waiting is not None else {}

    def withdraw(self, key: Key, sender: Boot) -> None:
        """The worker takes back what it offered: the ticket, when it comes, finds nothing of it."""
        self._rooms.pop((key, sender), None)

    def expired(self, now: Micros) -> list[tuple[Key, Boot]]:
        """Rooms whose time is over, each returned once, and who offered them."""
        over = [at for at, w in self._rooms.items() if now >= w.until]
        for at in over:
            del self._rooms[at]
        return over

    def lost(self, sender: Boot) -> None:
        """A worker is gone, and what it offered."""
        self._rooms = {at: w for at, w in self._rooms.items() if at[1] != sender}

    def overdue(self, now: Micros) -> list[Key]:
        """Rooms whose time was over before now."""
        return [key for (key, _), w in self._rooms.items() if w.until < now]

    def timer(self) -> Micros | None:
        """When `expired` has something next."""
        return min((w.until for w in self._rooms.values()), default=None)
