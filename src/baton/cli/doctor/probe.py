"""Two processes that try one fabric: a source that exposes memory, and a reader that fetches and
compares every byte.

    doctor ──starts──▶ source: makes a pool, prints what it exposes, waits for the end of its stdin
       └────starts──▶ reader: takes that line on stdin, reads through the fabric's port, prints what it found

Both are children of the doctor, and each may crash without harm. Transfer libraries write to
stdout, too, so our lines begin with a mark.

python -m baton.cli.doctor.probe source|reader KIND SETTINGS MEMORY      (JSON: the settings of the fabric, the memory of
                                                                         the process's pool)
"""

import ctypes
import os
import sys
import time

import msgspec
import numpy as np

from baton.adapters.clock import MonotonicClock
from baton.adapters.fabrics import attend_until, build, connect_and_wait
from baton.adapters.pools import make_pool
from baton.core.errors import BatonError
from baton.core.ids import Boot, GroupName, Micros, Rank, RankId
from baton.core.manifest import PoolView, RankManifest
from baton.core.memory.kinds import HostRam, MemoryKind
from baton.ports.fabric import Copies, Fabric, Handle, ReadEnded, ReadOutcome
from baton.ports.fabric_settings import FabricSettings

MARK = "baton-probe: "
GROUP = GroupName("full")
SOURCE, READER = Boot(1), Boot(2)
POOL_BYTES = 32 << 20
BLOCK_BYTES = 1 << 20
ROUNDS = 5
PATIENCE_S = 10.0


class Exposed(msgspec.Struct):
    """The source's message."""

    exposure: bytes
    pid: int
    address: int
    memory: MemoryKind


class ProbeResult(msgspec.Struct):
    """The reader's result; `why` is empty if every byte was right."""

    why: str = ""
    gbytes_s: float = 0.0  # best round
    small_us: float = 0.0  # one range of 4 KiB, best round
    cma: str = ""  # why process_vm_readv of the source fails, empty if it does not


class Tried(msgspec.Struct):
    """The result of a trial, and the UCX transport that moved the bytes ("" if none is named)."""

    found: ProbeResult
    transport: str = ""


def pattern(nbytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Return uint8 [nbytes] in which all words of 8 bytes differ."""
    return (np.arange(nbytes // 8, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.uint8)


def source(kind: str, settings: FabricSettings, memory: MemoryKind) -> None:
    """Expose a filled pool until stdin ends."""
    pool = make_pool(memory, POOL_BYTES)
    fabric = build(kind, SOURCE, 0, wake=lambda: None, clock=MonotonicClock(), settings=settings)
    pool.fill(pattern(POOL_BYTES))
    _say(Exposed(fabric.expose({GROUP: pool}), os.getpid(), pool.address, memory))
    attend_until(fabric, sys.stdin.fileno())
    fabric.close()


def reader(kind: str, settings: FabricSettings, memory: MemoryKind) -> None:
    """Read the source's pool and print the result."""
    exposed = msgspec.json.decode(sys.stdin.readline(), type=Exposed)
    pool = make_pool(memory, POOL_BYTES)
    fabric = build(kind, READER, 0, wake=lambda: None, clock=MonotonicClock(), settings=settings)
    fabric.expose({GROUP: pool})
    peer = RankId(SOURCE, SOURCE, Rank(0))
    view = PoolView(GROUP, 1, POOL_BYTES, exposed.memory)
    manifest = RankManifest(SOURCE, 0, 0, 0, (view,), {kind: exposed.exposure})
    found = ProbeResult()
    if isinstance(exposed.memory, HostRam):
        found.cma = read_process(exposed.pid, exposed.address)
    try:
        connect_and_wait(fabric, peer, manifest)
        offsets = np.arange(0, POOL_BYTES, BLOCK_BYTES, dtype=np.int64)
        blocks = Copies(
            GROUP, offsets, offsets[::-1].copy(), np.full(len(offsets), BLOCK_BYTES, dtype=np.int64)
        )
        zero = np.zeros(1, dtype=np.int64)
        small = Copies(GROUP, zero, zero, np.full(1, 4096, dtype=np.int64))
        found.small_us = 1e6 * min(_time(fabric, peer, small, i) for i in range(1, ROUNDS + 1))
        found.gbytes_s = (
            POOL_BYTES / 1e9 / min(_time(fabric, peer, blocks, 100 + i) for i in range(ROUNDS))
        )
        wanted = pattern(POOL_BYTES).reshape(-1, BLOCK_BYTES)[::-1].reshape(-1)
        got = pool.contents()
        if not np.array_equal(got, wanted):
            found.why = (
                f"{int((got != wanted).sum())} of {POOL_BYTES} bytes differ "
                "from what the source holds"
            )
    except BatonError as error:
        found.why = str(error)
    _say(found)
    fabric.close()


def _time(fabric: Fabric, peer: RankId, copies: Copies, number: int) -> float:
    """Return the seconds that one read takes. Raises BatonError if the read fails."""
    handle, began = Handle(number), time.perf_counter()
    fabric.submit(handle, peer, [copies], deadline=Micros(int(PATIENCE_S * 1e6)))
    while time.perf_counter() - began < PATIENCE_S + 2:
        for end in fabric.poll():
            if isinstance(end, ReadEnded) and end.handle == handle:
                if end.outcome is not ReadOutcome.OK:
                    raise BatonError(f"a read ended {end.outcome.value}: {end.detail}")
                return time.perf_counter() - began
        time.sleep(0)
    raise BatonError(f"a read did not end within {PATIENCE_S:g} s")


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def read_process(pid: int, address: int) -> str:
    """Read a few bytes of another process with process_vm_readv, as UCX does on one host (CMA).

    Returns why it failed; empty if it worked.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(64)
    ours, theirs = _IoVec(ctypes.addressof(buffer), 64), _IoVec(address, 64)
    got = libc.process_vm_readv(pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
    return "" if got == 64 else os.strerror(ctypes.get_errno())


def _say(what: Exposed | ProbeResult) -> None:
    print(MARK + msgspec.json.encode(what).decode(), flush=True)


def main() -> None:
    """Command line."""
    part, kind, settings, memory = sys.argv[1:]
    try:
        {"source": source, "reader": reader}[part](
            kind,
            msgspec.json.decode(settings, type=FabricSettings),
            msgspec.json.decode(memory, type=MemoryKind),
        )
    except BatonError as error:
        _say(ProbeResult(why=str(error)))


if __name__ == "__main__":
    main()
