"""Decode's side of the handoff: has the blocks of its rooms fetched and verified, and commits a
room when all are there.

    QUEUED ──pages held──▶ FETCHING ──all blocks verified, record there──▶ COMMITTING ──applied──▶ RUNNING
       └──────────────────────┴──────────────── END ──▶ ENDING ──quiet──▶ ENDED ◀──┴── finished ──────┘
                                          RUNNING ──a page is short──▶ away and back: preemption.py

A room is admitted after Offer 0, when its whole prompt and one page of headroom fit, less what the
prefix cache has of the prompt: those pages are pinned from then on and are not fetched. Prefill is
not told of them: it offers everything, and decode leaves out what it has cached. Completeness is
computed from the ticket's length, the state table and what was pinned, never from what happened to
be offered.

Pages of the prompt enter the prefix cache at the commit, verified. Cached pages are lent to prefill
(lending.py) with the sums of their blocks: for fetched blocks those that their verification found,
for generated blocks those at birth. The same sums serve to verify the pages at rest
(memory/scrubber.py), so a room of which some sums are unknown leaves nothing in the cache.
"""

from functools import partial

from baton.core.handoff.birth_sums import RoomSums, sums_of
from baton.core.handoff.early import EarlyOffers
from baton.core.handoff.lacking import lacking
from baton.core.ids import BlockIndex, Boot, GroupName, Key, Micros, Rank
from baton.core.marks import Mark
from baton.core.memory.pages import PageState
from baton.core.memory.state import extent_blocks
from baton.core.messages import FailCode, Offer, Received, Stale, Withdrawn
from baton.core.scheduler.admission import Reuse
from baton.core.scheduler.decode_room import DecodeRoom
from baton.core.scheduler.pairs import Pairing
from baton.core.scheduler.room import RoomState, Saw
from baton.core.scheduler.stage import Handlers, Stage
from baton.core.scheduler.verifying import Verification
from baton.core.scheduler.worker import Worker

# a room that is being committed has everything it needs from prefill
NOT_COMMITTED = (RoomState.QUEUED, RoomState.FETCHING)


class Fetching(Stage[DecodeRoom]):
    """The fetches of one decode worker, from the first offer to the commit."""

    def __init__(
        self,
        worker: Worker[DecodeRoom],
        pairing: Pairing,
        verification: Verification,
        early: EarlyOffers,
    ) -> None:
        super().__init__(worker)
        self._pairing, self._verification, self._early = pairing, verification, early

    def handlers(self) -> Handlers:
        return {Offer: self._on_offer, Withdrawn: self._on_withdrawn, Stale: self._on_stale}

    def opened(self, room: DecodeRoom) -> None:
        """Take the offers that came before the ticket."""
        if not room.computes:
            room.offers = self._early.take(room.key, room.ticket.prefill)

    def forgotten(self, room: DecodeRoom) -> None:
        if not room.computes:
            self._early.take(room.key, room.ticket.prefill)  # offers for a room that was refused

    def admissible(self, room: DecodeRoom) -> bool:
        """Whether the room computes its prompt, or prefill holds its pages: what is fetched for it
        then never waits for memory there."""
        return room.computes or 0 in room.offers

    def admitted(self, room: DecodeRoom, reuse: Reuse) -> None:
        if room.computes:
            return
        self.worker.reuse.begin(room, reuse, self.worker.marks)
        room.pinned, room.progress = tuple(reuse), self.worker.now

    def advance(self) -> None:
        """Order the fetches of what was offered, and commit rooms that have everything."""
        for room in self.worker.rooms.in_state(RoomState.FETCHING):
            self._order_fetches(room)
            self._try_commit(room)
        for room in self.worker.rooms.in_state(RoomState.COMMITTING):
            self._after_commit(room)

    def waits_for(self, room: DecodeRoom) -> Boot | None:
        """Our own ranks while they read; otherwise prefill, which computes the next chunk or looks
        into a doubt."""
        if room.state is not RoomState.FETCHING:
            return None
        return (
            self.worker.manifest.boot
            if room.open_orders.keys() - room.doubts.keys()
            else room.ticket.prefill
        )

    def peer_lost(self, boot: Boot, why: str) -> None:
        for room in [
            r
            for r in self.worker.rooms.values()
            if r.ticket.prefill == boot and r.state in NOT_COMMITTED
        ]:
            self.worker.marks[Mark.PREFILL_LOST] += 1
            self.worker.fail(
                room, FailCode.WORKER_LOST, f"prefill worker {boot:x} was lost: {why}", retry=True
            )
        self._early.lost(boot)

    def timer(self) -> Micros | None:
        return self._early.timer()

    def on_timer(self) -> None:
        for key, sender in self._early.expired(self.worker.now):
            self.worker.marks[Mark.EARLY_EXPIRED] += 1
            self.worker.send(sender, Stale(key))

    def kept(self) -> dict[str, list[Key]]:
        return {"early offers": self._early.overdue(self.worker.now)}

    # ---- offers ---------------------------------------------------------------------------------

    def _on_offer(self, sender: Boot, offer: Offer) -> None:
        room = self.worker.find(offer.key)
        if room is None:
            self._keep_early(sender, offer)
        elif room.state in NOT_COMMITTED:
            room.offers[offer.number] = offer
            room.progress = self.worker.now

    def _keep_early(self, sender: Boot, offer: Offer) -> None:
        """Keep an offer that came before its ticket, or answer `Stale`."""
        if self.worker.epochs.passed(offer.key):
            self.worker.marks[Mark.OFFER_TOO_LATE] += 1
            self.worker.send(sender, Stale(offer.key))
        elif self._early.keep(sender, offer, self.worker.now):
            self.worker.marks[Mark.EARLY_OFFER] += 1
        else:
            self.worker.send(sender, Stale(offer.key))

    def _on_withdrawn(self, sender: Boot, message: Withdrawn) -> None:
        room = self.worker.find(message.key)
        if room is None:
            self._early.withdraw(message.key, sender)
        elif room.state in NOT_COMMITTED:
            self.worker.marks[Mark.WITHDRAWN_HEARD] += 1
            self.worker.end(room)
        else:
            self.worker.marks[Mark.WITHDRAWN_TOO_LATE] += 1

    def _order_fetches(self, room: DecodeRoom) -> None:
        """Order the fetches of the offers that have come, in the order of their numbers."""
        while (offer := room.offers.pop(room.taken, None)) is not None:
            room.taken += 1
            if why := self._misfit(room, offer):
                self.worker.fail(room, FailCode.HANDOFF_FAILED, why, retry=False)
                return
            left = lacking(
                offer, self._cached(room), partial(self._pairing.source_blocks, room.ticket.prefill)
            )
            if left.runs:
                self._verification.order(room, left.runs, left.sums)
            if offer.record is not None:
                room.record = offer.record
                if offer.record.length != room.length:
                    why = (
                        f"the record states {offer.record.length} tokens, the ticket has "
                        f"{room.length}"
                    )
                    self.worker.fail(room, FailCode.HANDOFF_FAILED, why, retry=False)
                    return
                if offer.record.finish is not None:
                    # The request ended at its first token, which prefill sends to the gateway.
                    self.worker.end(room)
                    return

    def _cached(self, room: DecodeRoom) -> dict[GroupName, BlockIndex]:
        """Return the first block of each group that was not cached when the room was admitted;
        empty if none was cached."""
        blocks = BlockIndex(room.hit // self.worker.state_table.block_tokens)
        return dict.fromkeys(self.worker.ledger.cached, blocks) if blocks else {}

    def _misfit(self, room: DecodeRoom, offer: Offer) -> str:
        """Return what is wrong with an offer for this room; empty if nothing is."""
        for group, run in offer.runs.items():
            if group not in self.worker.ledger.pools:
                return f"offer {offer.number} names group {group!r}, which this model has not"
            limit = extent_blocks(
                self.worker.state_table.group(group).extent,
                room.length,
                self.worker.state_table.block_tokens,
            )
            k = self._pairing.source_blocks(room.ticket.prefill, group)
            pages = (run.end - 1) // k - run.start // k + 1
            if not limit.start <= run.start < run.end <= limit.end or len(run.pages) != pages:
                return (
                    f"offer {offer.number} states blocks [{run.start}, {run.end}) in "
                    f"{len(run.pages)} pages; {limit} are due"
                )
        return ""

    def _expected(self, room: DecodeRoom) -> dict[GroupName, set[BlockIndex]]:
        """Return the blocks of each group that must be fetched."""
        found, cached = {}, self._cached(room)
        for group in self.worker.state_table.groups:
            blocks = extent_blocks(group.extent, room.length, self.worker.state_table.block_tokens)
            first = max(blocks.start, cached.get(group.name, 0))
            found[group.name] = {BlockIndex(b) for b in range(first, blocks.end)}
        return found

    def _try_commit(self, room: DecodeRoom) -> None:
        if room.state is not RoomState.FETCHING or room.record is None or room.open_orders:
            return
        expected = self._expected(room)
        arrived = {g: room.arrived.get(g, set()) for g in expected}
        if arrived != expected:
            missing = {
                g: sorted(expected[g] ^ arrived[g])[:4]
                for g in expected
                if expected[g] != arrived[g]
            }
            why = (
                f"all offers are in, and blocks differ from what {room.length} tokens need: "
                f"{missing}"
            )
            self.worker.fail(room, FailCode.HANDOFF_FAILED, why, retry=True)
            return
        if not any(expected.values()):
            self.worker.marks[Mark.ALL_CACHED] += 1
        self.worker.see(room, Saw.ARRIVED)
        self.worker.draft.commit.append(room.key)
        room.committed_at = self.worker.next_seq

    def _after_commit(self, room: DecodeRoom) -> None:
        assert room.committed_at is not None
        assert room.record is not None
        if not self.worker.agreement.all_applied(room.committed_at):
            return
        self.worker.see(room, Saw.COMMITTED)
        self.worker.ledger.move(room.key, PageState.COMMITTED)
        self.worker.send(room.ticket.prefill, Received(room.key))
        room.generated.append(room.record.first)
        room.scores = room.record.scores
        room.sums = self._sums_of(room)
        room.enters = room.sums is not None  # what cannot be verified again is not kept
        self.worker.reuse.enter(room, room.position, room.sums, self.worker.marks)

    def _sums_of(self, room: DecodeRoom) -> RoomSums | None:
        """Return the sums of the whole blocks of a committed prompt; None if some are unknown. Its
        last block is left out if it is not whole, as it will be written again."""
        if not self._verification.tell:
            return None
        b = self.worker.state_table.block_tokens
        cached, first = room.pinned, BlockIndex(room.hit // b)
        units = {
            (Rank(r), g): p.unit_count(g)
            for r, p in enumerate(self.worker.placements)
            for g in self.worker.ledger.cached
        }
        known = sums_of(cached) if all(entry.sums for entry in cached) else {}
        return room.brought.sums(known, first, BlockIndex(room.length // b), units)

    def _on_stale(self, sender: Boot, stale: Stale) -> None:
        room = self.worker.find(stale.key)
        if room is not None and room.state in NOT_COMMITTED:
            self.worker.marks[Mark.STALE_HEARD] += 1
            self.worker.fail(
                room, FailCode.HANDOFF_FAILED, "the other side does not know this epoch", retry=True
            )
