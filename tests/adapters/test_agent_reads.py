"""The ends that a real engine shows too rarely: parts that stall, break, or are not let go of."""

import numpy as np
import pytest

from baton.adapters.agent_reads import GRACE_US, WINDOW_PARTS, Limits, Link, PartState, Progress
from baton.adapters.reads import Desk, Ranges, Read
from baton.core.errors import FabricError
from baton.core.ids import Boot, Micros, RankId
from baton.ports.fabric import Ended, Handle, Outcome, Released

PART_BYTES = 1 << 20
PEER = RankId(Boot(1), Boot(1), 0)


class HandClock:
    time = 0

    def now(self) -> Micros:
        return Micros(self.time)


class ScriptedPart:
    def __init__(self, ranges: Ranges) -> None:
        self.ranges, self.state, self.why, self.let_go = ranges, PartState.MOVING, "", True

    def look(self) -> PartState:
        return self.state

    def release(self) -> bool:
        return self.let_go


class ScriptedAgent:
    def __init__(self) -> None:
        self.parts: list[ScriptedPart] = []
        self.closed = False

    def add(self, metadata: bytes) -> str:
        if metadata == b"bad":
            raise FabricError("no such metadata")
        return "theirs"

    def remove(self, name: str) -> None: ...

    def progress(self) -> None: ...

    def post(self, name: str, ranges: Ranges) -> ScriptedPart:
        assert not self.closed
        self.parts.append(ScriptedPart(ranges))
        return self.parts[-1]

    def close(self) -> None:
        assert all(part.let_go for part in self.parts), "an agent was deleted under a live part"
        self.closed = True


class World:
    """A Progress over scripted agents."""

    def __init__(self) -> None:
        self.clock, self.agents, self.desk = HandClock(), [], Desk(lambda: None)  # type: ignore[var-annotated]
        self.progress = Progress(self._make, self.desk, self.clock, Limits(PART_BYTES, 2048))  # type: ignore[arg-type]
        self.link = Link(PEER, "theirs", b"", {})
        self.progress.load(self.link)

    def _make(self) -> ScriptedAgent:
        self.agents.append(ScriptedAgent())
        return self.agents[-1]

    def begin(self, handle: int, parts: int = 1, due: int = 10**9) -> None:
        n = np.full(parts, PART_BYTES)
        read = Read(Handle(handle), PEER, Ranges(n * 0, n * 0, n), Micros(due))
        self.desk.open(read)
        self.progress.begin(read, self.link)

    def steps(self, n: int = 20) -> list[Ended | Released]:
        for _ in range(n):
            self.progress.step()
        return self.desk.collect()


@pytest.fixture
def world() -> World:
    return World()


def test_no_more_parts_than_the_window_are_under_way_and_the_oldest_read_comes_first(world: World) -> None:
    world.begin(1, parts=WINDOW_PARTS + 1)
    world.begin(2)
    assert world.steps() == []
    parts = world.agents[0].parts
    assert len(parts) == WINDOW_PARTS
    parts[0].state = PartState.DONE
    world.steps()
    assert len(parts) == WINDOW_PARTS + 1  # the last of the first read
    for part in parts:
        part.state = PartState.DONE
    assert world.steps() == [Ended(Handle(1), Outcome.OK, "")]
    parts[-1].state = PartState.DONE
    assert world.steps() == [Ended(Handle(2), Outcome.OK, "")]


def test_a_stopped_read_waits_for_its_parts_and_posts_no_more(world: World) -> None:
    world.begin(1, parts=WINDOW_PARTS + 3)
    world.steps()
    world.desk.stop(Handle(1), "cancelled")
    assert world.steps() == []
    for part in world.agents[0].parts:
        part.state = PartState.DONE
    assert world.steps() == [Ended(Handle(1), Outcome.FAILED, "cancelled")]
    assert len(world.agents[0].parts) == WINDOW_PARTS
    assert not world.agents[0].closed


def test_a_stalled_read_costs_its_agent_and_every_read_from_that_peer(world: World) -> None:
    world.begin(1, due=100)
    world.begin(2)
    world.steps()
    world.clock.time = 100
    assert world.steps() == []
    world.clock.time += GRACE_US
    ends = world.steps()
    assert [(e.handle, e.outcome) for e in ends if isinstance(e, Ended)] == [(1, Outcome.FAILED), (2, Outcome.FAILED)]
    assert world.agents[0].closed
    world.begin(3)
    world.steps()
    assert len(world.agents) == 2  # read again through a new one
    world.agents[1].parts[0].state = PartState.DONE
    assert world.steps() == [Ended(Handle(3), Outcome.OK, "")]


def test_a_broken_part_ends_its_read_only_when_the_other_parts_cannot_land(world: World) -> None:
    world.begin(1, parts=2)
    world.steps()
    first, second = world.agents[0].parts
    first.state, first.why, second.let_go = PartState.BROKEN, "lost", False
    assert world.steps() == []
    assert not world.agents[0].closed
    second.let_go = True
    assert [(e.handle, e.outcome, e.detail) for e in world.steps() if isinstance(e, Ended)] == [(1, Outcome.FAILED, "lost")]
    assert world.agents[0].closed


def test_a_part_that_is_not_let_go_of_is_unknown_until_it_is(world: World) -> None:
    world.begin(1, due=100)
    world.steps()
    world.agents[0].parts[0].let_go = False
    world.clock.time = 100
    assert world.steps() == []
    world.clock.time += GRACE_US
    assert world.steps() == [Ended(Handle(1), Outcome.UNKNOWN, "deadline passed")]
    world.begin(2)
    assert [type(end) for end in world.steps()] == [Ended]  # torn down with the other
    assert len(world.agents[0].parts) == 1, "the peer is not read again while the old read may land"
    world.agents[0].parts[0].let_go = True
    assert world.steps() == [Released(Handle(1))]
    assert world.agents[0].closed


def test_metadata_that_does_not_load_fails_the_reads(world: World) -> None:
    world.progress.tear_down(world.link, "test")
    world.link.metadata = b"bad"
    world.begin(1)
    assert world.steps() == [Ended(Handle(1), Outcome.FAILED, "no such metadata")]
    assert world.agents[-1].closed
