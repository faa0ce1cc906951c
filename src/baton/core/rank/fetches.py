"""The fetch orders of one rank: what it reads for each, how that is verified, and when it votes.

    Fetch ──▶ pieces ──▶ Read ──▶ ended ──▶ Digest ──▶ the sum is the offer's ──▶ all of the order's: it has ARRIVED
                 ▲                  │                   └── it differs ──┐
                 └── once more ─────┴───────────────────────────────────┴──▶ MAX_TRIES times: DIFFERED, or FAILED

A piece is the blocks of one group on one leg. It is read, then hashed as it lies in our own pages,
and the hash is compared with the offer's sum; what differs is read again, a bounded number of
times. A read that ends UNKNOWN may still land until it is released: its order has failed, and its
room is busy until then.
"""

from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from baton.core.agreement import Ballot, Fetch, Suspect, Vote
from baton.core.errors import Bug
from baton.core.handoff.plan import leg_seals
from baton.core.ids import BlockIndex, Key, Rank, RankId
from baton.core.marks import Mark
from baton.core.rank.fetch_order import OpenOrder, Piece
from baton.core.rank.rank_effects import CancelRead, Digest, RankEffect, Read
from baton.core.rank.rank_room import RankRoomState, RankSaw
from baton.core.rank.read_queue import ReadQueue
from baton.core.rank.rows import pack
from baton.core.rank.source_workers import SourcePeer
from baton.core.work import DigestDone, Handle, Job, ReadEnded, ReadOutcome, Released

if TYPE_CHECKING:
    from baton.core.rank.rank import RankCore

MAX_TRIES = 3  # reads of one piece, the first included, before the leader hears of it


class Fetches:
    """Carries out the fetch orders of one rank."""

    def __init__(self, core: "RankCore") -> None:
        self._core = core
        self._orders: dict[int, OpenOrder] = {}
        self._of_room: dict[Key, set[int]] = {}  # those orders
        self._handles = count(1)
        self._reads: dict[Handle, Piece] = {}
        self._queue = ReadQueue()  # of those reads: which of them are with a fabric
        self._unknown: dict[Handle, Piece] = {}  # ended UNKNOWN: may still land
        self._hashing: dict[Job, Piece] = {}

    @property
    def reads(self) -> int:
        """How many reads may still land."""
        return len(self._reads) + len(self._unknown)

    def busy(self) -> set[Key]:
        """Return the rooms into whose pages something is read, or whose pages are hashed."""
        return {
            piece.key
            for pieces in (self._reads, self._unknown, self._hashing)
            for piece in pieces.values()
        }

    def order(self, fetch: Fetch) -> list[RankEffect]:
        """The leader orders blocks to be read."""
        core = self._core
        if core.rooms.see(fetch.key, RankSaw.FETCH) is RankRoomState.DROPPED:
            return []  # given up in the same turn
        peer = core.sources.find(fetch.source)
        if peer is None:
            self._vote(
                fetch.key,
                Ballot(fetch.order, Vote.FAILED, f"not connected to worker {fetch.source:x}", ()),
            )
            return []
        pieces = _pieces(fetch, peer)
        sums = {
            (s.leg, s.group, b): v
            for s in fetch.sums
            for b, v in zip(s.blocks, s.seals, strict=True)
        }
        needed = {(p.leg.index, p.group, b) for p in pieces for b in p.blocks}
        if core.seal and not needed <= sums.keys():
            missing = sorted(needed - sums.keys())[:3]
            why = f"the offer has no sum for (leg, group, block) {missing}"
            self._vote(fetch.key, Ballot(fetch.order, Vote.FAILED, why, ()))
            return []
        self._orders[fetch.order] = OpenOrder(fetch, needed, sums)
        self._of_room.setdefault(fetch.key, set()).add(fetch.order)
        if not needed:
            self._judge(fetch.order)
        return [effect for piece in pieces for effect in self._read(piece)]

    def drop(self, key: Key) -> list[RankEffect]:
        """A room has ended: nothing more is read for it, and what no fabric has had yet is
        forgotten."""
        for order in self._of_room.pop(key, ()):
            del self._orders[order]
        for handle in self._queue.drop(key):
            del self._reads[handle]
        return [CancelRead(h) for h, piece in self._reads.items() if piece.key == key]

    def disconnect(self, peers: Sequence[RankId]) -> list[RankEffect]:
        """These ranks are not read from any more."""
        effects: list[RankEffect] = []
        for handle in [h for peer in peers for h in self._queue.disconnect(peer)]:
            effects += self._over(
                ReadEnded(handle, ReadOutcome.FAILED, "the source was disconnected")
            )
        return effects

    # ---- reads ----------------------------------------------------------------------------------

    def _read(self, piece: Piece) -> list[RankEffect]:
        core, fetch = self._core, self._orders[piece.order].fetch
        peer = core.sources.find(fetch.source)
        if peer is None:
            self._fail(piece, "the source was disconnected")
            return []
        copies = peer.plan.bind(
            piece.leg,
            piece.group,
            source=fetch.runs[piece.group],
            target_pages=core.pages[piece.key][piece.group],
            target_start=core.pages.begins(piece.key).get(piece.group, 0),
            blocks=np.asarray(piece.blocks, dtype=np.int64),
        )
        handle = Handle(next(self._handles))
        self._reads[handle] = piece
        nbytes = sum(int(np.add.reduce(c.nbytes)) for c in copies)
        core.counts.began(nbytes)
        source = RankId(
            fetch.source, peer.manifest.ranks[piece.leg.source].boot, Rank(piece.leg.source)
        )
        read = Read(
            piece.key, handle, source, peer.fabric, tuple(copies), nbytes, fetch.deadline_ms
        )
        return [*self._queue.add(read)]

    def ended(self, end: ReadEnded) -> list[RankEffect]:
        """A read has ended; those that waited for it to do so have their turn."""
        turns = self._queue.ended(end.handle)
        return [*self._over(end), *turns]

    def _over(self, end: ReadEnded) -> list[RankEffect]:
        piece = self._reads.pop(end.handle, None)
        if piece is None:
            raise Bug(f"handle {end.handle} ended twice, or was never started")
        core = self._core
        core.counts.reads_failed += end.outcome is not ReadOutcome.OK
        if end.outcome is ReadOutcome.UNKNOWN:
            core.marks[Mark.READ_UNKNOWN] += 1
            self._unknown[end.handle] = piece
            if piece.order in self._orders and not self._orders[piece.order].fetch.patient:
                self._fail(piece, f"read ended unknown: {end.detail}")
        elif piece.order in self._orders:
            if end.outcome is ReadOutcome.FAILED:
                if self._may_read_again(piece):
                    return self._again(piece, piece.blocks)
                self._fail(piece, f"read failed: {end.detail}")
            elif core.seal:
                return [self._verify(piece)]
            else:
                self._settle(piece, piece.blocks)
        return []

    def released(self, end: Released) -> None:
        """A read that ended UNKNOWN can land nothing more."""
        piece = self._unknown.pop(end.handle, None)
        if piece is not None:
            self._fail(piece, "a read ended unknown")  # where that was not said before

    def _may_read_again(self, piece: Piece) -> bool:
        """Return whether a piece has not been read too often yet."""
        return piece.tries < MAX_TRIES and not self._orders[piece.order].fetch.patient

    def _again(self, piece: Piece, blocks: tuple[BlockIndex, ...]) -> list[RankEffect]:
        """Read these blocks of a piece once more."""
        self._core.marks[Mark.READ_AGAIN] += 1
        return self._read(msgspec.structs.replace(piece, blocks=blocks, tries=piece.tries + 1))

    # ---- sums -----------------------------------------------------------------------------------

    def _verify(self, piece: Piece) -> Digest:
        job = self._core.new_job()
        self._hashing[job] = piece
        return self._core.digest(
            job, piece.key, piece.group, piece.blocks, self._orders[piece.order].fetch.length
        )

    def hashed(self, done: DigestDone) -> list[RankEffect]:
        """A piece has been hashed where it lies."""
        piece = self._hashing.pop(done.job)
        order = self._orders.get(piece.order)
        return self._compare(piece, order, done.sums) if order is not None else []

    def _compare(
        self, piece: Piece, order: OpenOrder, sums: NDArray[np.uint64]
    ) -> list[RankEffect]:
        peer = self._core.sources.find(order.fetch.source)
        if peer is None:
            self._fail(piece, "the source was disconnected")
            return []
        order.note(
            piece.group, piece.blocks, sums, units := peer.plan.target_units(piece.leg, piece.group)
        )
        found = leg_seals(sums, units)
        right = [
            f == order.sums[piece.leg.index, piece.group, b]
            for f, b in zip(found.tolist(), piece.blocks, strict=True)
        ]
        wrong = tuple(b for b, ok in zip(piece.blocks, right, strict=True) if not ok)
        self._core.counts.judged(right=sum(right), wrong=len(wrong))
        if wrong and self._may_read_again(piece):
            self._settle(piece, tuple(b for b in piece.blocks if b not in wrong))
            return self._again(piece, wrong)
        if wrong:
            order.suspects.append(Suspect(piece.leg.index, piece.group, wrong))
        self._settle(piece, piece.blocks)
        return []

    # ---- votes ----------------------------------------------------------------------------------

    def _settle(self, piece: Piece, blocks: tuple[BlockIndex, ...]) -> None:
        """These blocks have arrived, or will be said to differ. The order is voted on when nothing
        of it is open."""
        order = self._orders.get(piece.order)
        if order is None:
            return
        order.open -= {(piece.leg.index, piece.group, b) for b in blocks}
        if not order.open:
            self._judge(piece.order)

    def _judge(self, number: int) -> None:
        """Nothing of an order is open any more."""
        order = self._orders[number]
        suspects = tuple(order.suspects)
        if order.why:
            self._close(Ballot(number, Vote.FAILED, order.why, suspects))
        elif suspects:
            why = f"{sum(len(s.blocks) for s in suspects)} blocks went on differing from their sums"
            self._close(Ballot(number, Vote.DIFFERED, why, suspects))
        else:
            self._close(
                Ballot(
                    number,
                    Vote.ARRIVED,
                    "",
                    (),
                    {g: pack(sums) for g, sums in order.sums_by_unit().items()},
                )
            )

    def _fail(self, piece: Piece, why: str) -> None:
        order = self._orders.get(piece.order)
        if order is None:
            return
        if order.fetch.patient:
            order.why = order.why or why
            self._settle(piece, piece.blocks)
        else:
            self._close(Ballot(piece.order, Vote.FAILED, why, ()))

    def _close(self, ballot: Ballot) -> None:
        """An order is open no more."""
        key = self._orders.pop(ballot.order).fetch.key
        self._of_room[key].discard(ballot.order)
        if not self._of_room[key]:
            del self._of_room[key]
        self._vote(key, ballot)

    def _vote(self, key: Key, ballot: Ballot) -> None:
        if key not in self._of_room:
            self._core.rooms.see(key, RankSaw.FETCHED)
        self._core.draft.vote(ballot)

    def kept(self) -> dict[str, int]:
        """How much is held for orders, by what holds it."""
        return {
            "orders": len(self._orders),
            "reads": len(self._reads),
            "unknown": len(self._unknown),
            "hashing": len(self._hashing),
        }


def _pieces(fetch: Fetch, peer: SourcePeer) -> list[Piece]:
    """Return what this rank reads for an order."""
    if fetch.follows is not None:
        legs = {leg.index: leg for leg in peer.legs}
        return [
            Piece(fetch.order, fetch.key, legs[s.leg], s.group, s.blocks, 1)
            for s in fetch.only
            if s.leg in legs
        ]
    return [
        Piece(fetch.order, fetch.key, leg, group, blocks, 1)
        for leg in peer.legs
        for group, run in fetch.runs.items()
        if (blocks := peer.plan.owned_of(leg, group, run.start, run.end))
    ]
