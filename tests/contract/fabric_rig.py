"""Our side of a contract test: a fabric with pools, a clock that can hold its thread, and an oracle for what must have landed."""

import threading
import time
from collections.abc import Callable

import numpy as np

from baton.adapters.fabrics import build
from baton.adapters.memory import HostPool
from baton.core.ids import Boot, GroupName, Micros, RankId
from baton.ports.fabric import Copies, Ended, Handle, Outcome

from .fabric_peer import Peer, pattern

FULL, SLOT = GroupName("full"), GroupName("slot")
SECONDS = 1_000_000
PATIENCE_S = 30.0


class GateClock:
    """Monotonic time that can be moved ahead; while the gate is shut, other threads than the maker's wait in `now`."""

    def __init__(self) -> None:
        self.ahead = 0
        self.gate = threading.Event()
        self.gate.set()
        self.caught = threading.Event()  # a thread has come to the shut gate
        self._maker = threading.current_thread()

    def now(self) -> Micros:
        if threading.current_thread() is not self._maker and not self.gate.is_set():
            self.caught.set()
            assert self.gate.wait(PATIENCE_S)
        return Micros(time.monotonic_ns() // 1000 + self.ahead)


class Rig:
    """One reading rank."""

    def __init__(self, kind: str, boot: int, pools: dict[str, int], rank: int = 0) -> None:
        self.kind, self.boot = kind, boot
        self.clock = GateClock()
        self.woken = threading.Event()
        self.fabric = build(kind, Boot(boot), rank, wake=self.woken.set, clock=self.clock)
        self.pools = {GroupName(g): HostPool(n, what=g) for g, n in pools.items()}
        self.exposure = self.fabric.expose(self.pools)
        self.expected = {g: np.zeros(p.nbytes, np.uint8) for g, p in self.pools.items()}
        self._handles = 0

    def close(self) -> None:
        self.clock.gate.set()
        self.fabric.close()
        for pool in self.pools.values():
            pool.close()

    def submit(self, peer: Peer | RankId, *copies: Copies, deadline_us: int = 60 * SECONDS) -> Handle:
        self._handles += 1
        handle = Handle(self._handles)
        who = peer.id if isinstance(peer, Peer) else peer
        self.fabric.submit(handle, who, copies, deadline=Micros(deadline_us))
        return handle

    def ends(self, *handles: Handle) -> dict[Handle, Ended]:
        """Wait until all have ended; fails when one ends twice or another one ends."""
        found: dict[Handle, Ended] = {}
        limit = time.monotonic() + PATIENCE_S
        while set(found) != set(handles):
            assert time.monotonic() < limit, f"only {found} of {handles} have ended"
            self.woken.wait(0.1)
            self.woken.clear()
            for end in self.fabric.poll():
                assert isinstance(end, Ended)
                assert end.handle in handles
                assert end.handle not in found
                found[end.handle] = end
        return found

    def read(self, peer: Peer | RankId, *copies: Copies) -> Ended:
        handle = self.submit(peer, *copies)
        return self.ends(handle)[handle]

    def read_ok(self, peer: Peer, *copies: Copies, seed: int | None = None) -> None:
        """Read, and compare the whole of every pool with what must be there."""
        end = self.read(peer, *copies)
        assert end.outcome is Outcome.OK, end
        for c in copies:
            source = pattern(peer.order.boot if seed is None else seed, c.group, peer.order.pools[c.group])
            for s, t, n in zip(c.source.tolist(), c.target.tolist(), c.nbytes.tolist(), strict=True):
                self.expected[c.group][t : t + n] = source[s : s + n]
        self.check()

    def check(self) -> None:
        for group, pool in self.pools.items():
            assert np.array_equal(pool.array, self.expected[group]), f"pool {group} differs from the oracle"

    def hold(self) -> None:
        """Stop the fabric thread where it asks for the time; returns when it stands there or is asleep."""
        self.clock.caught.clear()
        self.clock.gate.clear()

    def let_go(self) -> None:
        self.clock.gate.set()


def copies(group: str, source: object, target: object, nbytes: object) -> Copies:
    return Copies(GroupName(group), *(np.atleast_1d(np.asarray(x, dtype=np.int64)) for x in (source, target, nbytes)))


def until(what: Callable[[], bool]) -> None:
    limit = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.001)
