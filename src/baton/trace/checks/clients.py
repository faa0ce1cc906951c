"""A gateway's client gets every token index once and in
order, only tokens that a worker sent, and exactly one end."""

from collections.abc import Iterator

from typing_extensions import override

from baton.core.door import Cancel, Emit, Fail, Finish, Heard, RequestId
from baton.core.events import MessageReceived, Submitted
from baton.core.gateway.request import Say
from baton.core.ids import Key, Room, TokenId
from baton.core.messages import Admitted, Drawn, FirstToken, Ticket, Tokens
from baton.trace.checks.check import Check, raised, sent
from baton.trace.log import CoreKind, Step

ROOM_DIGITS = 32  # of 4 bits


class _Request:
    """One open request, as its client sees it."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.heard: dict[int, set[TokenId]] = {}  # by index: the tokens that workers sent
        self.told = 0
        # whether index 0 may be sent: admitted in this epoch, or ended at its first token
        self.shown = False
        self.epoch: Key | None = None


class ClientStreams(Check):
    """The check, for the log of a gateway."""

    name = "client_streams"
    cores = (CoreKind.FRONT,)
    invariant = "a client hears each token index once, in order, as a worker said it, and one end"

    def __init__(self) -> None:
        self._open: dict[RequestId, _Request] = {}
        self._rooms: dict[Room, _Request] = {}

    @override
    def see(self, step: Step) -> Iterator[str]:
        match step.event:
            case Submitted(submit=submit, room=room) if not raised(step):
                yield from self._submit(submit.request, room)
            case Cancel() as cancel:
                self._close(cancel.request)
            case MessageReceived(message=message):
                self._hear(message)
            case _:
                pass
        for out in step.effects:
            if isinstance(out, Say):
                yield from self._say(out.heard)
        for _, ticket in sent(step, Ticket):
            request = self._rooms.get(ticket.key.room)
            if request is not None and request.epoch != ticket.key:
                request.epoch, request.shown = ticket.key, False

    def _submit(self, number: RequestId, room: Room) -> Iterator[str]:
        if len(room) != ROOM_DIGITS:
            yield f"request {number} was given a room that is not 128 random bits"
        if number in self._open:
            yield f"request {number} was submitted while it was open"
        request = _Request(room)
        self._open[number] = self._rooms[request.room] = request

    def _close(self, number: RequestId) -> None:
        request = self._open.pop(number, None)
        if request is not None:
            self._rooms.pop(request.room, None)

    def _hear(self, message: object) -> None:
        match message:
            case Admitted(key=key):
                self._admit(key)
            case FirstToken(key=key, index=index, drawn=drawn, finish=finish):
                self._note(key, int(index), (drawn,))
                if finish is not None:
                    self._admit(key)
            case Tokens(key=key, start=start, drawn=several):
                self._note(key, int(start), several)
                self._admit(key)  # decode generates only for rooms that it has admitted
            case _:
                pass

    def _admit(self, key: Key) -> None:
        request = self._rooms.get(key.room)
        if request is not None and request.epoch == key:
            request.shown = True

    def _note(self, key: Key, start: int, drawn: tuple[Drawn, ...]) -> None:
        request = self._rooms.get(key.room)
        if request is not None and request.epoch == key:
            for i, d in enumerate(drawn, start):
                request.heard.setdefault(i, set()).add(d.token)

    def _say(self, heard: Heard) -> Iterator[str]:
        request = self._open.get(heard.request)
        if request is None:
            yield (
                f"request {heard.request} heard {type(heard).__name__} after its end, or "
                "before it was submitted"
            )
            return
        match heard:
            case Emit(start=start, drawn=drawn):
                if start != request.told:
                    how = "again" if start < request.told else "too early"
                    yield (
                        f"request {heard.request} heard index {start} {how}: {request.told} "
                        "were told"
                    )
                for i, d in enumerate(drawn, int(start)):
                    if d.token not in request.heard.get(i, ()):
                        yield (
                            f"request {heard.request} heard token {d.token} at index {i}, "
                            "which no worker of its epoch said"
                        )
                if start == 0 and not request.shown:
                    yield (
                        f"request {heard.request} was shown its first token before it was admitted"
                    )
                request.told = max(request.told, int(start) + len(drawn))
            case Finish() | Fail():
                self._close(heard.request)
