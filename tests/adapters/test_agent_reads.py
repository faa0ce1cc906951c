"""The ends that a real engine shows too rarely: parts that stall, break, or are not let go of.

The scripted agent knows which of its parts may still land: one that was given back before it was
done may, until its agent is deleted. Every end that is told is held against that.
"""

import random

import numpy as np
import pytest

from baton.adapters.agent_reads import (
    GRACE_US,
    WINDOW_PARTS,
    AgentReads,
    Link,
    PartLimits,
    PartState,
)
from baton.adapters.reads import OpenRead, OpenReads, Ranges
from baton.core.errors import FabricError
from baton.core.ids import Boot, Micros, RankId
from baton.ports.fabric import Handle, ReadEnded, ReadOutcome, Released

PART_BYTES = 1 << 20
PEER = RankId(Boot(1), Boot(1), 0)


class HandClock:
    time = 0

    def now(self) -> Micros:
        return Micros(self.time)


class ScriptedPart:
    def __init__(self, ranges: Ranges) -> None:
        self.ranges, self.state, self.why, self.let_go = ranges, PartState.MOVING, "", True
        self.given_back = False

    @property
    def handle(self) -> Handle:
        return Handle(int(self.ranges.target[0]))

    def look(self) -> PartState:
        assert not self.given_back, "the engine is asked about a part that it was given back"
        return self.state

    def release(self) -> bool:
        assert not self.given_back, "a part is given back twice"
        self.given_back = self.let_go
        return self.let_go


class ScriptedAgent:
    def __init__(self) -> None:
        self.parts: list[ScriptedPart] = []
        self.closed = False
        self.removed = False
        self.progressed = 0

    def add(self, metadata: bytes) -> str:
        if metadata == b"bad":
            raise FabricError("no such metadata")
        return "theirs"

    def remove(self, name: str) -> None:
        assert not self.removed
        self.removed = True

    def progress(self) -> None:
        self.progressed += 1

    def post(self, name: str, ranges: Ranges) -> ScriptedPart:
        assert not self.closed
        self.parts.append(ScriptedPart(ranges))
        return self.parts[-1]

    def close(self) -> None:
        assert not self.closed
        assert all(part.given_back for part in self.parts), "an agent was deleted under a live part"
        self.closed = True

    def may_land(self, handle: Handle) -> bool:
        parts = [part for part in self.parts if part.handle == handle]
        return not self.closed and any(part.state is not PartState.DONE for part in parts)


class World:
    """A Progress over scripted agents, which holds every end against what may still land."""

    def __init__(self) -> None:
        self.clock, self.agents, self.reads = HandClock(), [], OpenReads(lambda: None)  # type: ignore[var-annotated]
        self.progress = AgentReads(self._make, self.reads, self.clock, PartLimits(PART_BYTES, 2048))  # type: ignore[arg-type]
        self.told: dict[Handle, list[ReadOutcome | None]] = {}  # None: released
        self.connect()

    def connect(self) -> None:
        self.link = Link(PEER, "theirs", b"", {})
        self.progress.load(self.link)

    def _make(self) -> ScriptedAgent:
        self.agents.append(ScriptedAgent())
        return self.agents[-1]

    def begin(self, handle: int, parts: int = 1, due: int = 10**9) -> None:
        n = np.full(parts, PART_BYTES)
        read = OpenRead(Handle(handle), PEER, Ranges(n * 0, n * 0 + handle, n), Micros(due))
        self.reads.open(read)
        self.progress.begin(read, self.link)

    def steps(self, n: int = 20) -> list[ReadEnded | Released]:
        return [event for _ in range(n) for event in self.step()]

    def step(self) -> list[ReadEnded | Released]:
        self.progress.step()
        return self.collect()

    def collect(self) -> list[ReadEnded | Released]:
        events = [
            event for event in self.reads.collect() if isinstance(event, ReadEnded | Released)
        ]
        for event in events:
            outcome = event.outcome if isinstance(event, ReadEnded) else None
            self.told.setdefault(event.handle, []).append(outcome)
            if outcome is not ReadOutcome.UNKNOWN:
                assert not any(agent.may_land(event.handle) for agent in self.agents), (
                    f"{event}, and it may still land"
                )
        return events

    @property
    def live_parts(self) -> list[ScriptedPart]:
        return [part for agent in self.agents for part in agent.parts if not part.given_back]


@pytest.fixture
def world() -> World:
    return World()


def test_no_more_parts_than_the_window_are_under_way_and_the_oldest_read_comes_first(
    world: World,
) -> None:
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
    assert world.steps() == [ReadEnded(Handle(1), ReadOutcome.OK, "")]
    parts[-1].state = PartState.DONE
    assert world.steps() == [ReadEnded(Handle(2), ReadOutcome.OK, "")]


def test_a_stopped_read_waits_for_its_parts_and_posts_no_more(world: World) -> None:
    world.begin(1, parts=WINDOW_PARTS + 3)
    world.steps()
    world.reads.stop(Handle(1), "cancelled")
    assert world.steps() == []
    for part in world.agents[0].parts:
        part.state = PartState.DONE
    assert world.steps() == [ReadEnded(Handle(1), ReadOutcome.FAILED, "cancelled")]
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
    assert [(e.handle, e.outcome) for e in ends if isinstance(e, ReadEnded)] == [
        (1, ReadOutcome.FAILED),
        (2, ReadOutcome.FAILED),
    ]
    assert world.agents[0].closed
    world.begin(3)
    world.steps()
    assert len(world.agents) == 2  # read again through a new one
    world.agents[1].parts[0].state = PartState.DONE
    assert world.steps() == [ReadEnded(Handle(3), ReadOutcome.OK, "")]


def test_a_broken_part_ends_its_read_only_when_the_other_parts_cannot_land(world: World) -> None:
    world.begin(1, parts=2)
    world.steps()
    first, second = world.agents[0].parts
    first.state, first.why, second.let_go = PartState.BROKEN, "lost", False
    assert world.steps() == []
    assert not world.agents[0].closed
    second.let_go = True
    assert [(e.handle, e.outcome, e.detail) for e in world.steps() if isinstance(e, ReadEnded)] == [
        (1, ReadOutcome.FAILED, "lost")
    ]
    assert world.agents[0].closed


def test_a_part_that_is_not_let_go_of_is_unknown_until_it_is(world: World) -> None:
    world.begin(1, due=100)
    world.steps()
    world.agents[0].parts[0].let_go = False
    world.clock.time = 100
    assert world.steps() == []
    world.clock.time += GRACE_US
    assert world.steps() == [ReadEnded(Handle(1), ReadOutcome.UNKNOWN, "deadline passed")]
    world.agents[0].parts[0].let_go = True
    assert world.steps() == [Released(Handle(1))]
    assert world.agents[0].closed


def test_while_one_part_is_not_let_go_of_nothing_that_was_under_way_with_it_is_quiet(
    world: World,
) -> None:
    world.begin(1, parts=2, due=100)
    world.begin(2, parts=2)
    world.steps()
    held = world.agents[0].parts[0]
    held.let_go = False
    world.clock.time = 100
    world.steps()
    world.clock.time += GRACE_US
    world.steps()
    assert world.told == {1: [ReadOutcome.UNKNOWN]}
    world.clock.time += GRACE_US
    world.steps()
    assert world.told == {1: [ReadOutcome.UNKNOWN], 2: [ReadOutcome.UNKNOWN]}
    assert not world.agents[0].closed
    held.let_go = True
    world.steps()
    assert world.told == {1: [ReadOutcome.UNKNOWN, None], 2: [ReadOutcome.UNKNOWN, None]}
    assert world.agents[0].closed


def test_what_had_landed_before_its_agent_went_is_quiet(world: World) -> None:
    world.begin(1, due=100)
    world.begin(2, parts=WINDOW_PARTS)
    world.steps()
    for part in world.agents[0].parts[1:]:
        part.state = PartState.DONE
    world.agents[0].parts[0].let_go = False
    world.steps(1)  # the last part of the second read is posted
    for part in world.agents[0].parts[1:]:
        part.state = PartState.DONE
    world.reads.stop(Handle(2), "cancelled")
    world.clock.time = 100 + GRACE_US
    assert ReadEnded(Handle(2), ReadOutcome.FAILED, "cancelled") in world.steps()


def test_a_part_that_ends_by_itself_lets_its_agent_go(world: World) -> None:
    world.begin(1, parts=2, due=100)
    world.steps()
    held, given_back = world.agents[0].parts
    held.let_go = False
    world.clock.time = 100
    world.steps()
    world.clock.time += GRACE_US
    world.steps()
    assert given_back.given_back
    held.state, held.let_go = PartState.DONE, True
    assert world.steps() == [Released(Handle(1))]
    assert world.agents[0].closed
    world.begin(2)
    world.steps()
    world.agents[1].parts[0].state = PartState.DONE
    assert world.steps() == [ReadEnded(Handle(2), ReadOutcome.OK, "")]


def test_a_forgotten_peer_that_is_met_again_is_read_while_its_old_agent_lives_on(
    world: World,
) -> None:
    world.begin(1, parts=2)
    world.steps()
    held = world.agents[0].parts[1]
    held.let_go = False
    world.progress.forget(world.link)
    world.connect()
    world.begin(2)
    assert world.steps() == []
    world.agents[1].parts[0].state = PartState.DONE
    assert world.steps() == [ReadEnded(Handle(2), ReadOutcome.OK, "")]
    progressed = world.agents[0].progressed
    world.progress.progress()
    assert world.agents[0].progressed > progressed, "without progress the engine may never let go"
    held.let_go = True
    assert world.steps() == [ReadEnded(Handle(1), ReadOutcome.FAILED, "disconnected")]
    assert (world.agents[0].closed, world.agents[1].closed) == (True, False)


def test_parts_that_are_kept_take_no_place_from_other_peers(world: World) -> None:
    slow = world.link
    world.begin(1, parts=WINDOW_PARTS)
    world.steps()
    for part in world.agents[0].parts:
        part.let_go = False
    world.connect()
    world.begin(2)
    assert world.steps() == []
    assert world.agents[1].parts == []
    world.progress.tear_down(slow, "test")
    world.steps()
    world.agents[1].parts[0].state = PartState.DONE
    assert world.steps() == [ReadEnded(Handle(2), ReadOutcome.OK, "")]


def test_closing_says_of_no_read_that_it_is_quiet_while_its_agent_lives(world: World) -> None:
    world.begin(1, parts=2)
    world.begin(2)
    world.begin(3)
    world.begin(4)  # beyond the window: nothing of it was ever posted
    world.steps()
    world.agents[0].parts[0].let_go = False
    world.progress.shut_down()
    world.collect()
    assert world.told == {4: [ReadOutcome.FAILED]}
    # of these the fabric says UNKNOWN
    assert [read.handle for read in world.reads.open_reads()] == [1, 2, 3]


@pytest.mark.parametrize("state", [PartState.MOVING, PartState.BROKEN])
def test_a_read_that_comes_while_an_agent_is_going_waits_for_the_next_one(
    world: World, state: PartState
) -> None:
    world.begin(1, due=100)
    world.steps()
    world.agents[0].parts[0].let_go = False
    world.clock.time = 100
    world.steps()
    world.clock.time += GRACE_US
    world.steps()
    world.agents[0].parts[0].state = state
    world.begin(2)
    assert world.steps() == []
    assert len(world.agents[0].parts) == 1, "the peer is not read through an agent that is to go"
    world.agents[0].parts[0].let_go = True
    assert world.steps() == [Released(Handle(1))]
    world.agents[1].parts[0].state = PartState.DONE
    assert world.steps() == [ReadEnded(Handle(2), ReadOutcome.OK, "")]


def test_a_read_that_comes_when_an_agent_has_not_gone_for_long_fails_at_once(world: World) -> None:
    world.begin(1, due=100)
    world.steps()
    world.agents[0].parts[0].let_go = False
    world.clock.time = 100
    world.steps()
    world.clock.time += GRACE_US
    world.steps()
    world.begin(2)
    world.clock.time += GRACE_US
    (end,) = world.steps()
    assert isinstance(end, ReadEnded)
    assert (end.handle, end.outcome) == (2, ReadOutcome.FAILED)
    assert "a read did not end in time (deadline passed)" in end.detail


@pytest.mark.parametrize("seed", range(200))
def test_no_end_comes_before_its_bytes_and_all_come_once_the_engine_lets_go(seed: int) -> None:
    """Reads, cancels, time, disconnects, and parts that end, break, hang or are not let go of, in
    any order."""
    world, rng = World(), random.Random(seed)
    begun = 0
    for _ in range(120):
        world.clock.time += rng.choice((0, 0, 0, 50_000, GRACE_US // 2, GRACE_US))
        match rng.randrange(8):
            case 0 | 1 | 2:
                begun += 1
                world.begin(
                    begun,
                    parts=rng.randrange(4),
                    due=world.clock.time + rng.choice((0, 10**5, 10**7, 10**9)),
                )
            case 3 if begun:
                world.reads.stop(Handle(rng.randrange(begun) + 1), "cancelled")
            case 4 if rng.random() < 0.3:
                world.progress.forget(world.link)
                world.connect()
            case _:
                for part in world.live_parts:
                    if rng.random() < 0.4:
                        part.let_go = rng.random() < 0.6
                        part.state = rng.choice(
                            (PartState.MOVING, PartState.DONE, PartState.DONE, PartState.BROKEN)
                        )
        world.steps(rng.randrange(4))
    for _ in range(100):
        for part in world.live_parts:
            part.state, part.let_go = PartState.DONE, True
        world.step()
    world.clock.time += 10**10
    world.steps()
    assert world.told.keys() == set(range(1, begun + 1))
    assert all(
        told in ([ReadOutcome.OK], [ReadOutcome.FAILED], [ReadOutcome.UNKNOWN, None])
        for told in world.told.values()
    ), world.told
    assert world.progress.idle
    assert world.progress._links == [world.link]
    world.progress.shut_down()
    assert all(agent.closed for agent in world.agents)


def test_metadata_that_does_not_load_fails_the_reads(world: World) -> None:
    world.progress.tear_down(world.link, "test")
    world.link.metadata = b"bad"
    world.begin(1)
    assert world.steps() == [ReadEnded(Handle(1), ReadOutcome.FAILED, "no such metadata")]
    assert world.agents[-1].closed
