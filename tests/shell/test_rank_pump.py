"""A rank ends with its leader, also where it has never met it."""

import pytest
from tests.core.build import manifest

from baton.core.errors import PeerError
from baton.core.frames import Join
from baton.core.ids import Boot, Link, Micros
from baton.core.session.session import PeerUp, SessionEvent, WrongPeer
from baton.shell.narration import Narration
from baton.shell.rank_pump import RankPump

LEADER = Boot(4)


class Nothing:
    """A clock, a rank and lines with which nothing happens but these events."""

    def __init__(self, *events: SessionEvent) -> None:
        self.events = list(events)

    def receive(self) -> list[SessionEvent]:
        return self.events

    def dial(self, address: str, expect: Boot | None) -> Link:
        return Link(1)

    def now(self) -> Micros:
        return Micros(0)

    def poll(self) -> bool:
        return False

    def report(self) -> None:
        return None

    def flush(self) -> None:
        pass

    def send(self, boot: Boot, message: object) -> bool:
        return True

    def timer(self) -> None:
        return None


def pump(world: Nothing, leader: Boot | None) -> RankPump:
    join = Join(manifest("decode", 5), pid=1)
    return RankPump(
        rank=world,
        join=join,
        lines=world,
        clock=world,
        leader=leader,
        address="",
        narration=Narration(),
    )


def test_a_rank_ends_where_another_process_answers_for_its_leader() -> None:
    with pytest.raises(PeerError, match="the leader 4 is not there"):
        pump(Nothing(WrongPeer(Link(1), "boot 9 answered, 4 was expected")), LEADER).turn()


def test_a_rank_that_takes_whoever_answers_goes_on_knocking() -> None:
    assert (
        pump(Nothing(WrongPeer(Link(1), "it speaks protocol 2, we speak 1")), None).turn() is None
    )


def test_a_rank_is_ready_once_its_leader_has_answered() -> None:
    world = Nothing()
    rank = pump(world, None)
    rank.turn()
    assert rank.why_not_ready == "the leader of this worker has not answered"
    world.events.append(PeerUp(LEADER, Link(1)))
    rank.turn()
    assert rank.why_not_ready is None
