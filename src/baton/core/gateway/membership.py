"""Which workers a gateway has, and which of them can hand over to each other: all of it as they say
themselves.

Register ──▶ Introduce, to decode, each prefill worker ──▶ Paired: the two are used
                 ▲                                    └──▶ Unpaired, or one says that it has lost the other
                 └────────────── again, later ───────────────┘
"""

from typing import TYPE_CHECKING

from baton.core.gateway.worker_pairs import Pair
from baton.core.ids import Boot, Micros
from baton.core.marks import Mark
from baton.core.messages import (
    AskCache,
    CacheChanged,
    Credits,
    Introduce,
    Paired,
    Register,
    Unpaired,
)

if TYPE_CHECKING:
    from baton.core.gateway.front import Front


class Membership:
    """Keeps one gateway's view of its workers up to date."""

    def __init__(self, front: "Front") -> None:
        self._front = front

    def on_register(self, sender: Boot, message: Register, now: Micros) -> None:
        """A worker has registered."""
        self._front.stamps.heard(message.stamp)
        for pair in self._front.router.registers(sender, message):
            self._introduce(pair)
        self._front.assignment.advance(now)

    def on_paired(self, sender: Boot, message: Paired, now: Micros) -> None:
        """A decode worker can read from a prefill worker."""
        if self._front.router.pairs.paired((message.prefill, sender), message.fabric):
            self._front.assignment.advance(now)

    def on_unpaired(self, sender: Boot, message: Unpaired, now: Micros) -> None:
        """A decode worker cannot read from a prefill worker."""
        self._introduce_at(
            self._front.router.pairs.unpaired((message.prefill, sender), message.why, now)
        )
        self._front.assignment.advance(now)

    def on_credits(self, sender: Boot, message: Credits, now: Micros) -> None:
        """A worker states its capacity."""
        self._front.stamps.heard(message.stamp)
        if sender in self._front.router:
            if self._front.router.states(sender, message, now):
                self._ask_cache(sender)
            self._front.assignment.advance(now)

    def on_cache_changed(self, sender: Boot, message: CacheChanged, now: Micros) -> None:
        """A worker's prefix cache has changed."""
        router = self._front.router
        if sender in router and router.cache_changed(sender, message, now):
            self._ask_cache(sender)

    def _ask_cache(self, sender: Boot) -> None:
        self._front.marks[Mark.CACHE_NEWS_LOST] += 1
        self._front.send(sender, AskCache())

    def doubt(self, pair: Pair, now: Micros) -> None:
        """One of the two says that it has lost the other."""
        again = self._front.router.pairs.doubt(pair, now)
        self._front.marks[Mark.PAIR_DOUBTED] += again is not None
        self._introduce_at(again)

    def on_timer(self, now: Micros) -> None:
        """It may be time to introduce two workers again."""
        for pair, at in list(self._front.router.pairs.introductions().items()):
            if now >= at:
                self._introduce(pair)

    def dues(self) -> list[Micros]:
        """Return when workers are to be introduced again."""
        return list(self._front.router.pairs.introductions().values())

    def _introduce_at(self, at: Micros | None) -> None:
        if at is not None:
            self._front.alarm.tell(at)

    def _introduce(self, pair: Pair) -> None:
        self._front.router.pairs.introduced(pair)
        prefill = self._front.router.get(pair[0])
        assert prefill is not None
        assert prefill.register.address is not None, "a prefill worker listens"
        self._front.send(
            pair[1], Introduce(pair[0], prefill.register.address, prefill.register.manifest)
        )
