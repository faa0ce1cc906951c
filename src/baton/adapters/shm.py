"""Fabric `shm`: ranks of one host and user read each other's pools through read-only mappings, by
memcpy.

    pump thread: connect, submit, cancel, poll ──▶ OpenReads ──▶ fabric thread: maps, copies, unmaps

The fabric thread copies in order of submission, with the GIL released, and checks every 4 MB
whether it must stop.

Invariants: only the fabric thread unmaps, and only between copies, so no copy touches an unmapped
page. A memory file outlives its process, so a read during which the peer dies still finds its
bytes. It fails all the same, because a dead process cannot vouch for its memory. The connection is
checked before every read and after its last byte.
"""

import mmap
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from baton.adapters.memcpy import CHUNK_BYTES, PIECE_BYTES, RANGE_COST, copy_ranges
from baton.adapters.memory import populate_read
from baton.adapters.peers import Attempt, Peers, exposure_of
from baton.adapters.reachable import memory_of, require_readable
from baton.adapters.reads import OpenRead, OpenReads, Region
from baton.adapters.shm_door import Server, ShmMetadata, call, hung_up, this_host
from baton.core.errors import ConfigError, FabricError
from baton.core.ids import Boot, GroupName, Micros, RankId
from baton.core.manifest import RankManifest
from baton.core.memory.kinds import HOST
from baton.ports.clock import Clock
from baton.ports.fabric import Capabilities, Copies, FabricEvent, Handle, Pool, ReadOutcome

SLICE_BYTES = 32 << 20  # bytes between two checks of the deadline (1.5 ms)


@dataclass(slots=True, eq=False)
class _ShmPeer:
    line: socket.socket
    regions: dict[GroupName, Region]
    maps: list[mmap.mmap] = field(repr=False)


class ShmFabric:
    """Implements ports.fabric.Fabric over shared memory.

    `wake` is called from the fabric thread when `poll` has events.
    """

    def __init__(self, boot: Boot, rank: int, wake: Callable[[], None], clock: Clock) -> None:
        self._boot, self._rank, self._clock = boot, rank, clock
        self._reads = OpenReads(wake)
        self._server: Server | None = None
        self._peers: Peers[_ShmPeer] = Peers(self._reads, clock)
        self._attempts: deque[Attempt] = deque()
        self._queue: deque[tuple[OpenRead, _ShmPeer]] = deque()
        self._forgotten: list[_ShmPeer] = []
        self._untouched: deque[tuple[_ShmPeer, Region]] = deque()  # mapped, but not populated yet
        self._thread = threading.Thread(target=self._run, name=f"shm-{rank}", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        """`shm`."""
        return "shm"

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities: reads are copies in this process, so a stopped read is over for good."""
        return Capabilities(
            max_ranges_per_call=CHUNK_BYTES // RANGE_COST,
            max_range_bytes=PIECE_BYTES,
            same_host_only=True,
            device_memory=False,
            ended_means_quiet=True,
            reads_read_only=True,
        )

    def expose(self, pools: Mapping[GroupName, Pool]) -> bytes:
        """Serve our pools' descriptors.

        Raises:
            ConfigError: a pool is not host memory or has no memory file, or the socket's name is
                taken
        """
        assert self._server is None, "expose is called once"
        memory_of(pools, self.name, self.capabilities)
        served: dict[GroupName, tuple[int, int]] = {}
        for group, pool in pools.items():
            if pool.fd is None:
                raise ConfigError(
                    f"pool {group!r} has no memory file: shm cannot expose it, "
                    "choose another fabric"
                )
            served[group] = (pool.fd, pool.nbytes)
        self._peers.own = {
            group: Region(pool.address, pool.nbytes) for group, pool in pools.items()
        }
        self._server = Server(self._boot, self._rank, served)
        return msgspec.msgpack.encode(ShmMetadata(this_host(), self._server.name))

    def connect(self, peer: RankId, manifest: RankManifest) -> None:
        """Have the fabric thread map a peer's pools; reconnects to a known peer that has died."""
        with self._reads.lock:
            known = self._peers.get(peer)
            if known is not None and hung_up(known.line):
                self.disconnect(peer)
            attempt = self._peers.want(peer, manifest)
            if attempt is not None:
                self._attempts.append(attempt)

    def disconnect(self, peer: RankId) -> None:
        """Forget a peer; its reads end FAILED."""
        with self._reads.lock:
            known = self._peers.drop(peer)
            if known is not None:
                self._forgotten.append(known)

    def submit(
        self, handle: Handle, peer: RankId, copies: Sequence[Copies], *, deadline: Micros
    ) -> None:
        """Queue a read for the fabric thread."""
        with self._reads.lock:
            read, known = self._peers.begin(handle, peer, copies, deadline)
            self._queue.append((read, known))
            self._reads.open(read)

    def cancel(self, handle: Handle) -> None:
        """Stop a read; it ends FAILED at its next check, within about a millisecond."""
        self._reads.stop(handle, "cancelled")

    def attend(self) -> None:
        """Do nothing: a reader needs nothing of us."""

    def poll(self) -> list[FabricEvent]:
        """Return all events since the last call."""
        return self._reads.collect()

    def close(self) -> None:
        """Stop both threads, close connections and unmap. Open reads end FAILED."""
        self._peers.close()
        self._thread.join()
        if self._server is not None:
            self._server.close()

    # ---- the fabric thread ----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._serve()
        finally:
            self._peers.abandon(ReadOutcome.FAILED)

    def _serve(self) -> None:
        done = False
        while not done:
            with self._reads.lock:
                while not (
                    self._queue
                    or self._attempts
                    or self._forgotten
                    or self._peers.closed
                    or self._untouched
                ):
                    self._reads.lock.wait()
                done = self._peers.closed and not self._queue
                if done:
                    self._forgotten += [
                        known for peer in self._peers if (known := self._peers.drop(peer))
                    ]
                forgotten, self._forgotten = self._forgotten, []
                self._untouched = deque(
                    entry for entry in self._untouched if entry[0] not in forgotten
                )
                attempt = self._attempts.popleft() if self._attempts else None
                job = self._queue.popleft() if self._queue else None
                region = self._next_untouched() if job is None else None
            for peer in forgotten:
                _unmap(peer)
            if attempt is not None:
                self._reach(attempt)
            if job is not None:
                self._copy(*job)
            elif region is not None:
                populate_read(region.address, region.nbytes)

    def _reach(self, attempt: Attempt) -> None:
        known = self._peers.reach(attempt, self._open, _unmap)
        if known is not None:
            with self._reads.lock:
                self._untouched.extend((known, region) for region in known.regions.values())

    def _open(self, peer: RankId, manifest: RankManifest) -> _ShmPeer:
        exposure = exposure_of(self.name, peer, manifest, ShmMetadata)
        require_readable(manifest, HOST, self.name, self.capabilities)
        if exposure.host != this_host():
            raise FabricError(
                f"rank {peer.rank} is on another host (or user): "
                f"{exposure.host}, here {this_host()}"
            )
        line, fds = call(exposure.name, peer.boot, peer.rank, manifest.pools)
        try:
            maps = {group: _map(fd) for group, fd in fds.items()}
        except OSError as error:
            line.close()
            raise FabricError(f"pools of rank {peer.rank} cannot be mapped: {error}") from error
        finally:
            for fd in fds.values():
                os.close(fd)
        return _ShmPeer(
            line,
            {group: Region(_address(m), len(m)) for group, m in maps.items()},
            list(maps.values()),
        )

    def _next_untouched(self) -> Region | None:
        """Return the next piece to populate while idle;
        a whole pool at once would delay a first read."""
        if not self._untouched:
            return None
        peer, region = self._untouched.popleft()
        piece = Region(region.address, min(region.nbytes, SLICE_BYTES))
        if piece.nbytes < region.nbytes:
            self._untouched.appendleft(
                (peer, Region(region.address + piece.nbytes, region.nbytes - piece.nbytes))
            )
        return piece

    def _copy(self, read: OpenRead, peer: _ShmPeer) -> None:
        cursor = np.zeros(2, np.int64)
        while True:
            if why := self._why_stop(read, peer):
                self._reads.end(read, ReadOutcome.FAILED, why)
                return
            if cursor[0] == read.ranges.nbytes.size:
                self._reads.end(read, ReadOutcome.OK, "")
                return
            r = read.ranges
            copy_ranges(
                r.source, r.target, r.nbytes, cursor=cursor, budget=SLICE_BYTES, stop=read.word
            )
            self._sweep()

    def _why_stop(self, read: OpenRead, peer: _ShmPeer) -> str:
        if read.stop:
            return read.stop
        if self._clock.now() >= read.due:
            return "deadline passed"
        return "the peer is gone" if hung_up(peer.line) else ""

    def _sweep(self) -> None:
        """End queued reads that were stopped or timed out before they began."""
        now = self._clock.now()
        with self._reads.lock:
            waiting, self._queue = self._queue, deque()
            for read, peer in waiting:
                if why := read.stop or ("deadline passed" if now >= read.due else ""):
                    self._reads.end(read, ReadOutcome.FAILED, why)
                else:
                    self._queue.append((read, peer))


def _map(fd: int) -> mmap.mmap:
    return mmap.mmap(fd, os.fstat(fd).st_size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)


def _address(mapping: mmap.mmap) -> int:
    return int(np.frombuffer(mapping, dtype=np.uint8).ctypes.data)


def _unmap(peer: _ShmPeer) -> None:
    peer.line.close()
    for mapping in peer.maps:
        mapping.close()
