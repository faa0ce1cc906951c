"""No worker ends a room silently: it was told to, or it has said why.

If nobody hears of an end, the other side and the gateway wait until some time limit is over.
"""

from collections.abc import Callable, Iterable, Mapping

from baton.core.effects import Effect, Issue, Send
from baton.core.frames import Said
from baton.core.ids import Boot, Key, is_loan
from baton.core.messages import (
    Abort,
    Failed,
    FirstToken,
    Offer,
    Received,
    Recompute,
    Ticket,
    Tokens,
    Withdrawn,
)


class Endings:
    """What the leaders of all workers have heard and said about the ends of their rooms."""

    def __init__(self, tickets: Mapping[Key, Ticket], violate: Callable[[str, str], None]) -> None:
        self._tickets, self._violate = tickets, violate
        self._explained: set[tuple[Boot, Key]] = set()

    def heard(self, worker: Boot, message: Said) -> None:
        """A leader receives a message."""
        match message:
            case Abort() | Received() | Withdrawn():
                self._explained.add((worker, message.key))
            case Offer(record=record) if record is not None and record.finish is not None:
                self._explained.add((worker, message.key))
            case Ticket(key=key):
                self._explained.update(
                    (worker, k) for k in self._tickets if k.room == key.room and k.epoch < key.epoch
                )
            case _:
                pass

    def ended_by_engine(self, worker: Boot, key: Key) -> None:
        """The engine that a worker is a guest of has ended a room's request."""
        self._explained.add((worker, key))

    def lost(self, worker: Boot, peer: Boot) -> None:
        """A leader hears that a peer is gone. If it is a gateway, its rooms end with it."""
        self._explained.update(
            (worker, key) for key, ticket in self._tickets.items() if ticket.gateway == peer
        )

    def acts(self, worker: Boot, name: str, effects: Iterable[Effect]) -> None:
        """A leader's turn is over: judge the messages that it sends and the plan that it issues."""
        dropped: list[Key] = []
        for effect in effects:
            if isinstance(effect, Send):
                self._says(worker, effect.message)
            elif isinstance(effect, Issue):
                dropped += effect.plan.drop
        for key in dropped:
            if (worker, key) not in self._explained and not is_loan(key):
                self._violate(
                    "end_said", f"{name} drops {key.room[-4:]}.{key.epoch}, and nobody hears of it"
                )

    def _says(self, worker: Boot, message: Said) -> None:
        match message:
            case Failed() | Withdrawn() | Recompute():
                self._explained.add((worker, message.key))
            case FirstToken(finish=finish) | Tokens(finish=finish) if finish is not None:
                self._explained.add((worker, message.key))
            case _:
                pass
