"""The composition root of a worker process: settings in, a running pump out.

Everything outside comes through `Ports`, so a test can hand in a fabric that lies, or a control plane that is
late, and run the production code around it.
"""

import gc
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import structlog

from baton.adapters import fabrics
from baton.adapters.clock import MonotonicClock
from baton.adapters.entropy import SystemEntropy
from baton.adapters.memory import HostPool, available_bytes, require_memory
from baton.adapters.secret import Secret, load_secret
from baton.adapters.zmq_control import ZmqControl
from baton.cli.record import making
from baton.core.cores import AnyLeader, LeaderParts, RankParts
from baton.core.errors import ConfigError, FabricError, Mismatch
from baton.core.ids import Boot, GroupName, Rank
from baton.core.manifest import Manifest, PoolView, RankManifest
from baton.core.messages import PROTOCOL
from baton.core.room import LeaderSettings
from baton.core.seal import identity_bits
from baton.core.session import SessionLimits, Sessions
from baton.core.state import DType, Placement
from baton.ports.clock import Clock
from baton.ports.control import Control
from baton.ports.engine import Engine
from baton.ports.entropy import Entropy
from baton.ports.fabric import Fabric
from baton.shell.lines import Lines
from baton.shell.narration import Narration
from baton.shell.rank_host import RankHost
from baton.shell.settings import BLOCK_TOKENS, Role, WorkerSettings
from baton.shell.wake import Wake, sleep_until
from baton.shell.worker import WorkerPump
from baton.wire.codec import MAX_FRAME_BYTES

log = structlog.get_logger()
DEFAULT_MEMORY_SHARE = 0.25  # of what is free, for a pool whose size nobody gave
LAST_CHUNK_BYTES = 32 << 20  # state of a long prompt's last chunk, whose transfer nothing hides
SERVED: Mapping[str, DType] = {"bfloat16": DType.BF16, "float32": DType.F32, "float16": DType.F16}
MakeFabric = Callable[[str, fabrics.Parts], Fabric]
MakeControl = Callable[[str | None, Secret | None], Control]


def _make_control(bind: str | None, secret: Secret | None) -> Control:
    return ZmqControl(bind=bind, secret=secret, max_frame_bytes=MAX_FRAME_BYTES)


@dataclass(frozen=True)
class Ports:
    """How the outside things of a worker are made."""

    clock: Callable[[], Clock] = MonotonicClock
    entropy: Callable[[], Entropy] = SystemEntropy
    fabric: MakeFabric = fabrics.make
    control: MakeControl = _make_control


PRODUCTION = Ports()


class Worker:
    """All parts of one worker process; `close` frees them in the order in which they depend on each other."""

    def __init__(self, settings: WorkerSettings, ports: Ports) -> None:
        self.settings = settings
        self.wake = Wake()
        clock, boot = ports.clock(), Boot(ports.entropy().bits(64))
        self._making = making(settings.record, name=settings.name, clock=clock)
        structlog.contextvars.bind_contextvars(worker=settings.name)
        secret = load_secret(Path(settings.secret)) if settings.secret else None
        self._control = ports.control(settings.bind if settings.role is Role.PREFILL else None, secret)
        self._load(clock)
        parts = fabrics.Parts(boot, 0, self.wake, clock, settings.fabric_settings, secret)
        self._fabrics = {n: ports.fabric(n, parts) for n in fabrics.usable(settings.fabrics)}
        exposures = {n: f.expose(self.engine.pools) for n, f in self._fabrics.items()}
        self.manifest = self._manifest(boot, exposures)
        leader = self._leader()
        core = self._making.cores.rank(RankParts(Rank(0), boot, (self.placement,), settings.seal))
        narration = Narration()
        rank = RankHost(core=core, engine=self.engine, fabrics=self._fabrics, clock=clock, narration=narration)
        self._lines = Lines(Sessions(boot, SessionLimits()), self._control, clock)
        self.pump = WorkerPump(
            leader=leader,
            rank=rank,
            others=(),
            absent=(),
            lines=self._lines,
            clock=clock,
            gateways=settings.gateways,
            narration=narration,
        )

    def _load(self, clock: Clock) -> None:
        from baton.engine.attention.cpu import CpuAttention
        from baton.engine.checkpoint import Checkpoint
        from baton.engine.comm import Alone
        from baton.engine.digest import block_sums
        from baton.engine.engine import TorchEngine
        from baton.engine.kernels.team import Team
        from baton.engine.models import FAMILIES
        from baton.engine.models.base import KV, family_of
        from baton.engine.models.config import identity
        from baton.engine.ops import CpuOps

        s, started = self.settings, clock.now()
        checkpoint = Checkpoint.open(Path(s.model))
        family = family_of(checkpoint.config, FAMILIES)
        self.dtype = served_dtype(s.dtype, checkpoint.config)
        table = family.table(checkpoint.config, block_tokens=BLOCK_TOKENS, dtype=SERVED[self.dtype])
        self.placement = Placement(table, 1, 1, 0, 0, s.page_blocks)
        self.max_model_len = model_length(s.max_model_len, *family.longest(checkpoint.config))
        nbytes = self._pool_bytes(self.placement)
        for group, size in nbytes.items():
            require_memory(size, f"the pool of group {group}")
        ops = CpuOps(SERVED[self.dtype], Team(s.threads))
        model = family.build(checkpoint, self.placement, SERVED[self.dtype], ops, Alone(), longest=self.max_model_len)
        config = family.read(checkpoint.config, longest=self.max_model_len)
        self.weights = identity(checkpoint.identity(self.dtype), config)
        pools = {group: HostPool(size, what=f"the pool of group {group}") for group, size in nbytes.items()}
        self._host_pools = pools
        attention = CpuAttention(pools[KV], self.placement)
        attention.warm()
        self.engine: Engine = TorchEngine(
            model=model,
            placement=self.placement,
            pools=pools,
            attention=attention,
            block_sums=block_sums,
            identity=identity_bits(self.weights),
            threads=s.threads,
            wake=self.wake,
        )
        log.info("model_loaded", model=s.model, dtype=self.dtype, seconds=round((clock.now() - started) / 1e6, 2))

    def _pool_bytes(self, placement: Placement) -> dict[GroupName, int]:
        """Bytes of every group's pool; all groups get the same number of pages."""
        s = self.settings
        page = {g.name: placement.page_bytes(g.name) for g in placement.table.groups}
        budget = s.kv_bytes if s.kv_bytes is not None else int(available_bytes() * DEFAULT_MEMORY_SHARE)
        pages = s.kv_pages if s.kv_pages is not None else budget // sum(page.values())
        if s.kv_pages is None and s.kv_bytes is None:
            enough = s.max_num_seqs * -(-self.max_model_len // s.page_tokens)
            pages = min(pages, enough)
        if pages < 1:
            raise ConfigError(f"a pool of {budget} bytes holds no page of {sum(page.values())} bytes; raise --kv-memory")
        return {g: pages * size for g, size in page.items()}

    def _manifest(self, boot: Boot, exposures: dict[str, bytes]) -> Manifest:
        s = self.settings
        pools = tuple(PoolView(g, n, self.engine.pools[g].nbytes) for g, n in self.engine.pool_pages.items())
        return Manifest(
            protocol=PROTOCOL,
            role=s.role.value,
            model=s.served_model_name,
            weights=self.weights,
            dtype=self.dtype,
            table=self.placement.table,
            page_blocks=s.page_blocks,
            tp=1,
            pp=1,
            max_model_len=self.max_model_len,
            seal=s.seal,
            ranks=(RankManifest(boot, 0, 0, 0, pools, exposures),),
        )

    def _leader(self) -> AnyLeader:
        s, totals = self.settings, dict(self.engine.pool_pages)
        token_bytes = max(1, sum(self.placement.block_bytes(g) for g in totals) // BLOCK_TOKENS)
        settings = LeaderSettings(
            name=s.name,
            address=self._control.bound_address,
            step_tokens=s.max_batched_tokens,
            last_chunk_tokens=max(BLOCK_TOKENS, LAST_CHUNK_BYTES // token_bytes),
            max_rooms=s.max_num_seqs,
            max_queue=4096,
            stall_ms=s.stall_ms,
            fetch_ms=s.fetch_ms,
            pids=(os.getpid(),),
        )
        return self._making.cores.leader(LeaderParts(self.manifest, settings, totals), self._choose_fabric)

    def _choose_fabric(self, theirs: Manifest) -> str:
        ours = self.manifest.ranks[0].exposures
        there = theirs.ranks[0].exposures
        capabilities = {n: f.capabilities for n, f in self._fabrics.items()}
        try:
            name, why = fabrics.choose(capabilities, there, same_host=fabrics.same_host(ours, there))
        except FabricError as error:
            raise Mismatch("fabric", sorted(ours), sorted(there), str(error)) from error
        log.info("fabric_chosen", fabric=name, why=why, peer=f"{theirs.boot:x}")
        return name

    def run(self, stopped: Callable[[], bool]) -> None:
        """Turn the pump until told to stop."""
        filenos = (self._control.fileno(), self.wake.fileno())
        while not stopped():
            timeout = self.pump.turn()
            sleep_until(filenos, timeout)
            self.wake.clear()

    def close(self) -> None:
        """Say goodbye, end every thread, free everything."""
        self._lines.close()
        for fabric in self._fabrics.values():
            fabric.close()
        self.engine.close()
        for pool in self._host_pools.values():
            pool.close()
        self.wake.close()
        self._making.close()


def served_dtype(wanted: str, config: Mapping[str, object]) -> str:
    """The dtype to serve in; "auto" is the checkpoint's own."""
    name = str(config.get("dtype") or config.get("torch_dtype") or "float32") if wanted == "auto" else wanted
    if name not in SERVED:
        raise ConfigError(f"dtype {name!r} is not supported; supported are {sorted(SERVED)}")
    return name


def model_length(wanted: int | None, own: int, most: int) -> int:
    """Positions of one request, prompt and answer: `own` unless told. Raises ConfigError beyond `most`."""
    if wanted is not None and wanted > most:
        raise ConfigError(f"--max-model-len {wanted} exceeds the model's {most} positions")
    return wanted if wanted is not None else own


def run_worker(settings: WorkerSettings, ports: Ports = PRODUCTION) -> None:
    """Run one worker until SIGTERM or SIGINT. Raises ConfigError for settings that cannot work."""
    stop = False

    def on_signal(_number: int, _frame: object) -> None:
        nonlocal stop
        stop = True
        worker.wake()

    worker = Worker(settings, ports)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    gc.collect()
    gc.freeze()  # torch and the model are here to stay: a full collection over them stalls a step for tens of milliseconds
    log.info("worker_ready", pid=os.getpid(), rss_mib=psutil.Process().memory_info().rss >> 20)
    try:
        worker.run(lambda: stop)
    finally:
        worker.close()
