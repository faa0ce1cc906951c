"""Tells the gateways which pages enter and leave this worker's prefix cache.

    the cache changes ──▶ untold, for each gateway ──at most once in PERIOD──▶ CacheChanged
    a gateway connects, or has missed some ──▶ all that is cached is untold ──▶ CacheChanged afresh, and more until it is told

A page that enters and leaves before it is told counts once, with what became of it. So what is
untold never exceeds what was cached since the last message. Messages are numbered for each gateway.
"""

from collections.abc import Iterable, Sequence
from itertools import islice

import msgspec

from baton.core.ids import Boot, Micros
from baton.core.memory.prefix_cache import CacheChange, PageHash
from baton.core.messages import HASH_BYTES, MOST_HASHES, CacheChanged

PERIOD = Micros(20_000)


class Untold(msgspec.Struct):
    """What one gateway has not been told yet."""

    pages: dict[bytes, bool]  # the beginnings of hashes, and whether they are in the cache
    afresh: bool
    number: int = 0


class CacheNews:
    """Keeps what one worker's gateways know of its cache."""

    def __init__(self, boot: Boot) -> None:
        self._boot = boot
        self._gateways: dict[Boot, Untold] = {}
        self._said_at = Micros(-PERIOD)
        self.sent = 0  # messages to all gateways

    def joined(self, gateway: Boot, cached: Iterable[PageHash]) -> None:
        """A session with a gateway has begun. It knows of nothing that is cached."""
        self._gateways[gateway] = Untold({page[:HASH_BYTES]: True for page in cached}, afresh=False)

    def left(self, gateway: Boot) -> None:
        """A session with a gateway has ended."""
        del self._gateways[gateway]

    def asked(self, gateway: Boot, cached: Iterable[PageHash]) -> None:
        """A gateway has missed something, and is told all again."""
        if (untold := self._gateways.get(gateway)) is not None:
            untold.pages = {page[:HASH_BYTES]: True for page in cached}
            untold.afresh = True

    def changed(self, changes: Sequence[CacheChange]) -> None:
        """The cache has changed."""
        for change in changes:
            page = change.page[:HASH_BYTES]
            for untold in self._gateways.values():
                untold.pages[page] = change.entered

    def told(self, gateway: Boot) -> int:
        """Return how many messages a gateway was sent."""
        untold = self._gateways.get(gateway)
        return untold.number if untold is not None else 0

    def timer(self) -> Micros | None:
        """Return when `due` will have something to send; None if there is nothing."""
        untold = any(u.pages or u.afresh for u in self._gateways.values())
        return Micros(self._said_at + PERIOD) if untold else None

    def due(self, now: Micros) -> list[tuple[Boot, CacheChanged]]:
        """Return what is to be sent now, with the gateways it goes to."""
        if now < self._said_at + PERIOD:
            return []
        found = [
            (gateway, self._next(untold))
            for gateway, untold in self._gateways.items()
            if untold.pages or untold.afresh
        ]
        if found:
            self._said_at = now
        return found

    def _next(self, untold: Untold) -> CacheChanged:
        pages = dict(islice(untold.pages.items(), MOST_HASHES))
        for page in pages:
            del untold.pages[page]
        untold.number += 1
        self.sent += 1
        said = CacheChanged(
            self._boot,
            untold.number,
            entered=b"".join(page for page, cached in pages.items() if cached),
            left=b"".join(page for page, cached in pages.items() if not cached),
            afresh=untold.afresh,
        )
        untold.afresh = False
        return said
