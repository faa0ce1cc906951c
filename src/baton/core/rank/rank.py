"""One rank: applies its leader's plans in order, fetches and verifies, computes, and reports what it sees.

    leader ──StepPlan──▶ RankCore ──Connect, Read, CancelRead──▶ fabric ──Ended, Released──▶ RankCore
                            │  └──Compute, Digest──▶ engine ──BatchDone, DigestDone──▶ RankCore
                            └──Report──▶ leader

A fetch order is cut into *pieces*: the blocks of one group on one leg. A piece is read, then hashed as it lies in our
own pages, and the hash compared with the offer's sum; what differs is read again, a bounded number of times.
Invariant: `quiet` is said of a dropped room only when no read, hash or computation of ours touches its pages.
"""

from collections.abc import Iterable, Sequence
from itertools import count

import msgspec
import numpy as np
from numpy.typing import NDArray

from baton.core.agreement import (
    Ballot,
    Chain,
    Fetch,
    Hold,
    Meet,
    Met,
    Offload,
    Rehashed,
    Report,
    Restore,
    RowOrder,
    StepPlan,
    Suspect,
    Vote,
    Wedged,
)
from baton.core.errors import Bug
from baton.core.events import RankEvent, ReadRefused, ReportDue
from baton.core.handoff.plan import leg_seals
from baton.core.handoff.plans import Plans
from baton.core.ids import BlockIndex, Boot, GroupName, Key, Micros, Rank, RankId, Seq
from baton.core.marks import Mark, Marks
from baton.core.memory.state import Placement, Unit
from baton.core.rank.fetching import OpenOrder, Piece, SourcePeer
from baton.core.rank.host_copies import HostCopies
from baton.core.rank.page_lists import PageLists
from baton.core.rank.rank_effects import CancelRead, ClearPools, Compute, Connect, Digest, Disconnect, RankEffect, Read
from baton.core.rank.read_queue import ReadQueue
from baton.core.rank.rehashing import Rehashing
from baton.core.rank.rows import pack, row_of, step_sums
from baton.core.statistics import ReadCounts
from baton.core.work import (
    Batch,
    BatchDone,
    Connected,
    Copied,
    DigestDone,
    DigestOrder,
    Handle,
    Job,
    ReadEnded,
    ReadOutcome,
    Released,
)

MAX_TRIES = 3  # reads of one piece, the first included, before the leader hears of it


class RankCore:
    """Sans-IO: `step` takes one event and returns what is to be done."""

    def __init__(self, *, rank: Rank, boot: Boot, placements: Sequence[Placement], seal: bool) -> None:
        self.rank, self.boot, self.seal = rank, boot, seal
        self._placements = tuple(placements)
        self._placement = self._placements[rank]
        self._chain = Chain()
        self._rooms = PageLists(self._placement)
        self._peers: dict[Boot, SourcePeer] = {}
        self._orders: dict[int, OpenOrder] = {}
        self._reads: dict[Handle, Piece] = {}
        self._queue = ReadQueue()  # of those reads: which of them are with a fabric
        self._unknown: dict[Handle, Piece] = {}  # ended UNKNOWN: may still land
        self._hashing: dict[Job, Piece] = {}
        self._batches: dict[Seq, frozenset[Key]] = {}
        self._dropping: set[Key] = set()
        self._handles, self._jobs = count(1), count(1)
        self._rehashing = Rehashing(self._placement, self._jobs, self._digest)
        self._host = HostCopies(self._placement, self._rooms, self._jobs, self._digest, seal=seal)
        self.marks, self.counts, self.plans = Marks(), ReadCounts(), Plans()
        self._clear()

    def _clear(self) -> None:
        self._changed = False
        self._ballots: list[Ballot] = []
        self._quiet: list[Key] = []
        self._done: list[BatchDone] = []
        self._met: list[Met] = []
        self._rehashed: list[Rehashed] = []
        self._wedged: list[Wedged] = []

    def step(self, event: RankEvent, now: Micros) -> list[RankEffect]:
        """Take one event; returns what is to be done, in order. Raises Bug for what cannot come now."""
        match event:
            case StepPlan():
                return self._apply(event)
            case BatchDone():
                return self._computed(event)
            case DigestDone():
                return self._hashed(event)
            case ReadEnded():
                return self._ended(event)
            case ReadRefused():
                return self._ended(ReadEnded(event.handle, ReadOutcome.FAILED, event.why))
            case Released():
                return self._released(event)
            case Copied():
                return self._took(*self._host.copied(event))
            case Connected():
                return self._connected(event.peer, event.why)
            case Wedged():
                return self._note_wedged(event)
            case ReportDue():
                return self._report()

    def next_wake(self) -> Micros | None:
        """Never: a rank has no time of its own."""
        return None

    # ---- plans ----------------------------------------------------------------------------------

    def _apply(self, plan: StepPlan) -> list[RankEffect]:
        """Apply the next plan. Raises Bug if it is not the next."""
        self._chain.extend(plan)
        self._changed = True
        effects: list[RankEffect] = []
        for meet in plan.meet:
            effects += self._meet(meet)
        for boot in plan.part:
            effects += self._part(boot)
        for key in plan.drop:
            effects += self._drop(key)
        for key in plan.vacate:
            self._rooms.drop(key)
        effects += [ClearPools(plan.clear)] * bool(plan.clear)
        for hold in plan.hold:
            self._hold(hold)
        for fetch in plan.fetch:
            effects += self._fetch(fetch)
        copies: list[Offload | Restore] = [*plan.offload, *plan.restore]
        for order in copies:
            if order.key not in self._dropping:  # else given up in the same turn
                effects += self._host.begin(order)
        for rehash in plan.rehash:
            effects += self._rehashing.rehash(rehash)
        for inspect in plan.inspect:
            effects += self._rehashing.inspect(inspect)
        if plan.batch:
            effects.append(self._compute(plan.seq, plan.batch))
        self._look_for_quiet()
        return effects

    def _meet(self, meet: Meet) -> list[RankEffect]:
        theirs = meet.manifest
        plan = self.plans.pair([theirs.placement(r.rank) for r in theirs.ranks], self._placements)
        legs = plan.legs_into(self.rank)
        wanted = {leg.source: RankId(theirs.boot, theirs.ranks[leg.source].boot, Rank(leg.source)) for leg in legs}
        self._peers[theirs.boot] = SourcePeer(theirs, meet.fabric, plan, tuple(legs), set(wanted.values()))
        if not wanted:
            self._met.append(Met(theirs.boot, ""))
        return [Connect(peer, theirs.ranks[peer.rank], meet.fabric) for peer in wanted.values()]

    def _connected(self, peer: RankId, why: str) -> list[RankEffect]:
        """A Connect was answered; `why` is empty when it succeeded."""
        worker = self._peers.get(peer.worker)
        if worker is None:
            return []
        worker.waiting.discard(peer)
        worker.why = worker.why or why
        if not worker.waiting:
            self._met.append(Met(peer.worker, worker.why))
            self._changed = True
        return []

    def _part(self, boot: Boot) -> list[RankEffect]:
        worker = self._peers.pop(boot, None)
        if worker is None:
            return []
        peers = [RankId(boot, r.boot, Rank(r.rank)) for r in worker.manifest.ranks]
        effects: list[RankEffect] = [Disconnect(peer) for peer in peers]
        for handle in [h for peer in peers for h in self._queue.disconnect(peer)]:
            effects += self._over(ReadEnded(handle, ReadOutcome.FAILED, "the source was disconnected"))
        return effects

    def _drop(self, key: Key) -> list[RankEffect]:
        self._rooms.drop(key)
        self._dropping.add(key)
        for order in [n for n, o in self._orders.items() if o.fetch.key == key]:
            del self._orders[order]
        for handle in self._queue.drop(key):
            del self._reads[handle]
        return [CancelRead(h) for h, piece in self._reads.items() if piece.key == key] + self._host.drop(key)

    def _hold(self, hold: Hold) -> None:
        if hold.key in self._dropping:
            self.marks[Mark.DROPPED_AT_ONCE] += 1
            return  # given up in the same turn
        self._rooms.add(hold)

    def _look_for_quiet(self) -> None:
        if not self._dropping:
            return
        busy = {p.key for p in self._reads.values()} | {p.key for p in self._unknown.values()}
        busy |= {p.key for p in self._hashing.values()} | self._rehashing.busy()
        busy = busy.union(self._host.busy(), *self._batches.values())
        for key in sorted(self._dropping - busy):
            self._dropping.discard(key)
            self._quiet.append(key)
            self._changed = True

    # ---- fetch and verify -----------------------------------------------------------------------

    def _fetch(self, fetch: Fetch) -> list[RankEffect]:
        peer = self._peers.get(fetch.source)
        if fetch.key in self._dropping:
            return []  # given up in the same turn
        if peer is None:
            self._vote(Ballot(fetch.order, Vote.FAILED, f"not connected to worker {fetch.source:x}", ()))
            return []
        pieces = self._pieces(fetch, peer)
        sums = {(s.leg, s.group, b): v for s in fetch.sums for b, v in zip(s.blocks, s.seals, strict=True)}
        needed = {(p.leg.index, p.group, b) for p in pieces for b in p.blocks}
        if self.seal and not needed <= sums.keys():
            missing = sorted(needed - sums.keys())[:3]
            self._vote(Ballot(fetch.order, Vote.FAILED, f"the offer has no sum for (leg, group, block) {missing}", ()))
            return []
        self._orders[fetch.order] = OpenOrder(fetch, needed, sums)
        if not needed:
            self._judge(fetch.order)
        return [effect for piece in pieces for effect in self._read(piece)]

    def _pieces(self, fetch: Fetch, peer: SourcePeer) -> list[Piece]:
        """What this rank reads for an order."""
        if fetch.follows is not None:
            legs = {leg.index: leg for leg in peer.legs}
            return [Piece(fetch.order, fetch.key, legs[s.leg], s.group, s.blocks, 1) for s in fetch.only if s.leg in legs]
        return [
            Piece(fetch.order, fetch.key, leg, group, blocks, 1)
            for leg in peer.legs
            for group, run in fetch.runs.items()
            if (blocks := peer.plan.owned_of(leg, group, run.start, run.end))
        ]

    def _read(self, piece: Piece) -> list[RankEffect]:
        fetch = self._orders[piece.order].fetch
        peer = self._peers.get(fetch.source)
        if peer is None:
            self._fail(piece, "the source was disconnected")
            return []
        copies = peer.plan.bind(
            piece.leg,
            piece.group,
            source=fetch.runs[piece.group],
            target_pages=self._rooms[piece.key][piece.group],
            target_start=self._rooms.begins(piece.key).get(piece.group, 0),
            blocks=np.asarray(piece.blocks, dtype=np.int64),
        )
        handle = Handle(next(self._handles))
        self._reads[handle] = piece
        nbytes = sum(int(np.add.reduce(c.nbytes)) for c in copies)
        self.counts.began(nbytes)
        source = RankId(fetch.source, peer.manifest.ranks[piece.leg.source].boot, Rank(piece.leg.source))
        read = Read(piece.key, handle, source, peer.fabric, tuple(copies), nbytes, fetch.deadline_ms)
        return [*self._queue.add(read)]

    def _ended(self, end: ReadEnded) -> list[RankEffect]:
        """A read has ended; those that waited for it to do so have their turn."""
        turns = self._queue.ended(end.handle)
        return [*self._over(end), *turns]

    def _over(self, end: ReadEnded) -> list[RankEffect]:
        piece = self._reads.pop(end.handle, None)
        if piece is None:
            raise Bug(f"handle {end.handle} ended twice, or was never started")
        effects: list[RankEffect] = []
        self.counts.reads_failed += end.outcome is not ReadOutcome.OK
        if end.outcome is ReadOutcome.UNKNOWN:
            self.marks[Mark.READ_UNKNOWN] += 1
            self._unknown[end.handle] = piece
            if piece.order in self._orders and not self._orders[piece.order].fetch.patient:
                self._fail(piece, f"read ended unknown: {end.detail}")
        elif piece.order in self._orders:
            if end.outcome is ReadOutcome.FAILED:
                if self._may_read_again(piece):
                    effects = self._again(piece, piece.blocks)
                else:
                    self._fail(piece, f"read failed: {end.detail}")
            elif self.seal:
                effects = [self._verify(piece)]
            else:
                self._settle(piece, piece.blocks)
        self._look_for_quiet()
        return effects

    def _released(self, end: Released) -> list[RankEffect]:
        """A read that ended UNKNOWN can land nothing more."""
        piece = self._unknown.pop(end.handle, None)
        if piece is not None:
            self._fail(piece, "a read ended unknown")  # where that was not said before
        self._look_for_quiet()
        return []

    def _digest(self, job: Job, key: Key, group: GroupName, blocks: Iterable[BlockIndex], length: int) -> Digest:
        numbers = np.asarray(tuple(blocks), dtype=np.int64)
        slots = self._rooms.slots(key, group, numbers)
        if self._placement.table.group(group).unit is Unit.SLOT:
            numbers = np.full_like(numbers, length)  # a slot's position is what it has consumed
        return Digest(DigestOrder(job, group, slots, numbers))

    def _verify(self, piece: Piece) -> Digest:
        job = Job(next(self._jobs))
        self._hashing[job] = piece
        return self._digest(job, piece.key, piece.group, piece.blocks, self._orders[piece.order].fetch.length)

    def _hashed(self, done: DigestDone) -> list[RankEffect]:
        """Our blocks have been hashed: to verify them, to look at them again, or on their way to or from the host store."""
        if self._host.owns(done.job):
            return self._took(*self._host.hashed(done))
        if self._rehashing.owns(done.job):
            self._answer(self._rehashing.hashed(done))
            return []
        piece = self._hashing.pop(done.job)
        effects: list[RankEffect] = []
        order = self._orders.get(piece.order)
        if order is not None:
            effects = self._compare(piece, order, done.sums)
        self._look_for_quiet()
        return effects

    def _compare(self, piece: Piece, order: OpenOrder, sums: NDArray[np.uint64]) -> list[RankEffect]:
        plan = self._peers[order.fetch.source].plan if order.fetch.source in self._peers else None
        if plan is None:
            self._fail(piece, "the source was disconnected")
            return []
        order.note(piece.group, piece.blocks, sums, units := plan.target_units(piece.leg, piece.group))
        found = leg_seals(sums, units)
        right = [f == order.sums[piece.leg.index, piece.group, b] for f, b in zip(found.tolist(), piece.blocks, strict=True)]
        wrong = tuple(b for b, ok in zip(piece.blocks, right, strict=True) if not ok)
        self.counts.judged(right=sum(right), wrong=len(wrong))
        if wrong and self._may_read_again(piece):
            self._settle(piece, tuple(b for b in piece.blocks if b not in wrong))
            return self._again(piece, wrong)
        if wrong:
            order.suspects.append(Suspect(piece.leg.index, piece.group, wrong))
        self._settle(piece, piece.blocks)
        return []

    def _may_read_again(self, piece: Piece) -> bool:
        """Whether a piece was not read too often."""
        return piece.tries < MAX_TRIES and not self._orders[piece.order].fetch.patient

    def _again(self, piece: Piece, blocks: tuple[BlockIndex, ...]) -> list[RankEffect]:
        """Read these blocks of a piece once more."""
        self.marks[Mark.READ_AGAIN] += 1
        return self._read(msgspec.structs.replace(piece, blocks=blocks, tries=piece.tries + 1))

    def _settle(self, piece: Piece, blocks: tuple[BlockIndex, ...]) -> None:
        """These blocks have arrived or will be said to differ; the order is voted on when nothing of it is open."""
        order = self._orders.get(piece.order)
        if order is None:
            return
        order.open -= {(piece.leg.index, piece.group, b) for b in blocks}
        if not order.open:
            self._judge(piece.order)

    def _judge(self, number: int) -> None:
        order = self._orders.pop(number)
        suspects = tuple(order.suspects)
        if order.why:
            self._vote(Ballot(number, Vote.FAILED, order.why, suspects))
        elif suspects:
            why = f"{sum(len(s.blocks) for s in suspects)} blocks went on differing from their sums"
            self._vote(Ballot(number, Vote.DIFFERED, why, suspects))
        else:
            self._vote(Ballot(number, Vote.ARRIVED, "", (), {g: pack(sums) for g, sums in order.sums_by_unit().items()}))

    def _fail(self, piece: Piece, why: str) -> None:
        order = self._orders.get(piece.order)
        if order is None:
            return
        if order.fetch.patient:
            order.why = order.why or why
            self._settle(piece, piece.blocks)
        else:
            del self._orders[piece.order]
            self._vote(Ballot(piece.order, Vote.FAILED, why, ()))

    def _vote(self, ballot: Ballot) -> None:
        self._ballots.append(ballot)
        self._changed = True

    def _answer(self, answer: Rehashed | None) -> None:
        if answer is not None:
            self._rehashed.append(answer)
            self._changed = True
        self._look_for_quiet()

    # ---- host store -----------------------------------------------------------------------------

    def _took(self, effects: list[RankEffect], ballot: Ballot | None) -> list[RankEffect]:
        if ballot is not None:
            self._vote(ballot)
        self._look_for_quiet()
        return effects

    # ---- compute --------------------------------------------------------------------------------

    def _compute(self, seq: Seq, orders: tuple[RowOrder, ...]) -> Compute:
        self._batches[seq] = frozenset(o.key for o in orders)
        return Compute(Batch(seq, tuple(row_of(o, self._rooms) for o in orders)))

    def _computed(self, done: BatchDone) -> list[RankEffect]:
        """A batch has ended. Raises Bug if it is not the oldest one."""
        if done.seq != next(iter(self._batches), None):
            raise Bug(f"batch {done.seq} ended, and the oldest under way is {next(iter(self._batches), None)}")
        del self._batches[done.seq]
        self._done.append(done)
        self._changed = True
        self._look_for_quiet()
        return []

    def _note_wedged(self, found: Wedged) -> list[RankEffect]:
        """Something that was handed to a port does not end."""
        self._wedged.append(found)
        self._changed = True
        return []

    # ---- report ---------------------------------------------------------------------------------

    def _report(self) -> list[RankEffect]:
        """What has changed since the last report, if anything has."""
        if not self._changed:
            return []
        report = Report(
            rank=self.rank,
            boot=self.boot,
            applied=self._chain.seq,
            chain=self._chain.value,
            ballots=tuple(self._ballots),
            quiet=tuple(self._quiet),
            steps=tuple(map(step_sums, self._done)),
            met=tuple(self._met),
            rehashed=tuple(self._rehashed),
            reads=len(self._reads) + len(self._unknown),
            copies=len(self._host),
            counted=self.counts.view(),
            wedged=tuple(self._wedged),
        )
        self._clear()
        return [report]
