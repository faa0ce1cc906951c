"""A gateway never uses a room twice, counts epochs up one by one, and closes a room only when both
sides have ended all its epochs."""

from collections.abc import Iterator

from typing_extensions import override

from baton.core.door import Emit, RequestId
from baton.core.events import MessageReceived, PeerLost, Submitted
from baton.core.gateway.request import Say
from baton.core.ids import Boot, Epoch, Room, TokenId
from baton.core.messages import Close, Ended, Ticket
from baton.core.parts import FrontParts
from baton.trace.checks.check import Check, brief, raised, sent
from baton.trace.log import CoreKind, Parts, Step


class _Attempts:
    """The epochs of one room."""

    def __init__(self, request: RequestId) -> None:
        self.request = request
        self.last = Epoch(0)
        self.ticket: Ticket | None = None
        self.open: dict[Epoch, set[Boot]] = {}  # workers that have not ended the epoch
        self.given: set[Boot] = set()  # workers that have the ticket of the last epoch
        self.said: list[TokenId] = []


class Attempts(Check):
    """The check, for the log of a gateway."""

    name = "one_attempt"
    cores = (CoreKind.FRONT,)
    invariant = (
        "rooms are used once, epochs count up, both sides get the same ticket, a "
        "closed room has ended everywhere"
    )

    def __init__(self) -> None:
        self._boot: Boot | None = None
        self._used: set[Room] = set()
        self._rooms: dict[Room, _Attempts] = {}
        self._requests: dict[RequestId, _Attempts] = {}

    @override
    def made(self, parts: Parts) -> None:
        if isinstance(parts, FrontParts):
            self._boot = parts.boot

    @override
    def see(self, step: Step) -> Iterator[str]:
        match step.event:
            case Submitted(submit=submit, room=minted) if not raised(step):
                yield from self._mint(submit.request, minted)
            case MessageReceived(sender=sender, message=Ended(key=key)):
                if key.room in self._rooms:
                    self._rooms[key.room].open.get(key.epoch, set()).discard(sender)
            case PeerLost(boot=boot):
                for room in self._rooms.values():
                    for sides in room.open.values():
                        sides.discard(boot)
            case _:
                pass
        for to, ticket in sent(step, Ticket):
            yield from self._ticket(to, ticket)
        for out in step.effects:
            if (
                isinstance(out, Say)
                and isinstance(out.heard, Emit)
                and out.heard.request in self._requests
            ):
                self._requests[out.heard.request].said += [d.token for d in out.heard.drawn]
        yield from self._closes({close.room for _, close in sent(step, Close)})

    def _mint(self, request: RequestId, room: Room) -> Iterator[str]:
        if room in self._used:
            yield f"room {room} was used before"
        self._used.add(room)
        self._rooms[room] = self._requests[request] = _Attempts(request)

    def _ticket(self, to: Boot, ticket: Ticket) -> Iterator[str]:
        key, name = ticket.key, brief(ticket.key)
        room = self._rooms.get(key.room)
        if room is None:
            yield f"a ticket of {name} was sent for a room that is not open"
            return
        if key.epoch == room.last + 1:
            if room.ticket is not None and room.given != {room.ticket.prefill, room.ticket.decode}:
                yield f"{brief(room.ticket.key)} was given to {len(room.given)} side only"
            room.last, room.ticket, room.given = key.epoch, ticket, set()
            room.open[key.epoch] = {ticket.prefill, ticket.decode}
            if list(ticket.said) != room.said:
                yield (
                    f"the ticket of {name} says that {len(ticket.said)} tokens were told; "
                    f"the client heard {len(room.said)}"
                )
            if ticket.gateway != self._boot:
                yield f"the ticket of {name} names another gateway"
        elif key.epoch != room.last:
            yield f"a ticket of {name} was sent after epoch {room.last} of its room"
        elif ticket != room.ticket:
            yield f"the two sides of {name} got different tickets"
        if to not in (ticket.prefill, ticket.decode):
            yield f"the ticket of {name} was sent to worker {to:x}, which it does not name"
        room.given.add(to)

    def _closes(self, rooms: set[Room]) -> Iterator[str]:
        for name in sorted(rooms):
            room = self._rooms.pop(name, None)
            if room is None:
                yield f"room {name} was closed and is not open"
                continue
            left = {epoch: sides for epoch, sides in room.open.items() if sides}
            if left:
                yield (
                    f"room {name} was closed while epochs {sorted(left)} had not ended on "
                    "both sides"
                )
            self._requests.pop(room.request, None)
