"""Fabric `tcp`: reads over plain sockets, the reference between hosts without a transfer engine.

    pump thread: connect, submit, cancel, poll ──▶ OpenReads ──▶ parts ──▶ stream threads

Each peer has a few stream threads, each with its own connection; the first one dials before the
others start. A stream requests a part, and the next one ahead of time, and receives it into our
pool.

Invariants: bytes land only while one of our stream threads receives, so nothing of an ended handle
lands. To end a read whose bytes are coming, its connection is closed; parts of other reads
requested on it are requested again on a new one. If the other side breaks a connection, every read
from that peer fails, because its memory can no longer be trusted. If a further connection cannot be
opened, the peer is read through the open ones.
"""

import contextlib
import ctypes
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from baton.adapters.peers import Attempt, Peers, exposure_of, require_stated
from baton.adapters.reachable import memory_of, require_readable
from baton.adapters.reads import OpenRead, OpenReads, Ranges, Region, cut
from baton.adapters.tcp_door import (
    MAX_POOLS,
    PART_BYTES,
    PART_RANGES,
    POOL_BITS,
    Keys,
    ask,
    dial,
    fill,
    require_loopback_or_key,
)
from baton.adapters.tcp_source import TcpSource
from baton.core.errors import ConfigError, FabricError
from baton.core.ids import Boot, GroupName, Micros, RankId
from baton.core.manifest import RankManifest
from baton.core.memory.kinds import HOST
from baton.ports.clock import Clock
from baton.ports.fabric import Capabilities, Copies, FabricEvent, Handle, Pool, ReadOutcome

AHEAD = 2  # parts requested on one connection: the source reads the next request while it sends
LOOK_US = 20_000  # how often a stream that receives nothing checks whether it must stop
_TIMEVAL = struct.Struct("ll")
_OFFSET = (1 << POOL_BITS) - 1
Line = tuple[socket.socket, Keys]


class TcpMetadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The metadata that a reader needs: where we listen, the order of our pools, and the key, if
    readers do not have it themselves."""

    host: str
    port: int
    boot: Boot
    rank: int
    pools: tuple[tuple[GroupName, int], ...]
    key: bytes = b""


class _Stopped(Exception):
    """The part under way must not be received any further."""


@dataclass(slots=True, eq=False)
class _Work:
    """A read and the number of its parts that may still land.

    Changed only under the lock of the open reads.
    """

    read: OpenRead
    left: int


@dataclass(slots=True, eq=False)
class _Part:
    work: _Work
    ranges: Ranges


@dataclass(slots=True, eq=False)
class _TcpPeer:
    id: RankId
    address: tuple[str, int]
    regions: dict[GroupName, Region]
    views: tuple[tuple[GroupName, int], ...]
    key: bytes
    # not requested yet; guarded by the lock of the open reads
    parts: deque[_Part] = field(default_factory=deque)
    look_again: Micros = field(default=Micros(0))
    lines: int = 0  # open connections; guarded by the lock of the open reads
    gone: bool = False  # disconnected; its threads end


class TcpFabric:
    """Implements ports.fabric.Fabric over sockets.

    `wake` is called from a stream thread when `poll` has events.

    Args:
        host: our address for peers, on which we listen; off loopback a `key` is required
        key: by which readers show that they may read; b"" = no authentication
        tells_key: readers learn the key with what we expose; else all ranks have the same
        streams: connections to each peer

    Raises:
        ConfigError: `host` is off loopback and `key` is empty
    """

    def __init__(
        self,
        boot: Boot,
        rank: int,
        wake: Callable[[], None],
        clock: Clock,
        *,
        host: str,
        key: bytes,
        streams: int,
        tells_key: bool = False,
    ) -> None:
        require_loopback_or_key(host, key)
        self._boot, self._rank, self._clock = boot, rank, clock
        self._host, self._key, self._streams = host, key, streams
        self._told = key if tells_key else b""
        self._reads = OpenReads(wake)
        self._source: TcpSource | None = None
        self._pools: list[memoryview] = []
        self._peers: Peers[_TcpPeer] = Peers(self._reads, clock)
        self._threads: list[threading.Thread] = []

    @property
    def name(self) -> str:
        """`tcp`."""
        return "tcp"

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities: a read that has stopped is over
        for good, and a source cannot be written."""
        return Capabilities(
            max_ranges_per_call=PART_RANGES,
            max_range_bytes=PART_BYTES,
            same_host_only=False,
            device_memory=False,
            ended_means_quiet=True,
            reads_read_only=True,
        )

    def expose(self, pools: Mapping[GroupName, Pool]) -> bytes:
        """Listen for readers. Raises ConfigError for pools
        on a device, or an address that is not ours."""
        assert self._source is None, "expose is called once"
        memory_of(pools, self.name, self.capabilities)
        if len(pools) > MAX_POOLS:
            raise ConfigError(f"{len(pools)} pools, tcp can serve at most {MAX_POOLS}")
        for i, (group, pool) in enumerate(pools.items()):
            self._peers.own[group] = Region(i << POOL_BITS, pool.nbytes)
            self._pools.append(_view(pool))
        served = [
            (group, view.toreadonly()) for group, view in zip(pools, self._pools, strict=True)
        ]
        self._source = TcpSource(self._host, self._boot, self._rank, served, key=self._key)
        sizes = tuple((group, view.nbytes) for group, view in served)
        return msgspec.msgpack.encode(
            TcpMetadata(self._host, self._source.port, self._boot, self._rank, sizes, self._told)
        )

    def connect(self, peer: RankId, manifest: RankManifest) -> None:
        """Have a thread open the first connection, which authenticates the peer."""
        with self._reads.lock:
            attempt = self._peers.want(peer, manifest)
            if attempt is not None:
                self._threads = [t for t in self._threads if t.is_alive()]
                try:
                    self._start(0, self._reach, attempt)
                except RuntimeError as error:  # no thread can be started
                    self._peers.refuse(attempt, f"tcp: {error}")

    def disconnect(self, peer: RankId) -> None:
        """Forget a peer; its reads end FAILED."""
        with self._reads.lock:
            known = self._peers.drop(peer)
            if known is not None:
                known.gone = True
                self._drop_stopped(known)

    def submit(
        self, handle: Handle, peer: RankId, copies: Sequence[Copies], *, deadline: Micros
    ) -> None:
        """Queue a read for the peer's streams."""
        with self._reads.lock:
            read, known = self._peers.begin(handle, peer, copies, deadline)
            parts = cut(read.ranges, part_bytes=PART_BYTES, part_ranges=PART_RANGES)
            parts = parts or [read.ranges]  # an empty read has one empty part
            work = _Work(read, len(parts))
            known.parts.extend(_Part(work, part) for part in parts)
            self._reads.open(read)

    def cancel(self, handle: Handle) -> None:
        """Stop a read; it ends FAILED within LOOK_US, or at once if no stream is receiving it."""
        with self._reads.lock:
            read = self._reads.stop(handle, "cancelled")
            known = self._peers.get(read.peer) if read is not None else None
            if known is not None:
                self._drop_stopped(known)

    def attend(self) -> None:
        """Do nothing: our threads sleep until a reader asks."""

    def poll(self) -> list[FabricEvent]:
        """Return all events since the last call."""
        return self._reads.collect()

    def close(self) -> None:
        """Stop all threads and close all connections. Open reads end FAILED."""
        with self._reads.lock:
            self._peers.close()
            for peer in self._peers:
                self.disconnect(peer)
        for thread in self._threads:
            thread.join()
        if self._source is not None:
            self._source.close()
            self._source = None
        self._pools.clear()

    def _start(self, stream: int, run: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(
            target=run, args=args, name=f"tcp-{self._rank}-{stream}", daemon=True
        )
        thread.start()
        self._threads.append(thread)

    # ---- the stream threads ---------------------------------------------------------------------

    def _reach(self, attempt: Attempt) -> None:
        lines: list[Line] = []

        def dial_first(peer: RankId, manifest: RankManifest) -> _TcpPeer:
            e = _decode(peer, manifest)
            require_readable(manifest, HOST, self.name, self.capabilities)
            regions = {
                group: Region(i << POOL_BITS, nbytes) for i, (group, nbytes) in enumerate(e.pools)
            }
            found = _TcpPeer(peer, (e.host, e.port), regions, e.pools, e.key or self._key)
            lines.append(self._dial(found))
            return found

        known = self._peers.reach(attempt, dial_first, lambda found: self._drop(found, lines[0]))
        if known is None:
            return
        # if no thread can be started, fewer streams do the work
        with self._reads.lock, contextlib.suppress(RuntimeError):
            for i in range(1, self._streams if not known.gone else 0):
                self._start(i, self._run, known, None)
        self._run(known, lines[0])

    def _run(self, peer: _TcpPeer, line: Line | None) -> None:
        asked: deque[_Part] = deque()
        spare = False  # other streams read the peer without this one
        try:
            while not spare and self._wait(peer):
                try:
                    line = line or self._dial(peer)
                    self._turn(peer, line, asked)
                except _Stopped:
                    self._drop(peer, line)
                    line = None
                    self._give_back(peer, asked)
                except (OSError, FabricError) as error:
                    with self._reads.lock:
                        spare = line is None and peer.lines > 0
                        if not spare:
                            self._drop(peer, line)
                            line = None
                            self._reads.stop_peer(peer.id, f"the peer is gone: {error}")
                            self._give_back(peer, asked)
        finally:  # even if this thread dies of a bug, no handle hangs, and no new read is accepted
            with self._reads.lock:
                self._drop(peer, line)
                if not spare:
                    self._reads.stop_peer(peer.id, "disconnected")
                    peer.gone = True
                    self._give_back(peer, asked)

    def _wait(self, peer: _TcpPeer) -> bool:
        with self._reads.lock:
            while not (peer.parts or peer.gone):
                self._reads.lock.wait()
            return not peer.gone

    def _turn(self, peer: _TcpPeer, line: Line, asked: deque[_Part]) -> None:
        """Request up to AHEAD parts and receive the oldest, until there are none."""
        sock, keys = line

        def look() -> None:
            self._sweep(peer)
            if asked[0].work.read.stop:
                raise _Stopped

        while True:
            self._sweep(peer)
            while len(asked) < AHEAD and (part := self._next(peer)) is not None:
                asked.append(part)
                if part.ranges.nbytes.size:  # an empty read has one empty part
                    ask(sock, keys, part.ranges.source, part.ranges.nbytes)
            if not asked:
                return
            look()
            fill(sock, self._targets(asked[0].ranges), look)
            self._settle([asked.popleft()])

    def _next(self, peer: _TcpPeer) -> _Part | None:
        with self._reads.lock:
            return peer.parts.popleft() if peer.parts else None

    def _sweep(self, peer: _TcpPeer) -> None:
        """Stop overdue reads, and end stopped reads that wait; at most once in LOOK_US."""
        now = self._clock.now()
        if now < peer.look_again:
            return
        with self._reads.lock:
            peer.look_again = Micros(now + LOOK_US)
            for read in self._reads.open_reads():
                if read.peer == peer.id and now >= read.due:
                    self._reads.stop(read.handle, "deadline passed")
            self._drop_stopped(peer)

    def _drop_stopped(self, peer: _TcpPeer) -> None:
        with self._reads.lock:
            if any(part.work.read.stop for part in peer.parts):
                stopped = [part for part in peer.parts if part.work.read.stop]
                peer.parts = deque(part for part in peer.parts if not part.work.read.stop)
                self._settle(stopped)

    def _give_back(self, peer: _TcpPeer, asked: deque[_Part]) -> None:
        """Return requested parts to the queue; settle those whose read must end."""
        with self._reads.lock:
            peer.parts.extendleft(reversed(asked))
            asked.clear()
            self._drop_stopped(peer)
            self._reads.lock.notify_all()  # an idle stream may take them, because this one may stop

    def _settle(self, parts: Sequence[_Part]) -> None:
        """Count parts that have landed or never will;
        a read ends when all its parts are counted."""
        with self._reads.lock:
            for part in parts:
                part.work.left -= 1
                if part.work.left == 0:
                    read = part.work.read
                    self._reads.end(
                        read, ReadOutcome.FAILED if read.stop else ReadOutcome.OK, read.stop
                    )

    def _targets(self, ranges: Ranges) -> list[memoryview]:
        pools = self._pools
        return [
            pools[t >> POOL_BITS][t & _OFFSET : (t & _OFFSET) + n]
            for t, n in zip(ranges.target.tolist(), ranges.nbytes.tolist(), strict=True)
        ]

    def _dial(self, peer: _TcpPeer) -> Line:
        sock, keys, welcome = dial(peer.address, peer.id.boot, peer.id.rank, key=peer.key)
        if welcome.pools != peer.views:
            sock.close()
            raise FabricError(f"pools {welcome.pools}, the manifest says {peer.views}")
        sock.settimeout(None)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.pack(0, LOOK_US))
        with self._reads.lock:
            peer.lines += 1
        return sock, keys

    def _drop(self, peer: _TcpPeer, line: Line | None) -> None:
        with self._reads.lock:
            if line is not None:
                line[0].close()
                peer.lines -= 1


def _view(pool: Pool) -> memoryview:
    return memoryview((ctypes.c_char * pool.nbytes).from_address(pool.address)).cast("B")


def _decode(peer: RankId, manifest: RankManifest) -> TcpMetadata:
    exposure = exposure_of("tcp", peer, manifest, TcpMetadata)
    if (exposure.boot, exposure.rank) != (peer.boot, peer.rank):
        raise FabricError(
            f"exposure of boot {exposure.boot:x} rank {exposure.rank} given for {peer}"
        )
    require_stated(exposure.pools, manifest)
    if len(exposure.pools) > MAX_POOLS or any(
        not 0 <= nbytes < 1 << POOL_BITS for _, nbytes in exposure.pools
    ):
        raise FabricError(f"exposed pools {exposure.pools}: no such size")
    return exposure
