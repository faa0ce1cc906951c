"""Our side of a check: a fabric with pools, a clock that can hold its thread, and an oracle of what
must have landed."""

import contextlib
import itertools
import os
import random
import threading
import time
from collections.abc import Callable, Iterator

import msgspec
import numpy as np

from baton.adapters.fabrics import DEFAULTS, build, connect_and_wait
from baton.adapters.pools import make_pool
from baton.core.ids import Boot, GroupName, Micros, RankId
from baton.core.manifest import PoolView, RankManifest
from baton.core.memory.kinds import HOST, MemoryKind
from baton.dev.contract.peer import Peer, pattern
from baton.ports.fabric import Copies, FabricEvent, Handle, ReadEnded, ReadOutcome, Released
from baton.ports.fabric_settings import FabricSettings

FULL, SLOT = GroupName("full"), GroupName("slot")
SECONDS = 1_000_000
PATIENCE_S = 30.0
# more than the largest range any fabric declares
POOLS = {"full": (64 << 20) + 4096, "slot": 300_000}
SMALL = {"full": 1 << 20, "slot": 300_000}
BOOTS = itertools.count(0x1000 + os.getpid() * 0x10000)


class GateClock:
    """Monotonic time that can be moved ahead. While the gate is shut, all threads but the one that
    made the clock wait in `now`."""

    def __init__(self) -> None:
        self.ahead = 0
        self.gate = threading.Event()
        self.gate.set()
        self.caught = threading.Event()  # a thread has come to the shut gate
        self._maker = threading.current_thread()

    def now(self) -> Micros:
        """Return the time in microseconds."""
        if threading.current_thread() is not self._maker and not self.gate.is_set():
            self.caught.set()
            assert self.gate.wait(PATIENCE_S)
        return Micros(time.monotonic_ns() // 1000 + self.ahead)


class Rig:
    """One reading rank."""

    def __init__(
        self,
        kind: str,
        boot: int,
        pools: dict[str, int],
        rank: int = 0,
        settings: FabricSettings = DEFAULTS,
        memory: MemoryKind = HOST,
    ) -> None:
        self.kind, self.boot = kind, boot
        self.clock = GateClock()
        self.woken = threading.Event()
        self.fabric = build(
            kind, Boot(boot), rank, wake=self.woken.set, clock=self.clock, settings=settings
        )
        self.pools = {GroupName(g): make_pool(memory, n, what=g) for g, n in pools.items()}
        self.exposure = self.fabric.expose(self.pools)
        self.expected = {g: np.zeros(p.nbytes, np.uint8) for g, p in self.pools.items()}
        self._handles = 0
        self._unknown: set[Handle] = set()  # ended UNKNOWN, not released yet

    @property
    def views(self) -> tuple[PoolView, ...]:
        """Its pools, as its manifest names them."""
        return tuple(PoolView(g, 1, p.nbytes, p.memory) for g, p in self.pools.items())

    def close(self) -> None:
        """Free everything."""
        self.clock.gate.set()
        self.fabric.close()
        for pool in self.pools.values():
            pool.close()

    def connect(self, peer: RankId, manifest: RankManifest) -> None:
        """Connect, and wait for the outcome.

        Raises:
            FabricError: the peer cannot be reached
        """
        connect_and_wait(self.fabric, peer, manifest)

    def events(self, count: int) -> list[FabricEvent]:
        """Wait for `count` events of any kind, and return them. More at once is an error."""
        found: list[FabricEvent] = []
        limit = time.monotonic() + PATIENCE_S
        while len(found) < count:
            assert time.monotonic() < limit, f"only {found} came about"
            self.woken.wait(0.1)
            self.woken.clear()
            found += self.fabric.poll()
        assert len(found) == count, found
        return found

    def submit(
        self, peer: Peer | RankId, *copies: Copies, deadline_us: int = 60 * SECONDS
    ) -> Handle:
        """Start a read under a new handle."""
        self._handles += 1
        handle = Handle(self._handles)
        who = peer.id if isinstance(peer, Peer) else peer
        self.fabric.submit(handle, who, copies, deadline=Micros(deadline_us))
        return handle

    def ends(
        self,
        *handles: Handle,
        hurry_us: int = 0,
        each: Callable[[ReadEnded], None] = lambda end: None,
    ) -> dict[Handle, ReadEnded]:
        """Wait until all these reads have ended, and return their ends. Fails if one ends twice or
        another one ends. The clock moves ahead by `hurry_us` at every look that finds nothing;
        `each` is told each end as it comes."""
        found: dict[Handle, ReadEnded] = {}
        limit = time.monotonic() + PATIENCE_S
        while set(found) != set(handles):
            assert time.monotonic() < limit, f"only {found} of {handles} have ended"
            if not (looked := self._look()):
                self.clock.ahead += hurry_us
            for end in looked:
                assert end.handle in handles
                assert end.handle not in found
                found[end.handle] = end
                each(end)
        return found

    def all_released(self) -> None:
        """Wait until no read that ended UNKNOWN can land anything. Fails if anything else ends."""
        limit = time.monotonic() + PATIENCE_S
        while self._unknown:
            assert time.monotonic() < limit, f"{self._unknown} have not been released"
            assert self._look() == []

    def _look(self) -> list[ReadEnded]:
        self.woken.wait(0.1)
        self.woken.clear()
        found = []
        for event in self.fabric.poll():
            assert isinstance(event, ReadEnded | Released)
            if isinstance(event, Released):
                self._unknown.remove(event.handle)
                continue
            found.append(event)
            if event.outcome is ReadOutcome.UNKNOWN:
                self._unknown.add(event.handle)
        return found

    def read(self, peer: Peer | RankId, *copies: Copies) -> ReadEnded:
        """Read, and wait for the end."""
        handle = self.submit(peer, *copies)
        return self.ends(handle)[handle]

    def read_ok(self, peer: Peer, *copies: Copies, seed: int | None = None) -> None:
        """Read, and compare the whole of every pool with what must be there."""
        end = self.read(peer, *copies)
        assert end.outcome is ReadOutcome.OK, end
        for c in copies:
            source = pattern(
                peer.order.boot if seed is None else seed, c.group, peer.order.pools[c.group]
            )
            for s, t, n in zip(
                c.source.tolist(), c.target.tolist(), c.nbytes.tolist(), strict=True
            ):
                self.expected[c.group][t : t + n] = source[s : s + n]
        self.check()

    def fill(self, place: slice) -> None:
        """Overwrite a part of the largest pool. From now on its content is ours."""
        self.expected[FULL][place] = 0xA5
        self.pools[FULL].fill(self.expected[FULL][place], at=place.start or 0)

    def check(self) -> None:
        """Compare the whole of every pool with what must be there."""
        for group, pool in self.pools.items():
            assert np.array_equal(pool.contents(), self.expected[group]), (
                f"pool {group} differs from the oracle"
            )

    def hold(self) -> None:
        """Stop the fabric thread at the point where it asks for the time."""
        self.clock.caught.clear()
        self.clock.gate.clear()

    def let_go(self) -> None:
        """Let the fabric thread run on."""
        self.clock.gate.set()


def copies(group: str, source: object, target: object, nbytes: object) -> Copies:
    """Return Copies made from numbers or sequences of them."""
    return Copies(
        GroupName(group),
        *(np.atleast_1d(np.asarray(x, dtype=np.int64)) for x in (source, target, nbytes)),
    )


def scattered(rng: random.Random, group: str, pool: int, sizes: list[int]) -> Copies:
    """Return ranges of these sizes at random places. Those of the target do not overlap."""
    gaps = sorted(rng.randrange(pool - sum(sizes)) for _ in sizes)
    shuffled = rng.sample(sizes, len(sizes))
    before = [0, *itertools.accumulate(shuffled)][:-1]
    target = [gap + b for gap, b in zip(gaps, before, strict=True)]
    order = rng.sample(range(len(sizes)), len(sizes))
    source = [rng.randrange(pool - n + 1) for n in shuffled]
    return copies(
        group, [source[i] for i in order], [target[i] for i in order], [shuffled[i] for i in order]
    )


@contextlib.contextmanager
def refused(kind: type[Exception], words: str = "") -> Iterator[None]:
    """Require that the code inside raises `kind` with a text that contains `words`."""
    try:
        yield
    except kind as error:
        if words in str(error):
            return
        raise AssertionError(f"the refusal is {error}, it should say {words!r}") from error
    raise AssertionError(f"not refused with {kind.__name__} {words!r}")


class CheckWorld:
    """What a check can use: a rig of its own, a source rank that must not be killed, and others
    that may be."""

    def __init__(self, kind: str, peer: Peer) -> None:
        self.kind, self.peer = kind, peer
        self.rig = self.reader(POOLS)
        self._spawned: list[Peer] = []

    def reader(self, pools: dict[str, int], *, boot: int | None = None, rank: int = 0) -> Rig:
        """Return another rig, with the settings of the peer, its pools in the same memory."""
        order, boot = self.peer.order, next(BOOTS) if boot is None else boot
        return Rig(self.kind, boot, pools, rank, order.settings, order.memory)

    @property
    def joined(self) -> Rig:
        """The rig, connected to the peer."""
        self.rig.connect(self.peer.id, self.peer.manifest)
        return self.rig

    def spawn(self, pools: dict[str, int] = SMALL) -> Peer:
        """Return a source rank for this check only."""
        order = msgspec.structs.replace(self.peer.order, boot=next(BOOTS), rank=0, pools=pools)
        self._spawned.append(Peer(order))
        return self._spawned[-1]

    def close(self) -> None:
        """End everything but the peer."""
        self.rig.close()
        for peer in self._spawned:
            if peer.process.poll() is None:
                peer.kill()
