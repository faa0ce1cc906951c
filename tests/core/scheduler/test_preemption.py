"""Preemption: who gives way, what becomes of its state, when it comes back, and that nobody else
waits for it."""

from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.core.build import KV, key, manifest, submit
from tests.core.driven import T0, report_of
from tests.core.world import World, expected

from baton.core.agreement import Hold, Offload, Restore, StepPlan, Vote
from baton.core.door import Finish
from baton.core.handoff.seal import block_sums
from baton.core.ids import Boot, GroupName, Page, Rank, Seq
from baton.core.marks import Mark
from baton.core.memory.host_ledger import HostLedger, state_bytes
from baton.core.memory.state import DType, Full, Group, StateSpec, StateTable, Unit, Whole, Window
from baton.core.messages import Admitted, Recompute
from baton.core.rank.host_copies import HostCopies
from baton.core.rank.rank import RankCore
from baton.core.rank.rank_effects import Digest, Discard, Load, Save
from baton.core.scheduler.preemption import OVERTAKES
from baton.core.scheduler.room import RoomState, Saw
from baton.core.scheduler.tables import DECODE, OFFLOAD, UNIFIED
from baton.core.work import Copied, DigestDone

P, D = 2, 3
PLENTY = 1 << 20
PLACED = manifest("decode", D).placement(0)


def prompt(n: int, salt: int = 0) -> tuple[int, ...]:
    return tuple((7 * i + 13 * salt + 1) % 997 for i in range(n))


def pressed(*, pages: int = 9, unified: bool = False, **limits: int) -> World:
    """A worker that generates in `pages` pages of 4 tokens."""
    world = World()
    if unified:
        world.add("unified", D, pages=pages, **limits)
    else:
        world.add("prefill", P, pages=40)
        world.add("decode", D, pages=pages, **limits)
    world.run()
    return world


def marks(world: World) -> Counter[Mark]:
    return world.nodes[Boot(D)].leader.worker.marks


def rooms(world: World) -> dict[int, Any]:
    """Open rooms where tokens are generated, by the number of their request."""
    return {int(r.ticket.stamp): r for r in world.nodes[Boot(D)].leader.worker.rooms.values()}


def until(world: World, state: RoomState, steps: int = 400) -> Any:
    """Go on until some room is in that state."""
    for _ in range(steps):
        found = [r for r in rooms(world).values() if r.state is state]
        if found:
            return found[0]
        world.step()
    raise AssertionError(f"no room was ever {state.value}")


# ---- table --------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [DECODE, UNIFIED])
def test_the_table_of_preemption_is_exactly_this(table: dict) -> None:
    away = (RoomState.OFFLOADING, RoomState.OFFLOADED, RoomState.RESTORING)
    found = {(s, saw): table.get((s, saw)) for s in away for saw in Saw}
    legal = {at: to for at, to in found.items() if to is not None}
    assert legal == {at: to for at, to in OFFLOAD.items() if at[0] in away}
    assert {s for s, saw in table if saw is Saw.PREEMPTED} == {RoomState.RUNNING}, (
        "only a running room gives way"
    )
    assert {to for (_, saw), to in table.items() if saw is Saw.RESTORED} == {RoomState.RUNNING}
    assert all(table[s, Saw.END] is RoomState.ENDING for s in away), "ranks hold something of it"


# ---- what clients see ---------------------------------------------------------------------------


@pytest.mark.parametrize("unified", [False, True])
def test_rooms_are_preempted_again_and_again_and_say_the_same(unified: bool) -> None:
    world = pressed(unified=unified, host_bytes=PLENTY)
    for n in range(1, 5):
        world.submit(submit(n, prompt(7, n), max_tokens=17))
    world.run()
    for n in range(1, 5):
        assert world.tokens(n) == expected(prompt(7, n), 17)
    assert marks(world)[Mark.OFFLOADED] == marks(world)[Mark.RESUMED] >= 4
    assert not any(isinstance(m, Recompute) for _, _, m in world.log)
    assert world.clean


def test_where_the_store_is_full_a_room_is_computed_again() -> None:
    world = pressed(host_bytes=state_bytes(PLACED, 12))
    for n in range(1, 5):
        world.submit(submit(n, prompt(7, n), max_tokens=17))
    world.run()
    for n in range(1, 5):
        assert world.tokens(n) == expected(prompt(7, n), 17)
    assert marks(world)[Mark.STORE_FULL] == marks(world)[Mark.RECOMPUTE] > 0
    assert world.clean


def _damage(copy: Any, back: bool, node: Any) -> str:
    if not back:
        node.host[copy.key][0, 5] ^= 1
    return ""


BAD = {
    "save": lambda copy, back, node: "" if back else "no memory",
    "load": lambda copy, back, node: "gone" if back else "",
    "damage": _damage,
}


@pytest.mark.parametrize("what", BAD)
def test_a_copy_that_is_not_whole_is_never_computed_with(what: str) -> None:
    world = pressed(host_bytes=PLENTY)
    world.on_copied = BAD[what]
    for n in range(1, 5):
        world.submit(submit(n, prompt(7, n), max_tokens=17))
    world.run()
    for n in range(1, 5):
        assert world.tokens(n) == expected(prompt(7, n), 17)
    assert marks(world)[Mark.COPY_FAILED] > 0 == marks(world)[Mark.RESUMED]
    assert world.clean


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("state", [RoomState.OFFLOADING, RoomState.OFFLOADED, RoomState.RESTORING])
def test_an_abort_at_any_step_leaves_nothing(state: RoomState, frozen: bool) -> None:
    world = pressed(host_bytes=PLENTY)
    for n in range(1, 5):
        world.submit(submit(n, prompt(7, n), max_tokens=17))
    room = until(world, state)
    gone = int(room.ticket.stamp)
    world.freeze_copies = frozen
    world.cancel(gone)
    for _ in range(20):
        world.step()
    world.freeze_copies = False
    world.run()
    for n in {1, 2, 3, 4} - {gone}:
        assert world.tokens(n) == expected(prompt(7, n), 17)
    assert world.clean
    assert not len(world.nodes[Boot(D)].rank.host)


# ---- nobody else waits --------------------------------------------------------------------------


@pytest.mark.parametrize("state", [RoomState.OFFLOADING, RoomState.RESTORING])
def test_handoffs_go_on_while_a_copy_is_under_way(state: RoomState) -> None:
    """The copy stands still for ever: a request that fits beside it is admitted, handed over and
    answered."""
    world = pressed(pages=12, host_bytes=PLENTY)
    for n in range(1, 4):
        world.submit(submit(n, prompt(7, n), max_tokens=17))
    room = until(world, state)
    world.freeze_copies = True
    number = int(room.ticket.stamp)
    for n in {1, 2, 3} - {number}:
        world.cancel(n)
    world.submit(submit(9, prompt(3, 9), max_tokens=2))
    world.run()
    assert room.state is state
    assert world.tokens(9) == expected(prompt(3, 9), 2)
    world.freeze_copies = False
    world.run()
    assert world.tokens(number) == expected(prompt(7, number), 17)
    assert world.clean


def test_a_room_that_is_away_is_overtaken_a_bounded_number_of_times() -> None:
    """Request 1 holds most of the pages for long; 2 is away and too large to come back beside it;
    small ones keep coming."""
    world = pressed(pages=14, host_bytes=PLENTY)
    world.submit(submit(1, prompt(14, 1), max_tokens=30))
    world.submit(submit(2, prompt(20, 2), max_tokens=12))
    room = until(world, RoomState.OFFLOADED)
    assert int(room.ticket.stamp) == 2
    for n in range(3, 20):
        world.submit(submit(n, prompt(3, n), max_tokens=2))
    before = [n for n in range(3, 20) if world.end(n) is not None]
    while room.state is RoomState.OFFLOADED:
        assert world.step()
        before = [n for n in range(3, 20) if n not in rooms(world) and world.tokens(n)]
    assert 0 < len(before) <= OVERTAKES
    world.run()
    for n, length, tokens in ((1, 14, 30), (2, 20, 12), *((n, 3, 2) for n in range(3, 20))):
        assert world.tokens(n) == expected(prompt(length, n), tokens)
    assert world.clean


def test_between_two_preemptions_a_room_says_something() -> None:
    world = pressed(host_bytes=PLENTY)
    plans: list[StepPlan] = []
    rank = world.nodes[Boot(D)].rank
    step = rank.step
    rank.step = lambda event, now: (
        (isinstance(event, StepPlan) and plans.append(event)) or step(event, now)
    )  # type: ignore[method-assign, func-returns-value]
    for n in range(1, 6):
        world.submit(submit(n, prompt(5, n), max_tokens=17))
    world.run()
    away: set[Any] = set()
    for plan in plans:
        for order in plan.offload:
            assert order.key not in away, "it was taken again before its step"
            away.add(order.key)
        away -= {row.key for row in plan.batch}
    assert sum(len(plan.offload) for plan in plans) > 4
    assert isinstance(world.end(1), Finish)


def test_a_room_on_its_way_back_gives_way_when_it_is_back_and_not_one_before_it() -> None:
    """The copy stands still until the first room has used up what was left: it waits, and is not
    sent away for a later one."""
    world = pressed(pages=10, host_bytes=PLENTY)
    # tokens of prompt and answer, priority; the third makes room for 2
    asked = {1: (7, 25, 0), 2: (7, 25, 1), 3: (11, 6, 0)}
    for n, (length, tokens, priority) in asked.items():
        world.submit(
            msgspec.structs.replace(
                submit(n, prompt(length, n), max_tokens=tokens), priority=priority
            )
        )
    room = until(world, RoomState.RESTORING)
    world.freeze_copies = True
    world.run()
    assert {n: r.state for n, r in rooms(world).items()} == {
        1: RoomState.RUNNING,
        2: RoomState.RESTORING,
    }
    said = len(room.generated)
    world.freeze_copies = False
    until(world, RoomState.OFFLOADING)
    assert (int(room.ticket.stamp), room.state, len(room.generated)) == (
        2,
        RoomState.OFFLOADING,
        said + 1,
    )
    world.run()
    for n, (length, tokens, _) in asked.items():
        assert world.tokens(n) == expected(prompt(length, n), tokens)


def test_the_least_urgent_gives_way_and_of_those_the_last() -> None:
    world = pressed(pages=9, host_bytes=PLENTY)
    for n, priority in ((1, 5), (2, 0), (3, 5)):
        world.submit(
            msgspec.structs.replace(submit(n, prompt(7, n), max_tokens=17), priority=priority)
        )
    first = until(world, RoomState.OFFLOADING)
    assert int(first.ticket.stamp) == 3
    while rooms(world).get(2) is not None:
        assert rooms(world)[2].state not in OFFLOAD.values() or rooms(world)[2].state in (
            RoomState.RUNNING,
            RoomState.ENDING,
        )
        world.step()
    world.run()
    for n in (1, 2, 3):
        assert world.tokens(n) == expected(prompt(7, n), 17)


# ---- for those that wait -------------------------------------------------------------------------


def ask(world: World, number: int, length: int, tokens: int, priority: int) -> None:
    world.submit(
        msgspec.structs.replace(
            submit(number, prompt(length, number), max_tokens=tokens), priority=priority
        )
    )


def plans_of(world: World) -> list[StepPlan]:
    """What the rank that generates is told from now on."""
    plans: list[StepPlan] = []
    rank = world.nodes[Boot(D)].rank
    step = rank.step
    rank.step = lambda event, now: (
        (isinstance(event, StepPlan) and plans.append(event)) or step(event, now)
    )  # type: ignore[method-assign, func-returns-value]
    return plans


def both_run(world: World) -> None:
    """Two requests of little urgency generate in four of nine pages."""
    for n in (1, 2):
        ask(world, n, 7, 17, 5)
    while [r.state for r in rooms(world).values()] != [RoomState.RUNNING] * 2:
        assert world.step()


@pytest.mark.parametrize("unified", [False, True])
def test_less_urgent_rooms_give_way_to_one_that_waits(unified: bool) -> None:
    world = pressed(unified=unified, host_bytes=PLENTY)
    both_run(world)
    ask(world, 3, 25, 3, 0)  # seven pages, and one more for each that runs
    while world.end(3) is None:
        assert world.step()
    assert all(world.end(n) is None for n in (1, 2))
    assert marks(world)[Mark.PREEMPTED] == 2
    world.run()
    for n, length, tokens in ((1, 7, 17), (2, 7, 17), (3, 25, 3)):
        assert world.tokens(n) == expected(prompt(length, n), tokens)
    assert world.clean


@pytest.mark.parametrize(
    ("length", "priority", "host_bytes"),
    [
        (25, 5, PLENTY),  # as urgent as they are
        (25, 9, PLENTY),
        (9, 0, PLENTY),  # it fits
        (25, 0, 0),  # they would have to be computed again
        (25, 0, state_bytes(PLACED, 12)),  # so would one of the two, and the other alone is no help
    ],
)
def test_otherwise_nobody_gives_way_to_who_waits(
    length: int, priority: int, host_bytes: int
) -> None:
    world = pressed(host_bytes=host_bytes)
    both_run(world)
    ask(world, 3, length, 3, priority)
    world.run()
    assert marks(world)[Mark.PREEMPTED] == 0
    for n, size, tokens in ((1, 7, 17), (2, 7, 17), (3, length, 3)):
        assert world.tokens(n) == expected(prompt(size, n), tokens)


def test_no_more_rooms_give_way_than_it_takes_and_the_last_of_the_least_urgent_first() -> None:
    world = pressed(pages=14, host_bytes=PLENTY)
    for n, priority in ((1, 3), (2, 5), (3, 5)):
        ask(world, n, 7, 12, priority)
    while [r.state for r in rooms(world).values()] != [RoomState.RUNNING] * 3:
        assert world.step()
    plans = plans_of(world)
    ask(world, 4, 18, 3, 0)  # five pages, where four are free
    while world.end(4) is None:
        assert world.step()
    first = next(order.key for plan in plans for order in plan.offload)
    assert first.room == f"{3:032x}"
    assert marks(world)[Mark.PREEMPTED] == 1
    world.run()
    assert world.clean


def test_who_is_away_is_overtaken_by_urgent_ones_a_bounded_number_of_times() -> None:
    """Without the bound the large room would stay away as long as small, more urgent ones come."""
    world = pressed(pages=14, host_bytes=PLENTY, max_rooms=4)
    ask(world, 1, 30, 20, 5)
    while [r.state for r in rooms(world).values()] != [RoomState.RUNNING]:
        assert world.step()
    plans = plans_of(world)
    for n in range(2, 62):
        ask(world, n, 18, 3, 0)
    world.run()
    passed, most, seen, away = 0, 0, set[Any](), False
    for plan in plans:
        fresh = {hold.key for hold in plan.hold if hold.key.room != f"{1:032x}"} - seen
        seen |= fresh
        # who came in the plan that sends it away was there before it went
        passed += away * len(fresh)
        most = max(most, passed)
        if any(order.key.room == f"{1:032x}" for order in plan.restore):
            away, passed = False, 0
        away = away or any(order.key.room == f"{1:032x}" for order in plan.offload)
    assert 4 < most <= 16, "as docs/protocol.md says"
    assert marks(world)[Mark.PREEMPTED] <= 4
    assert world.tokens(1) == expected(prompt(30, 1), 20)
    assert all(isinstance(world.end(n), Finish) for n in range(2, 62))
    assert world.clean


def test_a_room_gives_way_to_those_that_wait_four_times_and_then_runs_to_its_end() -> None:
    world = pressed(pages=9, host_bytes=PLENTY)
    ask(world, 1, 7, 25, 5)
    for n in range(2, 10):
        while 1 in rooms(world) and rooms(world)[1].state is not RoomState.RUNNING:
            assert world.step()
        ask(world, n, 25, 2, 0)
        while world.end(n) is None:
            assert world.step()
    assert world.end(1) is not None, "it was first at last"
    assert marks(world)[Mark.PREEMPTED] == 4
    for n, length, tokens in ((1, 7, 25), *((n, 25, 2) for n in range(2, 10))):
        assert world.tokens(n) == expected(prompt(length, n), tokens)
    assert world.clean


def test_who_waits_for_memory_is_overtaken_by_a_bounded_number_of_more_urgent_ones() -> None:
    """Nothing can be sent away: the room waits behind those that came later, and not for ever."""
    world = pressed(pages=9, max_rooms=1)
    world.advance(20)
    ask(world, 1, 7, 17, 0)
    while [r.state for r in rooms(world).values()] != [RoomState.RUNNING]:
        assert world.step()
    ask(world, 2, 7, 2, 9)
    for n in range(3, 14):
        ask(world, n, 7, 2, 0)
    world.run()
    admitted = [
        int(m.key.room, 16)
        for s, to, m in world.log
        if s == D and to == P and isinstance(m, Admitted)
    ]
    # at the edge one of four is the oldest, and then here
    assert 1 <= admitted.index(2) - 1 <= 4 * OVERTAKES
    assert all(isinstance(world.end(n), Finish) for n in range(1, 14))


def test_who_is_away_does_not_yield_to_one_that_waits_behind_others_in_line() -> None:
    """2 is away and may not be overtaken; 4 is first in line and waits for it; 3 is away, comes
    back before 2, and must not wait for 5, which is more urgent and behind 4."""
    world = pressed(pages=9, host_bytes=PLENTY)
    asked = {1: (7, 25, 0), 2: (7, 12, 2), 3: (7, 12, 1), 4: (7, 3, 2), 5: (7, 3, 0)}
    for n in (1, 2, 3):
        ask(world, n, *asked[n])
    ledger = world.nodes[Boot(D)].leader.worker.ledger
    while not (rooms(world).keys() == {1, 2, 3} and len(ledger.held(rooms(world)[1].key)[KV]) == 7):
        assert world.step()
    for n in (4, 5):
        ask(world, n, *asked[n])
    while not all(n in rooms(world) and rooms(world)[n].offers for n in (4, 5)):
        assert world.step()
    rooms(world)[2].overtaken = rooms(world)[4].overtaken = OVERTAKES
    assert {n: rooms(world)[n].state for n in (2, 3)} == dict.fromkeys((2, 3), RoomState.OFFLOADED)
    world.run()
    for n, (length, tokens, _) in asked.items():
        assert world.tokens(n) == expected(prompt(length, n), tokens)
    assert world.clean


# ---- one rank: every kind of state --------------------------------------------------------------

WINDOW, SLOT = GroupName("window"), GroupName("slot")
TABLE = StateTable(
    2,
    4,
    (
        Group(KV, Unit.PAGE, Full()),
        Group(WINDOW, Unit.PAGE, Window(6)),
        Group(SLOT, Unit.SLOT, Whole()),
    ),
    (
        StateSpec("kv", KV, (0, 1), ("k", "v"), 2, 4, DType.F32),
        StateSpec("index", KV, (0, 1), ("k",), 1, 4, DType.F32),
        StateSpec("swa", WINDOW, (1,), ("k", "v"), 2, 4, DType.F32),
        StateSpec("delta", SLOT, (0,), ("s",), 2, 8, DType.F32),
        StateSpec("conv", SLOT, (1,), ("s",), 2, 8, DType.F32),
    ),
)
PLACEMENT = msgspec.structs.replace(manifest("decode", D, page_blocks=2), table=TABLE).placement(0)


class Memory:
    """Pools, and a store that keeps copies."""

    def __init__(self) -> None:
        random = np.random.default_rng(7)
        self.pools = {
            g.name: random.integers(0, 256, 64 * PLACEMENT.page_bytes(g.name)).astype(np.uint8)
            for g in TABLE.groups
        }
        self.saved: dict[GroupName, np.ndarray] = {}
        self.discarded = 0

    def blocks(self, group: GroupName) -> np.ndarray:
        return self.pools[group].reshape(-1, PLACEMENT.block_bytes(group))

    def perform(self, core: RankCore, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case Save(copy=copy):
                    self.saved = {g: self.blocks(g)[slots] for g, slots in copy.slots.items()}
                    self.perform(core, core.step(Copied(copy.job, ""), T0))
                case Load(copy=copy):
                    for g, slots in copy.slots.items():
                        self.blocks(g)[slots] = self.saved[g]
                    self.perform(core, core.step(Copied(copy.job, ""), T0))
                case Digest(order=o):
                    sums = block_sums(
                        self.pools[o.group], PLACEMENT, o.group, o.slots, o.numbers, 77
                    )
                    self.perform(core, core.step(DigestDone(o.job, sums), T0))
                case Discard():
                    self.discarded += 1


def held(first: int, length: int) -> Hold:
    """Pages from `first` on for so many positions: two blocks of four tokens in each."""
    full, gone = -(-length // 8), max(0, length - 5) // 8
    window = tuple(Page(first + n) for n in range(full - gone))
    return Hold(
        key(),
        {KV: tuple(Page(first + n) for n in range(full)), WINDOW: window, SLOT: (Page(first),)},
        {WINDOW: gone},
    )


@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8, 9, 13, 16, 23, 40])
def test_every_kind_of_state_comes_back_in_other_pages(length: int) -> None:
    memory, core = Memory(), RankCore(rank=Rank(0), boot=Boot(D), placements=[PLACEMENT], seal=True)
    core.step(StepPlan(Seq(1), hold=(held(3, length),)), T0)
    places = {
        g: core.pages.slots(key(), g, numbers) for g, numbers in core.host._blocks(length).items()
    }
    before = {g: memory.blocks(g)[at].copy() for g, at in places.items()}
    memory.perform(core, core.step(StepPlan(Seq(2), offload=(Offload(1, key(), length),)), T0))
    for group, at in places.items():
        memory.blocks(group)[at] = 0xEE  # the pages are another's now
    memory.perform(core, core.step(StepPlan(Seq(3), vacate=(key(),), hold=(held(20, length),)), T0))
    memory.perform(core, core.step(StepPlan(Seq(4), restore=(Restore(2, key(), length),)), T0))
    report = report_of(core)
    assert report is not None
    assert [(b.order, b.vote) for b in report.ballots] == [(1, Vote.ARRIVED), (2, Vote.ARRIVED)]
    due = {KV: -(-length // 4), WINDOW: -(-length // 4) - max(0, length - 5) // 4, SLOT: 1}
    assert {g: len(b) for g, b in before.items()} == due
    for group, was in before.items():
        now = core.pages.slots(key(), group, core.host._blocks(length)[group])
        assert not set(now) & set(places[group])
        assert np.array_equal(memory.blocks(group)[now], was)
    assert (memory.discarded, len(core.host)) == (1, 0)


@pytest.mark.parametrize("group", [KV, WINDOW, SLOT])
def test_a_bit_that_changed_in_the_store_is_found(group: GroupName) -> None:
    memory, core = Memory(), RankCore(rank=Rank(0), boot=Boot(D), placements=[PLACEMENT], seal=True)
    memory.perform(
        core, core.step(StepPlan(Seq(1), hold=(held(3, 13),), offload=(Offload(1, key(), 13),)), T0)
    )
    memory.saved[group].reshape(-1)[9] ^= 16
    memory.perform(
        core,
        core.step(
            StepPlan(
                Seq(2), vacate=(key(),), hold=(held(20, 13),), restore=(Restore(2, key(), 13),)
            ),
            T0,
        ),
    )
    report = report_of(core)
    assert report is not None
    assert [b.vote for b in report.ballots] == [Vote.ARRIVED, Vote.FAILED]
    assert f"group {group}" in report.ballots[1].why
    memory.perform(core, core.step(StepPlan(Seq(3), drop=(key(),)), T0))
    report = report_of(core)
    assert report is not None
    assert (report.quiet, memory.discarded, len(core.host)) == ((key(),), 1, 0)


# ---- books of the store -------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [False, True])
def test_the_ledger_is_not_clean_while_a_rank_keeps_a_copy(
    monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    if kept:
        monkeypatch.setattr(HostCopies, "_discard", lambda self, key: [])
    world = pressed(host_bytes=PLENTY)
    for n in range(1, 5):
        world.submit(submit(n, prompt(7, n), max_tokens=17))
    world.run()
    question = world.front.ask_ledger()
    world.run()
    views = {view.role: view for view in world.front.ledger(question) or ()}
    assert (views["decode"].clean, views["decode"].copies > 0) == (not kept, kept)
    assert views["prefill"].clean


def test_space_is_taken_on_every_rank_or_on_none() -> None:
    spec = StateSpec("kv", KV, (0, 1, 2), ("k", "v"), 1, 4, DType.F32)
    worker = msgspec.structs.replace(
        manifest("decode", D),
        table=StateTable(3, 4, (Group(KV, Unit.PAGE, Full()),), (spec,)),
        pp=2,
    )
    stages = [msgspec.structs.replace(worker.placement(0), pp_rank=stage) for stage in (0, 1)]
    sizes = [state_bytes(stage, 9) for stage in stages]
    assert sizes[0] != sizes[1], "the stages hold different numbers of layers"
    ledger = HostLedger(stages, 2 * max(sizes) - 1)
    assert ledger.take(key(1), 9, state_bytes)
    assert not ledger.take(key(2), 9, state_bytes)
    assert (ledger.used(), ledger.rooms) == (tuple(sizes), [key(1)])
    assert ledger.view() == {"total": ledger.total, "used": max(sizes)}
    assert ledger.fits([9], state_bytes, without=[key(1)])
    assert not ledger.fits([9, 9], state_bytes, without=[key(1)])
    ledger.give_back(key(1))
    ledger.give_back(key(1))
    assert ledger.take(key(2), 9, state_bytes)
    assert ledger.used() == tuple(sizes)
