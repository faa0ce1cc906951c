"""A fabric over a transfer engine (NIXL, Mooncake): one-sided READs by its agents.

    pump thread: connect, submit, cancel, poll ──▶ OpenReads ──▶ fabric thread: calls the agents

Reads are split into parts; a few parts are under way at a time, oldest read first. On one host
posting a part may copy its bytes before it returns, with the GIL released. An idle source still has
to call into its engine now and then, or small reads from it and new connections make no progress;
pace.py says how often.

One agent exposes our pools; each peer is read through an agent of its own (agent_reads.py says
why).

Invariants: the engine's deserialiser gets nothing from the network except an agent's metadata, and
that only inside our schema. All agents are deleted before the interpreter exits, because a process
that exits with a live agent may crash.
"""

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from baton.adapters.agent_reads import Agent, AgentReads, Link, PartLimits
from baton.adapters.cuda_driver import CudaDevice, load_cuda
from baton.adapters.pace import Pace
from baton.adapters.peers import Attempt, Peers, exposure_of, require_stated
from baton.adapters.reachable import memory_of, require_readable
from baton.adapters.reads import OpenReads, Region
from baton.core.errors import FabricError
from baton.core.ids import Boot, GroupName, Micros, RankId
from baton.core.manifest import RankManifest
from baton.core.memory.kinds import HOST, CudaMemory, MemoryKind
from baton.ports.clock import Clock
from baton.ports.fabric import Capabilities, Copies, FabricEvent, Handle, Pool, ReadOutcome

REGISTER_TIMEOUT_S = 60.0  # for registering our pools; no peer waits for us at this time
ADDRESS_LIMIT = 1 << 62  # offsets added to an address stay inside int64
T = TypeVar("T")


class AgentMetadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a reader needs: the agent's metadata, (group, address, bytes) of each pool, and the
    memory of all."""

    agent: str
    metadata: bytes
    pools: tuple[tuple[GroupName, int, int], ...]
    memory: MemoryKind = HOST


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferEngine:
    """A transfer engine as a fabric needs it.

    Attributes:
        name: name of the fabric
        source: makes the agent that exposes our pools, from a name for it; raises ConfigError
        reader: makes an agent that reads, from a name of its own; raises ConfigError
    """

    name: str
    capabilities: Capabilities
    source: Callable[[str], Agent]
    reader: Callable[[str], Agent]


class AgentFabric:
    """Implements ports.fabric.Fabric over an engine.

    `wake` is called from the fabric thread when `poll` has events.

    Raises:
        ConfigError: the engine does not start on this machine
    """

    def __init__(
        self, engine: TransferEngine, boot: Boot, rank: int, wake: Callable[[], None], clock: Clock
    ) -> None:
        self._engine, self._clock = engine, clock
        self._reads = OpenReads(wake)
        self._name = agent_name(boot, rank)
        self._peers: Peers[Link] = Peers(self._reads, clock)
        self._commands: deque[Callable[[], None]] = deque()
        self._pace = Pace()  # guarded by the lock of the open reads
        self._agent = engine.source(self._name)
        self._device: CudaDevice | None = None  # that of our pools, if they are on one
        self._readers = 0
        limits = PartLimits(
            engine.capabilities.max_range_bytes, engine.capabilities.max_ranges_per_call
        )
        self._progress = AgentReads(self._make_reader, self._reads, clock, limits)
        self._thread = threading.Thread(target=self._run, name=f"{engine.name}-{rank}", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    @property
    def name(self) -> str:
        """The engine's."""
        return self._engine.name

    @property
    def capabilities(self) -> Capabilities:
        """The engine's."""
        return self._engine.capabilities

    def expose(self, pools: Mapping[GroupName, Pool]) -> bytes:
        """Register our pools with the agent."""
        assert not self._peers.own, "expose is called once"
        memory = memory_of(pools, self.name, self.capabilities)
        self._peers.own = own = {
            group: Region(pool.address, pool.nbytes, memory) for group, pool in pools.items()
        }
        metadata = self._do(lambda: self._register(list(own.values())))
        places = tuple((g, r.address, r.nbytes) for g, r in own.items())
        return msgspec.msgpack.encode(AgentMetadata(self._name, metadata, places, memory))

    def connect(self, peer: RankId, manifest: RankManifest) -> None:
        """Load a peer's metadata, on the fabric thread. A
        dead peer may be noticed only at the first read."""
        attempt = self._peers.want(peer, manifest)
        if attempt is not None:
            self._post(lambda: self._reach(attempt))

    def disconnect(self, peer: RankId) -> None:
        """Forget a peer and tear down its endpoint; reads from it end FAILED."""
        with self._reads.lock:
            link = self._peers.drop(peer)
            if link is not None:
                self._post(lambda: self._progress.forget(link))

    def submit(
        self, handle: Handle, peer: RankId, copies: Sequence[Copies], *, deadline: Micros
    ) -> None:
        """Queue a read for the fabric thread."""
        with self._reads.lock:
            read, link = self._peers.begin(handle, peer, copies, deadline)
            self._reads.open(read)
            self._post(lambda: self._progress.begin(read, link))

    def cancel(self, handle: Handle) -> None:
        """Post no further part of a read; it ends FAILED when its parts under way have ended."""
        self._reads.stop(handle, "cancelled")

    def poll(self) -> list[FabricEvent]:
        """Return all events since the last call."""
        return self._reads.collect()

    def attend(self) -> None:
        """Look often for a while, because a peer may read from us."""
        with self._reads.lock:
            now = self._clock.now()
            if not self._pace.awake(now):
                self._reads.lock.notify_all()
            self._pace.attend(now)

    def close(self) -> None:
        """Tear down all endpoints, end open reads FAILED (or UNKNOWN), delete the agent."""
        self._peers.close()
        self._thread.join()
        atexit.unregister(self.close)

    # ---- the fabric thread ----------------------------------------------------------------------

    def _post(self, command: Callable[[], None]) -> None:
        with self._reads.lock:
            self._commands.append(command)
            self._reads.lock.notify_all()

    def _do(self, work: Callable[[], T]) -> T:
        """Run `work` on the fabric thread and wait for its result."""
        future: Future[T] = Future()

        def command() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:  # noqa: BLE001  passed to the caller, which raises it
                    future.set_exception(error)

        with self._reads.lock:
            self._peers.require_open()
            self._post(command)
        try:
            return future.result(timeout=REGISTER_TIMEOUT_S)
        except TimeoutError as error:
            raise FabricError(
                f"{self.name} has not answered for {REGISTER_TIMEOUT_S:g} s"
            ) from error

    def _register(self, regions: Sequence[Region]) -> bytes:
        """Register our pools. If they are on a device, its context is this thread's from now on:
        an engine's progress asks for events of the device, which belong to a context."""
        device = next((r.memory for r in regions if isinstance(r.memory, CudaMemory)), None)
        if device is not None:
            self._device = CudaDevice(load_cuda(), device.device)
            for region in regions:
                self._device.require_own(region.address)
            self._device.enter()
        return self._agent.register(regions)

    def _reach(self, attempt: Attempt) -> None:
        self._peers.reach(attempt, self._load, self._progress.forget)

    def _load(self, peer: RankId, manifest: RankManifest) -> Link:
        exposure = _decode(self.name, peer, manifest)
        require_readable(manifest, exposure.memory, self.name, self.capabilities)
        regions = {g: Region(start, nbytes, exposure.memory) for g, start, nbytes in exposure.pools}
        link = Link(peer=peer, agent=exposure.agent, metadata=exposure.metadata, regions=regions)
        self._progress.load(link)
        return link

    def _make_reader(self) -> Agent:
        self._readers += 1
        reader = self._engine.reader(f"{self._name}-reader-{self._readers}")
        with ExitStack() as undo:
            undo.callback(reader.close)
            reader.register(list(self._peers.own.values()))
            undo.pop_all()
        return reader

    def _run(self) -> None:
        try:
            self._serve()
        finally:
            self._peers.abandon(ReadOutcome.UNKNOWN)

    def _serve(self) -> None:
        wait_us = 0
        while self._run_commands(wait_us):
            began = time.thread_time_ns()  # the clock also runs while others have the processor
            self._agent.progress()
            self._progress.progress()
            spent_us = (time.thread_time_ns() - began) / 1000
            moved, reading = self._progress.step(), not self._progress.idle
            with self._reads.lock:
                wait_us = self._pace.after(
                    self._clock.now(), moved=moved, spent_us=spent_us, reading=reading
                )
        self._progress.shut_down()
        self._agent.close()
        if self._device is not None:
            self._device.close()

    def _run_commands(self, wait_us: int) -> bool:
        """Run the pump's commands, after waiting up to
        `wait_us` for one; False = the thread must end."""
        with self._reads.lock:
            if wait_us and not self._commands and not self._peers.closed:
                self._reads.lock.wait(wait_us / 1e6)
            commands, self._commands = self._commands, deque()
            closed = self._peers.closed
        for command in commands:
            command()
        return not closed


def agent_name(boot: Boot, rank: int) -> str:
    """Return the name of a rank's agent. It has the boot, so a restarted rank is another agent."""
    return f"baton-{boot:016x}-{rank}"


def _decode(name: str, peer: RankId, manifest: RankManifest) -> AgentMetadata:
    exposure = exposure_of(name, peer, manifest, AgentMetadata)
    if exposure.agent != agent_name(peer.boot, peer.rank):
        raise FabricError(
            f"exposure of agent {exposure.agent!r} given for {agent_name(peer.boot, peer.rank)!r}"
        )
    require_stated([(group, nbytes) for group, _, nbytes in exposure.pools], manifest)
    for group, address, nbytes in exposure.pools:
        if not (0 < address < ADDRESS_LIMIT and 0 <= nbytes < ADDRESS_LIMIT):
            raise FabricError(
                f"pool {group!r} lies at {address:#x}, {nbytes} bytes: no such address"
            )
    return exposure
