"""All that two sessions and their cables can do with few messages and few faults; and what that
finds in worse sessions.

Searched whole: every message is heard once and in order in the session in which it was said, a
session ends before the next one begins on either side, and from everywhere both sides come to be in
one session with nothing left to say.
"""

from collections.abc import Sequence

import pytest

from baton.core.frames import Beat, Data, Said, WrongProtocol
from baton.core.ids import Boot, Link, Micros
from baton.core.session.session import Dialled, PeerLost, Session, Sessions
from baton.core.session.stream import Stream

from .explore import explore
from .session_model import Cable, SessionModel

ONE, TWICE, BOTH = ((0, 1),), ((0, 1), (0, 1)), ((0, 1), (1, 0))


@pytest.mark.parametrize(
    ("says", "faults", "cables", "states"),
    [
        ((1, 1), 0, ONE, 500),
        ((1, 1), 1, ONE, 20_000),
        ((2, 0), 1, ONE, 20_000),
        ((0, 1), 2, ONE, 50_000),
        ((1, 0), 1, TWICE, 5_000),
        ((1, 0), 1, BOTH, 5_000),
        pytest.param((1, 0), 2, ONE, 60_000, marks=pytest.mark.slow),
        pytest.param((2, 1), 1, ONE, 60_000, marks=pytest.mark.slow),
        pytest.param((1, 0), 2, TWICE, 25_000, marks=pytest.mark.slow),
        pytest.param((1, 0), 2, BOTH, 25_000, marks=pytest.mark.slow),
    ],
)
def test_every_way_two_sessions_can_go(
    says: tuple[int, int], faults: int, cables: Sequence[Cable], states: int
) -> None:
    found = explore(SessionModel(says=says, faults=faults, cables=cables))
    assert found.bad is None, str(found)
    assert found.states > states, "an empty search proves nothing"
    assert found.done > 0


@pytest.mark.parametrize(
    ("older", "says", "faults", "cables", "states"),
    [
        (0, (1, 1), 1, ONE, 20_000),
        (1, (1, 1), 1, ONE, 20_000),
        (1, (1, 0), 1, BOTH, 5_000),
        pytest.param(0, (1, 0), 2, ONE, 60_000, marks=pytest.mark.slow),
        pytest.param(1, (1, 0), 2, ONE, 60_000, marks=pytest.mark.slow),
    ],
)
def test_every_way_two_versions_can_go(
    older: int, says: tuple[int, int], faults: int, cables: Sequence[Cable], states: int
) -> None:
    found = explore(SessionModel(says=says, faults=faults, cables=cables, older=older))
    assert found.bad is None, str(found)
    assert found.states > states, "an empty search proves nothing"
    assert found.done > 0


# ---- planted bugs -------------------------------------------------------------------------------


class TakesLowerSessions(Sessions):
    """A frame of an earlier session counts in the one there is."""

    def _session_of(self, link: Link, frame: Data | Beat, now: Micros) -> Session | None:
        session = self._sessions.get(frame.src)
        if session is not None and frame.dst == self.boot and frame.session < session.number:
            return session
        return super()._session_of(link, frame, now)


class BeginsBeforeTheEnd(Sessions):
    """The next session begins, and nobody hears that the last one has ended."""

    def _lose(self, session: Session, why: str, now: Micros, *, bye: bool) -> None:
        super()._lose(session, why, now, bye=bye)
        self._events = [
            e for e in self._events if not (isinstance(e, PeerLost) and "next session" in e.why)
        ]


class ForgetsNumbers(Sessions):
    """A number is free again when its session has ended."""

    def _lose(self, session: Session, why: str, now: Micros, *, bye: bool) -> None:
        super()._lose(session, why, now, bye=bye)
        self._numbers.pop(session.peer, None)


class KnocksOnce(Sessions):
    """An Open that is lost is not said again."""

    def _knock(self, link: Link, dialled: Dialled, now: Micros) -> None:
        if now == 0:
            super()._knock(link, dialled, now)


class KeepsToTheNewest(Sessions):
    """A peer of the version before is told which is the newest, time and again."""

    def _on_wrong_protocol(self, link: Link, frame: WrongProtocol) -> None:
        if frame.ours not in self._spoken:
            super()._on_wrong_protocol(link, frame)


class NeverSaysAgain(Sessions):
    """What is lost stays lost."""

    def _begin(self, peer: Boot, number: int, link: Link, protocol: int, now: Micros) -> Session:
        return _with_stream(super()._begin(peer, number, link, protocol, now), OnceStream)


class TakesAsItComes(Sessions):
    """Messages are delivered when they arrive."""

    def _begin(self, peer: Boot, number: int, link: Link, protocol: int, now: Micros) -> Session:
        return _with_stream(super()._begin(peer, number, link, protocol, now), HastyStream)


class OnceStream(Stream):
    def say_again(self) -> None:
        pass


class HastyStream(Stream):
    def _take(self, frame: Data, now: Micros) -> tuple[Said, ...]:
        super()._take(frame, now)
        return frame.messages


def _with_stream(session: Session, kind: type[Stream]) -> Session:
    session.stream.__class__ = kind
    return session


@pytest.mark.parametrize(
    ("kind", "says", "faults", "why", "steps"),
    [
        (TakesLowerSessions, (1, 1), 2, "a message of session 1 in session 2", 11),
        (BeginsBeforeTheEnd, (1, 0), 2, "began while another", 6),
        (ForgetsNumbers, (1, 0), 1, "number came again", 8),
        (KnocksOnce, (1, 0), 1, "no end can be reached", 1),
        (NeverSaysAgain, (1, 0), 1, "no end can be reached", 4),
        (TakesAsItComes, (1, 0), 1, "message 0 instead of 1", 7),
    ],
)
def test_the_search_finds(
    kind: type[Sessions], says: tuple[int, int], faults: int, why: str, steps: int
) -> None:
    found = explore(SessionModel(says=says, faults=faults, kind=kind))
    assert found.bad is not None
    assert why in found.bad.why, str(found)
    assert len(found.bad.steps) == steps, str(found)


def test_the_search_finds_versions_that_never_meet() -> None:
    found = explore(SessionModel(says=(1, 0), faults=1, kind=KeepsToTheNewest, older=1))
    assert found.bad is not None
    assert "no end can be reached" in found.bad.why, str(found)
