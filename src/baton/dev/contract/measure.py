"""Measures a fabric on this machine, between two real processes."""

import time
from collections.abc import Iterator

import msgspec
import numpy as np

from baton.adapters.fabrics import DEFAULTS
from baton.core.errors import FabricError
from baton.core.memory.kinds import HOST, MemoryKind
from baton.dev.contract.peer import Peer, PeerOrder
from baton.dev.contract.rig import BOOTS, FULL, SECONDS, Rig, copies
from baton.ports.fabric import Copies, ReadEnded, ReadOutcome
from baton.ports.fabric_settings import FabricSettings

POOL_BYTES = 64 << 20
SIZES = (256, 4 << 10, 64 << 10, 368_640, 2 << 20, 16 << 20, POOL_BYTES)
RANGES = 1024  # of one read, at most
ROUNDS = 3  # the best one counts; the others measure the machine
EFFICIENT = 0.5  # of the best rate


class ScatteredRate(msgspec.Struct, frozen=True):
    """The rate of scattered ranges of one size, read with one submit."""

    range_bytes: int
    ranges: int
    gb_per_s: float
    us_per_range: float


class Measured(msgspec.Struct, frozen=True):
    """All figures of a fabric.

    Attributes:
        connect_ms: the first connection to a peer
        first_read_ms: the first read after it, of 64 bytes
        small_read_us: median of later reads of 64 bytes, from submit to poll
        cancel_ms: from cancel to end, of a read of 64 MiB
        rates: by size of range
        efficient_bytes: the smallest size measured that reaches EFFICIENT of the best rate
        stopped: how a read ends whose source is stopped, and how long after its deadline of 200 ms
        dead: how a read ends whose source is killed, and after how long
        restart: how a read from a new boot of that rank ends
    """

    connect_ms: float
    first_read_ms: float
    small_read_us: float
    cancel_ms: float
    rates: tuple[ScatteredRate, ...]
    efficient_bytes: int
    stopped: str
    dead: str
    restart: str


def measure(kind: str, settings: FabricSettings = DEFAULTS, memory: MemoryKind = HOST) -> Measured:
    """Take all figures, in about ten seconds.

    Raises:
        ConfigError: the fabric does not start
    """
    pools = {"full": POOL_BYTES}
    peer = Peer(PeerOrder(kind, next(BOOTS), 0, pools, settings, memory))
    rig = Rig(kind, next(BOOTS), pools, settings=settings, memory=memory)
    try:
        began = time.perf_counter()
        rig.connect(peer.id, peer.manifest)
        connected = time.perf_counter()
        small = copies("full", 0, 0, 64)
        first = _timed(rig, peer, small)
        later = sorted(_timed(rig, peer, small) for _ in range(101))[50]
        rates = tuple(_rates(rig, peer))
        cancel = _cancel(rig, peer)
        best = max(rate.gb_per_s for rate in rates)
        return Measured(
            connect_ms=1e3 * (connected - began),
            first_read_ms=1e3 * first,
            small_read_us=1e6 * later,
            cancel_ms=1e3 * cancel,
            rates=rates,
            efficient_bytes=min(
                rate.range_bytes for rate in rates if rate.gb_per_s >= EFFICIENT * best
            ),
            stopped=_stopped(rig, peer),
            dead=_dead(rig, peer),
            restart=_restart(rig, peer.order),
        )
    finally:
        rig.close()
        if peer.process.poll() is None:
            peer.kill()


def _timed(rig: Rig, peer: Peer, what: Copies) -> float:
    """Return the seconds of one read, waiting for it as a pump does.

    Raises:
        FabricError: the read fails
    """
    began = time.perf_counter()
    rig.submit(peer, what)
    while True:
        rig.woken.wait()
        rig.woken.clear()
        if ends := rig.fabric.poll():
            seconds = time.perf_counter() - began
            break
    if any(not isinstance(end, ReadEnded) or end.outcome is not ReadOutcome.OK for end in ends):
        raise FabricError(f"a read failed while it was measured: {ends[0]}")
    return seconds


def _rates(rig: Rig, peer: Peer) -> Iterator[ScatteredRate]:
    rng = np.random.default_rng(1)  # noqa: TID251  a fixed order, not chance
    for size in SIZES:
        count = min(POOL_BYTES // size, RANGES)
        source, target = (rng.permutation(POOL_BYTES // size)[:count] * size for _ in range(2))
        what = copies("full", source, target, np.full(count, size))
        seconds = min(_timed(rig, peer, what) for _ in range(ROUNDS))
        yield ScatteredRate(size, count, count * size / seconds / 1e9, 1e6 * seconds / count)


def _cancel(rig: Rig, peer: Peer) -> float:
    handle = rig.submit(peer, copies("full", 0, 0, POOL_BYTES))
    began = time.perf_counter()
    rig.fabric.cancel(handle)
    rig.ends(handle)
    return time.perf_counter() - began


def _stopped(rig: Rig, peer: Peer) -> str:
    """Read from a source that is stopped. On one host some engines read without its help."""
    peer.stop()
    try:
        began = time.perf_counter()
        handle = rig.submit(peer, copies("full", 0, 0, POOL_BYTES), deadline_us=SECONDS // 5)
        end = rig.ends(handle)[handle]
        seconds = time.perf_counter() - began
        landed = rig.pools[FULL]
        landed.fill(np.full(POOL_BYTES, 0x5A, np.uint8))
        peer.resume()
        time.sleep(0.5)
        late = (
            ""
            if end.outcome is not ReadOutcome.FAILED or bool((landed.contents() == 0x5A).all())
            else "; BYTES LANDED AFTER THE END"
        )
        return f"{end.outcome.value} after {seconds:.2f} s {_why(end.detail)}{late}"
    finally:
        peer.resume()


def _dead(rig: Rig, peer: Peer) -> str:
    peer.kill()
    began = time.perf_counter()
    handle = rig.submit(peer, copies("full", 0, 0, POOL_BYTES))
    end = rig.ends(handle)[handle]
    rig.fabric.disconnect(peer.id)
    return f"{end.outcome.value} after {time.perf_counter() - began:.2f} s {_why(end.detail)}"


def _restart(rig: Rig, before: PeerOrder) -> str:
    peer = Peer(msgspec.structs.replace(before, boot=next(BOOTS)))
    try:
        began = time.perf_counter()
        rig.connect(peer.id, peer.manifest)
        end = rig.read(peer, copies("full", 0, 0, 64))
        return f"{end.outcome.value} after {time.perf_counter() - began:.2f} s {_why(end.detail)}"
    finally:
        peer.kill()


def _why(detail: str) -> str:
    return f"({detail})" if detail else ""
