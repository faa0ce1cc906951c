"""The table of a room's states on a rank: what it says, and that a rank takes every arrow of it and
no other."""

from collections.abc import Callable, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
from tests.core.build import KV, key, manifest
from tests.core.driven import T0, report_of
from tests.core.rank.test_rank import order

from baton.core.agreement import ConnectOrder, Hold, Offload, Restore, Resume, StepPlan
from baton.core.errors import Bug
from baton.core.ids import Boot, CheckpointName, Page, RankId, Seq
from baton.core.rank.rank import RankCore
from baton.core.rank.rank_effects import (
    CancelRead,
    Connect,
    Digest,
    Discard,
    Load,
    RankEffect,
    Read,
    Save,
)
from baton.core.rank.rank_room import RANK_ROOM, RankRooms, RankRoomState, RankSaw
from baton.core.work import Connected, Copied, DigestDone, ReadEnded, ReadOutcome

KEY = key()
EVERY = list(product(RankRoomState, RankSaw))
WITH_PAGES = {*RankRoomState} - {
    RankRoomState.ABSENT,
    RankRoomState.STORED,
    RankRoomState.DROPPED,
    RankRoomState.QUIET,
}


def reached(first: RankRoomState) -> set[RankRoomState]:
    found, frontier = {first}, [first]
    while frontier:
        here = frontier.pop()
        after = {target for (state, _), target in RANK_ROOM.items() if state is here} - found
        found |= after
        frontier += after
    return found


def way_to(state: RankRoomState) -> list[RankSaw]:
    """What brings a room there, soonest."""
    ways: dict[RankRoomState, list[RankSaw]] = {RankRoomState.ABSENT: []}
    frontier = [RankRoomState.ABSENT]
    for here in frontier:
        for (before, saw), after in RANK_ROOM.items():
            if before is here and after not in ways:
                ways[after] = [*ways[here], saw]
                frontier.append(after)
    return ways[state]


@pytest.mark.parametrize(
    ("state", "saw"), [pair for pair in EVERY if pair[0] is not RankRoomState.QUIET]
)
def test_a_room_moves_by_the_table_and_a_pair_that_it_lacks_is_our_bug(
    state: RankRoomState, saw: RankSaw
) -> None:
    rooms = RankRooms()
    for earlier in way_to(state):
        rooms.see(KEY, earlier)
    assert rooms.state(KEY) is state
    if (state, saw) not in RANK_ROOM:
        with pytest.raises(KeyError):
            rooms.see(KEY, saw)
        assert rooms.state(KEY) is state
        return
    after = rooms.see(KEY, saw)
    assert after is RANK_ROOM[state, saw]
    assert rooms.dropped == ({KEY} if after is RankRoomState.DROPPED else set())
    gone = after in (RankRoomState.QUIET, RankRoomState.ABSENT)
    assert rooms.state(KEY) is (RankRoomState.ABSENT if gone else after)
    assert len(rooms) == (not gone)


def test_every_state_is_reached_and_can_be_dropped_and_nothing_follows_quiet() -> None:
    assert reached(RankRoomState.ABSENT) == set(RankRoomState)
    for state in RankRoomState:
        assert RankRoomState.QUIET in reached(state)
        assert ((state, RankSaw.DROP) in RANK_ROOM) == (
            state not in (RankRoomState.DROPPED, RankRoomState.QUIET)
        )
    assert not any(state is RankRoomState.QUIET for state, _ in RANK_ROOM)
    assert {state for (state, saw) in RANK_ROOM if saw is RankSaw.QUIET} == {RankRoomState.DROPPED}


def test_what_is_ordered_of_a_dropped_room_changes_nothing() -> None:
    ordered = {RankSaw.HOLD, RankSaw.FETCH, RankSaw.SAVE, RankSaw.RESTORE, RankSaw.VACATE}
    ordered.add(RankSaw.RESUME)
    ignored = {
        saw for (state, saw), after in RANK_ROOM.items() if state is after is RankRoomState.DROPPED
    }
    assert ignored == ordered


# ---- the arrows that a rank takes
# --------------------------------------------------------------------


class RankBench:
    """A rank and its host: copies, reads and hashes are under way until a step ends the oldest of
    them."""

    def __init__(self) -> None:
        ours, theirs = manifest("decode", 3), manifest("prefill", 2)
        self.core = RankCore(rank=0, boot=Boot(3), placements=[ours.placement(0)], seal=True)
        self.seq, self.orders = 0, 0
        self.pending: list[RankEffect] = []
        self.plan(connect=(ConnectOrder(theirs, "shm"),))
        self.take(self.core.step(Connected(RankId(Boot(2), Boot(2), 0), ""), T0))

    def plan(self, **what: tuple[object, ...]) -> None:
        self.seq += 1
        self.take(self.core.step(StepPlan(Seq(self.seq), **what), T0))

    def take(self, effects: Sequence[RankEffect]) -> None:
        self.pending += [
            effect for effect in effects if not isinstance(effect, Connect | CancelRead | Discard)
        ]

    def order(self) -> int:
        self.orders += 1
        return self.orders

    def resume(self) -> Resume:
        """Three positions: a block that no complete page has."""
        return Resume(self.order(), CheckpointName(1), KEY, 3)

    def ends(self, *, well: bool) -> None:
        if not self.pending:
            return
        match self.pending.pop(0):
            case Read(handle=handle):
                event = ReadEnded(handle, ReadOutcome.OK if well else ReadOutcome.FAILED, "")
            case Save(copy=copy) | Load(copy=copy):
                event = Copied(copy.job, "" if well else "no space")
            case Digest(order=digest):
                sums = np.zeros((len(digest.slots), 4), dtype=np.uint64)
                sums[:, 0] = [11 * (n + 1) if well else 5 for n in digest.numbers]
                event = DigestDone(digest.job, sums)
        self.take(self.core.step(event, T0))


class Step(NamedTuple):
    """What is done to a room, and what it is for the table, in the plan's order."""

    do: Callable[[RankBench], None]
    saw: tuple[RankSaw, ...]


UNDER_WAY, FAILURES = 3, 3  # reads, hashes and copies at once; and how many of them end badly
HOLD = Hold(KEY, {KV: (Page(5), Page(6))})

STEPS: dict[str, Step] = {
    "hold": Step(lambda b: b.plan(hold=(HOLD,)), (RankSaw.HOLD,)),
    "fetch": Step(lambda b: b.plan(fetch=(order(b.order()),)), (RankSaw.FETCH,)),
    "offload": Step(lambda b: b.plan(offload=(Offload(b.order(), KEY, 4),)), (RankSaw.SAVE,)),
    "vacate": Step(lambda b: b.plan(vacate=(KEY,)), (RankSaw.VACATE,)),
    "back": Step(
        lambda b: b.plan(hold=(HOLD,), restore=(Restore(b.order(), KEY, 4),)),
        (RankSaw.HOLD, RankSaw.RESTORE),
    ),
    "resume": Step(lambda b: b.plan(resume=(b.resume(),)), (RankSaw.RESUME,)),
    "drop": Step(lambda b: b.plan(drop=(KEY,)), (RankSaw.DROP,)),
    "drop at once": Step(
        lambda b: b.plan(
            **{"drop": (KEY,), "vacate": (KEY,), "hold": (HOLD,), "fetch": (order(b.order()),)},
            **{"offload": (Offload(b.order(), KEY, 4),), "restore": (Restore(b.order(), KEY, 4),)},
            resume=(b.resume(),),
        ),
        (RankSaw.DROP,),
    ),
    "well": Step(lambda b: b.ends(well=True), ()),
    "badly": Step(lambda b: b.ends(well=False), ()),
}


def legal(state: RankRoomState, step: Step) -> bool:
    for saw in step.saw:
        if (state, saw) not in RANK_ROOM:
            return False
        state = RANK_ROOM[state, saw]
    return True


def test_a_rank_takes_every_arrow_and_refuses_what_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """From everywhere that a rank can get to with a room, as far as its state and what is under way
    are concerned, every step."""
    taken: set[tuple[RankRoomState, RankSaw]] = set()
    see = RankRooms.see

    def noted(self: RankRooms, which: object, saw: RankSaw) -> RankRoomState:
        before = self.state(KEY)
        after = see(self, KEY, saw)
        taken.add((before, saw))
        return after

    monkeypatch.setattr(RankRooms, "see", noted)
    frontier: list[tuple[str, ...]] = [()]
    known: set[tuple[RankRoomState, tuple[str, ...], int]] = set()
    refused: set[tuple[RankRoomState, str]] = set()
    for names in frontier:
        bench = played(names)
        for name, step in STEPS.items():
            if not step.saw and not bench.pending:
                continue
            bench = played(names)
            before = bench.core.rooms.state(KEY)
            if not legal(before, step):
                refused.add((before, name))
                with pytest.raises((KeyError, Bug)):
                    step.do(bench)
                continue
            step.do(bench)
            is_sound(bench, vacated=name == "vacate" and before is RankRoomState.HELD)
            failed = (*names, name).count("badly")
            here = (
                bench.core.rooms.state(KEY),
                tuple(type(effect).__name__ for effect in bench.pending),
                failed,
            )
            ends = (
                here[0] is RankRoomState.ABSENT
                or len(bench.pending) > UNDER_WAY
                or failed > FAILURES
            )
            if here not in known and not ends:
                known.add(here)
                frontier.append((*names, name))
    assert refused == {
        (state, name)
        for state in RankRoomState
        for name, step in STEPS.items()
        if not legal(state, step)
    } - {(RankRoomState.QUIET, name) for name in STEPS}
    assert taken == RANK_ROOM.keys()


def played(names: Sequence[str]) -> RankBench:
    bench = RankBench()
    for name in names:
        STEPS[name].do(bench)
    return bench


def is_sound(bench: RankBench, *, vacated: bool) -> None:
    """What the parts of a rank keep of the room is what its state says."""
    core, state = bench.core, bench.core.rooms.state(KEY)
    assert state not in WITH_PAGES or len(core.pages) == 1
    assert (state is RankRoomState.FETCHING) == bool(core.fetches._orders)
    copying = state in (RankRoomState.SAVING, RankRoomState.LOADING)
    assert copying == bool(core.host.busy()) or state is RankRoomState.DROPPED
    resuming = state is RankRoomState.RESUMING
    assert resuming == bool(core.checkpoints.busy()) or state is RankRoomState.DROPPED
    if state is RankRoomState.DROPPED:
        assert bench.pending, "something touches its pages"
        assert not len(core.pages)
    if state is RankRoomState.ABSENT:
        report = report_of(core)
        assert report is not None
        assert (KEY in report.quiet) == (not vacated)
        assert not len(core.host)
        assert not core.fetches.reads
