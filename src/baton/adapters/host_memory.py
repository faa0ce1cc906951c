"""Implements the port HostStore with this process's own memory, for pools in host memory.

save, load ──▶ queue ──▶ one thread copies (GIL released) ──▶ poll

The memory is one mapping of the full size; the kernel provides a page when it is first written. A
copy takes any free ranges, in as many pieces as necessary, so there is no fragmentation and the
bound is exact.
"""

import mmap
import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue

import numpy as np
from numpy.typing import NDArray

from baton.adapters.memcpy import copy_ranges
from baton.core.errors import Bug
from baton.core.ids import GroupName, StoreKey
from baton.core.memory.kinds import HostRam
from baton.core.work import Copied, HostCopy
from baton.ports.fabric import Pool

Ints = NDArray[np.int64]
BUDGET_BYTES = 64 << 20  # copied between two checks whether to stop


class Space:
    """Keeps track of the free ranges of [0, total)."""

    def __init__(self, total: int) -> None:
        self._free: list[tuple[int, int]] = [(0, total)] if total else []

    @property
    def free(self) -> int:
        """The number of free bytes."""
        return sum(end - start for start, end in self._free)

    def take(self, nbytes: int) -> list[tuple[int, int]] | None:
        """Take ranges [start, end) of `nbytes` together,
        lowest first; None if not enough are free."""
        if nbytes > self.free:
            return None
        taken = []
        while nbytes:
            start, end = self._free[0]
            cut = min(end, start + nbytes)
            taken.append((start, cut))
            nbytes -= cut - start
            self._free[:1] = [(cut, end)] if cut < end else []
        return taken

    def give_back(self, ranges: list[tuple[int, int]]) -> None:
        """Make ranges free again."""
        merged: list[tuple[int, int]] = []
        for start, end in sorted(self._free + ranges):
            if merged and merged[-1][1] == start:
                merged[-1] = (merged[-1][0], end)
            else:
                merged.append((start, end))
        self._free = merged


class HostMemory:
    """Implements HostStore.

    Args:
        pools: this rank's pools, in host memory
        block_bytes: bytes of a block (or slot) of each group
        total: most bytes of all copies together
        wake: called from the copying thread when a copy has ended
    """

    def __init__(
        self,
        *,
        pools: Mapping[GroupName, Pool],
        block_bytes: Mapping[GroupName, int],
        total: int,
        wake: Callable[[], None],
    ) -> None:
        for group, pool in pools.items():
            assert isinstance(pool.memory, HostRam), f"pool {group!r} lies in {pool.memory}"
        self._pools, self._block_bytes, self._wake = pools, block_bytes, wake
        self._space = Space(total)
        self._map = mmap.mmap(-1, max(1, total), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._memory = np.frombuffer(self._map, dtype=np.uint8)
        self._where: dict[StoreKey, list[tuple[int, int]]] = {}
        self._held: dict[StoreKey, dict[GroupName, int]] = {}
        self._done: list[Copied] = []
        self._lock = threading.Lock()
        self._stop = np.zeros(1, dtype=np.int64)
        self._queue: SimpleQueue[tuple[HostCopy, Ints, Ints, Ints] | None] = SimpleQueue()
        # started by the first copy; most workers never need it
        self._thread: threading.Thread | None = None

    @property
    def held(self) -> Mapping[StoreKey, Mapping[GroupName, int]]:
        return self._held

    def save(self, copy: HostCopy) -> None:
        self.discard(copy.key)
        want = self._bytes(copy)
        taken = self._space.take(sum(want.values()))
        if taken is None:
            self._end(
                copy,
                f"the state takes {sum(want.values())} bytes of host memory, "
                f"{self._space.free} are free",
            )
            return
        self._where[copy.key], self._held[copy.key] = taken, want
        there, here = self._ranges(taken), self._blocks(copy)
        self._start(copy, here, there)

    def load(self, copy: HostCopy) -> None:
        if self._held.get(copy.key) != self._bytes(copy):
            self._end(
                copy, f"{self._held.get(copy.key)} bytes were saved, {self._bytes(copy)} are wanted"
            )
            return
        there, here = self._ranges(self._where[copy.key]), self._blocks(copy)
        self._start(copy, there, here)

    def discard(self, key: StoreKey) -> None:
        self._space.give_back(self._where.pop(key, []))
        self._held.pop(key, None)

    def poll(self) -> list[Copied]:
        with self._lock:
            done, self._done = self._done, []
        return done

    def close(self) -> None:
        if self._thread is not None:
            self._stop[0] = 1
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _bytes(self, copy: HostCopy) -> dict[GroupName, int]:
        return {g: len(slots) * self._block_bytes[g] for g, slots in copy.slots.items()}

    def _blocks(self, copy: HostCopy) -> tuple[Ints, Ints]:
        """Return addresses and sizes of the blocks in our pools. Raises Bug if one is outside."""
        addresses, sizes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for group, slots in copy.slots.items():
            size, pool = self._block_bytes[group], self._pools[group]
            if slots.size and not 0 <= slots.min() <= slots.max() < pool.nbytes // size:
                raise Bug(
                    f"blocks {slots.min()} to {slots.max()} of group {group!r} are not "
                    "all in its pool"
                )
            addresses.append(pool.address + slots.astype(np.int64) * size)
            sizes.append(np.full(len(slots), size, dtype=np.int64))
        return np.concatenate(addresses), np.concatenate(sizes)

    def _ranges(self, ranges: list[tuple[int, int]]) -> tuple[Ints, Ints]:
        """Return addresses and sizes of ranges of the store's memory."""
        pairs = np.array(ranges, dtype=np.int64).reshape(-1, 2)
        return pairs[:, 0] + int(self._memory.ctypes.data), pairs[:, 1] - pairs[:, 0]

    def _start(self, copy: HostCopy, source: tuple[Ints, Ints], target: tuple[Ints, Ints]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="baton-host-memory", daemon=True)
            self._thread.start()
        self._queue.put((copy, *paired(source, target)))

    def _run(self) -> None:
        while (task := self._queue.get()) is not None:
            copy, source, target, nbytes = task
            cursor = np.zeros(2, dtype=np.int64)
            while cursor[0] < nbytes.size and not self._stop[0]:
                copy_ranges(
                    source, target, nbytes, cursor=cursor, budget=BUDGET_BYTES, stop=self._stop
                )
            self._end(copy, "the store was closed" if self._stop[0] else "")

    def _end(self, copy: HostCopy, why: str) -> None:
        with self._lock:
            self._done.append(Copied(copy.job, why))
        self._wake()


def paired(source: tuple[Ints, Ints], target: tuple[Ints, Ints]) -> tuple[Ints, Ints, Ints]:
    """Cut two lists of (address, size), equal in total bytes, at the borders of both.

    Returns (sources, targets, sizes).
    """
    ends = [np.cumsum(sizes) for _, sizes in (source, target)]
    assert int(ends[0][-1:].sum()) == int(ends[1][-1:].sum()), "both are as long"
    borders = np.union1d(*ends)
    starts = np.concatenate((np.zeros(1, np.int64), borders[:-1])) if borders.size else borders
    found = []
    for (addresses, sizes), end in zip((source, target), ends, strict=True):
        which = np.searchsorted(end, starts, side="right")
        found.append(
            np.ascontiguousarray(addresses[which] + starts - (end - sizes)[which], dtype=np.int64)
        )
    return found[0], found[1], np.ascontiguousarray(borders - starts, dtype=np.int64)
