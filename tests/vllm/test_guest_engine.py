"""The sealing thread over a device that is slower than vLLM's hooks."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from tests.core.build import key

from baton.core.ids import BlockIndex, Seq
from baton.core.work import Batch, BatchDone, DigestOrder, Job, Row
from baton.vllm.guest_engine import GuestEngine
from baton.vllm.names import FULL
from baton.vllm.seal_queue import passed


class SlowDevice:
    """A step has written its blocks when `finish` has been called, not before."""

    def __init__(self) -> None:
        self.memory = np.zeros(8, dtype=np.uint64)
        self._done = threading.Event()

    def finish(self) -> None:
        self.memory[:] = 7
        self._done.set()

    def fence(self) -> None:
        assert self._done.wait(10)

    def sums(self, slots: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        return self.memory[slots].reshape(-1, 1).copy()


@pytest.fixture
def device() -> SlowDevice:
    return SlowDevice()


@pytest.fixture
def woken() -> threading.Event:
    return threading.Event()


@pytest.fixture
def engine(device: SlowDevice, woken: threading.Event) -> Iterator[GuestEngine]:
    made = GuestEngine(pools={}, sums={FULL: device.sums}, pages={FULL: 8}, wake=woken.set)
    yield made
    device.finish()
    made.close()


def next_done(engine: GuestEngine, woken: threading.Event) -> object:
    """What ends next."""
    assert woken.wait(10)
    woken.clear()
    (found,) = engine.poll()
    return found


def batch(number: int, slot: int) -> Batch:
    pages = {FULL: np.array([slot], dtype=np.int32)}
    final = {FULL: (BlockIndex(0), BlockIndex(1))}
    return Batch(Seq(number), (Row(key(number), 0, (), pages, final, 4, None),))


def test_nothing_is_sealed_before_the_fence_of_its_step_has_passed(
    engine: GuestEngine, device: SlowDevice, woken: threading.Event
) -> None:
    engine.submit(batch(1, 3))
    engine.computed({key(1): 4}, device.fence)
    assert not woken.wait(0.2)
    device.finish()
    done = next_done(engine, woken)
    assert isinstance(done, BatchDone)
    assert done.rows[0].sums[FULL].tolist() == [[7]]


def test_what_was_read_is_hashed_without_a_fence(
    engine: GuestEngine, woken: threading.Event
) -> None:
    engine.digest(DigestOrder(Job(1), FULL, np.array([2, 3]), np.array([0, 1])))
    assert next_done(engine, woken).sums.tolist() == [[0], [0]]
    engine.submit(batch(2, 5))
    engine.computed({key(2): 4}, passed)
    assert isinstance(next_done(engine, woken), BatchDone)
