"""Builds the parts of a rank: model, pools, fabrics, a core, and connections to other processes.

Everything outside comes through `Ports`, so a test can pass in a fabric that corrupts reads, or a
slow control plane, and run the production code around it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from baton.adapters import fabrics
from baton.adapters.clock import MonotonicClock
from baton.adapters.credentials import Credentials, load_credentials
from baton.adapters.entropy import SystemEntropy
from baton.adapters.host_memory import HostMemory
from baton.adapters.memory import HostPool, available_bytes, require_memory
from baton.adapters.zmq_control import ZmqControl
from baton.adapters.zmq_events import ZmqEventPublisher
from baton.cli.host_share import automatic, uses_host_memory
from baton.cli.kernel_cache import compiled
from baton.cli.own_address import LOOPBACK
from baton.cli.pool_size import Use, pool_pages
from baton.cli.ranks import Crew, start_ranks
from baton.cli.record import recording
from baton.core.errors import ConfigError
from baton.core.handoff.plans import Plans
from baton.core.handoff.seal import identity_bits
from baton.core.ids import Boot, GroupName, Micros, Rank
from baton.core.manifest import Manifest, PoolView, RankManifest
from baton.core.memory.state import DType, Placement, StateTable
from baton.core.parts import RankParts
from baton.core.protocol import PROTOCOL
from baton.core.scheduler.drafting import require_draftable
from baton.core.session.session import SessionLimits, Sessions
from baton.ports.clock import Clock
from baton.ports.control import Control
from baton.ports.engine import Engine
from baton.ports.entropy import Entropy
from baton.ports.fabric import Fabric
from baton.ports.kv_events import EventPublisher
from baton.shell.lines import Lines
from baton.shell.narration import Narration
from baton.shell.rank_host import RankHost
from baton.shell.settings import BLOCK_TOKENS, Role, WorkerSettings
from baton.shell.wake import Wake, sleep_until
from baton.wire.codec import MAX_FRAME_BYTES

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

    from baton.engine.grammars import BuildMatcher
    from baton.engine.models.base import Family

log = structlog.get_logger()
COLLECTIVE_S = 300.0  # the session or the supervisor notices a lost rank long before
SERVED: Mapping[str, DType] = {"bfloat16": DType.BF16, "float32": DType.F32, "float16": DType.F16}
MakeFabric = Callable[[str, fabrics.FabricParts], Fabric]
MakeControl = Callable[[str | None, Credentials | None], Control]
MakeCrew = Callable[[Mapping[int, WorkerSettings]], Crew]
MakePublisher = Callable[[WorkerSettings], EventPublisher]


def _make_control(bind: str | None, keys: Credentials | None) -> Control:
    return ZmqControl(bind=bind, keys=keys, max_frame_bytes=MAX_FRAME_BYTES)


def _make_publisher(settings: WorkerSettings) -> EventPublisher:
    return ZmqEventPublisher(
        settings.kv_events, rank=settings.kv_events_rank, block_size=settings.page_tokens
    )


@dataclass(frozen=True)
class Ports:
    """Factories for the adapters of a worker. `crew` starts ranks, each with its own settings."""

    clock: Callable[[], Clock] = MonotonicClock
    entropy: Callable[[], Entropy] = SystemEntropy
    fabric: MakeFabric = fabrics.make
    control: MakeControl = _make_control
    crew: MakeCrew = start_ranks
    publisher: MakePublisher = _make_publisher


PRODUCTION = Ports()


class Station:
    """A rank's clock, its boot, and its lines to other processes.

    The lines listen at `bind`; None = they only dial.
    """

    def __init__(self, settings: WorkerSettings, ports: Ports, *, bind: str | None) -> None:
        self.name = (
            settings.name if settings.own_rank == 0 else f"{settings.name}-rank{settings.own_rank}"
        )
        self.wake, self.clock, self.boot = Wake(), ports.clock(), Boot(ports.entropy().bits(64))
        self.plans, self.record = Plans(), recording(settings.record, name=self.name)
        structlog.contextvars.bind_contextvars(worker=self.name)
        self.keys = load_credentials(settings.secret, settings.members)
        self.control = ports.control(bind, self.keys)
        self.lines = Lines(Sessions(self.boot, SessionLimits()), self.control, self.clock)
        self.narration = Narration()

    def sleep(self, timeout: Micros | None, *more: int) -> None:
        """Sleep until something comes in, here or at the descriptors `more`, at most for `timeout`.

        None = no timeout.
        """
        sleep_until((self.control.fileno(), self.wake.fileno(), *more), timeout)
        self.wake.clear()

    def close(self) -> None:
        """Free the rest, after the lines are closed."""
        self.wake.close()
        self.record.close()


class RankResources:
    """One rank's model, pools, fabrics and core; `close` frees them in order of their dependencies.

    `store` is the worker's rendezvous; None for a worker of one rank.

    Raises:
        ConfigError: the settings, the checkpoint and the machine do not fit together
    """

    def __init__(
        self, settings: WorkerSettings, ports: Ports, station: Station, store: "Store | None"
    ) -> None:
        self.settings, self.rank = settings, settings.own_rank
        self._load(station, store)
        parts = fabrics.FabricParts(
            station.boot,
            self.rank,
            station.wake,
            station.clock,
            settings.fabric_settings,
            station.keys,
        )
        allowed = fabrics.guarded(settings.fabrics, settings.fabric_settings)
        made = {n: ports.fabric(n, parts) for n in fabrics.usable(allowed)}
        self.fabrics = fabrics.keep_reaching(made, self.engine.pools)
        exposures = {n: f.expose(self.engine.pools) for n, f in self.fabrics.items()}
        self.manifest = self._manifest(station.boot, exposures)
        core = RankParts(Rank(self.rank), station.boot, self.placements, settings.seal)
        self.host = RankHost(
            core=station.record.of(core.make(station.plans), core),
            engine=self.engine,
            fabrics=self.fabrics,
            store=self._store,
            clock=station.clock,
            narration=station.narration,
            watchdog=settings.watchdog,
        )

    def _host_bytes(self) -> int:
        """Return the host memory for the state of preempted requests or, on prefill, for
        checkpoints; 0 if this worker neither generates nor keeps any."""
        s = self.settings
        if not uses_host_memory(s, self.placement.table):
            return 0
        said = s.host_kv_memory.nbytes
        if said is None:
            pools = sum(pool.nbytes for pool in self._host_pools.values())
            return automatic(
                pools, available=available_bytes(), ranks=s.ranks_here * s.host_kv_memory.sharers
            )
        if said:
            require_memory(said, "the host memory for state (--host-kv-memory)")
        return said

    def _load(self, station: Station, store: "Store | None") -> None:
        from baton.engine.attention.registry import Backends
        from baton.engine.checkpoint import Checkpoint
        from baton.engine.comm import Alone, GlooComm
        from baton.engine.cpu_ops import CpuOps
        from baton.engine.digest import block_sums
        from baton.engine.engine import TorchEngine
        from baton.engine.kernels.team import Team
        from baton.engine.models import FAMILIES
        from baton.engine.models.base import family_of
        from baton.engine.models.config import identity

        s, started = self.settings, station.clock.now()
        if not compiled():
            log.info(
                "kernels_not_compiled",
                why="this start compiles them, which takes a minute or more; after an "
                "installation, python -m baton.cli.kernels does",
            )
        checkpoint = Checkpoint.open(Path(s.model))
        family = family_of(checkpoint.config, FAMILIES)
        # checked first, because the state table has only K/V heads
        family.require_width(checkpoint.config, s.tp)
        self.dtype = served_dtype(s.dtype, checkpoint.config)
        table = served_table(
            family,
            checkpoint.config,
            dtype=SERVED[self.dtype],
            index_dtype=s.index_dtype,
            draft_layer=bool(s.speculative.draft_layer),
        )
        if s.role is not Role.PREFILL and s.speculative.method is not None:
            require_draftable(table, pp=s.pp)
        ranks = range(s.tp * s.pp)
        self.placements = tuple(
            Placement(table, s.tp, s.pp, r % s.tp, r // s.tp, s.page_blocks) for r in ranks
        )
        self.placement = self.placements[self.rank]
        self.max_model_len = model_length(s.max_model_len, *family.longest(checkpoint.config))
        nbytes = self._pool_bytes(self.placement)
        for group, size in nbytes.items():
            require_memory(size, f"the pool of group {group}")
        team = Team(s.threads)
        ops = CpuOps(SERVED[self.dtype], team)
        # Gloo does not authenticate, so the ranks of one machine use loopback.
        host = s.fabric_settings.host if s.nnodes > 1 else LOOPBACK
        self._comm = (
            GlooComm(self.placement, store, host=host, timeout_s=COLLECTIVE_S)
            if store is not None
            else Alone()
        )
        model = family.build(
            checkpoint,
            self.placement,
            SERVED[self.dtype],
            ops,
            self._comm,
            longest=self.max_model_len,
        )
        config = family.read(checkpoint.config, longest=self.max_model_len)
        self.weights = identity(checkpoint.identity(self.dtype), config)
        pools = {
            group: HostPool(size, what=f"the pool of group {group}")
            for group, size in nbytes.items()
        }
        self._host_pools = pools
        self.host_bytes = self._host_bytes()
        block_bytes = {group: self.placement.block_bytes(group) for group in pools}
        self._store = HostMemory(
            pools=pools, block_bytes=block_bytes, total=self.host_bytes, wake=station.wake
        )
        backends = Backends(pools, self.placement, team=team)
        backends.warm()
        self.engine: Engine = TorchEngine(
            model=model,
            placement=self.placement,
            pools=pools,
            backends=backends,
            block_sums=block_sums,
            identity=identity_bits(self.weights),
            threads=s.threads,
            wake=station.wake,
            build_matcher=self._matchers(model.vocab_size),
            comm=self._comm,
            rehearse=lambda: ops.rehearse(
                s.max_num_seqs if s.role is Role.DECODE else s.max_batched_tokens
            ),
        )
        log.info(
            "model_loaded",
            model=s.model,
            dtype=self.dtype,
            seconds=round((station.clock.now() - started) / 1e6, 2),
        )

    def _matchers(self, vocab_size: int) -> "BuildMatcher":
        """Return what builds the matchers of grammars; ranks that sample no tokens need none."""
        from baton.core.matchers import GrammarError
        from baton.engine.grammars import no_grammars
        from baton.grammar.matcher import LlguidanceMatcher
        from baton.grammar.vocabulary import Vocabulary
        from baton.vocabulary.load import vocabulary_of
        from baton.vocabulary.special_tokens import end_tokens

        s = self.settings
        if self.placement.tp_rank or self.placement.pp_rank < s.pp - 1:
            return no_grammars
        model = Path(s.model)
        vocabulary = Vocabulary(lambda: vocabulary_of(model).to_str(), size=vocab_size)
        try:
            vocabulary.ending_with(end_tokens(model, vocabulary_of(model), size=vocab_size))
        except (ConfigError, GrammarError) as error:  # requests without a grammar are served
            log.warning("no_grammars", why=str(error))
        return lambda grammar: LlguidanceMatcher(grammar, vocabulary)

    def _pool_bytes(self, placement: Placement) -> dict[GroupName, int]:
        """Return the bytes of the pool of each group in which this rank has layers."""
        s = self.settings
        use = Use(rooms=s.max_num_seqs, tokens=self.max_model_len, step=s.room_step)
        pages = pool_pages(placement, use, pages=s.kv_pages, budget=s.pool_bytes or 0)
        return {g: n * size for g, n in pages.items() if (size := placement.page_bytes(g))}

    def _manifest(self, boot: Boot, exposures: dict[str, bytes]) -> Manifest:
        """Return the worker's manifest with this rank as its only rank; the leader merges them."""
        s, p = self.settings, self.placement
        pools = tuple(
            PoolView(g, n, self.engine.pools[g].nbytes, self.engine.pools[g].memory)
            for g, n in self.engine.pool_pages.items()
        )
        return Manifest(
            protocol=PROTOCOL,
            role=s.role.value,
            model=s.served_model_name,
            weights=self.weights,
            dtype=self.dtype,
            table=p.table,
            page_blocks=s.page_blocks,
            tp=s.tp,
            pp=s.pp,
            max_model_len=self.max_model_len,
            seal=s.seal,
            ranks=(
                RankManifest(
                    boot,
                    self.rank,
                    p.tp_rank,
                    p.pp_rank,
                    pools,
                    exposures,
                    fabrics.near(self.fabrics),
                    device_fabrics=fabrics.on_devices(self.fabrics),
                ),
            ),
        )

    def close(self) -> None:
        """Stop every thread and free everything."""
        self._comm.close()  # ends a batch that waits for another rank
        for fabric in self.fabrics.values():
            fabric.close()
        self._store.close()
        self.engine.close()
        for pool in self._host_pools.values():
            pool.close()


def served_dtype(wanted: str, config: Mapping[str, object]) -> str:
    """Return the dtype to serve in; "auto" is the checkpoint's own."""
    name = (
        str(config.get("dtype") or config.get("torch_dtype") or "float32")
        if wanted == "auto"
        else wanted
    )
    if name not in SERVED:
        raise ConfigError(f"dtype {name!r} is not supported; supported are {sorted(SERVED)}")
    return name


def served_table(
    family: "Family",
    config: Mapping[str, Any],
    *,
    dtype: DType,
    index_dtype: str,
    draft_layer: bool,
) -> StateTable:
    """Return the state table of the served model.

    Raises:
        ConfigError: `index_dtype` is fp8, but the model has no index; or it has no draft layer
    """
    from baton.engine.attention.index import with_fp8_index

    table = family.table(config, block_tokens=BLOCK_TOKENS, dtype=dtype)
    if draft_layer:
        table = family.with_draft_layer(config, table)
    return with_fp8_index(table) if index_dtype == "fp8" else table


def model_length(wanted: int | None, own: int, most: int) -> int:
    """Return the maximum length of a request: `wanted`, or `own` if that is None.

    Raises:
        ConfigError: `wanted` is more than `most`
    """
    if wanted is not None and wanted > most:
        raise ConfigError(f"--max-model-len {wanted} exceeds the model's {most} positions")
    return wanted if wanted is not None else own
