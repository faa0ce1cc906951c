"""One incarnation of a simulated worker: the processes of its ranks, with the pumps that are
shipped, over simulated ports."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import msgspec

from baton.core.agreement import StepPlan
from baton.core.effects import Effect, Issue, Send
from baton.core.errors import Bug
from baton.core.events import LeaderEvent, MessageReceived, PeerLost, RankEvent, RankReported
from baton.core.frames import Join, Said
from baton.core.ids import Boot, CheckpointName, GroupName, Rank
from baton.core.manifest import Manifest, PoolView, RankManifest
from baton.core.memory.prefix_cache import CachedPage
from baton.core.memory.span import Span
from baton.core.memory.state import Group, Placement, Unit
from baton.core.messages import Loan, Offer, Ticket
from baton.core.parts import LeaderParts, RankParts
from baton.core.rank.rank import RankCore
from baton.core.rank.rank_effects import Digest, RankEffect
from baton.core.rank.watchdog import WatchdogSettings
from baton.core.scheduler.checkpointing import Checkpointing
from baton.core.scheduler.leader import Leader
from baton.core.scheduler.lookup_rule import LookupRule
from baton.core.scheduler.room import LeaderSettings
from baton.dev.sim.at_rest import Where
from baton.dev.sim.books import PlanBook, ShadowBooks
from baton.dev.sim.cache_news import untrue
from baton.dev.sim.caches import CacheBook
from baton.dev.sim.checked import Checked
from baton.dev.sim.collective import Collective
from baton.dev.sim.confusion import Voice
from baton.dev.sim.engine import SimEngine
from baton.dev.sim.host_store import SimHostStore
from baton.dev.sim.memory import SimFabric
from baton.dev.sim.network import SimControl
from baton.dev.sim.parts import Parts
from baton.dev.sim.process import Process, Pump
from baton.dev.sim.replicas import Replicas
from baton.dev.sim.settings import LONGEST, WorkerDraw
from baton.dev.sim.watched import Watched
from baton.ports.guest import GuestLink
from baton.shell.lines import Lines
from baton.shell.narration import Narration
from baton.shell.rank_host import RankHost
from baton.shell.rank_pump import RankPump
from baton.shell.worker import WorkerPump
from baton.trace.checks.all import CHECKS, Checks
from baton.trace.checks.check import Check
from baton.trace.log import CoreKind

# a slow copy to the host store takes 2 s
WATCHDOG = WatchdogSettings(floor_ms=2_400, first_ms=3_000)
# the share of the pool for rooms ahead of admission, by the worker's `max_rooms`; otherwise all
AHEAD = {3: 0.5, 4: 0.25}

# the least distance of checkpoints within a prompt, by the worker's `max_rooms`; others keep none
KEEP_EVERY = {2: 4, 3: 8}

DRAFTS = LookupRule(drafts=3, shortest=1, factor=2.0)


class Silent(Narration):
    """Writes nothing."""

    def note(self, event: str, **fields: object) -> None:
        """Do nothing."""

    def tell(self) -> None:
        """Do nothing."""


class Known:
    """Implements ports.directory.Directory with addresses that do not change."""

    def __init__(self, addresses: tuple[str, ...]) -> None:
        self._addresses = addresses

    def addresses(self) -> tuple[str, ...]:
        return self._addresses

    def close(self) -> None:
        """Do nothing."""


class WorkerRun:
    """The processes of one worker, from its start to its end."""

    watchdog = WATCHDOG
    checks: Sequence[type[Check]] = CHECKS

    def __init__(
        self,
        world: Any,
        draw: WorkerDraw,
        boots: list[Boot],
        *,
        weights: str,
        parts: Parts,
        spoken: Sequence[int],
    ) -> None:
        self.world, self.draw, self.boots, self.parts = world, draw, boots, parts
        self.spoken = spoken
        self.boot = boots[0]
        self.table = world.draw.table
        self.placements = [
            Placement(self.table, draw.tp, draw.pp, r % draw.tp, r // draw.tp, draw.page_blocks)
            for r in range(len(boots))
        ]
        self.pages = {g.name: self._pool(g) for g in self.table.groups}
        self.manifest = self._manifest(weights)
        self.collective = Collective(world, boots[0], draw.role, len(boots))
        self.collective.raises = world.gray.raises
        self.collective.strikes = lambda rows: world.gray.strikes(draw.name, rows)
        self.cache = world.caches[boots[0]] = CacheBook(
            draw.name,
            self.table,
            draw.page_blocks,
            self.collective,
            world.tickets,
            world.violate,
            on=world.seal and world.draw.decode_caches and draw.role == "decode",
            verify_ms=world.draw.verify_ms,
        )
        self._cached: set[Where] = set()  # the leader's cached pages after its last step
        self.processes: list[Process] = []
        self.engines: list[SimEngine] = []
        self.stores: list[SimHostStore] = []
        self.cores: list[RankCore] = []
        self.books: list[ShadowBooks] = []
        self.plans = PlanBook(draw.name, world.violate)
        self.replicas = Replicas(draw.name, world.violate)
        self.leader: Leader = self._leader()
        for rank in range(len(boots)):
            self._start(Rank(rank))

    @property
    def alive(self) -> bool:
        """Whether all its processes live."""
        return all(p.alive for p in self.processes)

    def _pool(self, group: Group) -> int:
        """Return the number of pages of a group. Windows get the share of the other groups' pages
        that their rooms use."""
        d = self.draw
        if group.unit is Unit.SLOT:
            return d.slots
        span = Span(self.table, d.page_blocks * self.table.block_tokens)
        computes = d.role != "decode" or self.world.draw.local_prefill
        step = d.step_tokens * d.pp if computes else 1
        return -(
            -d.pages
            * span.reserve(LONGEST, step=step)[group.name]
            // span.past(LONGEST)[group.name]
        )

    def _manifest(self, weights: str) -> Manifest:
        ranks = tuple(
            RankManifest(
                boot=self.boots[r],
                rank=r,
                tp_rank=p.tp_rank,
                pp_rank=p.pp_rank,
                pools=tuple(PoolView(g, n, n * p.page_bytes(g)) for g, n in self.pages.items()),
                exposures={"sim": b""},
            )
            for r, p in enumerate(self.placements)
        )
        d = self.draw
        return Manifest(
            self.spoken[-1],
            d.role,
            "sim",
            weights,
            "f32",
            self.table,
            d.page_blocks,
            d.tp,
            d.pp,
            4096,
            self.world.seal,
            ranks,
        )

    def _leader(self) -> Leader:
        self._settings = self._leader_settings()
        leader = Leader(self.manifest, self._settings, self.pages)
        leader.worker.marks, leader.worker.plans = self.world.core_marks, self.world.plans
        return leader

    def _leader_settings(self) -> LeaderSettings:
        d = self.draw
        return LeaderSettings(
            name=d.name,
            address=address_of(d.name),
            step_tokens=d.step_tokens,
            last_chunk_tokens=d.last_chunk_tokens,
            max_rooms=d.max_rooms,
            max_queue=64,
            stall_ms=1500,
            fetch_ms=500,
            pids=tuple(range(len(self.boots))),
            host_bytes=d.host_bytes,
            keep_every=KEEP_EVERY.get(d.max_rooms, 512),
            ahead=AHEAD.get(d.max_rooms, 1.0),
            prefix_cache=d.role != "decode" or self.world.draw.decode_caches,
            fetch_back=self.world.draw.fetch_back,
            local_prefill=self.world.draw.local_prefill,
            answer_ms=60,
            pair_ms=1_000,
            verify_ms=self.world.draw.verify_ms,
            drafts=DRAFTS if self.world.draw.drafts and d.role != "prefill" else None,
            draft_layer=self.world.draw.draft_layer if d.role != "prefill" else 0,
        )

    # ---- what goes in and out, for the judges ---------------------------------------------------

    def _before(self, event: LeaderEvent) -> None:
        match event:
            case MessageReceived(sender=sender, message=message):
                if self.world.confusion.rightful(sender, message):
                    self._hears(message)
                self.world.confusion.heard(sender, self.boot, message)
            case PeerLost(boot=boot):
                self.world.endings.lost(self.boot, boot)
                self.world.loans.lost(self.boot, boot)
            case RankReported(report=report):
                self.cache.answered(report.rank, [answer.order for answer in report.rehashed])
                self.cache.stepped(report.steps)
                self.world.loans.found(self.boot, report.ballots)
            case _:
                pass

    def _hears(self, message: Said) -> None:
        if isinstance(message, Ticket):
            self.world.ticket(message)
        self.world.endings.heard(self.boot, message)
        if self.draw.role != "prefill":
            self.world.pressure.heard(self.boot, message)
        if self.draw.role == "decode":
            self.world.loans.heard(self.boot, message)
        self.world.waits.heard(self.boot, message)
        self.world.overtaking.heard(self.boot, message)

    def _after(self, event: LeaderEvent, effects: list[Effect]) -> None:
        if not effects:
            return
        ledger = self.leader.worker.ledger
        if wrong := untrue(effects, self.leader.worker.reuse, ledger.cache):
            self.world.violate("news_true", f"{self.draw.name} says that {wrong}")
        self.world.endings.acts(self.boot, self.draw.name, effects)
        self.world.overtaking.acts(self.boot, self.draw.name, effects)
        if self.draw.role == "prefill":
            self._offers(effects)
            self.world.sharing.acts(self.manifest, effects, self._changed)
        if self.draw.role != "decode":
            self._caches((g, int(p)) for g, pool in ledger.pools.items() for p in pool.cached())
        else:
            self.cache.acts(
                effects, {where for entry in ledger.cache.live() for where in entry.pages.items()}
            )
            if self.cache.on:
                self.cache.pinned(ledger.pins)
            for loan in [
                effect.message
                for effect in effects
                if isinstance(effect, Send) and isinstance(effect.message, Loan)
            ]:
                if loan.runs:
                    self.world.people.lent(loan.key)
        if self.draw.role != "prefill":
            self.world.pressure.acts(self.boot, self.draw.name, effects)

    def _before_rank(self, rank: Rank, event: RankEvent) -> None:
        if isinstance(event, StepPlan):
            self.plans.applied(rank, event)
            self.books[rank].applied(event)

    def _after_rank(self, rank: Rank, event: RankEvent, effects: list[RankEffect]) -> None:
        if isinstance(event, StepPlan):
            self.books[rank].passing.update(
                e.order.job for e in effects if isinstance(e, Digest) and e.passing
            )
            self.world.plan_applied(self, rank, event)

    def _caches(self, cached: Iterable[Where]) -> None:
        """Check, where pages are computed, that pages which enter the cache are complete and sealed
        on every rank."""
        before, self._cached = self._cached, set(cached)
        for group, page in sorted(self._cached - before):
            if not all(engine.kept(group, page) for engine in self.engines):
                self.world.violate(
                    "cached_sealed",
                    f"{self.draw.name} caches page {page} of {group}, which was not sealed",
                )

    def _offers(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(message=Offer(key=key, runs=runs)):
                    self.collective.offered(key, runs)
                case Send(to=to, message=message):
                    self.world.loans.says(to, message)
                case Issue(plan=plan):
                    self.world.loans.ordered(self.boot, plan)
                case _:
                    pass

    def _changed(self, group: GroupName, page: int) -> bool:
        """Whether a page differs, on some rank, from what it was when it was sealed."""
        return any(engine.changed(group, page) for engine in self.engines)

    def _start(self, rank: Rank) -> None:
        world, d = self.world, self.draw
        process: Process = world.process(f"{d.name}/{rank}", self.boots[rank])
        self.processes.append(process)
        placement = self.placements[rank]
        engine, books = self._memory(rank, process, placement)
        books.replicas = self.replicas
        books.engine = engine
        engine.cached, engine.passing = self.cache.holds, books.passing.__contains__
        fabric = SimFabric(world, process, engine.sim_pools, books)
        store = self.parts.host_store(
            world=world,
            process=process,
            placement=placement,
            pools=engine.sim_pools,
            total=d.host_bytes,
        )
        store.damaged = lambda group, slot: engine.was_damaged(group, [slot])
        books.store = store
        core = self.parts.rank(
            rank=rank, boot=self.boots[rank], placements=self.placements, seal=world.seal
        )
        core.marks, core.plans = world.core_marks, world.plans
        address = address_of(d.name) if rank == 0 else None
        control = SimControl(world.network, process, address, self.spoken)
        sessions = self.parts.sessions(self.boots[rank], world.limits, self.spoken)
        lines = Lines(sessions, control, process.clock)
        if rank == 0:
            world.confusion.joins(self.boot, Voice(process, sessions, lines))
        checks = Checks(self.checks)
        checks.made(RankParts(rank, self.boots[rank], tuple(self.placements), world.seal))
        if rank == 0:
            checks.made(LeaderParts(self.manifest, self._settings, self.pages))
        watched = Watched(core, partial(self._before_rank, rank), partial(self._after_rank, rank))
        host = RankHost(
            core=Checked(CoreKind.RANK, watched, checks, world.violate),
            engine=engine,
            fabrics={"sim": fabric},
            store=store,
            clock=process.clock,
            narration=Silent(),
            watchdog=self.watchdog,
        )
        self.engines.append(engine)
        self.stores.append(store)
        self.cores.append(core)
        self.books.append(books)
        process.start(lambda: self._pump(rank, host, lines, process, checks))

    def _memory(
        self, rank: Rank, process: Process, placement: Placement
    ) -> tuple[SimEngine, ShadowBooks]:
        """Make the engine of a rank, and the books of its memory."""
        engine = SimEngine(
            world=self.world,
            process=process,
            placement=placement,
            rank=rank,
            pages=self.pages,
            collective=self.collective,
        )
        return engine, ShadowBooks(process.name, placement, self.world.violate)

    def _guest(self, process: Process) -> GuestLink | None:
        """Make the link to the engine that the worker is a guest of; None if it is none's."""
        return None

    def _pump(
        self, rank: Rank, host: RankHost, lines: Lines, process: Process, checks: Checks
    ) -> Pump:
        if rank:
            address = address_of(self.draw.name)
            join = Join(
                msgspec.structs.replace(self.manifest, ranks=(self.manifest.ranks[rank],)), pid=rank
            )
            return RankPump(
                rank=host,
                join=join,
                lines=lines,
                clock=process.clock,
                leader=self.boot,
                address=address,
                narration=Silent(),
            )
        watched = Watched(self.leader, self._before, self._after)
        self.pump = WorkerPump(
            leader=Checked(CoreKind.LEADER, watched, checks, self.world.violate),
            rank=host,
            others=self.boots[1:],
            absent=self.boots[1:],
            lines=lines,
            clock=process.clock,
            gateways=Known(self.world.gateway_addresses),
            narration=Silent(),
            guest=self._guest(process),
        )
        process.has_left = lambda: self.pump.left is not None
        return self.pump

    def damaged(self) -> set[CachedPage]:
        """Return the cached pages that are not what they were when they were sealed or, on decode,
        when they came."""
        sees = (
            (lambda e, g, p: e.flipped(g, p) is not None)
            if self.draw.role == "decode"
            else SimEngine.changed
        )
        live = self.leader.worker.ledger.cache.live()
        return {
            entry
            for entry in live
            if any(sees(e, g, int(p)) for e in self.engines for g, p in entry.pages.items())
        }

    def beside(self, rank: int) -> Iterable[object]:
        """Return what a rank's process has, besides its pump and its core, that may keep tables."""
        return ()

    def open(self) -> str:
        """Return what the worker still does for somebody; empty if nothing."""
        ledger, rooms = self.leader.worker.ledger, self.leader.worker.rooms
        if rooms:
            return (
                f"holds rooms {[(k.room[-4:], k.epoch, r.state.value) for k, r in rooms.items()]}"
            )
        return "" if ledger.clean else f"holds pages or pins: {ledger.view()}"

    def at_rest(self) -> str:
        """Return what is still held although nothing should be; empty if nothing is."""
        leader = self.leader
        try:
            leader.worker.ledger.audit()
        except Bug as error:
            return str(error)
        if leader.worker.rooms:
            return (
                f"{self.draw.name} holds rooms "
                f"{[(k.room[-4:], k.epoch, r.state.value) for k, r in leader.worker.rooms.items()]}"
            )
        if not leader.worker.ledger.clean:
            return (
                f"{self.draw.name} holds pages or pins: {leader.worker.ledger.view()}, "
                f"{leader.worker.ledger.pins} pins"
            )
        for group, pages in leader.worker.ledger.view().items():
            if pages["free"] + pages["cached"] != pages["total"]:
                return f"{self.draw.name} has lost pages of group {group}: {pages}"
        if left := leader.kept():
            return f"the leader of {self.draw.name} still keeps {left}"
        for process, core, books in zip(self.processes, self.cores, self.books, strict=True):
            if books.reads:
                return f"{process.name} has {books.reads} reads that may still land"
            if left := core.kept():
                return f"{process.name} still holds {left}"
        for process, store in zip(self.processes, self.stores, strict=True):
            if store.held.keys() != self._checkpoints() or store.under_way:
                return f"the host store of {process.name} still holds {dict(store.held)}"
        return ""

    def _checkpoints(self) -> set[CheckpointName]:
        """Return the names under which the leader believes that host stores hold something."""
        if self.manifest.guest:
            return set()
        return self.leader.stage(Checkpointing).held()


def address_of(name: str) -> str:
    """Return the address at which a worker's leader or a gateway listens. All its incarnations
    share it."""
    return f"sim://{name}"
