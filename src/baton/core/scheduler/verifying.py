"""The part of a decode leader that has blocks fetched, and counts what its ranks say of them.

fetch order ──▶ every rank reads, verifies, votes ──▶ arrived on all
                                                 ├──▶ failed on one: the epoch ends
                                                 └──▶ differing: Doubt ──▶ prefill hashes them ──Verdict──▶ read once more
"""

from collections.abc import Mapping

from baton.core.agreement import Ballot, Fetch, Suspect, Vote
from baton.core.ids import BlockIndex, Boot, GroupName, Key, Micros, Rank
from baton.core.manifest import Manifest
from baton.core.marks import Mark
from baton.core.messages import BlockRun, Doubt, FailCode, Intactness, LegSums, Verdict
from baton.core.scheduler.decode_room import DecodeRoom
from baton.core.scheduler.retraction import GeneratingLeader
from baton.core.scheduler.room import LeaderSettings, RoomState


class VerifyingLeader(GeneratingLeader[DecodeRoom]):
    """A leader whose ranks fetch blocks and verify them."""

    def __init__(self, manifest: Manifest, settings: LeaderSettings, totals: dict[GroupName, int]) -> None:
        super().__init__(manifest, settings, totals)
        self.keeps_sums = False  # whether it is to be known what each block sums to
        self._handlers |= {Verdict: self._on_verdict}

    def _order(
        self,
        room: DecodeRoom,
        runs: dict[GroupName, BlockRun],
        sums: tuple[LegSums, ...],
        *,
        follows: int | None = None,
        only: tuple[Suspect, ...] = (),
    ) -> None:
        fetch = Fetch(
            order=self.new_order(),
            follows=follows,
            only=only,
            key=room.key,
            source=room.ticket.prefill,
            length=room.length,
            runs=runs,
            sums=sums,
            deadline_ms=self.settings.fetch_ms,
            tell=self.keeps_sums,
        )
        room.open_orders[fetch.order] = fetch
        self.orders.expect(fetch.order, room.key, self._fetched)
        self.draft.fetch.append(fetch)

    def _fetched(self, key: Key, order: int, vote: Vote, by_rank: Mapping[Rank, Ballot]) -> None:
        room = self.rooms[key]
        if room.state is not RoomState.FETCHING:
            return
        fetch = room.open_orders.pop(order)
        room.progress = self._now
        self.progress.did(self._now)
        if vote is Vote.ARRIVED:
            for group, run in fetch.runs.items():
                room.arrived.setdefault(group, set()).update(BlockIndex(b) for b in range(run.start, run.end))
            if fetch.tell and fetch.follows is None:
                room.brought.add(fetch.runs, {rank: ballot.sums for rank, ballot in by_rank.items()})
            return
        self.marks[Mark.FETCH_FAILED] += 1
        self._doubt(room, fetch, [b for b in by_rank.values() if b.vote is vote])

    def _doubt(self, room: DecodeRoom, fetch: Fetch, ballots: list[Ballot]) -> None:
        """Ask prefill about blocks that keep differing, once; any other failure ends the epoch."""
        suspects = {(s.leg, s.group, s.blocks): s for b in ballots for s in b.suspects}
        if not suspects or fetch.follows is not None:
            self.fail(room, FailCode.HANDOFF_FAILED, "; ".join(sorted({b.why for b in ballots})), retry=True)
            return
        self.marks[Mark.DOUBT] += 1
        room.doubts[fetch.order] = {s: False for _, s in sorted(suspects.items())}
        for s in room.doubts[fetch.order]:
            self.send(room.ticket.prefill, Doubt(room.key, s.leg, s.group, s.blocks))
        # The order stays open until the answers: nothing is committed meanwhile.
        room.open_orders[fetch.order] = fetch

    def _on_verdict(self, sender: Boot, verdict: Verdict, now: Micros) -> None:
        room = self.find(verdict.key)
        if room is None or room.state is not RoomState.FETCHING:
            return
        room.progress = now
        if verdict.found is not Intactness.INTACT:
            why = f"blocks {list(verdict.blocks)} of group {verdict.group} are {verdict.found.value} at the source"
            self.fail(room, FailCode.HANDOFF_FAILED, why, retry=True)
            return
        answered = Suspect(verdict.leg, verdict.group, verdict.blocks)
        for order, doubts in list(room.doubts.items()):
            doubts |= {answered: True} if answered in doubts else {}
            if all(doubts.values()):
                del room.doubts[order]
                fetch = room.open_orders.pop(order)
                self._order(room, fetch.runs, fetch.sums, follows=order, only=tuple(doubts))
