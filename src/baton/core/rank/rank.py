"""One rank: applies its leader's plans in order, fetches and verifies, computes, and reports what
it sees.

    leader ──StepPlan──▶ RankCore ──Connect, Read, CancelRead──▶ fabric ──Ended, Released──▶ RankCore
                            │  └──Compute, Digest──▶ engine ──BatchDone, DigestDone, GrammarReady──▶ RankCore
                            └──Report──▶ leader

    rank_room.py        where each room stands
    block_tables.py     which pages it holds
    source_workers.py   whom the rank reads from
    fetches.py          what is read, verified and voted on
    host_copies.py      state that is copied to host memory and back
    checkpoint_copies.py    what is kept there of prompts
    rehashing.py        blocks that are hashed again where they lie

Invariant: `quiet` is said of a dropped room only when no read, hash, copy or computation of ours
    touches its pages.
"""

from collections.abc import Iterable, Sequence
from itertools import count

import numpy as np

from baton.core.agreement import (
    Ballot,
    Chain,
    Constrain,
    Hold,
    Offload,
    Report,
    Restore,
    RowOrder,
    StepPlan,
    Vote,
    Wedged,
)
from baton.core.errors import Bug
from baton.core.events import RankEvent, ReadRefused, ReportDue
from baton.core.handoff.plans import Plans
from baton.core.ids import BlockIndex, Boot, GroupName, Key, Micros, Rank, Seq
from baton.core.marks import Mark, Marks
from baton.core.memory.state import Placement, Unit
from baton.core.rank.block_tables import BlockTables
from baton.core.rank.checkpoint_copies import CheckpointCopies
from baton.core.rank.fetches import Fetches
from baton.core.rank.host_copies import HostCopies
from baton.core.rank.rank_effects import (
    ClearPools,
    Compute,
    ConstrainDraws,
    Digest,
    RankEffect,
    ReleaseDraws,
)
from baton.core.rank.rank_room import RankRooms, RankRoomState, RankSaw
from baton.core.rank.rehashing import Rehashing
from baton.core.rank.report_draft import ReportDraft
from baton.core.rank.rows import row_of, step_sums
from baton.core.rank.source_workers import SourceWorkers
from baton.core.statistics import ReadCounts
from baton.core.work import (
    Batch,
    BatchDone,
    Connected,
    Copied,
    DigestDone,
    DigestOrder,
    GrammarReady,
    Job,
    ReadEnded,
    ReadOutcome,
    Released,
)


class RankCore:
    """Takes one event at a time, and performs nothing itself: `step` returns what is to be done."""

    def __init__(
        self, *, rank: Rank, boot: Boot, placements: Sequence[Placement], seal: bool
    ) -> None:
        self.rank, self.boot, self.seal = rank, boot, seal
        self._chain = Chain()
        self._batches: dict[Seq, frozenset[Key]] = {}
        # rooms of which the engine keeps a grammar, and the order to do so until it is built
        self._constrained: dict[Key, int | None] = {}
        self._jobs = count(1)
        # what the parts share
        self.placements = tuple(placements)
        self.placement = self.placements[rank]
        self.rooms = RankRooms()
        self.pages = BlockTables(self.placement)
        self.draft = ReportDraft()
        self.marks, self.counts, self.plans = Marks(), ReadCounts(), Plans()
        # the parts
        self.sources = SourceWorkers(self)
        self.fetches = Fetches(self)
        self.rehashing = Rehashing(self.placement, self._jobs, self.digest)
        self.host = HostCopies(
            self.placement, self.rooms, self.pages, self._jobs, self.digest, seal=seal
        )
        self.checkpoints = CheckpointCopies(
            self.placement, self.rooms, self.pages, self._jobs, self.digest
        )

    def step(self, event: RankEvent, now: Micros) -> list[RankEffect]:
        """Take one event. Returns what is to be done, in order.

        Raises:
            Bug: the event cannot come now
        """
        effects = self._take(event)
        self._look_for_quiet()
        return effects

    def _take(self, event: RankEvent) -> list[RankEffect]:
        match event:
            case StepPlan():
                return self._apply(event)
            case BatchDone():
                self._computed(event)
            case DigestDone():
                return self._hashed(event)
            case GrammarReady():
                self._constrainable(event.key)
            case ReadEnded():
                return self.fetches.ended(event)
            case ReadRefused():
                return self.fetches.ended(ReadEnded(event.handle, ReadOutcome.FAILED, event.why))
            case Released():
                self.fetches.released(event)
            case Copied():
                copies = self.checkpoints if self.checkpoints.owns(event.job) else self.host
                return self._copied(*copies.copied(event))
            case Connected():
                self.sources.connected(event.peer, event.why)
            case Wedged():
                self.draft.stuck(event)
            case ReportDue():
                return self._report()
        return []

    def next_wake(self) -> Micros | None:
        """Return None: a rank has no time of its own."""
        return None

    # ---- plans ----------------------------------------------------------------------------------

    def _apply(self, plan: StepPlan) -> list[RankEffect]:
        """Apply the next plan.

        Raises:
            Bug: it is not the next
        """
        self._chain.extend(plan)
        self.draft.applied()
        effects: list[RankEffect] = []
        for connection in plan.connect:
            effects += self.sources.connect(connection)
        for boot in plan.disconnect:
            effects += self.sources.disconnect(boot)
        effects += [self.checkpoints.forget(name) for name in plan.forget]
        for keep in plan.keep:
            effects += self.checkpoints.keep(keep)
        for key in plan.drop:
            effects += self._drop(key)
        for key in plan.vacate:
            self.rooms.see(key, RankSaw.VACATE)
            self.pages.drop(key)
        effects += [ClearPools(plan.clear)] * bool(plan.clear)
        for hold in plan.hold:
            self._hold(hold)
        for constrain in plan.constrain:
            effects += self._constrain(constrain)
        for fetch in plan.fetch:
            effects += self.fetches.order(fetch)
        copies: list[Offload | Restore] = [*plan.offload, *plan.restore]
        for order in copies:
            effects += self.host.begin(order)
        for resume in plan.resume:
            effects += self.checkpoints.resume(resume)
        for rehash in plan.rehash:
            effects += self.rehashing.rehash(rehash)
        for inspect in plan.inspect:
            effects += self.rehashing.inspect(inspect)
        if plan.batch:
            effects.append(self._compute(plan.seq, plan.batch))
        return effects

    def _drop(self, key: Key) -> list[RankEffect]:
        self.rooms.see(key, RankSaw.DROP)
        self.pages.drop(key)
        effects: list[RankEffect] = [*self.fetches.drop(key), *self.host.drop(key)]
        if key in self._constrained:
            del self._constrained[key]
            effects.append(ReleaseDraws(key))
        return effects

    def _constrain(self, order: Constrain) -> list[RankEffect]:
        if self.rooms.state(order.key) is RankRoomState.DROPPED:
            return []  # given up in the same turn
        assert order.key not in self._constrained, "a room is admitted once"
        self._constrained[order.key] = order.order
        return [ConstrainDraws(order.key, order.grammar)]

    def _constrainable(self, key: Key) -> None:
        """The engine has built the grammar of a room, which may have been dropped meanwhile."""
        order = self._constrained.get(key)
        if order is not None:
            self._constrained[key] = None
            self.draft.vote(Ballot(order, Vote.ARRIVED, "", ()))

    def _hold(self, hold: Hold) -> None:
        if self.rooms.see(hold.key, RankSaw.HOLD) is RankRoomState.DROPPED:
            self.marks[Mark.DROPPED_AT_ONCE] += 1
            return  # given up in the same turn
        self.pages.add(hold)

    def _look_for_quiet(self) -> None:
        if not self.rooms.dropped:
            return
        busy = self.fetches.busy() | self.rehashing.busy() | self.host.busy()
        busy |= self.checkpoints.busy()
        for key in sorted(self.rooms.dropped - busy.union(*self._batches.values())):
            self.rooms.see(key, RankSaw.QUIET)
            self.draft.is_quiet(key)

    # ---- hashes and copies ----------------------------------------------------------------------

    def new_job(self) -> Job:
        """Return a number for a hash or a copy."""
        return Job(next(self._jobs))

    def digest(
        self, job: Job, key: Key, group: GroupName, blocks: Iterable[BlockIndex], length: int
    ) -> Digest:
        """Return the order to hash these blocks of a room's sequence where they lie. length:
        positions that have been consumed"""
        numbers = np.asarray(tuple(blocks), dtype=np.int64)
        slots = self.pages.slots(key, group, numbers)
        if self.placement.table.group(group).unit is Unit.SLOT:
            numbers = np.full_like(numbers, length)  # a slot's position is what it has consumed
        return Digest(DigestOrder(job, group, slots, numbers))

    def _hashed(self, done: DigestDone) -> list[RankEffect]:
        """Our blocks have been hashed: to verify them, to look at them again, or on their way to or
        from the host store."""
        if self.checkpoints.owns(done.job):
            return self._copied(*self.checkpoints.hashed(done))
        if self.host.owns(done.job):
            return self._copied(*self.host.hashed(done))
        if not self.rehashing.owns(done.job):
            return self.fetches.hashed(done)
        if (answer := self.rehashing.hashed(done)) is not None:
            self.draft.hashed(answer)
        return []

    def _copied(self, effects: list[RankEffect], ballot: Ballot | None) -> list[RankEffect]:
        if ballot is not None:
            self.draft.vote(ballot)
        return effects

    # ---- compute --------------------------------------------------------------------------------

    def _compute(self, seq: Seq, orders: tuple[RowOrder, ...]) -> Compute:
        self._batches[seq] = frozenset(o.key for o in orders)
        return Compute(Batch(seq, tuple(row_of(o, self.pages) for o in orders)))

    def _computed(self, done: BatchDone) -> None:
        """A batch has ended.

        Raises:
            Bug: it is not the oldest one
        """
        if done.seq != next(iter(self._batches), None):
            raise Bug(
                f"batch {done.seq} ended, and the oldest under way is "
                f"{next(iter(self._batches), None)}"
            )
        del self._batches[done.seq]
        self.draft.computed(done)

    # ---- report ---------------------------------------------------------------------------------

    def _report(self) -> list[RankEffect]:
        """Return a report of what has changed since the last one, if anything has."""
        draft = self.draft
        if not draft.changed:
            return []
        self.draft = ReportDraft()
        return [
            Report(
                rank=self.rank,
                boot=self.boot,
                applied=self._chain.seq,
                chain=self._chain.value,
                ballots=tuple(draft.ballots),
                quiet=tuple(draft.quiet),
                steps=tuple(map(step_sums, draft.done)),
                connected=tuple(draft.connected),
                rehashed=tuple(draft.rehashed),
                reads=self.fetches.reads,
                copies=len(self.host) + len(self.checkpoints),
                counted=self.counts.view(),
                wedged=tuple(draft.wedged),
            )
        ]

    # ---- views ----------------------------------------------------------------------------------

    def kept(self) -> dict[str, int]:
        """How much is held for rooms, by what holds it: nothing when no room is open, or something
        leaks."""
        tables = {
            "rooms": len(self.rooms),
            "pages": len(self.pages),
            "rehashing": len(self.rehashing),
            "batches": len(self._batches),
            "grammars": len(self._constrained),
            "copies": len(self.host),
            "checkpoint copies": len(self.checkpoints),
            **self.fetches.kept(),
        }
        return {name: n for name, n in tables.items() if n}
