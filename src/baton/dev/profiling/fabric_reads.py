"""Times reads of a fabric, from one pool of this process into another, as a decode rank makes
them."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import numpy as np

from baton.adapters.clock import MonotonicClock
from baton.adapters.fabrics import build, connect_and_wait
from baton.adapters.memory import HostPool
from baton.core.errors import FabricError
from baton.core.ids import Boot, GroupName, Micros, Rank, RankId
from baton.core.manifest import PoolView, RankManifest
from baton.core.work import Copies, Handle, ReadEnded, ReadOutcome
from baton.dev.profiling.least_squares import MeasuredRead
from baton.ports.fabric import Fabric

KV = GroupName("full")
POOL_BYTES = 64 << 20
SIZES = (64 << 10, 1 << 20, 8 << 20, 32 << 20)
RANGE_BYTES = 256 << 10  # what lies together, of adjacent blocks
ROUNDS = 9
DEADLINE_US = 60_000_000


def measured_reads(name: str) -> list[MeasuredRead]:
    """Return the median times of reads of several sizes.

    Raises:
        ConfigError: there is no such fabric, or it does not work here
        FabricError: a read failed
    """
    ended = threading.Event()
    with _rank(name, 1, ended) as (source, boot, view), _rank(name, 2, ended) as (target, _, _):
        manifest = RankManifest(boot, 0, 0, 0, (view,), {name: source[1]})
        peer = RankId(boot, boot, Rank(0))
        connect_and_wait(target[0], peer, manifest)
        return [
            MeasuredRead(nbytes, median(_reads(target[0], source[0], peer, nbytes, ended)))
            for nbytes in SIZES
        ]


Exposed = tuple[Fabric, bytes]


@contextmanager
def _rank(
    name: str, number: int, ended: threading.Event
) -> Iterator[tuple[Exposed, Boot, PoolView]]:
    """A fabric with one pool, and what it exposes."""
    boot = Boot(number)
    fabric = build(name, boot, 0, wake=ended.set, clock=MonotonicClock())
    pool = HostPool(POOL_BYTES)
    try:
        exposed = fabric.expose({KV: pool})
        yield (fabric, exposed), boot, PoolView(KV, 1, POOL_BYTES)
    finally:
        fabric.close()
        pool.close()


def _reads(
    target: Fabric, source: Fabric, peer: RankId, nbytes: int, ended: threading.Event
) -> Iterator[float]:
    """Read so many bytes again and again. Yields microseconds."""
    sizes = np.full(max(1, nbytes // RANGE_BYTES), min(nbytes, RANGE_BYTES), dtype=np.int64)
    at = np.arange(len(sizes), dtype=np.int64) * RANGE_BYTES
    for number in range(ROUNDS + 1):
        began = time.perf_counter()
        copies = [Copies(KV, at, at, sizes)]
        target.submit(Handle(number + nbytes), peer, copies, deadline=Micros(DEADLINE_US))
        while not (events := target.poll()):
            source.attend()
            source.poll()
            ended.wait(0.001)
            ended.clear()
        (event,) = events
        if not isinstance(event, ReadEnded) or event.outcome is not ReadOutcome.OK:
            raise FabricError(f"a read of {nbytes} bytes over {target.name} failed: {event}")
        if number:  # the first maps pages
            yield 1e6 * (time.perf_counter() - began)
