"""Watches the steps of a gateway's core, and notes when what happens to each request."""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from heapq import nlargest
from types import MappingProxyType
from typing import Any

from baton.core.door import Cancel, Emit, Fail, Finish, RequestId
from baton.core.effects import Send
from baton.core.events import FrontEvent, MessageReceived, PeerLost, Submitted
from baton.core.gateway.request import Say
from baton.core.ids import Boot, Micros, Room
from baton.core.messages import Abort, Ended, FirstToken, Recompute, Ticket, Tokens, Withdrawn
from baton.gateway.timeline import Moments, Timeline, TimelineAttempt

KEPT = 1024  # requests that have ended
CANCELLED = "cancelled"


class Timelines:
    """The requests of one gateway, while they are open and for a while afterwards.

    Args:
        name_of: returns the name of a worker
        held: returns whether a worker still holds something of a room
        wall: returns the time in seconds since 1970
    """

    def __init__(
        self,
        *,
        name_of: Callable[[Boot], str],
        held: Callable[[Room], bool],
        wall: Callable[[], float],
    ) -> None:
        self._name_of, self._held, self.wall = name_of, held, wall
        self._prompts = Counter[Boot]()  # that workers have still to compute
        self._uncomputed: dict[Room, Boot] = {}  # whose prompts these are
        self.on_begin: list[Callable[[Moments], None]] = []  # called when one has come
        self.on_end: list[Callable[[Moments], None]] = []  # called when one has ended everywhere
        self._open: dict[Room, Moments] = {}
        self._by_request: dict[RequestId, Moments] = {}  # of those the client still waits for
        self._ended: deque[Moments] = deque(maxlen=KEPT)
        self._effects: Mapping[type[Any], Callable[[Any, Micros], None]] = MappingProxyType(
            {
                Ticket: self._on_ticket,
                Abort: self._on_abort,
                Emit: self._on_emit,
                Finish: lambda finish, now: self._ends(finish.request, finish.reason.value, now),
                Fail: lambda fail, now: self._ends(fail.request, fail.code.value, now),
            }
        )

    def __len__(self) -> int:
        return len(self._open)

    def find(self, name: str) -> Timeline | None:
        """Return the timeline of a request that has ended, by the beginning of its room or of the
        id of its answer; None if it is not known, or not any more."""
        found = (m for m in reversed(self._ended) if m.room.startswith(name) or m.id == name)
        return None if (moments := next(found, None)) is None else moments.timeline()

    def latest(self, most: int) -> list[Timeline]:
        """Return the timelines of the requests that ended last, the last one first."""
        return [m.timeline() for m, _ in zip(reversed(self._ended), range(most), strict=False)]

    def slowest(self, most: int, within_s: float) -> list[Timeline]:
        """Return the timelines of those requests that ended last, within so many seconds, whose
        tokens were not generated for the longest time; the longest first."""
        since = self.wall() - within_s
        recent = [m for m in self._ended if m.wall + (m.ended_at - m.arrived_at) / 1e6 >= since]
        return [m.timeline() for m in nlargest(most, recent, key=lambda m: m.idle_us)]

    def stepped(self, event: FrontEvent, effects: Sequence[Send | Say], now: Micros) -> None:
        """The core has taken an event."""
        match event:
            case MessageReceived(message=Tokens() as tokens) if tokens.finish is None:
                moments = self._open.get(tokens.key.room)
                if moments is None or moments.first_at is not None:
                    return  # nearly always: nothing begins or ends
            case MessageReceived(message=FirstToken() as first):
                if (attempt := self._attempt(first)) is not None:
                    attempt.first_at = now
                    self._computed(first.key.room)
            case MessageReceived(sender=sender, message=Recompute() | Withdrawn() as given_up):
                if (attempt := self._attempt(given_up)) is not None:
                    attempt.gave_way = sender
            case MessageReceived(sender=sender, message=Ended() as ended):
                if (attempt := self._attempt(ended)) is not None:
                    attempt.phases[sender] = ended.phases
            case Submitted(submit=submit, room=room):
                moments = Moments(submit, room, now, self.wall())
                self._open[room] = self._by_request[submit.request] = moments
                for tell in self.on_begin:
                    tell(moments)
            case Cancel():
                self._ends(event.request, CANCELLED, now)
            case _:
                pass
        for effect in effects:
            what = effect.heard if isinstance(effect, Say) else effect.message
            if (handler := self._effects.get(type(what))) is not None:
                handler(what, now)
        match event:
            case MessageReceived(message=Ended() as ended):
                self._look(ended.key.room)
            case PeerLost():
                for room in [room for room, m in self._open.items() if m.end]:
                    self._look(room)
            case _:
                pass

    def _attempt(
        self, message: FirstToken | Recompute | Withdrawn | Ended | Abort
    ) -> TimelineAttempt | None:
        moments = self._open.get(message.key.room)
        return None if moments is None else moments.attempt(message.key.epoch)

    def _on_ticket(self, ticket: Ticket, now: Micros) -> None:
        moments = self._open[ticket.key.room]
        if moments.attempt(ticket.key.epoch) is None:  # the other side gets the same ticket
            self._computed(ticket.key.room)
            behind = self._prompts[ticket.prefill]
            moments.attempts.append(TimelineAttempt(ticket, now, behind))
            self._uncomputed[ticket.key.room] = ticket.prefill
            self._prompts[ticket.prefill] += 1
            for boot in (ticket.prefill, ticket.decode):
                moments.names[boot] = self._name_of(boot)

    def _on_abort(self, abort: Abort, now: Micros) -> None:
        attempt = self._attempt(abort)
        if attempt is not None and attempt.over_at is None:
            attempt.over_at = now

    def _on_emit(self, emit: Emit, now: Micros) -> None:
        moments = self._by_request.get(emit.request)
        if moments is None:
            return  # it was cancelled while this was under way
        moments.generated = emit.start + len(emit.drawn)
        if moments.first_at is None:
            moments.first_at, moments.cached = now, emit.cached
        if moments.room in self._uncomputed:
            self._computed(moments.room)

    def _ends(self, request: RequestId, end: str, now: Micros) -> None:
        """The client hears no more of a request."""
        moments = self._by_request.pop(request, None)
        if moments is None:
            return
        moments.ended_at, moments.end = now, end
        self._computed(moments.room)
        self._look(moments.room)

    def _computed(self, room: Room) -> None:
        """No worker has to compute the prompt of a request any more."""
        worker = self._uncomputed.pop(room, None)
        if worker is not None:
            self._prompts[worker] -= 1
            if not self._prompts[worker]:
                del self._prompts[worker]

    def _look(self, room: Room) -> None:
        """A request may have ended everywhere."""
        moments = self._open.get(room)
        if moments is None or not moments.end or self._held(room):
            return
        del self._open[room]
        self._ended.append(moments)
        for tell in self.on_end:
            tell(moments)
