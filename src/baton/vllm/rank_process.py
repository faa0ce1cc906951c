"""A rank in the process of a vLLM worker: fabrics over vLLM's own memory, and a pump on a thread.

rank 0   leader, rank and the link to the scheduler: one thread, which sleeps until woken
rank r   its rank, which gets plans from the leader and sends reports: likewise
"""

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import structlog

from baton.adapters import fabrics
from baton.adapters.clock import MonotonicClock
from baton.adapters.directory import GatewayDirectory
from baton.adapters.entropy import SystemEntropy
from baton.adapters.secret import load_secret
from baton.adapters.zmq_control import ZmqControl
from baton.core.errors import BatonError, ConfigError
from baton.core.frames import Join
from baton.core.handoff.plans import Plans
from baton.core.handoff.seal import identity_bits
from baton.core.ids import Boot, GroupName, Micros, Rank
from baton.core.manifest import Manifest, PoolView, RankManifest
from baton.core.memory.state import Placement
from baton.core.parts import LeaderParts, RankParts
from baton.core.protocol import PROTOCOL
from baton.core.rank.watchdog import WatchdogSettings
from baton.core.scheduler.room import LeaderSettings
from baton.core.session.session import SessionLimits, Sessions
from baton.core.work import Copied, HostCopy
from baton.ports.fabric_settings import FabricSettings
from baton.ports.host_store import HostStore
from baton.shell.lines import Lines
from baton.shell.narration import Narration
from baton.shell.rank_assembly import gather_ranks
from baton.shell.rank_host import RankHost
from baton.shell.rank_pump import RankPump
from baton.shell.wake import Wake, sleep_until
from baton.shell.worker import WorkerPump
from baton.vllm.guest_engine import GuestEngine
from baton.vllm.guest_link import LeaderEnd
from baton.vllm.memory import KVMemory
from baton.vllm.settings import ConnectorSettings
from baton.wire.codec import MAX_FRAME_BYTES

log = structlog.get_logger()
MOST_ROOMS = 4096
MUSTER = Micros(120_000_000)  # until all ranks have their KV caches; vLLM makes them together
UNWATCHED = WatchdogSettings(0, 0)  # how long a step may take is vLLM's affair


class NoHostStore:
    """Implements ports.host_store for a rank that offloads nothing: vLLM has its own ways."""

    held: Mapping[Any, Mapping[GroupName, int]] = {}

    def save(self, copy: HostCopy) -> None:
        raise AssertionError("a guest does not preempt")

    def load(self, copy: HostCopy) -> None:
        raise AssertionError("a guest does not preempt")

    def discard(self, key: Any) -> None:
        """Do nothing: nothing is kept."""

    def poll(self) -> list[Copied]:
        return []

    def close(self) -> None:
        """Do nothing."""


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine serves, as vLLM's configuration says.

    Attributes:
        role: "prefill" or "decode"
        weights: identity of the checkpoint, hex
        placements: of all its ranks
        rank: number of this one
        pages: blocks of the KV cache of this rank
    """

    role: str
    model: str
    weights: str
    dtype: str
    max_model_len: int
    placements: tuple[Placement, ...]
    rank: int
    pages: int

    @property
    def placement(self) -> Placement:
        """That of this rank."""
        return self.placements[self.rank]

    @property
    def group(self) -> GroupName:
        """The only group of pages."""
        return self.placement.table.groups[0].name


class RankProcess:
    """A rank of an engine: `join` the others, then `start`.

    Args:
        memory: of the KV cache of this rank

    Attributes:
        link: the scheduler's; None on ranks other than rank 0
    """

    def __init__(self, settings: ConnectorSettings, served: Served, memory: KVMemory) -> None:
        self._wake, self._clock = Wake(), MonotonicClock()
        self._boot = Boot(SystemEntropy().bits(64))
        self._secret = load_secret(Path(settings.secret)) if settings.secret else None
        self.engine = GuestEngine(
            pools={served.group: memory.pool},
            sums={
                served.group: memory.sums(
                    served.placement, served.group, identity_bits(served.weights)
                )
            },
            pages={served.group: served.pages},
            wake=self._wake,
        )
        parts = fabrics.FabricParts(
            self._boot,
            served.rank,
            self._wake,
            self._clock,
            FabricSettings(host=settings.host),
            self._secret,
        )
        made = {n: fabrics.make(n, parts) for n in fabrics.usable(settings.fabric)}
        self._fabrics = fabrics.keep_reaching(made, self.engine.pools)
        self.link = LeaderEnd() if served.rank == 0 else None
        self._control = ZmqControl(
            bind=settings.bind, keys=self._secret, max_frame_bytes=MAX_FRAME_BYTES
        )
        self._lines = Lines(Sessions(self._boot, SessionLimits()), self._control, self._clock)
        self._settings, self._served = settings, served
        self._directory: GatewayDirectory | None = None  # of rank 0
        self._pump: WorkerPump | RankPump | None = None
        self._failed = ""  # why the pump has ended; empty while it runs
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="baton-pump", daemon=True)

    @property
    def address(self) -> str:
        """The control address, which the other ranks of the engine need of rank 0."""
        bound = self._control.bound_address
        assert bound is not None
        return bound

    def join(self, leader: str) -> None:
        """Join the other ranks of the engine.

        Rank 0 waits for all of them; the others join when they have started.

        Args:
            leader: control address of rank 0

        Raises:
            ConfigError: a rank does not fit
            PeerError: a rank has not joined in time
        """
        plans, narration, served = Plans(), Narration(), self._served
        store: HostStore = NoHostStore()
        core = RankParts(Rank(served.rank), self._boot, served.placements, seal=True)
        rank = RankHost(
            core=core.make(plans),
            engine=self.engine,
            fabrics=self._fabrics,
            store=store,
            clock=self._clock,
            narration=narration,
            watchdog=UNWATCHED,
        )
        own = self._manifest(served)
        if self.link is None:
            self._pump = RankPump(
                rank=rank,
                join=Join(own, os.getpid(), 0),
                lines=self._lines,
                clock=self._clock,
                leader=None,
                address=leader,
                narration=narration,
            )
            return
        manifest, pids, _ = gather_ranks(
            own,
            self._lines,
            self._clock,
            sleep=lambda us: sleep_until((self._control.fileno(),), us),
            patience=MUSTER,
            look=lambda: None,
        )
        pages = min(pool.pages for r in manifest.ranks for pool in r.pools)
        self._directory = GatewayDirectory(self._settings.gateways, self._wake)
        made = LeaderParts(
            manifest, self._leader_settings((os.getpid(), *pids)), {served.group: pages}
        )
        self._pump = WorkerPump(
            leader=made.make(plans),
            rank=rank,
            others=[r.boot for r in manifest.ranks[1:]],
            absent=(),
            lines=self._lines,
            clock=self._clock,
            gateways=self._directory,
            narration=narration,
            guest=self.link,
        )

    def _manifest(self, served: Served) -> Manifest:
        place, pool = served.placement, self.engine.pools[served.group]
        rank = RankManifest(
            self._boot,
            served.rank,
            place.tp_rank,
            0,
            (PoolView(served.group, served.pages, pool.nbytes, pool.memory),),
            {name: f.expose(self.engine.pools) for name, f in self._fabrics.items()},
            fabrics.near(self._fabrics),
            place.strides,
            fabrics.on_devices(self._fabrics),
        )
        return Manifest(
            protocol=PROTOCOL,
            role=served.role,
            model=served.model,
            weights=served.weights,
            dtype=served.dtype,
            table=place.table,
            page_blocks=place.page_blocks,
            tp=place.tp,
            pp=place.pp,
            max_model_len=served.max_model_len,
            seal=True,
            ranks=(rank,),
            guest=True,
        )

    def _leader_settings(self, pids: tuple[int, ...]) -> LeaderSettings:
        settings = self._settings
        return LeaderSettings(
            name=settings.name,
            address=self.address,
            # vLLM composes the steps
            step_tokens=1,
            last_chunk_tokens=1,
            max_rooms=MOST_ROOMS,
            max_queue=MOST_ROOMS,
            stall_ms=int(settings.handoff_timeout_s * 1000),
            fetch_ms=int(settings.fetch_timeout_s * 1000),
            pids=pids,
            url=settings.url,
        )

    def start(self) -> None:
        """Start the pump."""
        self._thread.start()

    def _run(self) -> None:
        assert self._pump is not None, "join comes first"
        link = (self.link.fileno(),) if self.link is not None else ()
        sources = (self._control.fileno(), self._wake.fileno(), *link)
        why = "its thread has ended"
        try:
            while not self._stopped:
                sleep_until(sources, self._pump.turn())
                self._wake.clear()
        except BatonError as error:
            why = str(error)
            log.critical("baton_pump_ended", why=why)
        except BaseException as error:
            why = f"its thread raised {type(error).__name__}: {error}"
            raise
        finally:
            # vLLM's next step must not wait for a pump that has ended in any way
            self._failed = "" if self._stopped else why

    def require_alive(self) -> None:
        """Check that the pump runs.

        Raises:
            ConfigError: it has ended
        """
        if self._failed:
            raise ConfigError(f"Baton's connector has ended: {self._failed}")

    def close(self) -> None:
        """Stop the pump, tell the peers, and free everything but vLLM's memory."""
        self._stopped = True
        if self._directory is not None:
            self._directory.close()
        self._wake()
        if self._thread.is_alive():
            self._thread.join()
        self._lines.close()
        for fabric in self._fabrics.values():
            fabric.close()
        self.engine.close()
        if self.link is not None:
            self.link.close()
        self._wake.close()
