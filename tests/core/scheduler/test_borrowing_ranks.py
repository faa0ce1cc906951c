"""A prefill worker of two stages fetches back: it goes on when all of its ranks are done, and asks
whom all of them reach."""

from typing import Any

import numpy as np
from msgspec.structs import replace
from tests.core.build import KV, drawn, manifest, settings, ticket
from tests.core.driven import T0, Driven, report_of
from tests.core.scheduler.test_doubt_stages import GATEWAY, INDEX, NOW, TABLE, D, P

from baton.core.effects import Issue, Send
from baton.core.events import GatewayConnected, MessageReceived, RankReported
from baton.core.handoff.fetch_back import FetchBack
from baton.core.handoff.plan import pair
from baton.core.ids import BlockIndex, GroupName, Page, Rank, Seal
from baton.core.messages import BlockRun, Borrow, Hello, LegSums, Lends, Loan, Offer, Returned
from baton.core.rank.rank import RankCore
from baton.core.rank.rank_effects import Compute, Connect, Digest, Disconnect, RankEffect, Read
from baton.core.scheduler.borrowing import Borrowing
from baton.core.scheduler.leader import Leader
from baton.core.scheduler.room import RoomState
from baton.core.work import BatchDone, Connected, DigestDone, ReadEnded, ReadOutcome, RowDone

ROOM = ticket(1, length=13)
BACK = 3  # blocks


class Bench:
    """Its ranks, the first of which has no layer of group `index`; reads end when the test says
    so."""

    def __init__(self, *, unreachable: int | None = None) -> None:
        one = replace(manifest("prefill", P), table=TABLE)
        ranks = (one.ranks[0], replace(one.ranks[0], boot=20, rank=1, pp_rank=1))
        self.worker, self.source = (
            replace(one, pp=2, ranks=ranks),
            replace(manifest("decode", D), table=TABLE),
        )
        self.placements, theirs = (
            [self.worker.placement(0), self.worker.placement(1)],
            [self.source.placement(0)],
        )
        ours = replace(settings(), pids=(1, 2), prefix_cache=True, fetch_back=FetchBack.ALWAYS)
        self.leader: Any = Driven(Leader(self.worker, ours, {KV: 16, INDEX: 16}))
        self.ranks = [
            RankCore(rank=Rank(r), boot=ranks[r].boot, placements=self.placements, seal=True)
            for r in (0, 1)
        ]
        self.unreachable, self.back = unreachable, pair(theirs, self.placements)
        self.said: list[Send] = []
        self.reads: list[tuple[int, Read]] = []
        self.rows: list[int] = []  # first positions of what is computed
        self.leader.step(GatewayConnected(GATEWAY), NOW)
        hello = Hello(
            self.source, pair(self.placements, theirs).digest, Lends("shm", self.back.digest)
        )
        self.leader.step(MessageReceived(D, hello), NOW)
        self.run()
        self.leader.step(MessageReceived(GATEWAY, ROOM), NOW)
        self.run()

    def run(self) -> None:
        """Until nobody has anything to say."""
        while effects := self.leader.effects():
            self.said += [e for e in effects if isinstance(e, Send)]
            for plan in [e.plan for e in effects if isinstance(e, Issue)]:
                for r, rank in enumerate(self.ranks):
                    for effect in rank.step(plan, T0):
                        self.perform(r, effect)
            self.report()

    def report(self) -> None:
        for rank in self.ranks:
            if (report := report_of(rank)) is not None:
                self.leader.step(RankReported(report), NOW)

    def sums(self, rank: int, group: GroupName, blocks: int) -> np.ndarray:
        return np.full((blocks, len(self.placements[rank].units(group))), 7, dtype=np.uint64)

    def perform(self, r: int, effect: RankEffect) -> None:
        rank = self.ranks[r]
        match effect:
            case Compute(batch=batch):
                self.rows += [row.start for row in batch.rows] * (r == 0)
                rows = [
                    RowDone(
                        row.key,
                        drawn(1) if r else None,
                        {g: self.sums(r, g, b - a) for g, (a, b) in row.final.items()},
                    )
                    for row in batch.rows
                ]
                rank.step(BatchDone(batch.seq, tuple(rows)), T0)
            case Digest(order=order):
                rank.step(DigestDone(order.job, self.sums(r, order.group, len(order.slots))), T0)
            case Connect(peer=peer):
                rank.step(Connected(peer, "no way" if r == self.unreachable else ""), T0)
            case Read():
                self.reads.append((r, effect))
            case Disconnect():
                pass
            case _:
                raise AssertionError(effect)

    def lends(self) -> None:
        """Decode lends the first blocks of both groups."""
        run = BlockRun(BlockIndex(0), BlockIndex(BACK), tuple(map(Page, range(BACK))))
        blocks = tuple(BlockIndex(b) for b in range(BACK))
        sums = tuple(
            LegSums(leg.index, group, blocks, (Seal(7 * units.size),) * BACK)
            for leg in self.back.legs
            for group in (KV, INDEX)
            if (units := self.back.source_units(leg, group)).size
        )
        self.leader.step(MessageReceived(D, Loan(ROOM.key, {KV: run, INDEX: run}, sums)), NOW)
        self.run()

    def end(self, rank: int, outcome: ReadOutcome = ReadOutcome.OK) -> None:
        """The reads of one rank end."""
        for r, read in [found for found in self.reads if found[0] == rank]:
            self.reads.remove((r, read))
            for effect in self.ranks[r].step(ReadEnded(read.handle, outcome, "x"), T0):
                self.perform(r, effect)
        self.report()
        self.run()

    def messages(self, kind: type) -> list[object]:
        return [send.message for send in self.said if isinstance(send.message, kind)]

    @property
    def state(self) -> RoomState:
        return self.leader.worker.rooms[ROOM.key].state


def test_it_goes_on_when_all_ranks_have_it_all() -> None:
    bench = Bench()
    assert bench.messages(Borrow) == [Borrow(ROOM.key, BlockIndex(0))]
    bench.lends()
    assert sorted({r for r, _ in bench.reads}) == [0, 1]
    bench.end(1)
    assert (bench.state, bench.rows, bench.messages(Returned)) == (RoomState.BORROWING, [], [])
    bench.end(0)
    assert bench.rows == [4 * BACK]
    assert bench.messages(Returned) == [Returned(ROOM.key)]
    offers = [offer for offer in bench.messages(Offer) if isinstance(offer, Offer)]
    assert [sorted(run.end for run in offer.runs.values()) for offer in offers] == [
        [],
        [BACK] * 2,
        [BACK + 1] * 2,
    ]
    room = bench.leader.worker.rooms[ROOM.key]
    assert {where: rows.shape[0] for where, rows in room.sums.items() if rows.size} == {
        (Rank(0), KV): 4,
        (Rank(1), KV): 4,
        (Rank(1), INDEX): 4,
    }


def test_one_that_fails_waits_for_the_others_too() -> None:
    bench = Bench()
    bench.lends()
    bench.end(0, ReadOutcome.FAILED)
    assert (bench.state, bench.rows) == (RoomState.BORROWING, [])
    bench.end(1)
    assert bench.rows == [0]
    assert bench.messages(Returned) == [Returned(ROOM.key)]


def test_a_worker_that_one_rank_does_not_reach_is_not_asked() -> None:
    bench = Bench(unreachable=1)
    assert bench.messages(Borrow) == []
    assert bench.rows == [0]
    assert not bench.leader.stage(Borrowing)._lenders
