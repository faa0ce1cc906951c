"""Performs a rank's effects on fabrics, engine and host store, and feeds it their results."""

from collections.abc import Mapping, Sequence

import structlog

from baton.core.agreement import Report, StepPlan, Wedged
from baton.core.errors import Bug, FabricError
from baton.core.events import Core, RankEvent, ReadRefused, ReportDue
from baton.core.ids import Key, Micros, RankId, Seq
from baton.core.rank.rank_effects import (
    CancelRead,
    ClearPools,
    Compute,
    Connect,
    ConstrainDraws,
    Digest,
    Discard,
    Disconnect,
    Load,
    RankEffect,
    Read,
    ReleaseDraws,
    Save,
)
from baton.core.rank.watchdog import Watchdog, WatchdogSettings, WorkKind
from baton.core.work import (
    Batch,
    BatchDone,
    DigestDone,
    DigestOrder,
    FabricEvent,
    GrammarReady,
    Handle,
    HostCopy,
    ReadEnded,
)
from baton.ports.clock import Clock
from baton.ports.engine import Engine
from baton.ports.fabric import Fabric
from baton.ports.host_store import HostStore
from baton.shell.narration import Narration

log = structlog.get_logger()


class RankHost:
    """One rank with its core, engine, fabrics (by name) and host store."""

    def __init__(
        self,
        *,
        core: Core[RankEvent, RankEffect],
        engine: Engine,
        fabrics: Mapping[str, Fabric],
        store: HostStore,
        clock: Clock,
        narration: Narration,
        watchdog: WatchdogSettings,
    ) -> None:
        self._core, self._engine, self._fabrics, self._clock, self._narration = (
            core,
            engine,
            fabrics,
            clock,
            narration,
        )
        self._store = store
        self._reads: dict[Handle, tuple[Fabric, Key]] = {}
        self._peers: dict[RankId, Fabric] = {}
        self._watchdog = Watchdog(watchdog)
        self._report: Report | None = None  # not sent to the leader yet
        self._stirred = False  # whether the core had an event since the last report
        self.wedged = False  # some work never ends, so closing would wait for ever

    def apply(self, plan: StepPlan) -> None:
        """Give the rank its leader's next plan."""
        self._step(plan)

    def poll(self) -> bool:
        """Give the core everything that has ended; returns whether there was anything."""
        found = False
        for fabric in self._fabrics.values():
            for event in fabric.poll():
                found = True
                self._hear(event)
        for done in self._engine.poll():
            found = True
            match done:
                case BatchDone():
                    self._watchdog.ends(WorkKind.STEP, done.seq, self._clock.now())
                case DigestDone():
                    self._watchdog.ends(WorkKind.DIGEST, done.job, self._clock.now())
                    self._narration.note("hash_ended", job=done.job, t_us=self._clock.now())
                case GrammarReady():
                    pass
            self._step(done)
        for copied in self._store.poll():
            found = True
            self._watchdog.ends(WorkKind.COPY, copied.job, self._clock.now())
            self._narration.note(
                "host_copy_ended", job=copied.job, why=copied.why, t_us=self._clock.now()
            )
            self._step(copied)
        self._look()
        return found

    def timer(self) -> Micros | None:
        """Return when `poll` must be called at the latest;
        None if the ports wake the pump in time."""
        return self._watchdog.timer()

    def _look(self) -> None:
        """Tell the core about work that never ends; `poll` has taken in what has ended before."""
        if not self._watchdog.watching:
            return
        for task, count in self._engine.progress.items():
            self._watchdog.progressed(task, count)
        for stuck in self._watchdog.look(self._clock.now()):
            log.error("wedged", what=stuck.task.value, job=stuck.job, why=stuck.why)
            self.wedged = True
            self._step(Wedged(Seq(stuck.job) if stuck.task is WorkKind.STEP else None, stuck.why))

    def _hear(self, event: FabricEvent) -> None:
        if isinstance(event, ReadEnded):
            self._note_end(event)
        self._step(event)

    def report(self) -> Report | None:
        """Return a report if anything has happened since the last one, else None."""
        if not self._stirred:
            return None
        self._step(ReportDue())
        self._stirred = False
        report, self._report = self._report, None
        return report

    def _step(self, event: RankEvent) -> None:
        self._stirred = True
        if _may_be_read(event):
            for fabric in self._fabrics.values():
                fabric.attend()
        self._perform(self._core.step(event, self._clock.now()))

    def _perform(self, effects: Sequence[RankEffect]) -> None:
        for effect in effects:
            match effect:
                case Read():
                    self._read(effect)
                case CancelRead():
                    if effect.handle in self._reads:
                        self._reads[effect.handle][0].cancel(effect.handle)
                case Compute():
                    self._narration.note(
                        "step_started",
                        seq=effect.batch.seq,
                        rows=len(effect.batch.rows),
                        t_us=self._clock.now(),
                    )
                    self._submit(effect.batch)
                case ConstrainDraws():
                    self._engine.constrain(effect.key, effect.grammar)
                case ReleaseDraws():
                    self._engine.release(effect.key)
                case Digest():
                    self._digest(effect.order)
                case Save(copy=copy):
                    self._watch_copy(copy)
                    self._store.save(copy)
                case Load(copy=copy):
                    self._watch_copy(copy)
                    self._store.load(copy)
                case Discard(key=key):
                    self._store.discard(key)
                case ClearPools():
                    for group in effect.groups:
                        self._engine.clear(group)
                case Connect():
                    self._connect(effect)
                case Disconnect():
                    fabric = self._peers.pop(effect.peer, None)
                    if fabric is not None:
                        fabric.disconnect(effect.peer)
                case Report():
                    self._report = effect

    def _submit(self, batch: Batch) -> None:
        self._watchdog.begins(
            WorkKind.STEP, batch.seq, sum(len(row.tokens) for row in batch.rows), self._clock.now()
        )
        self._engine.submit(batch)

    def _digest(self, order: DigestOrder) -> None:
        self._watchdog.begins(WorkKind.DIGEST, order.job, len(order.slots), self._clock.now())
        self._engine.digest(order)

    def _watch_copy(self, copy: HostCopy) -> None:
        self._watchdog.begins(
            WorkKind.COPY,
            copy.job,
            sum(len(slots) for slots in copy.slots.values()),
            self._clock.now(),
        )

    def _connect(self, effect: Connect) -> None:
        fabric = self._fabrics.get(effect.fabric)
        if fabric is None:
            raise Bug(f"the leader chose fabric {effect.fabric!r}, which this rank has not")
        self._peers[effect.peer] = fabric
        fabric.connect(effect.peer, effect.manifest)

    def _read(self, effect: Read) -> None:
        fabric = self._fabrics[effect.fabric]
        self._reads[effect.handle] = (fabric, effect.key)
        try:
            fabric.submit(
                effect.handle,
                effect.peer,
                effect.copies,
                deadline=Micros(effect.deadline_ms * 1000),
            )
        except FabricError as error:
            del self._reads[effect.handle]
            self._step(ReadRefused(effect.handle, str(error)))
            return
        ranges = sum(len(c.nbytes) for c in effect.copies)
        about = {"room": effect.key.room, "epoch": effect.key.epoch, "handle": effect.handle}
        self._narration.note(
            "read_started", **about, bytes=effect.nbytes, ranges=ranges, t_us=self._clock.now()
        )

    def _note_end(self, end: ReadEnded) -> None:
        read = self._reads.pop(end.handle, None)
        about = {"room": read[1].room, "epoch": read[1].epoch} if read is not None else {}
        self._narration.note(
            "read_ended",
            **about,
            handle=end.handle,
            outcome=end.outcome.value,
            t_us=self._clock.now(),
        )


def _may_be_read(event: RankEvent) -> bool:
    """Whether peers may soon read what this is about: pages that a room has, or a sealed block."""
    match event:
        case StepPlan():
            return bool(event.connect or event.hold or event.inspect)
        case BatchDone():
            return any(len(sums) for row in event.rows for sums in row.sums.values())
        case DigestDone():
            return True
        case _:
            return False
