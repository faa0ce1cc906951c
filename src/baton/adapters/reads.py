"""Parts that every fabric adapter uses: checked address ranges, and reads that end exactly once.

submit ─▶ resolve (F8) ─▶ OpenReads.open    the adapter's thread moves bytes, then OpenReads.end
                               │
poll ◀─ OpenReads.collect ◀────┘ (F3: an end is reported once)
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from baton.core.errors import FabricError
from baton.core.ids import GroupName, Micros, RankId
from baton.core.memory.kinds import HOST, MemoryKind
from baton.ports.fabric import (
    Connected,
    Copies,
    FabricEvent,
    Handle,
    ReadEnded,
    ReadOutcome,
    Released,
)


@dataclass(frozen=True, slots=True)
class Region:
    """A pool with the address that one side uses for it, and the memory in which it lies."""

    address: int
    nbytes: int
    memory: MemoryKind = HOST


@dataclass(frozen=True, slots=True)
class Ranges:
    """Checked byte ranges: int64 vectors of equal length
    with addresses on both sides and sizes > 0; and the memory on both sides."""

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    source_memory: MemoryKind = HOST
    target_memory: MemoryKind = HOST


def resolve(
    copies: Sequence[Copies],
    *,
    source: Mapping[GroupName, Region],
    target: Mapping[GroupName, Region],
) -> Ranges:
    """Turn offsets into addresses, and check that they are inside both pools (F8).

    Raises:
        FabricError: a range is outside; the message names the group, the side and the first range
    """
    parts: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = []
    for c in copies:
        if c.group not in source or c.group not in target:
            raise FabricError(f"group {c.group!r} has a pool on one side only")
        if not (c.source.ndim == 1 and c.source.shape == c.target.shape == c.nbytes.shape):
            raise FabricError(
                f"group {c.group!r}: {c.source.shape} sources, {c.target.shape} "
                f"targets, {c.nbytes.shape} sizes"
            )
        if not c.source.dtype == c.target.dtype == c.nbytes.dtype == np.int64:
            raise FabricError(f"group {c.group!r}: offsets must be int64")
        _require_inside("source", c.group, source[c.group], c.source, c.nbytes)
        _require_inside("target", c.group, target[c.group], c.target, c.nbytes)
        parts.append(
            (c.source + source[c.group].address, c.target + target[c.group].address, c.nbytes)
        )
    if not parts:
        nothing = np.zeros(0, np.int64)
        return Ranges(nothing, nothing, nothing)
    sources, targets, sizes = (np.concatenate(column) for column in zip(*parts, strict=True))
    some, group = sizes > 0, copies[0].group  # all pools of a rank lie in one memory (F11)
    return Ranges(
        sources[some], targets[some], sizes[some], source[group].memory, target[group].memory
    )


def _require_inside(
    side: str,
    group: GroupName,
    region: Region,
    offsets: NDArray[np.int64],
    nbytes: NDArray[np.int64],
) -> None:
    # `offsets > size - nbytes` cannot overflow if 0 <= nbytes <= size;
    # `offsets + nbytes > size` can.
    bad = (nbytes < 0) | (nbytes > region.nbytes) | (offsets < 0)
    bad |= offsets > region.nbytes - np.clip(nbytes, 0, region.nbytes)
    if bad.any():
        i = int(np.argmax(bad))
        raise FabricError(
            f"{side} range {i} of group {group!r}, {int(nbytes[i])} bytes at offset "
            f"{int(offsets[i])}, "
            f"lies outside the pool of {region.nbytes} bytes"
        )


def cut(ranges: Ranges, *, part_bytes: int, part_ranges: int) -> list[Ranges]:
    """Split ranges into parts of at most `part_bytes` and `part_ranges`, in order.

    A range longer than a part is split, too.
    """
    pieces = -(-ranges.nbytes // part_bytes)
    which = np.repeat(np.arange(pieces.size), pieces)
    offset = (np.arange(which.size) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * part_bytes
    source, target = ranges.source[which] + offset, ranges.target[which] + offset
    nbytes = np.minimum(ranges.nbytes[which] - offset, part_bytes)
    before = np.cumsum(nbytes) - nbytes
    parts, start = [], 0
    while start < nbytes.size:
        fits = int(np.searchsorted(before + nbytes, before[start] + part_bytes, side="right"))
        end = min(fits, start + part_ranges)
        part = source[start:end], target[start:end], nbytes[start:end]
        parts.append(Ranges(*part, ranges.source_memory, ranges.target_memory))
        start = end
    return parts


@dataclass(slots=True, eq=False)
class OpenRead:
    """One submitted handle.

    `stop` is why it must end early; it is written only under the lock of the open reads.
    """

    handle: Handle
    peer: RankId
    ranges: Ranges
    due: Micros
    stop: str = ""
    # set to non-zero to stop compiled code
    word: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))


class OpenReads:
    """The open reads, and the events for `poll`.

    `lock` also guards the state that an adapter changes together with them.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self.lock = threading.Condition()
        self._wake = wake
        self._open: dict[Handle, OpenRead] = {}
        self._events: deque[FabricEvent] = deque()

    def open(self, read: OpenRead) -> None:
        """Add a read."""
        with self.lock:
            assert read.handle not in self._open, f"handle {read.handle} is in use"
            self._open[read.handle] = read
            self.lock.notify_all()

    def stop(self, handle: Handle, why: str) -> OpenRead | None:
        """Ask a read to end early; it will not be reported
        OK any more (F4). None if it has ended."""
        with self.lock:
            read = self._open.get(handle)
            if read is not None and not read.stop:
                read.stop = why
                read.word[0] = 1
                self.lock.notify_all()
            return read

    def stop_peer(self, peer: RankId, why: str) -> None:
        """Ask all reads from a peer to end early."""
        with self.lock:
            for handle in [r.handle for r in self._open.values() if r.peer == peer]:
                self.stop(handle, why)

    def open_reads(self) -> list[OpenRead]:
        """Return the reads that have not ended, oldest first."""
        with self.lock:
            return list(self._open.values())

    def end(self, read: OpenRead, outcome: ReadOutcome, detail: str) -> None:
        """Report a read's end, unless it has ended before. A read that was stopped is never OK."""
        with self.lock:
            if self._open.pop(read.handle, None) is not read:
                return
            if read.stop and outcome is ReadOutcome.OK:
                outcome, detail = ReadOutcome.FAILED, read.stop
            self._events.append(ReadEnded(read.handle, outcome, detail))
        self._wake()

    def release(self, handle: Handle) -> None:
        """Report that no byte of a handle that ended UNKNOWN can land any more."""
        self.say(Released(handle))

    def say(self, event: FabricEvent) -> None:
        """Add an event for `collect`."""
        with self.lock:
            self._events.append(event)
        self._wake()

    def unsay(self, peer: RankId) -> None:
        """Drop the pending Connected event of a peer. Called by the thread that collects."""
        with self.lock:
            for event in [e for e in self._events if isinstance(e, Connected) and e.peer == peer]:
                self._events.remove(event)

    def collect(self) -> list[FabricEvent]:
        """Return all events since the last call."""
        events: list[FabricEvent] = []
        while self._events:
            events.append(self._events.popleft())
        return events
