"""Where the time of one request went: phases on the gateway and on its workers, on one clock.

    arrival ──queued──▶ ticket ──on prefill──▶ first token heard ──awaits_decode──▶ first token sent
                          └──────on decode──────────────────────────────────────────▶ last token sent

A worker says in `Ended` how long the room was in each state. These states are put before the moment
in which the gateway heard what came of them: the first token of a prefill worker, the last one of a
decode worker. So clocks of two machines need not agree. What is left between two moments of the
gateway is `messages`: messages on their way, and until somebody looked at them.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise, takewhile
from typing import NamedTuple

import msgspec

from baton.core.door import Submit
from baton.core.ids import Boot, Epoch, Micros, Room
from baton.core.messages import RoomPhase, Ticket
from baton.core.scheduler.room import AWAITS_TURN, RoomState
from baton.gateway.verdict import Cause, PhaseSide, RequestFacts, SlowVerdict, verdict_of

GATEWAY = "gateway"
QUEUED, MESSAGES, AWAITS_DECODE, UNKNOWN = "queued", "messages", "awaits_decode", "unknown"
WAITS = (RoomState.QUEUED.value, AWAITS_TURN)  # states of a worker that has not begun
# states of a prefill worker behind the first token, and of one that computes and generates
PAST_FIRST: frozenset[str] = frozenset({RoomState.OFFERED, RoomState.ENDING})
GENERATES: frozenset[str] = frozenset(
    {
        *(RoomState.RUNNING, RoomState.OFFLOADING, RoomState.OFFLOADED, RoomState.RESTORING),
        RoomState.ENDING,
    }
)


class TimelinePhase(msgspec.Struct, frozen=True):
    """A part of a request's time, in microseconds from its arrival.

    Attributes:
        where: "gateway", or the name of a worker
        epoch: the attempt; 0 = none had begun
    """

    where: str
    epoch: int
    name: str
    start_us: int
    end_us: int


class Timeline(msgspec.Struct, frozen=True):
    """The whole time of a request that has ended. Times are in microseconds, from its arrival.

    Attributes:
        id: of the answer, as the client knows it
        arrived: seconds since 1970
        first_us: until its first token was sent; None = there was none
        total_us: until it ended
        path: what it waited for at each moment: from 0 to `total_us` without gaps
        workers: every phase of every worker that had it
        end: "stop", "length", "cancelled", or the code of an error
        verdict: what took most of the time; None = it took none
    """

    id: str
    room: Room
    arrived: float
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    first_us: int | None
    total_us: int
    path: tuple[TimelinePhase, ...]
    workers: tuple[TimelinePhase, ...]
    end: str
    verdict: SlowVerdict | None


class EndedRequest(msgspec.Struct, frozen=True):
    """A request that has ended, in a list. Times as in Timeline."""

    id: str
    room: Room
    arrived: float
    first_us: int | None
    total_us: int
    end: str


class EndedRequests(msgspec.Struct, frozen=True):
    """GET /debug/requests: those that ended last, the last one first."""

    requests: tuple[EndedRequest, ...]


def ended_request(timeline: Timeline) -> EndedRequest:
    """Make an entry of the list."""
    fields = EndedRequest.__struct_fields__
    return EndedRequest(**{name: getattr(timeline, name) for name in fields})


class TimelineAttempt:
    """One epoch: when its ticket was sent, and what its workers have said since."""

    __slots__ = (
        *("behind", "decode", "epoch", "first_at", "gave_way", "over_at", "phases", "prefill"),
        "sent_at",
    )

    def __init__(self, ticket: Ticket, now: Micros, behind: int) -> None:
        """behind: prompts that its prefill worker had still to compute"""
        self.epoch, self.sent_at = ticket.key.epoch, now
        self.prefill, self.decode, self.behind = ticket.prefill, ticket.decode, behind
        self.first_at: Micros | None = None  # prefill's first token was heard
        self.over_at: Micros | None = None  # the gateway wanted no more of it
        # the worker on which it gave way to other requests, so that it is computed again
        self.gave_way: Boot | None = None
        self.phases: dict[Boot, tuple[RoomPhase, ...]] = {}

    def begun_at(self, latest: Micros) -> Micros:
        """Return when its prompt began to be computed."""
        told = self.phases.get(self.prefill, ())
        waited = sum(phase.us for phase in takewhile(lambda phase: phase.state in WAITS, told))
        return min(Micros(self.sent_at + waited), latest)


class TimeSpent(NamedTuple):
    """The time of a request in three parts, in microseconds."""

    queue_us: int
    prefill_us: int
    decode_us: int


class Moments:
    """What a gateway notes of one request."""

    __slots__ = (
        *("arrived_at", "attempts", "cached", "end", "ended_at", "first_at", "generated"),
        *("id", "names", "prompt", "room", "traceparent", "wall"),
    )

    def __init__(self, submit: Submit, room: Room, now: Micros, wall: float) -> None:
        """wall: seconds since 1970"""
        self.id, self.traceparent = submit.id, submit.traceparent
        self.room, self.prompt = room, len(submit.prompt)
        self.arrived_at, self.wall = now, wall
        self.attempts: list[TimelineAttempt] = []
        self.names: dict[Boot, str] = {}  # of its workers
        self.first_at: Micros | None = None  # a token was sent to the client
        self.cached = self.generated = 0
        self.ended_at = now
        self.end = ""

    def attempt(self, epoch: Epoch) -> TimelineAttempt | None:
        """Return an epoch; None if none of that number has begun."""
        return next((a for a in reversed(self.attempts) if a.epoch == epoch), None)

    @property
    def spent(self) -> "TimeSpent | None":
        """How long it waited, computed its prompt and generated; None without a first token."""
        first = self.first_at
        if first is None:
            return None
        answered = next(a for a in reversed(self.attempts) if a.sent_at <= first)
        begun = answered.begun_at(first)
        return TimeSpent(begun - self.arrived_at, first - begun, self.ended_at - first)

    def timeline(self) -> Timeline:
        """Compose its timeline."""
        base = self.arrived_at
        path = tuple(_shifted(self._path(), base))
        laid = (
            phase
            for a in self.attempts
            for boot in dict.fromkeys((a.prefill, a.decode))
            for phase in self._laid(a, boot)
        )
        return Timeline(
            id=self.id,
            room=self.room,
            arrived=self.wall,
            prompt_tokens=self.prompt,
            cached_tokens=self.cached,
            generated_tokens=self.generated,
            first_us=None if self.first_at is None else self.first_at - base,
            total_us=self.ended_at - base,
            path=path,
            workers=tuple(_shifted(laid, base)),
            end=self.end,
            verdict=verdict_of(self._sides(path), self._facts()),
        )

    @property
    def idle_us(self) -> int:
        """Its time without that in which a worker generated its tokens."""
        told = (phases for attempt in self.attempts for phases in attempt.phases.values())
        ran = sum(p.us for phases in told for p in phases if p.state == RoomState.RUNNING)
        return max(0, self.ended_at - self.arrived_at - ran)

    def _sides(self, path: Iterable[TimelinePhase]) -> Iterator[PhaseSide]:
        again: dict[int, Cause] = {
            attempt.epoch: Cause.PREEMPTION if before.gave_way is not None else Cause.FAILURE
            for before, attempt in pairwise(self.attempts)
        }
        computes = {self.names[attempt.prefill] for attempt in self.attempts}
        for phase in path:
            waits = phase.where == GATEWAY and phase.name == QUEUED
            yield PhaseSide(
                name=phase.name,
                us=phase.end_us - phase.start_us,
                gateway=phase.where == GATEWAY,
                decode=phase.where != GATEWAY and phase.where not in computes,
                again=again.get(phase.epoch + 1 if waits else phase.epoch),
            )

    def _facts(self) -> RequestFacts:
        workers = [self.names[b] for a in self.attempts[-1:] for b in (a.prefill, a.decode)]
        prefill, decode = workers or ("", "")
        gave_way = [self.names[a.gave_way] for a in self.attempts if a.gave_way in self.names]
        return RequestFacts(
            prefill=prefill,
            decode=decode,
            tight=gave_way[-1] if gave_way else decode,
            behind=self.attempts[0].behind if self.attempts else 0,
            prompt_tokens=self.prompt,
            cached_tokens=self.cached,
            generated_tokens=self.generated,
        )

    def _path(self) -> Iterator[TimelinePhase]:
        at: int = self.arrived_at
        for attempt in self.attempts:
            over = self._over(attempt)
            yield from _one(GATEWAY, attempt.epoch - 1, QUEUED, at, attempt.sent_at)
            first = self.first_at
            begun = over if first is None else min(max(first, attempt.sent_at), over)
            yield from self._to_first(attempt, begun)
            yield from _clipped(self._laid(attempt, attempt.decode), attempt.epoch, begun, over)
            at = over
        if not self.attempts or at < self.ended_at:
            epoch = self.attempts[-1].epoch if self.attempts else 0
            yield from _one(GATEWAY, epoch, QUEUED, at, self.ended_at)

    def _to_first(self, attempt: TimelineAttempt, until: int) -> Iterator[TimelinePhase]:
        """Yield an attempt up to its first token, or to its end if it has none."""
        heard = until
        if attempt.first_at is not None and attempt.prefill != attempt.decode:
            heard = min(until, attempt.first_at)
        past = PAST_FIRST if attempt.prefill != attempt.decode else GENERATES
        laid = [p for p in self._laid(attempt, attempt.prefill) if p.name not in past]
        yield from _clipped(laid, attempt.epoch, attempt.sent_at, heard)
        yield from _one(GATEWAY, attempt.epoch, AWAITS_DECODE, heard, until)

    def _over(self, attempt: TimelineAttempt) -> int:
        """Return when the gateway wanted no more of an attempt."""
        at = self.attempts.index(attempt) + 1
        after = self.attempts[at].sent_at if at < len(self.attempts) else self.ended_at
        return after if attempt.over_at is None else min(after, attempt.over_at)

    def _laid(self, attempt: TimelineAttempt, boot: Boot) -> list[TimelinePhase]:
        """Return the states of a room on a worker, where they lie in the time of the request."""
        where, epoch, phases = self.names[boot], attempt.epoch, attempt.phases.get(boot)
        over = self._over(attempt)
        if not phases:  # it was lost, or is of protocol 1
            return [*_one(where, epoch, UNKNOWN, attempt.sent_at, over)]
        first = boot == attempt.prefill != attempt.decode
        heard = attempt.first_at if first and attempt.first_at is not None else over
        past = PAST_FIRST if first else frozenset({RoomState.ENDING})
        before = takewhile(lambda phase: phase.state not in past, phases)
        at: int = max(attempt.sent_at, heard - sum(phase.us for phase in before))
        laid = []
        for phase in phases:
            laid.append(TimelinePhase(where, epoch, phase.state, at, at + phase.us))
            at += phase.us
        return laid


def _clipped(
    phases: Iterable[TimelinePhase], epoch: int, start: int, end: int
) -> Iterator[TimelinePhase]:
    """Yield what of these phases lies in [start, end), and what nobody accounts for."""
    at = start
    for phase in phases:
        begin, upto = min(max(phase.start_us, at), end), min(phase.end_us, end)
        if upto > begin:
            yield from _one(GATEWAY, epoch, MESSAGES, at, begin)
            yield TimelinePhase(phase.where, phase.epoch, phase.name, begin, upto)
            at = upto
    yield from _one(GATEWAY, epoch, MESSAGES, at, end)


def _one(where: str, epoch: int, name: str, start: int, end: int) -> Iterator[TimelinePhase]:
    if end > start:
        yield TimelinePhase(where, epoch, name, start, end)


def _shifted(phases: Iterable[TimelinePhase], by: int) -> Iterator[TimelinePhase]:
    for p in phases:
        yield TimelinePhase(p.where, p.epoch, p.name, p.start_us - by, p.end_us - by)
