"""The contract of a host store (ports/host_store.py), on every implementation."""

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from baton.adapters.host_memory import HostMemory, Space, paired
from baton.adapters.memory import HostPool
from baton.core.ids import CheckpointName, Epoch, GroupName, Key, Room
from baton.core.memory.state import (
    DType,
    Full,
    Group,
    Placement,
    StateSpec,
    StateTable,
    Unit,
    Whole,
)
from baton.core.work import HostCopy, Job
from baton.dev.sim.heap import Heap
from baton.dev.sim.host_store import SimHostStore
from baton.dev.sim.memory import SimPool
from baton.dev.sim.settings import Faults
from baton.dev.sim.tape import Tape

FULL, SLOT = GroupName("full"), GroupName("slot")
TABLE = StateTable(
    1,
    4,
    (Group(FULL, Unit.PAGE, Full()), Group(SLOT, Unit.SLOT, Whole())),
    (
        StateSpec("kv", FULL, (0,), ("k", "v"), 1, 4, DType.F32),
        StateSpec("s", SLOT, (0,), ("s",), 1, 25, DType.F32),
    ),
)
PLACEMENT = Placement(TABLE, 1, 1, 0, 0, 1)
SIZES = {FULL: PLACEMENT.block_bytes(FULL), SLOT: PLACEMENT.block_bytes(SLOT)}
BLOCKS = 12
STATE = 3 * SIZES[FULL] + SIZES[SLOT]  # bytes of what `copy` names


class Rig:
    """A store, its pools as [blocks, bytes], and how to wait for it."""

    def __init__(
        self, store: Any, pools: dict[GroupName, np.ndarray], wait: Callable[[], None]
    ) -> None:
        self.store, self.pools, self.wait = store, pools, wait
        for group, pool in pools.items():
            pool[:] = np.random.default_rng(len(group)).integers(0, 256, pool.shape)

    def done(self) -> list[tuple[int, str]]:
        self.wait()
        return [(c.job, c.why) for c in self.store.poll()]


def real(total: int) -> Iterator[Rig]:
    woken = threading.Semaphore(0)
    memory = {g: HostPool(BLOCKS * size) for g, size in SIZES.items()}

    def wait() -> None:
        assert woken.acquire(timeout=60), "nothing has ended"

    store = HostMemory(pools=memory, block_bytes=SIZES, total=total, wake=woken.release)
    yield Rig(store, {g: p.array.reshape(BLOCKS, -1) for g, p in memory.items()}, wait)
    store.close()
    store.close()


def simulated(total: int) -> Iterator[Rig]:
    heap, tape = Heap(Tape(), shuffle=False), Tape()
    world = SimpleNamespace(heap=heap, tape=tape, faults=Faults, fault=lambda *_: None)
    process = SimpleNamespace(
        alive=True,
        name="decode-0/0",
        port_call=lambda: None,
        wake=lambda: None,
        ends=lambda kind: True,
        has_ended=lambda kind: None,
    )
    pools = {g: SimPool(BLOCKS * size) for g, size in SIZES.items()}
    store = SimHostStore(
        world=world, process=process, placement=PLACEMENT, pools=pools, total=total
    )  # type: ignore[arg-type]

    def wait() -> None:
        heap.advance(heap.now + 10_000_000)

    yield Rig(store, {g: p.data.reshape(BLOCKS, -1) for g, p in pools.items()}, wait)


@pytest.fixture(params=[real, simulated], ids=lambda make: make.__name__)
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """With space for two states and one byte less than a third."""
    yield from request.param(3 * STATE - 1)


def key(number: int) -> Key:
    return Key(Room(f"{number:032x}"), Epoch(1))


def copy(job: int, room: int = 1, full: tuple[int, ...] = (3, 9, 4), slot: int = 2) -> HostCopy:
    return HostCopy(Job(job), key(room), {FULL: np.array(full), SLOT: np.array([slot])})


def test_what_was_saved_comes_back_elsewhere_whatever_became_of_its_pages(rig: Rig) -> None:
    before = {g: p.copy() for g, p in rig.pools.items()}
    rig.store.save(copy(1))
    assert rig.done() == [(1, "")]
    assert rig.store.held == {key(1): {FULL: 3 * SIZES[FULL], SLOT: SIZES[SLOT]}}
    for pool in rig.pools.values():
        pool[:] = 0xAA
    rig.store.load(copy(2, full=(0, 1, 11), slot=7))
    assert rig.done() == [(2, "")]
    assert np.array_equal(rig.pools[FULL][[0, 1, 11]], before[FULL][[3, 9, 4]])
    assert np.array_equal(rig.pools[SLOT][7], before[SLOT][2])
    untouched = [n for n in range(BLOCKS) if n not in (0, 1, 11)]
    assert (rig.pools[FULL][untouched] == 0xAA).all()
    rig.store.discard(key(1))
    assert rig.store.held == {}


def test_beyond_its_bound_nothing_is_kept_and_nothing_is_lost(rig: Rig) -> None:
    before = rig.pools[FULL].copy()
    for room in (1, 2):
        rig.store.save(copy(room, room))
        assert rig.done() == [(room, "")]
    rig.store.save(copy(3, 3))
    ((job, why),) = rig.done()
    assert (job, bool(why)) == (3, True)
    assert set(rig.store.held) == {key(1), key(2)}
    rig.store.discard(key(1))
    rig.store.save(copy(4, 3, full=(0, 1, 2)))
    assert rig.done() == [(4, "")]
    rig.pools[FULL][:] = 0
    for job, room in ((5, 2), (6, 3)):
        rig.store.load(copy(job, room, full=(5, 6, 7)))
        assert rig.done() == [(job, "")]
        assert np.array_equal(
            rig.pools[FULL][[5, 6, 7]], before[[3, 9, 4] if room == 2 else [0, 1, 2]]
        )


def test_what_was_not_saved_does_not_come_back(rig: Rig) -> None:
    before = rig.pools[FULL].copy()
    rig.store.load(copy(1))
    rig.store.save(copy(2, 2))
    ends = dict(rig.done() + rig.done())
    assert bool(ends[1])
    assert ends[2] == ""
    rig.store.load(copy(3, 2, full=(1, 2)))
    assert all(why for _, why in rig.done())
    assert np.array_equal(rig.pools[FULL], before)


# ---- space --------------------------------------------------------------------------------------


def test_scattered_space_is_used_to_the_last_byte() -> None:
    space = Space(100)
    parts = [space.take(10) for _ in range(10)]
    assert space.take(1) is None
    for part in parts[1::2]:
        assert part is not None
        space.give_back(part)
    scattered = space.take(50)
    assert scattered is not None
    assert (len(scattered), space.free) == (5, 0)
    for part in (scattered, *parts[::2]):
        assert part is not None
        space.give_back(part)
    assert space.take(100) == [(0, 100)], "free neighbours are one range again"


def test_two_lists_of_ranges_are_cut_at_the_borders_of_both() -> None:
    def ints(*numbers: int) -> np.ndarray:
        return np.array(numbers, dtype=np.int64)

    source, target, nbytes = paired(
        (ints(1000, 2000), ints(10, 5)), (ints(50, 70, 90), ints(3, 8, 4))
    )
    assert source.tolist() == [1000, 1003, 2000, 2001]
    assert target.tolist() == [50, 70, 77, 90]
    assert nbytes.tolist() == [3, 7, 1, 4]


def test_what_is_kept_of_a_prompt_is_kept_under_its_name_and_read_as_often_as_wanted(
    rig: Rig,
) -> None:
    name, slots = CheckpointName(1), {FULL: np.array([3]), SLOT: np.array([2])}
    before = {g: p.copy() for g, p in rig.pools.items()}
    rig.store.save(copy(1))
    assert rig.done() == [(1, "")]
    rig.store.save(HostCopy(Job(2), name, slots))
    assert rig.done() == [(2, "")]
    assert set(rig.store.held) == {key(1), name}
    for job, (page, slot) in enumerate(((0, 5), (7, 6)), start=3):
        back = {FULL: np.array([page]), SLOT: np.array([slot])}
        rig.store.load(HostCopy(Job(job), name, back))
        assert rig.done() == [(job, "")]
        assert np.array_equal(rig.pools[FULL][page], before[FULL][3])
        assert np.array_equal(rig.pools[SLOT][slot], before[SLOT][2])
    rig.store.discard(name)
    assert set(rig.store.held) == {key(1)}
