"""Has blocks fetched and verified, and acts on what the ranks report.

fetch order ──▶ every rank reads, verifies, votes ──▶ arrived on all
                                                 ├──▶ failed on one: the epoch ends
                                                 └──▶ differing: Doubt ──▶ prefill hashes them ──Verdict──▶ read once more
"""

from collections.abc import Mapping

from baton.core.agreement import Ballot, Fetch, Suspect, Vote
from baton.core.ids import BlockIndex, Boot, GroupName, Key, Rank
from baton.core.marks import Mark
from baton.core.messages import BlockRun, Doubt, FailCode, Intactness, LegSums, Verdict
from baton.core.scheduler.decode_room import DecodeRoom
from baton.core.scheduler.room import RoomState
from baton.core.scheduler.stage import Handlers, Stage
from baton.core.scheduler.worker import Worker


class Verification(Stage[DecodeRoom]):
    """The fetch orders of one decode worker, from the order to the verdict on differing blocks."""

    def __init__(self, worker: Worker[DecodeRoom], *, tell: bool) -> None:
        """tell: whether ranks are to report the sum of each block"""
        super().__init__(worker)
        self.tell = tell

    def handlers(self) -> Handlers:
        return {Verdict: self.on_verdict}

    def order(
        self,
        room: DecodeRoom,
        runs: dict[GroupName, BlockRun],
        sums: tuple[LegSums, ...],
        *,
        follows: int | None = None,
        only: tuple[Suspect, ...] = (),
    ) -> None:
        """Have blocks read and verified on every rank.

        follows: the earlier order of which blocks are read again; None for a first read
        only: the blocks of that order that differed
        """
        worker = self.worker
        fetch = Fetch(
            order=worker.new_order(),
            follows=follows,
            only=only,
            key=room.key,
            source=room.ticket.prefill,
            length=room.length,
            runs=runs,
            sums=sums,
            deadline_ms=worker.settings.fetch_ms,
            tell=self.tell,
        )
        room.open_orders[fetch.order] = fetch
        worker.orders.expect(fetch.order, room.key, self._fetched)
        worker.draft.fetch.append(fetch)

    def _fetched(self, key: Key, order: int, vote: Vote, by_rank: Mapping[Rank, Ballot]) -> None:
        worker = self.worker
        room = worker.rooms[key]
        if room.state is not RoomState.FETCHING:
            return
        fetch = room.open_orders.pop(order)
        room.progress = worker.now
        worker.progress.did(worker.now)
        if vote is Vote.ARRIVED:
            for group, run in fetch.runs.items():
                room.arrived.setdefault(group, set()).update(
                    BlockIndex(b) for b in range(run.start, run.end)
                )
            if fetch.tell and fetch.follows is None:
                room.brought.add(
                    fetch.runs, {rank: ballot.sums for rank, ballot in by_rank.items()}
                )
            return
        self.worker.marks[Mark.FETCH_FAILED] += 1
        self._doubt(room, fetch, [b for b in by_rank.values() if b.vote is vote])

    def _doubt(self, room: DecodeRoom, fetch: Fetch, ballots: list[Ballot]) -> None:
        """Ask prefill once about blocks that differ every time. Another failure ends the epoch."""
        suspects = {(s.leg, s.group, s.blocks): s for b in ballots for s in b.suspects}
        if not suspects or fetch.follows is not None:
            self.worker.fail(
                room,
                FailCode.HANDOFF_FAILED,
                "; ".join(sorted({b.why for b in ballots})),
                retry=True,
            )
            return
        self.worker.marks[Mark.DOUBT] += 1
        room.doubts[fetch.order] = {s: False for _, s in sorted(suspects.items())}
        for s in room.doubts[fetch.order]:
            self.worker.send(room.ticket.prefill, Doubt(room.key, s.leg, s.group, s.blocks))
        # The order stays open until prefill answers: nothing is committed meanwhile.
        room.open_orders[fetch.order] = fetch

    def on_verdict(self, sender: Boot, verdict: Verdict) -> None:
        """Prefill has hashed blocks that were doubted."""
        room = self.worker.find(verdict.key)
        if room is None or room.state is not RoomState.FETCHING:
            return
        room.progress = self.worker.now
        if verdict.found is not Intactness.INTACT:
            why = (
                f"blocks {list(verdict.blocks)} of group {verdict.group} are "
                f"{verdict.found.value} at the source"
            )
            self.worker.fail(room, FailCode.HANDOFF_FAILED, why, retry=True)
            return
        answered = Suspect(verdict.leg, verdict.group, verdict.blocks)
        for order, doubts in list(room.doubts.items()):
            doubts |= {answered: True} if answered in doubts else {}
            if all(doubts.values()):
                del room.doubts[order]
                fetch = room.open_orders.pop(order)
                self.order(room, fetch.runs, fetch.sums, follows=order, only=tuple(doubts))
