"""Requests of two gateways are in one order: that in which they began, as far as one gateway can
have heard of the other.

    worker ──Register, Credits──▶ gateway ──Ticket──▶ worker       checked at each of the three, from what goes in and out

Checked: workers report the highest stamp that they have seen; a gateway's next request comes after
all that its workers have told it of, and no other has the same place; a request keeps its place
over its epochs; and in a world without faults, no request begins with a place before one that the
same worker was given more than `BOUND_US` earlier.
"""

from collections import deque
from collections.abc import Callable, Iterable

from baton.core.effects import Effect, Send
from baton.core.frames import Said
from baton.core.gateway.request import Say
from baton.core.ids import Boot, Room, Stamp
from baton.core.messages import Credits, Register, Ticket

# a worker states its credits every 20 ms, and turns of gateways and workers add some delay
BOUND_US = 50_000
Place = tuple[Stamp, Boot]


class Overtaking:
    """The gateways and workers of a world, by boot."""

    def __init__(
        self, violate: Callable[[str, str], None], now: Callable[[], int], *, timely: bool
    ) -> None:
        self._violate, self._now, self._timely = violate, now, timely
        self._seen: dict[Boot, Stamp] = {}  # the highest stamp that a worker has seen in tickets
        self._acted: dict[Boot, Stamp] = {}  # the same when its last turn ended
        # the highest stamp that a gateway was told by workers, when its last turn ended; and now
        self._told: dict[Boot, Stamp] = {}
        self._telling: dict[Boot, Stamp] = {}
        self._rooms: dict[Place, Room] = {}
        self._places: dict[Room, Place] = {}
        self._recent: dict[Boot, deque[tuple[int, Place]]] = {}  # the most recent tickets
        self._passed: dict[Boot, Place] = {}  # the highest place of those before
        self._begun: set[tuple[Boot, Room]] = set()  # a ticket that is said again begins nothing

    def heard(self, worker: Boot, message: Said) -> None:
        """A leader receives a message."""
        if isinstance(message, Ticket):
            self._seen[worker] = max(self._seen.get(worker, Stamp(0)), message.stamp)
            if self._timely:
                self._comes(worker, message)

    def acts(self, worker: Boot, name: str, effects: Iterable[Effect]) -> None:
        """A leader's turn is over. It may have heard of a stamp after it sent these messages."""
        before, seen = self._acted.get(worker, Stamp(0)), self._seen.get(worker, Stamp(0))
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, Register | Credits):
                said = effect.message.stamp
                if not before <= said <= seen:
                    self._violate(
                        "one_order",
                        f"{name} says that it has seen stamp {said}; "
                        f"the highest was {before} to {seen}",
                    )
        self._acted[worker] = seen

    def told(self, gateway: Boot, message: Said) -> None:
        """A gateway receives a message."""
        if isinstance(message, Register | Credits):
            self._telling[gateway] = max(self._telling.get(gateway, Stamp(0)), message.stamp)

    def begins(self, gateway: Boot, name: str, effects: Iterable[Send | Say]) -> None:
        """A gateway's turn is over, in which requests have begun. It may have heard of a stamp
        after they began."""
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, Ticket):
                self._begins(name, effect.message, self._told.get(gateway, Stamp(0)))
        self._told[gateway] = self._telling.get(gateway, Stamp(0))

    def _begins(self, name: str, ticket: Ticket, told: Stamp) -> None:
        place, room = ticket.came, ticket.key.room
        begins = room not in self._places  # otherwise it is another ticket of the same request
        if self._places.setdefault(room, place) != place:
            self._violate(
                "one_order",
                f"{name} gives {room[-4:]} the stamp {place[0]}; it had {self._places[room][0]}",
            )
        if self._rooms.setdefault(place, room) != room:
            self._violate(
                "one_order",
                f"{name} gives {room[-4:]} stamp {place[0]}, which {self._rooms[place][-4:]} has",
            )
        if begins and ticket.stamp <= told:
            self._violate(
                "one_order", f"{name} gives {room[-4:]} the stamp {place[0]}; it was told of {told}"
            )

    def _comes(self, worker: Boot, ticket: Ticket) -> None:
        now, recent = self._now(), self._recent.setdefault(worker, deque())
        while recent and recent[0][0] < now - BOUND_US:
            self._passed[worker] = max(self._passed.get(worker, recent[0][1]), recent.popleft()[1])
        passed = self._passed.get(worker)
        again = (worker, ticket.key.room) in self._begun
        self._begun.add((worker, ticket.key.room))
        if ticket.key.epoch == 1 and not again and passed is not None and ticket.came < passed:
            what = (
                f"{ticket.key.room[-4:]} begins with stamp {ticket.stamp}, before one of "
                f"stamp {passed[0]}"
            )
            self._violate("one_order", f"{what} that came more than {BOUND_US // 1000} ms earlier")
        recent.append((now, ticket.came))
