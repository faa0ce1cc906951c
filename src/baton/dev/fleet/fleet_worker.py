"""One worker of a fleet: the leader and the rank as they are shipped, an engine that takes time,
and what both ask of the world.

    message ──▶ Leader ──Issue(plan)──▶ RankCore ──Compute──▶ TimedEngine ──BatchDone──▶ RankCore ──Report──▶ Leader
                   └──Send──▶ the fleet          └──Read──▶ the fleet's network ──ReadEnded──▶ RankCore

Where nothing can change a batch of answers before the first of them ends, the engine computes
several steps in succession, and the core hears of the last one: the tokens of those before are put
where it would have put them. Whatever comes to the worker meanwhile ends this with the step that is
computed then (`steps_ahead`).
"""

from collections import deque
from collections.abc import Callable

from baton.core.agreement import Report
from baton.core.effects import Dial, Effect, HangUp, Issue, Leave, Send
from baton.core.errors import Bug
from baton.core.events import (
    LeaderEvent,
    PeerConnected,
    RankEvent,
    RankReported,
    ReportDue,
    TimerDue,
)
from baton.core.ids import Boot, GroupName, Micros, Rank
from baton.core.manifest import Manifest, PoolView, RankManifest
from baton.core.memory.state import (
    DType,
    Full,
    Group,
    Placement,
    StateSpec,
    StateTable,
    Unit,
    Whole,
    Window,
)
from baton.core.messages import AnyMessage
from baton.core.protocol import PROTOCOL
from baton.core.rank.rank import RankCore
from baton.core.rank.rank_effects import (
    CancelRead,
    Compute,
    Connect,
    Digest,
    Disconnect,
    RankEffect,
    Read,
)
from baton.core.scheduler.leader import Leader
from baton.core.scheduler.room import LeaderSettings, RoomState
from baton.core.work import Batch, BatchDone, Connected, DigestDone, ReadEnded, ReadOutcome
from baton.dev.fleet.network import FleetNetwork
from baton.dev.fleet.profile import ELEMENT_BYTES, MachineProfile, WorkerMemory
from baton.dev.fleet.shared_cores import SharedCores
from baton.dev.fleet.timed_engine import DRAWN, TimedEngine, blank_sums
from baton.dev.fleet.virtual_clock import VirtualClock

KV = GroupName("full")
FABRIC = "modelled"
LONG_MS = 3_600_000  # nothing fails here, so nothing needs to be noticed soon


class FleetWorker:
    """A worker in one role."""

    def __init__(
        self,
        boot: Boot,
        role: str,
        profile: MachineProfile,
        *,
        clock: VirtualClock,
        network: FleetNetwork,
        send: Callable[[Boot, Boot, AnyMessage], None],
        leave: Callable[[Boot], None],
        prefix_cache: bool,
        most_steps: int,
        cores: SharedCores | None,
    ) -> None:
        """send: takes sender, receiver and message
        leave: is told when this worker, which was asked to drain, ends
        most_steps: how many steps in succession the core is not asked about at most
        cores: of the machine, if workers share them"""
        self.boot, self.role, self._profile = boot, role, profile
        self._clock, self._network, self._send, self._leave = clock, network, send, leave
        self._most_steps = most_steps
        windows = (GroupName(window.name) for window in profile.memory.windows)
        self._paged = (KV, *windows)  # groups of pages
        manifest = manifest_of(boot, role, profile)
        settings = LeaderSettings(
            name=f"{role}-{boot}",
            address=f"fleet://{boot}",
            step_tokens=profile.limits.step_tokens,
            last_chunk_tokens=profile.last_chunk_tokens,
            max_rooms=profile.limits.max_rooms,
            max_queue=1 << 20,
            stall_ms=LONG_MS,
            fetch_ms=LONG_MS,
            pids=(1,),
            prefix_cache=prefix_cache,
        )
        self.leader = Leader(manifest, settings, pools_of(profile.memory))
        self.rank = RankCore(
            rank=Rank(0), boot=boot, placements=[manifest.placement(0)], seal=manifest.seal
        )
        self.engine = TimedEngine(
            profile.step_times, clock, tell=self._computed, cores=cores, drafts=profile.drafts
        )
        self._inbox: deque[LeaderEvent] = deque()
        self._wakes_at: Micros | None = None

    # ---- events ---------------------------------------------------------------------------------

    def take(self, event: LeaderEvent) -> None:
        """Take an event of the leader."""
        self._interrupt()
        self._inbox.append(event)
        self._work()

    def _work(self) -> None:
        """Let leader and rank handle what has come, until both are at rest."""
        clock, inbox, leader = self._clock, self._inbox, self.leader
        while True:
            while inbox:
                for effect in leader.step(inbox.popleft(), clock.now):
                    self._perform(effect)
            reports = self.rank.step(ReportDue(), clock.now)
            if not reports:
                break
            for report in reports:
                assert isinstance(report, Report), "a rank that is asked for a report makes one"
                inbox.append(RankReported(report))
        self._set_timer()

    def _set_timer(self) -> None:
        wake = self.leader.next_wake()
        if wake is not None and (self._wakes_at is None or wake < self._wakes_at):
            self._wakes_at = wake
            self._clock.at(wake, self._timer, wake)

    def _timer(self, wake: Micros) -> None:
        if self._wakes_at == wake:
            self._wakes_at = None
            due = self.leader.next_wake()
            if due is not None and due <= self._clock.now:
                self.take(TimerDue())
            else:
                self._set_timer()

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Send():
                self._send(self.boot, effect.to, effect.message)
            case Issue():
                self._tell_rank(effect.plan)
            case Dial():
                after = self._clock.now + self._network.times.message_us
                self._clock.at(after, self.take, PeerConnected(effect.boot))
            case Leave():
                self._clock.at(self._clock.now, self._leave, self.boot)
            case HangUp():
                pass  # whoever it hangs up on has left
            case _:
                raise Bug(f"a leader of a fleet asks for {effect}, which nothing here leads to")

    # ---- rank -----------------------------------------------------------------------------------

    def _tell_rank(self, event: RankEvent) -> None:
        for effect in self.rank.step(event, self._clock.now):
            self._perform_of_rank(effect)

    def _take_of_rank(self, event: RankEvent) -> None:
        self._interrupt()
        self._tell_rank(event)
        self._work()

    def _perform_of_rank(self, effect: RankEffect) -> None:
        match effect:
            case Compute():
                self.engine.compute(effect.batch, steps=self.steps_ahead(effect.batch))
            case Read():
                ends = self._network.read(
                    effect.peer.worker, self.boot, effect.nbytes, self._clock.now
                )
                end = ReadEnded(effect.handle, ReadOutcome.OK, "")
                self._clock.at(ends, self._take_of_rank, end)
            case Connect():
                after = self._clock.now + self._network.times.message_us
                self._clock.at(after, self._take_of_rank, Connected(effect.peer, ""))
            case Digest():
                done = DigestDone(effect.order.job, blank_sums(len(effect.order.slots)))
                self._clock.at(self._clock.now, self._take_of_rank, done)
            case CancelRead() | Disconnect():
                pass  # a read that nobody wants any more goes on to its end
            case _:
                raise Bug(f"a rank of a fleet asks for {effect}, which nothing here leads to")

    # ---- steps in succession --------------------------------------------------------------------

    def steps_ahead(self, batch: Batch) -> int:
        """Return how many steps follow each other that differ from this one only in what they have
        generated before, if nothing comes to this worker meanwhile.

        All of its rows generate, they are all answers that run here, none ends in these steps, and
        there are pages enough for all of them.
        """
        if self._most_steps == 1 or any(row.said != 1 or row.draw is None for row in batch.rows):
            return 1
        rooms = self.leader.worker.rooms
        if rooms.count(RoomState.RUNNING) != len(batch.rows):
            return 1
        steps = self._most_steps
        for row in batch.rows:
            room = rooms[row.key]
            steps = min(steps, room.ticket.limits.max_tokens - room.next_index - 1)
        pages = steps // self._profile.memory.page_tokens + 1  # that a row may lack
        free = self.leader.worker.ledger.free()
        enough = all(pages * len(batch.rows) <= free[group] for group in self._paged)
        return max(1, steps) if enough else 1

    def _interrupt(self) -> None:
        interrupted = self.engine.interrupt()
        if interrupted is not None:
            self._generated(*interrupted)

    def _computed(self, done: BatchDone, batch: Batch, steps: int) -> None:
        """A batch has ended, or several in succession."""
        self._generated(batch, steps - 1)
        self._tell_rank(done)
        self._work()

    def _generated(self, batch: Batch, steps: int) -> None:
        """So many steps of a batch have ended that the core is not told of: the answers have their
        tokens, and the pages for these. The step after them seals what they have completed."""
        worker = self.leader.worker
        for row in batch.rows if steps else ():
            room = worker.rooms.get(row.key)
            if room is not None and room.state is RoomState.RUNNING:
                room.generated.extend([DRAWN] * steps)
                assert worker.blocks.grow(room, room.position), "there were pages enough"


def table_of(memory: WorkerMemory) -> StateTable:
    """Return a model's state as one layer has it whose rows are as long as those of all layers."""
    groups, specs = [Group(KV, Unit.PAGE, Full())], [_spec("kv", KV, memory.token_bytes)]
    for other in memory.others:
        name = GroupName(other.name)
        unit, extent = (
            (Unit.SLOT, Whole())
            if other.window is None
            else (Unit.PAGE, Window(tokens=other.window))
        )
        groups.append(Group(name, unit, extent))
        specs.append(_spec(other.name, name, other.nbytes))
    return StateTable(1, memory.page_tokens, tuple(groups), tuple(specs))


def _spec(name: str, group: GroupName, nbytes: int) -> StateSpec:
    return StateSpec(name, group, (0,), ("k",), 1, nbytes // ELEMENT_BYTES, DType.F32)


def pools_of(memory: WorkerMemory) -> dict[GroupName, int]:
    """Return the pages, or slots, of each group."""
    return {KV: memory.pages} | {GroupName(o.name): o.count for o in memory.others}


def manifest_of(boot: Boot, role: str, profile: MachineProfile) -> Manifest:
    """Return what such a worker publishes."""
    memory = profile.memory
    table = table_of(memory)
    placement = Placement(table, 1, 1, 0, 0, 1)
    pools = tuple(
        PoolView(group, count, count * placement.page_bytes(group))
        for group, count in pools_of(memory).items()
    )
    rank = RankManifest(boot, 0, 0, 0, pools, {FABRIC: b""})
    return Manifest(
        protocol=PROTOCOL,
        role=role,
        model="model",
        weights="0" * 32,
        dtype="float32",
        table=table,
        page_blocks=1,
        tp=1,
        pp=1,
        max_model_len=memory.pages * memory.page_tokens,
        seal=True,
        ranks=(rank,),
    )
