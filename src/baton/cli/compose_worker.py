"""The composition root of a worker process: it builds a rank from settings and runs its pump.

rank 0   Station ── RankResources ── Leader ── WorkerPump   starts other ranks, ends with any
rank r   Station ── RankResources ── RankPump               ends with rank 0
"""

import gc
import os
import sys
from collections.abc import Callable
from typing import NoReturn

import msgspec
import psutil
import structlog

from baton.adapters.directory import GatewayDirectory
from baton.cli import rendezvous
from baton.cli.asked_to_end import AskedToEnd
from baton.cli.compose_rank import PRODUCTION, Ports, RankResources, Station
from baton.cli.health import Health, serve_health
from baton.cli.processes import rank_cores
from baton.cli.ranks import Crew
from baton.core.effects import Effect, Leave
from baton.core.errors import GivenUp, PeerError
from baton.core.events import Core, LeaderEvent
from baton.core.frames import Join
from baton.core.ids import Micros
from baton.core.parts import LeaderParts
from baton.core.scheduler.room import LeaderSettings
from baton.shell.rank_assembly import gather_ranks
from baton.shell.rank_pump import RankPump
from baton.shell.settings import BLOCK_TOKENS, Role, WorkerSettings
from baton.shell.supervisor import PREFIX
from baton.shell.worker import WorkerPump

__all__ = ["PRODUCTION", "Ports", "run_worker"]
log = structlog.get_logger()
LAST_CHUNK_BYTES = 32 << 20  # state of a long prompt's last chunk, whose transfer is not overlapped
MUSTER = Micros(600_000_000)  # until the last rank has loaded its weights


class Member:
    """A running rank, leader or not, as `run_worker` uses it."""

    _station: Station
    _crew: Crew  # the ranks that this process has started
    _body: RankResources
    _pump: WorkerPump | RankPump

    @property
    def why_not_ready(self) -> str | None:
        """What keeps it from its work; None = nothing. For any thread."""
        return self._pump.why_not_ready

    def wake(self) -> None:
        """Wake the pump, so that it checks at once whether to stop."""
        self._station.wake()

    def run(self, asked: AskedToEnd, turned: Callable[[], None]) -> Leave | None:
        """Run the pump until told to stop, or until the worker has drained.

        Args:
            turned: called after each turn

        Returns:
            what the leader has said last, if the worker has drained

        Raises:
            PeerError, ConfigError: another rank has ended
        """
        while not asked.to_end:
            if asked.to_drain:
                self.drain()
            self._station.sleep(asked.sooner(self._pump.turn()), *self._crew.filenos())
            turned()
            self._crew.look()
            if self.left is not None:
                return self.left
        self.drain()
        self._pump.turn()  # gateways hear that it ends because it was asked to
        return None

    @property
    def left(self) -> Leave | None:
        """What the leader has said last, if the worker has drained. None on other ranks, which end
        with it."""
        return None

    def drain(self) -> None:
        """Take no more requests. A rank that does not lead leaves that to its leader."""

    @property
    def wedged(self) -> bool:
        """Whether some of its work never ends, so that `close` would wait for ever."""
        return self._body.host.wedged

    def end_hard(self, why: str) -> NoReturn:
        """Tell the peers and exit without waiting for threads, because one of them hangs.

        The other ranks of this machine end with this process; ranks of other machines end when they
        get the Bye.
        """
        self._station.lines.close()
        self._station.record.close()
        print(f"{PREFIX}{why}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(1)

    def close(self) -> None:
        """Stop the other ranks, tell the peers, stop every thread, and free everything."""
        self._crew.tell()
        self._station.lines.close()
        self._body.close()
        self._station.close()
        self._crew.close()


class WorkerProcess(Member):
    """Rank 0, the leader, in the process that starts the other ranks of its machine."""

    _pump: WorkerPump

    def __init__(self, settings: WorkerSettings, ports: Ports) -> None:
        self.settings = settings
        several = settings.tp * settings.pp > 1
        listens = several or settings.role is Role.PREFILL
        self._station = Station(settings, ports, bind=settings.bind if listens else None)
        # bound before anything is loaded, because the port may be in use
        self._publisher = ports.publisher(settings) if settings.kv_events.on else None
        place = rendezvous.listen(settings.rendezvous) if several else None
        self._crew = start_others(
            settings, rendezvous.address_of(place) if place is not None else None, ports
        )
        store = None
        if place is not None:
            store = rendezvous.open_rendezvous(place)
            assert self._station.control.bound_address is not None
            rendezvous.say_leader(store, self._station.control.bound_address)
        self._body = RankResources(settings, ports, self._station, store)
        settle()
        self.manifest, pids, host_bytes = gather_ranks(
            self._body.manifest,
            self._station.lines,
            self._station.clock,
            sleep=lambda us: self._station.sleep(us, *self._crew.filenos()),
            patience=MUSTER,
            look=self._crew.look,
        )
        self._directory = GatewayDirectory(settings.gateways, self._station.wake)
        self._pump = WorkerPump(
            leader=self._leader((os.getpid(), *pids), min((self._body.host_bytes, *host_bytes))),
            rank=self._body.host,
            others=[rank.boot for rank in self.manifest.ranks[1:]],
            absent=(),
            lines=self._station.lines,
            clock=self._station.clock,
            gateways=self._directory,
            narration=self._station.narration,
            publisher=self._publisher,
        )

    @property
    def left(self) -> Leave | None:
        return self._pump.left

    def drain(self) -> None:
        self._pump.drain()

    def close(self) -> None:
        self._directory.close()
        super().close()
        if self._publisher is not None:
            self._publisher.close()

    def _leader(self, pids: tuple[int, ...], host_bytes: int) -> Core[LeaderEvent, Effect]:
        s, body = self.settings, self._body
        pools = [pool for rank in self.manifest.ranks for pool in rank.pools]
        totals = {
            g.name: min(pool.pages for pool in pools if pool.group == g.name)
            for g in self.manifest.table.groups
        }
        token_bytes = max(1, sum(body.placement.block_bytes(g) for g in totals) // BLOCK_TOKENS)
        settings = LeaderSettings(
            name=s.name,
            address=self._station.control.bound_address,
            step_tokens=s.max_batched_tokens,
            last_chunk_tokens=max(BLOCK_TOKENS, LAST_CHUNK_BYTES // token_bytes),
            max_rooms=s.max_num_seqs,
            max_queue=4096,
            stall_ms=int(s.handoff_timeout_s * 1000),
            fetch_ms=int(s.fetch_timeout_s * 1000),
            pids=pids,
            host_bytes=host_bytes,
            ahead=s.prefill_ahead,
            prefix_cache=s.prefix_caching,
            fetch_back=s.fetch_back,
            local_prefill=s.local_prefill == "auto",
            verify_ms=int(s.cache_verify_interval_s * 1000),
            publish_cache=s.kv_events.on,
            drafts=s.speculative.rule if s.role is not Role.PREFILL else None,
            draft_layer=s.speculative.draft_layer if s.role is not Role.PREFILL else 0,
        )
        parts = LeaderParts(self.manifest, settings, totals)
        return self._station.record.of(parts.make(self._station.plans), parts)


class Follower(Member):
    """Any rank other than 0. The first rank of another machine starts the others there."""

    def __init__(self, settings: WorkerSettings, ports: Ports) -> None:
        assert settings.rendezvous is not None
        self._station = Station(settings, ports, bind=None)
        self._crew = start_others(settings, settings.rendezvous, ports)
        store = rendezvous.find_rendezvous(settings.rendezvous)
        leader = rendezvous.hear_leader(store)
        self._body = RankResources(settings, ports, self._station, store)
        settle()
        self._pump = RankPump(
            rank=self._body.host,
            join=Join(self._body.manifest, os.getpid(), self._body.host_bytes),
            lines=self._station.lines,
            clock=self._station.clock,
            leader=None,
            address=leader,
            narration=self._station.narration,
        )


def settle() -> None:
    """Exclude torch and the model from garbage collection.

    A full collection over them would stall a step for tens of milliseconds. Call this before any
    session begins: on a busy machine it takes seconds, and peers would take this process for dead.
    """
    gc.collect()
    gc.freeze()


def start_others(settings: WorkerSettings, address: str | None, ports: Ports) -> Crew:
    """Start the other ranks of this machine, each with its part of the cores."""
    cores = rank_cores(settings)
    return ports.crew(
        {
            rank: msgspec.structs.replace(
                settings,
                rank=rank,
                rendezvous=address,
                cores=cores[rank - settings.own_rank],
                record=_record_of(settings.record, rank),
            )
            for rank in settings.others_here
        }
    )


def _record_of(record: str | None, rank: int) -> str | None:
    """Return where a rank writes its own log: in the same directory, or beside the file."""
    return record if record is None or os.path.isdir(record) else f"{record}-rank{rank}"


def run_worker(settings: WorkerSettings, ports: Ports = PRODUCTION) -> None:
    """Run one rank, and the ranks that it starts, until a signal or an operator ends it. A worker
    that is to take another role begins again in this process.

    Raises:
        ConfigError: the settings cannot work
    """
    health = Health()
    if settings.health_port is not None and settings.rank is None:
        serve_health(health, settings.health_host, settings.health_port)
    role: Role | None = settings.role
    while role is not None:
        role = _run_as(msgspec.structs.replace(settings, role=role), ports, health)
        if role is not None:  # a process that ends needs no second of collection before that
            gc.unfreeze()
            gc.collect()


def _run_as(settings: WorkerSettings, ports: Ports, health: Health) -> Role | None:
    """Run one rank in one role; returns the role to begin again in, None = end."""
    worker = WorkerProcess(settings, ports) if settings.own_rank == 0 else Follower(settings, ports)
    health.loaded(worker)
    asked = AskedToEnd(settings.drain_timeout_s, worker.wake)
    at, rss = settings.fabric_settings.host, psutil.Process().memory_info().rss >> 20
    log.info("worker_ready", pid=os.getpid(), reached_at=at, rss_mib=rss)
    try:
        left = worker.run(asked, health.turned)
    except GivenUp as error:
        worker.end_hard(str(error))
    except PeerError as error:
        if worker.wedged:
            worker.end_hard(str(error))
        if asked.to_drain:  # ranks that stop together may see each other end
            return None
        raise
    finally:
        health.ending()
        worker.close()
        asked.release()
    if left is None or left.role is None or asked.to_drain:
        return None
    if settings.nnodes > 1:
        log.warning(
            "role_kept", why="its ranks on other machines have the role that they were given"
        )
        return None
    return Role(left.role)
