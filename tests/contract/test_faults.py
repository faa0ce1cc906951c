"""The planted faults do what they say, or the end-to-end tests that use them prove nothing."""

import itertools
import os
from collections.abc import Callable, Iterator

import msgspec
import numpy as np
import pytest
from tests.faults import Fault, Faults, FaultyFabric, Rule

from baton.core.ids import Boot, Micros, RankId
from baton.core.manifest import PoolView, RankManifest
from baton.dev.contract.rig import FULL, SECONDS, Rig, copies
from baton.ports.fabric import ReadOutcome

BOOTS = itertools.count(0x2000 + os.getpid() * 0x10000)
N = 4096
HALF = 16 * N
SOURCE = np.arange(HALF, dtype=np.int64).astype(np.uint8)


@pytest.fixture
def faulty() -> Iterator[Callable[..., Rig]]:
    """A rank that reads the lower half of its own pool into the upper half, through a faulty
    fabric."""
    made: list[Rig] = []

    def make(*rules: Rule) -> Rig:
        rig = Rig("shm", next(BOOTS), {"full": 2 * HALF})
        made.append(rig)
        faults = msgspec.json.decode(msgspec.json.encode(Faults(rules, seed=1)), type=Faults)
        me = RankId(Boot(rig.boot), Boot(rig.boot), 0)
        views = (PoolView(FULL, 1, 2 * HALF),)
        rig.fabric = FaultyFabric(rig.fabric, faults, wake=rig.woken.set, clock=rig.clock)
        rig.fabric._pools = rig.pools
        rig.connect(me, RankManifest(Boot(rig.boot), 0, 0, 0, views, {"shm": rig.exposure}))
        blocks = np.repeat(np.arange(16, dtype=np.uint8), N)
        rig.pools[FULL].array[:HALF] = SOURCE + blocks
        return rig

    yield make
    for rig in made:
        rig.close()


def read(
    rig: Rig, *ranges: int, deadline_us: int = 60 * SECONDS
) -> tuple[ReadOutcome, np.ndarray, np.ndarray]:
    """Outcome, what landed and what should have, for blocks of N bytes."""
    rig.pools[FULL].array[HALF:] = 0
    me = RankId(Boot(rig.boot), Boot(rig.boot), 0)
    at = np.array(ranges or range(16)) * N
    handle = rig.submit(
        me, copies("full", at, at + HALF, np.full(at.size, N)), deadline_us=deadline_us
    )
    outcome = rig.ends(handle)[handle].outcome
    whole = np.zeros(HALF, np.uint8)
    for a in at.tolist():
        whole[a : a + N] = rig.pools[FULL].array[a : a + N]
    return outcome, rig.pools[FULL].array[HALF:].copy(), whole


def test_a_rule_is_used_as_often_as_it_says(faulty: Callable[..., Rig]) -> None:
    rig = faulty(Rule(Fault.FAIL, count=2, skip=1), Rule(Fault.FAIL, group="other"))
    outcomes = [read(rig)[0] for _ in range(5)]
    assert outcomes == [
        ReadOutcome.OK,
        ReadOutcome.FAILED,
        ReadOutcome.FAILED,
        ReadOutcome.OK,
        ReadOutcome.OK,
    ]


def test_flip_turns_one_bit(faulty: Callable[..., Rig]) -> None:
    outcome, landed, whole = read(faulty(Rule(Fault.FLIP)))
    assert outcome is ReadOutcome.OK
    assert int(np.unpackbits(landed ^ whole).sum()) == 1


@pytest.mark.parametrize("fault", [Fault.SWAP, Fault.ELSEWHERE])
@pytest.mark.parametrize("ranges", [(0, 1, 2, 3), (5,)])
def test_displaced_bytes_are_all_there_but_not_in_place(
    faulty: Callable[..., Rig], fault: Fault, ranges: tuple[int, ...]
) -> None:
    rig = faulty(Rule(fault))
    rig.pools[FULL].array[:HALF:7] = 99  # not periodic
    rig.pools[FULL].array[:N] = 3
    outcome, landed, whole = read(rig, *ranges)
    assert outcome is ReadOutcome.OK
    assert not np.array_equal(landed, whole)
    assert np.array_equal(np.sort(landed), np.sort(whole))


@pytest.mark.parametrize(
    ("fault", "outcome"), [(Fault.SHORT, ReadOutcome.OK), (Fault.PARTIAL, ReadOutcome.FAILED)]
)
@pytest.mark.parametrize("ranges", [(0, 1, 2, 3), (5,)])
def test_half_of_it_lands(
    faulty: Callable[..., Rig], fault: Fault, outcome: ReadOutcome, ranges: tuple[int, ...]
) -> None:
    said, landed, whole = read(faulty(Rule(fault)), *ranges)
    assert said is outcome
    differ = np.flatnonzero(landed != whole)
    assert 0 < differ.size <= len(ranges) * N // 2
    assert landed.any()


def test_a_hung_read_ends_at_cancel_disconnect_and_deadline(faulty: Callable[..., Rig]) -> None:
    rig = faulty(Rule(Fault.HANG))
    me = RankId(Boot(rig.boot), Boot(rig.boot), 0)
    whole = copies("full", 0, HALF, HALF)
    first, second = (rig.submit(me, whole) for _ in range(2))
    probe = rig.submit(me, whole, deadline_us=20_000)
    # the others were read before it, and did not end
    assert rig.ends(probe)[probe].outcome is ReadOutcome.FAILED
    rig.fabric.cancel(first)
    assert rig.ends(first)[first].outcome is ReadOutcome.FAILED
    rig.fabric.disconnect(me)
    assert rig.ends(second)[second].outcome is ReadOutcome.FAILED


def test_a_delayed_end_comes_later(faulty: Callable[..., Rig]) -> None:
    rig = faulty(Rule(Fault.DELAY, delay_ms=30, count=1))
    me = RankId(Boot(rig.boot), Boot(rig.boot), 0)
    began = rig.clock.now()
    slow, quick = (rig.submit(me, copies("full", 0, HALF, N)) for _ in range(2))
    assert {end.outcome for end in rig.ends(slow, quick).values()} == {ReadOutcome.OK}
    assert rig.clock.now() - began >= Micros(30_000)
