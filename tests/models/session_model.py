"""Two real `Sessions` joined by cables that may do anything to a frame, a bounded number of times.

    side 0 ──dials cable──▶ side 1        frames under way: a queue per direction, each with its cable and its connection

Faults come out of one budget: a frame, or a copy of it, is put aside and comes at any time later or
never (so it is late, overtaken, repeated or lost); a cable reconnects, with or without what was
under way; a process restarts under a new boot; a session is closed; a timer fires before what is
under way has arrived, or silence is believed. Frames outlive all of these, as they do in a
transport that queues.

Time is abstracted: which timers are armed is state, since when is not, so any armed timer may fire
next. Where that is no fault, it fires only when nothing is under way. What the events of a side
must be is the oracle of lossy.py.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace
from tests.core.session.lossy import MANY, Node, saying

from baton.core.frames import AnyFrame
from baton.core.ids import Boot, Link, Micros
from baton.core.protocol import OLDEST, PROTOCOL, SPOKEN
from baton.core.session.session import Promised, SessionLimits, Sessions

from .explore import Step, System
from .objects import Digest, Objects

SOON, LATER, SILENCE = Micros(1), Micros(10), Micros(1000)
TICKS = {"acknowledges": SOON, "says again": LATER}  # and beats; the later one also knocks
LIMITS = SessionLimits(
    silence=SILENCE,
    beat=SOON,
    ack_delay=SOON,
    resend_first=LATER,
    resend_most=LATER,
    redial_first=LATER,
    redial_most=LATER,
)
NOW = Micros(0)
Cable = tuple[int, int]  # who dials, who listens


class Flying(NamedTuple):
    """A frame under way. It belongs to the connection on which it was sent."""

    cable: int
    connection: int
    frame: int


class State(NamedTuple):
    """Numbers of the sides, what is under way to each, and what may still happen."""

    sides: tuple[int, int]
    to: tuple[tuple[Flying, ...], tuple[Flying, ...]]
    aside: tuple[tuple[Flying, ...], tuple[Flying, ...]]
    connections: tuple[int, ...]
    restarts: tuple[int, int]
    says: tuple[int, int]
    faults: int


class Side(Node):
    """One process. `broken` is what its oracle has seen it do."""

    broken = ""

    def settle(self, now: Micros) -> list[tuple[Link, AnyFrame]]:
        """Check what has happened, take what is due, and forget when it was."""
        try:
            for event in self.sessions.events():
                self.check(event)
        except AssertionError as error:
            self.broken = str(error)
        frames = self.sessions.to_send(now)
        self.lost, self.wrong = [], []
        for counts in (self.heard, self.said):
            for ended in [(b, n) for b, n in counts if self.up.get(b) != n]:
                del counts[ended]
        self._rebase()
        return frames

    def _rebase(self) -> None:
        for dialled in self.sessions._dialled.values():
            dialled.next_at = LATER
        for boot, promised in self.sessions._promised.items():
            self.sessions._promised[boot] = Promised(promised.number, promised.protocol, SILENCE)
        for session in self.sessions._sessions.values():
            stream = session.stream
            stream._heard_at = stream._said_at = NOW
            stream._resend_at = None if stream._resend_at is None else LATER
            stream._ack_at = None if stream._ack_at is None else SOON


class SessionModel(System[State]):
    """See the head of this module."""

    def __init__(
        self,
        *,
        says: tuple[int, int],
        faults: int,
        cables: Sequence[Cable] = ((0, 1),),
        kind: type[Sessions] = Sessions,
        older: int | None = None,
    ) -> None:
        """older: a side of the version before; None = both are of ours"""
        self.says, self.faults, self.cables, self.kind = says, faults, tuple(cables), kind
        self._older = older
        self.sides: Objects[Side] = Objects(Digest())
        self.frames: Objects[AnyFrame] = Objects(Digest())

    def start(self) -> State:
        nobody = State(
            (-1, -1), ((), ()), ((), ()), (0,) * len(self.cables), (0, 0), self.says, self.faults
        )
        return self._born(self._born(nobody, 1), 0)

    # ---- what can happen ------------------------------------------------------------------------

    def steps(self, state: State) -> Iterator[Step[State]]:
        quiet = not any(state.to)
        for side in (0, 1):
            if state.to[side]:
                first, *rest = state.to[side]
                yield self._arrives(self._put(state, side, tuple(rest)), side, first)
            if state.says[side] and self.sides[state.sides[side]].up:
                yield self._says(state, side)
            if quiet:
                yield from self._ticks(state, side)
                yield from (self._silence(state, side, peer) for peer in self._alone(state, side))
            for late in dict.fromkeys(state.aside[side]):
                rest = list(state.aside[side])
                rest.remove(late)
                after = self._arrives(
                    state._replace(aside=_swap(state.aside, side, tuple(rest))), side, late
                )
                yield Step(("late:", *after.says), after.after, True)
        if state.faults:
            spent = state._replace(faults=state.faults - 1)
            yield from (
                Step(says, after, True) for says, after, _ in self._all_faults(spent, quiet)
            )

    def _arrives(self, state: State, side: int, flying: Flying) -> Step[State]:
        link = self._name(side, flying.cable, flying.connection)
        frame = self.frames[flying.frame]
        what = ("hears", link, flying.frame)
        after = self._act(state, side, what, lambda s: s.sessions.receive(link, frame, NOW), NOW)
        return Step(("side", side, "hears", frame), after)

    def _says(self, state: State, side: int) -> Step[State]:
        says = (state.says[0] - (side == 0), state.says[1] - (side == 1))

        def say(node: Side) -> None:
            for peer, number in node.up.items():
                node.sessions.send(peer, saying(number * MANY + node.said[peer, number]), NOW)
                node.said[peer, number] += 1

        after = self._act(state._replace(says=says), side, ("says",), say, NOW)
        return Step(("side", side, "says something"), after)

    def _ticks(self, state: State, side: int) -> Iterator[Step[State]]:
        for name, now in TICKS.items():
            yield self._tick(state, side, name, now)

    def _tick(self, state: State, side: int, name: str, now: Micros) -> Step[State]:
        after = self._act(state, side, ("tick", now), lambda s: s.sessions.on_timer(now), now)
        return Step(("side", side, "time passes: it", name), after)

    def _silence(self, state: State, side: int, peer: Boot) -> Step[State]:
        def hear_nothing(node: Side) -> None:
            for session in node.sessions._sessions.values():
                session.stream._heard_at = NOW if session.peer == peer else SILENCE
            for boot, promised in node.sessions._promised.items():
                until = NOW if boot == peer else Micros(2 * SILENCE)
                node.sessions._promised[boot] = replace(promised, until=until)
            node.sessions.on_timer(SILENCE)

        after = self._act(state, side, ("silence", peer), hear_nothing, SILENCE)
        return Step(("side", side, "has heard nothing of", peer, "for long"), after)

    def _closes(self, state: State, side: int, peer: Boot) -> Step[State]:
        after = self._act(
            state, side, ("closes", peer), lambda s: s.sessions.close(peer, "cut", NOW), NOW
        )
        return Step(("side", side, "closes its session with", peer), after)

    def _alone(self, state: State, side: int) -> list[Boot]:
        """Peers of sessions and promises that nobody else has: silence is all that is heard of
        them."""
        us, other = (self.sides[state.sides[n]] for n in (side, 1 - side))
        numbers = us.up | {
            boot: promised.number for boot, promised in us.sessions._promised.items()
        }
        return [
            peer
            for peer, number in numbers.items()
            if peer != other.boot or other.up.get(us.boot) != number
        ]

    def _all_faults(self, state: State, quiet: bool) -> Iterator[Step[State]]:
        for side in (0, 1):
            yield from self._frame_faults(state, side)
            if not quiet:
                yield from self._ticks(state, side)
            node = self.sides[state.sides[side]]
            for peer in sorted(node.up.keys() | node.sessions._promised.keys()):
                yield self._silence(state, side, peer)
            yield from (self._closes(state, side, peer) for peer in node.up)
            reborn = (state.restarts[0] + (side == 0), state.restarts[1] + (side == 1))
            yield Step(
                ("side", side, "restarts"), self._born(state._replace(restarts=reborn), side)
            )
        for cable in range(len(self.cables)):
            connections = tuple(c + (n == cable) for n, c in enumerate(state.connections))
            after = state._replace(connections=connections)
            yield Step(("cable", cable, "reconnects"), after)
            to_0, to_1 = (tuple(f for f in to if f.cable != cable) for to in state.to)
            if (to_0, to_1) != state.to:
                yield Step(
                    ("cable", cable, "reconnects and loses all"), after._replace(to=(to_0, to_1))
                )

    def _frame_faults(self, state: State, side: int) -> Iterator[Step[State]]:
        to = state.to[side]
        for at, flying in enumerate(to):
            frame = self.frames[flying.frame]
            aside = state._replace(
                aside=_swap(state.aside, side, tuple(sorted((*state.aside[side], flying))))
            )
            yield Step(("put aside:", frame), self._put(aside, side, to[:at] + to[at + 1 :]))
            yield Step(("put aside a copy:", frame), aside)

    # ---- what it leads to -----------------------------------------------------------------------

    def _act(
        self,
        state: State,
        side: int,
        what: tuple[object, ...],
        do: Callable[[Side], object],
        now: Micros,
    ) -> State:
        def run(node: Side) -> tuple[tuple[Link, int], ...]:
            do(node)
            return tuple((link, self.frames.number(frame)) for link, frame in node.settle(now))

        number, out = self.sides.act(state.sides[side], what, run)
        return self._sent(state._replace(sides=_swap(state.sides, side, number)), side, out)

    def _sent(self, state: State, side: int, out: tuple[tuple[Link, int], ...]) -> State:
        to = list(state.to[1 - side])
        for link, frame in out:
            for cable, connection in enumerate(state.connections):
                # else its other end has reconnected: the name is dead
                if link == self._name(side, cable, connection):
                    to.append(Flying(cable, connection, frame))
        return self._put(state, 1 - side, tuple(to))

    def _put(self, state: State, side: int, flying: tuple[Flying, ...]) -> State:
        return state._replace(to=_swap(state.to, side, flying))

    def _name(self, side: int, cable: int, connection: int) -> Link:
        return (
            Link(cable + 1)
            if self.cables[cable][0] == side
            else Link(1000 * (cable + 1) + connection)
        )

    def _boot(self, state: State, side: int) -> Boot:
        return Boot(1 + side + 2 * state.restarts[side])

    def _born(self, state: State, side: int) -> State:
        boot = self._boot(state, side)
        spoken = (OLDEST,) if side == self._older else SPOKEN
        node = Side(boot, self.kind(boot, LIMITS, spoken))
        for cable, (dialler, _) in enumerate(self.cables):
            if dialler == side:
                node.sessions.dial(Link(cable + 1), None, NOW)
        out = tuple((link, self.frames.number(frame)) for link, frame in node.settle(NOW))
        return self._sent(
            state._replace(sides=_swap(state.sides, side, self.sides.number(node))), side, out
        )

    # ---- what is asked of it --------------------------------------------------------------------

    def wrong(self, state: State) -> str:
        return next(
            (f"side {n}: {b}" for n, s in enumerate(state.sides) if (b := self.sides[s].broken)), ""
        )

    def done(self, state: State) -> bool:
        """Both are in the same session and in no other, and all that was said in it has been heard
        and acknowledged."""
        a, b = (self.sides[n] for n in state.sides)
        if any(state.to) or a.up.keys() != {b.boot} or b.up.keys() != {a.boot}:
            return False
        number = a.up[b.boot]
        protocols = {s.protocol for n in (a, b) for s in n.sessions._sessions.values()}
        if protocols != {PROTOCOL if self._older is None else OLDEST}:
            return False
        heard = (
            a.heard[b.boot, number] == b.said[a.boot, number]
            and b.heard[a.boot, number] == a.said[b.boot, number]
        )
        return (
            b.up[a.boot] == number
            and heard
            and not any(s.stream._kept for n in (a, b) for s in n.sessions._sessions.values())
        )


def _swap(pair: tuple, side: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (value, pair[1]) if side == 0 else (pair[0], value)
