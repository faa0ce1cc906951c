"""A device that runs behind the host: what it is given to do becomes visible later, in order, and
events tell when.

    host: launch(work) ─▶ record() ─▶ Event ─▶ query() ... False, False, True
                 └──▶ Stream, which executes one piece of work whenever `execute` is called

Engine and fabric of a rank whose pool lies on it. Their computation is that of tests/core/world.py.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tests.core.build import KV
from tests.core.world import IDENTITY, FakeEngine

from baton.core.handoff.seal import block_sums
from baton.core.ids import Key, Micros, RankId
from baton.core.memory.kinds import CudaMemory
from baton.core.memory.state import Placement
from baton.core.messages import Grammar
from baton.core.work import (
    Batch,
    BatchDone,
    Connected,
    Copies,
    DigestDone,
    DigestOrder,
    FabricEvent,
    Handle,
    ReadEnded,
    ReadOutcome,
)


class Event:
    """Recorded in a stream; completed when everything that was launched before has executed."""

    def __init__(self, *, completed: bool = False) -> None:
        self.completed = completed

    def query(self) -> bool:
        return self.completed

    def complete(self) -> None:
        self.completed = True


class Stream:
    """Work in the order of its launch."""

    def __init__(self) -> None:
        self._work: deque[Callable[[], None]] = deque()

    def launch(self, work: Callable[[], None]) -> None:
        self._work.append(work)

    def record(self) -> Event:
        event = Event()
        self.launch(event.complete)
        return event

    def execute(self) -> bool:
        """Execute the oldest piece of work; whether there was one."""
        if self._work:
            self._work.popleft()()
            return True
        return False


class DevicePool:
    """Port Pool. `visible` is what any reader outside the stream finds in the device's memory."""

    fd, address = None, 0

    def __init__(self, nbytes: int, device: int) -> None:
        self.nbytes, self.memory = nbytes, CudaMemory(device)
        self.visible = np.full(nbytes, 0xEE, dtype=np.uint8)  # stale bytes show


class DeviceEngine:
    """Port Engine. An end is reported when the event behind its work has completed (E11, E12)."""

    def __init__(self, placement: Placement, pages: int, *, device: int) -> None:
        self.stream, self.pool = Stream(), DevicePool(pages * placement.page_bytes(KV), device)
        self.pools, self.pool_pages = {KV: self.pool}, {KV: pages}
        self.progress: Mapping[Any, int] = {}
        self._placement = placement
        self._inside = FakeEngine(placement, pages)  # its pool is as the stream's next work sees it
        self._ends: deque[tuple[Event, Callable[[], BatchDone | DigestDone]]] = deque()

    def submit(self, batch: Batch) -> None:
        before = self._inside.pool.copy()
        self._inside.compute(batch)
        after, done = self._inside.pool.copy(), self._inside.done.popleft()
        self.stream.launch(lambda: self._write(after != before, after))
        self._ends.append((self._fence(), lambda: done))

    def digest(self, order: DigestOrder) -> None:
        sums: list[Any] = []
        self.stream.launch(lambda: sums.append(self.sums(order.slots, order.numbers)))
        self._ends.append((self.stream.record(), lambda: DigestDone(order.job, sums[0])))

    def sums(self, slots: Any, numbers: Any) -> Any:
        """uint64 [blocks, units] of what is visible."""
        return block_sums(self.pool.visible, self._placement, KV, slots, numbers, IDENTITY)

    def land(self, target: slice, landed: Any) -> None:
        """Bytes of a read, which were written into the device's memory behind the stream's back."""
        self.pool.visible[target] = self._inside.pool[target] = landed

    def _write(self, where: Any, what: Any) -> None:
        self.pool.visible[where] = what[where]

    def poll(self) -> list[BatchDone | DigestDone]:
        found = []
        while self._ends and self._ends[0][0].query():
            found.append(self._ends.popleft()[1]())
        return found

    def _fence(self) -> Event:
        """The event whose completion ends a batch."""
        return self.stream.record()

    def constrain(self, key: Key, grammar: Grammar) -> None:
        raise AssertionError("no request here has a grammar")

    def release(self, key: Key) -> None: ...


class DeviceFabric:
    """Port Fabric: copies between devices on a stream of its own. A read ends when the event behind
    its copies has completed (F2)."""

    def __init__(self, own: DeviceEngine, reach: Callable[[RankId], DeviceEngine]) -> None:
        self.stream, self.reads = Stream(), 0
        self._own, self._reach = own, reach
        self._connected: list[FabricEvent] = []
        self._open: list[tuple[Event, Handle]] = []

    def connect(self, peer: RankId, manifest: object) -> None:
        self._connected.append(Connected(peer, ""))

    def submit(
        self, handle: Handle, peer: RankId, copies: Sequence[Copies], *, deadline: Micros
    ) -> None:
        self.reads += 1
        source = self._reach(peer).pool.visible
        for c in copies:
            for s, t, n in zip(c.source, c.target, c.nbytes, strict=True):
                self.stream.launch(
                    lambda s=s, t=t, n=n: self._own.land(slice(t, t + n), source[s : s + n])
                )
        self._open.append((self._fence(), handle))

    def attend(self) -> None: ...

    def poll(self) -> list[FabricEvent]:
        said, self._connected = self._connected, []
        ended = [entry for entry in self._open if entry[0].query()]
        self._open = [entry for entry in self._open if entry not in ended]
        return said + [ReadEnded(handle, ReadOutcome.OK, "") for _, handle in ended]

    def _fence(self) -> Event:
        """The event whose completion ends a read."""
        return self.stream.record()
