"""A fabric that goes wrong on order: wraps a real one, for tests of what stands above it.

    rules are tried in order; the first that matches a read and has not been used up decides what
    happens to that read

What it does stays inside the ranges of the read itself, and inside F3 and F9: every read ends
exactly once, at its deadline at the latest, and nothing lands after the end. F2 and F4 are what it
breaks.
"""

import ctypes
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path

import msgspec
import numpy as np

from baton.core.ids import GroupName, Micros, RankId
from baton.core.manifest import RankManifest
from baton.ports.clock import Clock
from baton.ports.fabric import (
    Capabilities,
    Connected,
    Copies,
    Fabric,
    FabricEvent,
    Handle,
    Pool,
    ReadEnded,
    ReadOutcome,
)


class Fault(Enum):
    """What happens to a read."""

    FLIP = "flip"  # one bit of what landed is turned over; reported OK
    # two ranges of equal size (or the halves of the only one) change places; reported OK
    SWAP = "swap"
    # every range lands where the next of its size belongs (the only one: turned by a third); OK
    ELSEWHERE = "elsewhere"
    SHORT = "short"  # only the first half lands; reported OK
    DELAY = "delay"  # all lands, the end is told `delay_ms` later
    HANG = "hang"  # all lands, the end is never told: FAILED at cancel, disconnect or the deadline
    PARTIAL = "partial"  # only the first half lands; reported FAILED
    FAIL = "fail"  # nothing lands; reported FAILED


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which reads a fault meets: of those that move `group` (any if None), after `skip` of them,
    `count` (None = all)."""

    fault: Fault
    count: int | None = None
    skip: int = 0
    group: str | None = None
    delay_ms: int = 0


class Faults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole order; `msgspec.json` carries it into a worker process."""

    rules: tuple[Rule, ...]
    seed: int = 0


def give(path: Path, faults: Faults) -> None:
    """Leave an order in a file, at once as a whole."""
    fresh = path.with_suffix(".new")
    fresh.write_bytes(msgspec.json.encode(faults))
    fresh.replace(path)


class _Read(msgspec.Struct):
    handle: Handle
    peer: RankId
    rule: Rule
    landed: tuple[Copies, ...]
    due: Micros
    end: ReadEnded | None = None  # what the inner fabric said, while it is held back
    tell_at: Micros | None = None


class FaultyFabric:
    """ports.fabric.Fabric around `inner`, which must have been made with the same `wake`.

    look: called before each read, may call `order`
    """

    def __init__(
        self,
        inner: Fabric,
        faults: Faults,
        *,
        wake: Callable[[], None],
        clock: Clock,
        look: Callable[["FaultyFabric"], None] = lambda fabric: None,
    ) -> None:
        self._inner, self._wake, self._clock, self._look = inner, wake, clock, look
        self.order(faults)
        self._reads: dict[Handle, _Read] = {}
        self._events: list[FabricEvent] = []
        self._pools: Mapping[GroupName, Pool] = {}
        self._timers: list[threading.Timer] = []
        self.met: list[Fault] = []  # the faults that have happened, for a test to look at

    def order(self, faults: Faults) -> None:
        """From now on these; a read that has met one keeps it."""
        self._faults, self._rng = faults, random.Random(faults.seed)
        self._seen = [0] * len(faults.rules)

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    def expose(self, pools: Mapping[GroupName, Pool]) -> bytes:
        self._pools = pools
        return self._inner.expose(pools)

    def connect(self, peer: RankId, manifest: RankManifest) -> None:
        self._inner.connect(peer, manifest)

    def submit(
        self, handle: Handle, peer: RankId, copies: Sequence[Copies], *, deadline: Micros
    ) -> None:
        self._look(self)
        rule = self._rule(copies)
        if rule is None:
            self._inner.submit(handle, peer, copies, deadline=deadline)
            return
        landed = tuple(copies)
        if rule.fault in (Fault.SHORT, Fault.PARTIAL):
            landed = tuple(_half(c) for c in copies)
        if rule.fault is Fault.ELSEWHERE:
            landed = tuple(_turned(c) for c in copies)
        if rule.fault is Fault.FAIL:
            landed = ()
        self._inner.submit(handle, peer, landed, deadline=deadline)
        self.met.append(rule.fault)
        self._reads[handle] = _Read(
            handle, peer, rule, landed, Micros(self._clock.now() + deadline)
        )

    def cancel(self, handle: Handle) -> None:
        self._inner.cancel(handle)
        self._give_up(handle, "cancelled")

    def disconnect(self, peer: RankId) -> None:
        self._inner.disconnect(peer)
        for read in [r for r in self._reads.values() if r.peer == peer]:
            self._give_up(read.handle, "disconnected")

    def attend(self) -> None:
        self._inner.attend()

    def poll(self) -> list[FabricEvent]:
        for event in self._inner.poll():
            read = self._reads.get(event.handle) if not isinstance(event, Connected) else None
            if read is None:
                self._events.append(event)
            elif not isinstance(event, ReadEnded) or event.outcome is not ReadOutcome.OK:
                del self._reads[read.handle]
                self._events.append(event)
            else:
                self._damage(read, event)
        now = self._clock.now()
        for read in [r for r in self._reads.values() if r.end is not None]:
            assert read.end is not None
            if now >= read.due:
                self._give_up(read.handle, "deadline passed")
            elif read.tell_at is not None and now >= read.tell_at:
                self._tell(read, read.end)
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._inner.close()

    # ---- inside ---------------------------------------------------------------------------------

    def _rule(self, copies: Sequence[Copies]) -> Rule | None:
        for i, rule in enumerate(self._faults.rules):
            if rule.group is not None and rule.group not in {c.group for c in copies}:
                continue
            self._seen[i] += 1
            if self._seen[i] > rule.skip and (
                rule.count is None or self._seen[i] <= rule.skip + rule.count
            ):
                return rule
        return None

    def _damage(self, read: _Read, end: ReadEnded) -> None:
        fault = read.rule.fault
        if fault in (Fault.DELAY, Fault.HANG):
            read.end = end
            if fault is Fault.DELAY:
                read.tell_at = Micros(self._clock.now() + read.rule.delay_ms * 1000)
            self._wake_at(read.due if read.tell_at is None else min(read.due, read.tell_at))
            return
        if fault is Fault.FLIP:
            self._flip(read.landed)
        if fault is Fault.SWAP:
            self._swap(read.landed)
        failed = fault in (Fault.PARTIAL, Fault.FAIL)
        self._tell(
            read,
            ReadEnded(read.handle, ReadOutcome.FAILED, f"planted: {fault.value}")
            if failed
            else end,
        )

    def _tell(self, read: _Read, end: ReadEnded) -> None:
        del self._reads[read.handle]
        self._events.append(end)

    def _give_up(self, handle: Handle, why: str) -> None:
        """End a read that is held back; one that the inner fabric still has ends there."""
        read = self._reads.get(handle)
        if read is not None and read.end is not None:
            self._tell(read, ReadEnded(handle, ReadOutcome.FAILED, why))
            self._wake()

    def _wake_at(self, when: Micros) -> None:
        timer = threading.Timer(max(0.0, (when - self._clock.now()) / 1e6) + 0.001, self._wake)
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def _bytes(self, group: GroupName, offset: int, nbytes: int) -> np.ndarray:
        start = self._pools[group].address + offset
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(start))

    def _flip(self, landed: Sequence[Copies]) -> None:
        c = self._rng.choice([c for c in landed if c.nbytes.sum() > 0])
        i = self._rng.choice(np.flatnonzero(c.nbytes).tolist())
        at = int(c.target[i]) + self._rng.randrange(int(c.nbytes[i]))
        self._bytes(c.group, at, 1)[0] ^= 1 << self._rng.randrange(8)

    def _swap(self, landed: Sequence[Copies]) -> None:
        for c in landed:
            same = [
                (i, j)
                for i in range(c.nbytes.size)
                for j in range(i)
                if c.nbytes[i] == c.nbytes[j] > 0
            ]
            if same:
                i, j = self._rng.choice(same)
                n, at, other = int(c.nbytes[i]), int(c.target[i]), int(c.target[j])
            else:
                i = int(np.argmax(c.nbytes))
                n, at = int(c.nbytes[i]) // 2, int(c.target[i])
                other = at + n
            a, b = self._bytes(c.group, at, n), self._bytes(c.group, other, n)
            kept = a.copy()
            a[:], b[:] = b, kept


def _half(c: Copies) -> Copies:
    if c.nbytes.size == 1:
        return Copies(c.group, c.source, c.target, c.nbytes // 2)
    n = c.nbytes.size // 2
    return Copies(c.group, c.source[:n], c.target[:n], c.nbytes[:n])


def _turned(c: Copies) -> Copies:
    """The same source bytes; each range lands where the next one of the same size should, the last
    where the first should."""
    target = c.target.copy()
    alone = True
    for size in np.unique(c.nbytes):
        which = np.flatnonzero(c.nbytes == size)
        target[which] = np.roll(c.target[which], -1)
        alone = alone and which.size == 1
    if not alone or c.nbytes.size == 0:
        return Copies(c.group, c.source, target, c.nbytes)
    i = int(np.argmax(c.nbytes))
    cut = int(c.nbytes[i]) // 3
    # [source: head tail] lands as [tail head]
    source = np.concatenate([np.delete(c.source, i), [c.source[i] + cut, c.source[i]]]).astype(
        np.int64
    )
    landing = np.concatenate(
        [np.delete(c.target, i), [c.target[i], c.target[i] + c.nbytes[i] - cut]]
    ).astype(np.int64)
    nbytes = np.concatenate([np.delete(c.nbytes, i), [c.nbytes[i] - cut, cut]]).astype(np.int64)
    return Copies(c.group, source, landing, nbytes)
