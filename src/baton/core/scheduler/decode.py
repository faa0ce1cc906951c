"""The decode leader: admits rooms, has their blocks fetched and verified, generates.

    QUEUED ──pages held──▶ FETCHING ──all blocks verified, record there──▶ COMMITTING ──applied──▶ RUNNING
       └──────────────────────┴──────────────── END ──▶ ENDING ──quiet──▶ ENDED ◀──┴── finished ──────┘
                                          RUNNING ──a page is short──▶ away and back: retraction.py

A room is admitted after Offer 0, urgent and old requests first, when its whole prompt and one page of headroom fit, less what
the prefix cache holds of it, which is pinned from then on and not fetched. Prefill is not told and promises nothing: it offers
everything, and what is cached here is taken from its offers. Completeness is computed from the ticket's length, the state
table and what was pinned, never from what happened to be offered.

Pages of the prompt enter the cache at the commit, verified, and those of generated tokens when they are complete. The page of
a room's next position is not, so it is the room's own, and nothing in the cache is ever written. What is cached is lent to
prefill (lending.py), with the sums of its blocks: of those fetched the ones that their verification found, of generated
ones the sums at birth. By the same sums it is verified where it lies (memory/scrubber.py), so a room of which they are not all
known leaves nothing in the cache.
"""

from functools import partial

from baton.core.agreement import Report, RowOrder, RowResult
from baton.core.effects import Dial, HangUp
from baton.core.errors import Mismatch
from baton.core.handoff.birth_sums import RoomSums, add_sums, sums_of
from baton.core.handoff.early import EarlyOffers
from baton.core.handoff.fetch_back import FetchBack
from baton.core.handoff.lacking import lacking
from baton.core.handoff.pairing import Partners
from baton.core.ids import BlockIndex, Boot, GroupName, Micros, Rank, Seq
from baton.core.manifest import Manifest
from baton.core.marks import Mark
from baton.core.memory.pages import PageState
from baton.core.memory.prefix_cache import CachedPage
from baton.core.memory.state import extent_blocks
from baton.core.messages import (
    Admitted,
    Borrow,
    Doubt,
    FailCode,
    Hello,
    HelloBack,
    Intactness,
    Introduce,
    Loan,
    Offer,
    Paired,
    Received,
    Refused,
    Returned,
    Stale,
    Ticket,
    Unpaired,
    Verdict,
    Withdrawn,
)
from baton.core.scheduler import lending
from baton.core.scheduler.decode_room import DecodeRoom
from baton.core.scheduler.generation import completed, decode_row, drawn_of, tell
from baton.core.scheduler.retraction import RETRACTION, GeneratingLeader
from baton.core.scheduler.room import LeaderSettings, RoomState, Saw, Table, finish_of
from baton.core.scheduler.verifying import Verification

DECODE: Table = RETRACTION | {
    (RoomState.QUEUED, Saw.HELD): RoomState.FETCHING,
    (RoomState.QUEUED, Saw.END): RoomState.ENDED,  # it holds nothing
    (RoomState.FETCHING, Saw.ARRIVED): RoomState.COMMITTING,
    (RoomState.FETCHING, Saw.END): RoomState.ENDING,
    (RoomState.COMMITTING, Saw.COMMITTED): RoomState.RUNNING,
    (RoomState.COMMITTING, Saw.END): RoomState.ENDING,
    (RoomState.RUNNING, Saw.END): RoomState.ENDING,
    (RoomState.ENDING, Saw.COMMITTED): RoomState.ENDING,  # its plan was under way
    (RoomState.ENDING, Saw.END): RoomState.ENDING,
    (RoomState.ENDING, Saw.QUIET): RoomState.ENDED,
}


ON_THEIR_WAY = (RoomState.FETCHING, RoomState.COMMITTING)  # rooms whose pages are not in the cache yet


class DecodeLeader(GeneratingLeader[DecodeRoom]):
    """The leader of a decode worker."""

    table = DECODE

    def __init__(self, manifest: Manifest, settings: LeaderSettings, totals: dict[GroupName, int]) -> None:
        super().__init__(manifest, settings, totals)
        self._partners = Partners(manifest)
        self._early = EarlyOffers()
        self.reuse.on = self.reuse.on and manifest.seal  # what was fetched unverified must not spread
        self.verification = Verification(self, tell=self.reuse.on)  # nothing is lent, nor verified at rest, without sums
        self._lends = self.reuse.on and settings.fetch_back is not FetchBack.NEVER
        self._handlers |= {
            Introduce: self._on_introduce,
            HelloBack: self._on_hello_back,
            Refused: self._on_refused,
            Offer: self._on_offer,
            Withdrawn: self._on_withdrawn,
            Borrow: self._on_borrow,
            Returned: self._on_returned,
            Doubt: self._on_doubt,
            Verdict: self.verification.on_verdict,
        }

    def _open(self, ticket: Ticket, now: Micros) -> DecodeRoom:
        room = DecodeRoom(ticket, now)
        room.borrow = self._early.borrow(ticket.key, ticket.prefill)
        room.offers = self._early.take(ticket.key, ticket.prefill)
        return room

    def _forget(self, room: DecodeRoom) -> None:
        self.ledger.end_loan(room.key)
        super()._forget(room)

    def _waits_for(self, room: DecodeRoom) -> Boot | None:
        """Our own ranks while they read; else prefill, which computes the next chunk, or looks at what was doubted."""
        if room.state is not RoomState.FETCHING:
            return None
        return self.manifest.boot if room.open_orders.keys() - room.doubts.keys() else room.ticket.prefill

    def _needs_partner(self, room: DecodeRoom) -> bool:
        """A room that is being committed has everything."""
        return room.state in (RoomState.QUEUED, RoomState.FETCHING)

    def _refuse(self, ticket: Ticket) -> str:
        partner = self._partners.find(ticket.prefill)
        paired = partner is not None and partner.paired
        return "" if paired else f"not paired with prefill worker {ticket.prefill:x}"

    # ---- pairing --------------------------------------------------------------------------------

    def _on_gateway_up(self, boot: Boot, now: Micros) -> None:
        """It learns our pairs."""
        super()._on_gateway_up(boot, now)
        for partner in self._partners.paired():
            self.send(boot, Paired(partner.manifest.boot, partner.fabric))

    def _on_introduce(self, sender: Boot, message: Introduce, now: Micros) -> None:
        partner = self._partners.find(message.prefill)
        if partner is not None and partner.paired:
            self.send(sender, Paired(message.prefill, partner.fabric))
            return
        until = Micros(now + self.settings.pair_ms * 1000)
        meet, why = self._partners.introduce(message.manifest, self.plans, until=until)
        if why:
            self.send(sender, Unpaired(message.prefill, why))
        if meet is not None:
            self.draft.meet.append(meet)
            self._effects.append(Dial(message.address, message.prefill))

    def _on_peer_up(self, boot: Boot, now: Micros) -> None:
        partner = self._partners.find(boot)
        if partner is not None:
            partner.session = True
            self._ask(boot)

    def _ask(self, boot: Boot) -> None:
        partner = self._partners.ready_to_ask(boot)
        if partner is not None:
            lends = lending.way(self, partner.manifest, partner.fabric) if self._lends else None
            self.send(boot, Hello(self.manifest, partner.plan.digest, lends))

    def _on_hello_back(self, sender: Boot, message: HelloBack, now: Micros) -> None:
        try:
            partner = self._partners.confirm(sender, message.plan)
        except Mismatch as error:
            self._unpair(sender, str(error))
            return
        if partner is not None:
            for gateway in self._gateways:
                self.send(gateway, Paired(sender, partner.fabric))

    def _on_refused(self, sender: Boot, message: Refused, now: Micros) -> None:
        if self._partners.owes_answer(sender):
            self._unpair(sender, f"the prefill worker refused: {message.why}")

    def _unpair(self, boot: Boot, why: str) -> None:
        if self._partners.forget(boot) is None:
            return
        self.draft.part.append(boot)
        self._effects.append(HangUp(boot))
        self.marks[Mark.UNPAIRED] += 1
        for gateway in self._gateways:
            self.send(gateway, Unpaired(boot, why))

    def _give_up_partners(self, now: Micros) -> None:
        """Who is not paired in time may have ended before it was dialled; nobody else would say so."""
        for partner in self._partners.overdue(now):
            self.marks[Mark.NOT_PAIRED] += 1
            self._unpair(partner.manifest.boot, f"not paired in {self.settings.pair_ms} ms: {partner.lacks}")

    def _on_peer_lost(self, boot: Boot, why: str, now: Micros) -> None:
        partner = self._partners.find(boot)
        self.marks[Mark.NOT_THERE] += partner is not None and not partner.session
        self._unpair(boot, why)
        for room in [r for r in self.rooms.values() if r.ticket.prefill == boot and self._needs_partner(r)]:
            self.marks[Mark.PREFILL_LOST] += 1
            self.fail(room, FailCode.WORKER_LOST, f"prefill worker {boot:x} was lost: {why}", retry=True)
        for room in [r for r in self.rooms.values() if r.ticket.prefill == boot]:
            self.ledger.end_loan(room.key)
        self._early.lost(boot)

    # ---- loans ----------------------------------------------------------------------------------

    def _on_borrow(self, sender: Boot, borrow: Borrow, now: Micros) -> None:
        room = self.find(borrow.key)
        if room is None and self._early.keep_borrow(sender, borrow):
            self.marks[Mark.EARLY_BORROW] += 1
        elif room is None:
            self.send(sender, Loan(borrow.key, {}, ()))
        elif not self.ledger.lends(borrow.key):  # else it is asked again what it has answered
            self._lend(room, borrow)

    def _lend(self, room: DecodeRoom, borrow: Borrow) -> None:
        partner = self._partners.find(room.ticket.prefill)
        if partner is None or not self._lends or room.state is RoomState.ENDING:
            self.send(room.ticket.prefill, Loan(room.key, {}, ()))
        else:
            self.send(room.ticket.prefill, lending.lend(self, room, borrow, partner.manifest))

    def _on_ticket(self, sender: Boot, ticket: Ticket, now: Micros) -> None:
        super()._on_ticket(sender, ticket, now)
        room = self.find(ticket.key)
        if room is not None and room.borrow is not None:
            borrow, room.borrow = room.borrow, None
            self._lend(room, borrow)

    def _on_returned(self, sender: Boot, message: Returned, now: Micros) -> None:
        room = self.find(message.key)
        if room is not None:
            self.ledger.end_loan(room.key)

    def _on_doubt(self, sender: Boot, doubt: Doubt, now: Micros) -> None:
        """What prefill has read of a loan differs from its sums."""
        room = self.find(doubt.key)
        lent = lending.doubted(self, room, doubt) if room is not None and room.ticket.prefill == sender else []
        if lent:
            self.inspect(lent, partial(self._judged, sender, doubt, lent, now))
        else:
            self._answer(sender, doubt, Intactness.GONE)

    def _judged(self, sender: Boot, doubt: Doubt, lent: list[CachedPage], asked: Micros, damaged: list[CachedPage]) -> None:
        """Those that were given up while they were hashed may be another's now: nothing can be said of them."""
        held = [entry for entry in lent if self.ledger.cache.holds(entry)]
        found = [entry for entry in held if entry in damaged]
        self.scrubber.seen(asked, (entry for entry in held if entry not in damaged))
        self.condemn(found)
        intact = Intactness.INTACT if len(held) == len(lent) else Intactness.GONE
        self._answer(sender, doubt, Intactness.DAMAGED if found else intact)

    def _answer(self, to: Boot, doubt: Doubt, found: Intactness) -> None:
        self.marks[Mark[found.name]] += 1
        self.send(to, Verdict(doubt.key, doubt.leg, doubt.group, doubt.blocks, found))

    # ---- offers ---------------------------------------------------------------------------------

    def _on_offer(self, sender: Boot, offer: Offer, now: Micros) -> None:
        room = self.find(offer.key)
        if room is None:
            self._keep_early(sender, offer, now)
        elif room.state in (RoomState.QUEUED, RoomState.FETCHING):
            room.offers[offer.number] = offer
            room.progress = now

    def _keep_early(self, sender: Boot, offer: Offer, now: Micros) -> None:
        """An offer without a ticket waits for it, or is answered Stale."""
        known = self._epochs.get(offer.key.room)
        if known is not None and known[0] >= offer.key.epoch:
            self.marks[Mark.OFFER_TOO_LATE] += 1
            self.send(sender, Stale(offer.key))
        elif self._early.keep(sender, offer, now):
            self.marks[Mark.EARLY_OFFER] += 1
        else:
            self.send(sender, Stale(offer.key))

    def _next_due(self) -> Micros | None:
        dues = (super()._next_due(), self._early.timer(), self._partners.timer())
        return min((due for due in dues if due is not None), default=None)

    def _on_timer(self, now: Micros) -> None:
        for key, sender in self._early.expired(now):
            self.marks[Mark.EARLY_EXPIRED] += 1
            self.send(sender, Stale(key))
        self._give_up_partners(now)
        super()._on_timer(now)

    def _on_withdrawn(self, sender: Boot, message: Withdrawn, now: Micros) -> None:
        room = self.find(message.key)
        if room is None:
            self._early.withdraw(message.key, sender)
        elif self._needs_partner(room):
            self.marks[Mark.WITHDRAWN_HEARD] += 1
            self.end(room)
        else:
            self.marks[Mark.WITHDRAWN_TOO_LATE] += 1

    # ---- schedule -------------------------------------------------------------------------------

    def _schedule(self, now: Micros) -> None:
        queued = self.rooms.in_state(RoomState.QUEUED)
        offered = [room for room in queued if 0 in room.offers] if queued else []
        if offered:
            self.followers.look(offered, self.rooms.in_state(*ON_THEIR_WAY), self.marks, leaving=0)
        self.resume()
        if queued:
            self._admit(now)
        for room in self.rooms.in_state(RoomState.FETCHING):
            self._order_fetches(room)
            self._try_commit(room)
        for room in self.rooms.in_state(RoomState.COMMITTING):
            self._after_commit(room)
        if self.may_step:
            self._compose()

    def _admit(self, now: Micros) -> None:
        """Of those whose prefill holds its pages."""
        for room, reuse in self.admitted(self.rooms.in_state(*ON_THEIR_WAY), PageState.FETCHING, whole=True):
            self.reuse.begin(room, reuse, self.marks)
            room.pinned, room.progress = reuse, now
            for boot in (room.ticket.prefill, room.ticket.gateway):
                self.send(boot, Admitted(room.key))

    def admissible(self, room: DecodeRoom) -> bool:
        """Prefill holds its pages."""
        return 0 in room.offers and super().admissible(room)

    def _order_fetches(self, room: DecodeRoom) -> None:
        """Hand the offers that have come, in their order, to the ranks."""
        while (offer := room.offers.pop(room.ordered, None)) is not None:
            room.ordered += 1
            if why := self._misfit(room, offer):
                self.fail(room, FailCode.HANDOFF_FAILED, why, retry=False)
                return
            left = lacking(offer, self._cached(room), partial(self._source_blocks, room))
            if left.runs:
                self.verification.order(room, left.runs, left.sums)
            if offer.record is not None:
                room.record = offer.record
                if offer.record.length != room.length:
                    why = f"the record states {offer.record.length} tokens, the ticket has {room.length}"
                    self.fail(room, FailCode.HANDOFF_FAILED, why, retry=False)
                    return
                if offer.record.finish is not None:
                    self.end(room)  # it ended at its first token, which the gateway has from prefill
                    return

    def _cached(self, room: DecodeRoom) -> dict[GroupName, BlockIndex]:
        """The first block of each group that was not cached when the room was admitted, where any was."""
        blocks = BlockIndex(room.hit // self.state_table.block_tokens)
        return {group.name: blocks for group in self.state_table.groups} if blocks else {}

    def _source_blocks(self, room: DecodeRoom, group: GroupName) -> int:
        """Blocks of a page of the group on the worker that the room comes from."""
        partner = self._partners.find(room.ticket.prefill)
        return partner.manifest.blocks_per_page(group) if partner is not None else 1

    def _misfit(self, room: DecodeRoom, offer: Offer) -> str:
        """What an offer states that cannot be of this room; empty if nothing."""
        for group, run in offer.runs.items():
            if group not in self.ledger.pools:
                return f"offer {offer.number} names group {group!r}, which this model has not"
            limit = extent_blocks(self.state_table.group(group).extent, room.length, self.state_table.block_tokens)
            k = self._source_blocks(room, group)
            pages = (run.end - 1) // k - run.start // k + 1
            if not limit.start <= run.start < run.end <= limit.end or len(run.pages) != pages:
                return f"offer {offer.number} states blocks [{run.start}, {run.end}) in {len(run.pages)} pages; {limit} are due"
        return ""

    def _expected(self, room: DecodeRoom) -> dict[GroupName, set[BlockIndex]]:
        """What must be fetched of each group."""
        found, cached = {}, self._cached(room)
        for group in self.state_table.groups:
            blocks = extent_blocks(group.extent, room.length, self.state_table.block_tokens)
            first = max(blocks.start, cached.get(group.name, 0))
            found[group.name] = {BlockIndex(b) for b in range(first, blocks.end)}
        return found

    def _try_commit(self, room: DecodeRoom) -> None:
        if room.state is not RoomState.FETCHING or room.record is None or room.open_orders:
            return
        expected = self._expected(room)
        arrived = {g: room.arrived.get(g, set()) for g in expected}
        if arrived != expected:
            missing = {g: sorted(expected[g] ^ arrived[g])[:4] for g in expected if expected[g] != arrived[g]}
            why = f"all offers are in, and blocks differ from what {room.length} tokens need: {missing}"
            self.fail(room, FailCode.HANDOFF_FAILED, why, retry=True)
            return
        if not any(expected.values()):
            self.marks[Mark.ALL_CACHED] += 1
        self.see(room, Saw.ARRIVED)
        self.draft.commit.append(room.key)
        room.committed_at = Seq(self._agreement.chain.seq + 1)  # the plan of this turn

    def _after_commit(self, room: DecodeRoom) -> None:
        assert room.committed_at is not None
        assert room.record is not None
        if not self._agreement.all_applied(room.committed_at):
            return
        self.see(room, Saw.COMMITTED)
        self.ledger.move(room.key, PageState.COMMITTED)
        self.send(room.ticket.prefill, Received(room.key))
        room.generated.append(room.record.first)
        room.sums = self._sums_of(room)
        room.enters = room.sums is not None  # what cannot be verified again is not kept
        self.reuse.enter(room, room.position, room.sums, self.marks)

    def _sums_of(self, room: DecodeRoom) -> RoomSums | None:
        """Of the whole blocks of a prompt that is committed; its last one is written again if it is not whole."""
        if not self.verification.tell:
            return None
        b = self.state_table.block_tokens
        cached, first = room.pinned, BlockIndex(room.hit // b)
        units = {(Rank(r), g): p.unit_count(g) for r, p in enumerate(self.placements) for g in self.ledger.pools}
        known = sums_of(cached) if all(entry.sums for entry in cached) else {}
        return room.brought.sums(known, first, BlockIndex(room.length // b), units)

    # ---- generation -----------------------------------------------------------------------------

    def _compose(self) -> None:
        for lot in self.lots(self.rooms.in_state(RoomState.RUNNING)):
            for room in self.ready(lot):
                seals = room.enters and room.sums is not None  # the prefix cache lends nothing unsealed
                self.add_row(room, decode_row(room, completed(self.state_table, room) if seals else None))
            if self.draft.batch:
                return

    def _on_batch(self, batch: list[tuple[DecodeRoom, RowOrder]], ranks: list[tuple[RowResult, ...]], now: Micros) -> None:
        for i, (room, row) in enumerate(batch):
            if room.state is not RoomState.RUNNING:
                continue  # ended meanwhile
            if row.final and room.sums is not None:
                add_sums(room.sums, {Rank(r): rows[i].sums for r, rows in enumerate(ranks)}, self.placements)
            drawn = drawn_of(ranks, i)
            room.generated.append(drawn)
            room.resumed = False
            self.reuse.enter(room, room.position, room.sums, self.marks)
            finish = finish_of(drawn, generated=int(room.next_index), limits=room.ticket.limits)
            tell(self, room, finish, cached=room.record.cached if room.record is not None and not room.told else 0)
            if finish is not None:
                self.end(room)

    # ---- reports --------------------------------------------------------------------------------

    def _on_report(self, report: Report, now: Micros) -> None:
        super()._on_report(report, now)
        for met in report.met:
            partner = self._partners.find(met.peer)
            if partner is None:
                continue
            if met.why:
                self._unpair(met.peer, f"rank {report.rank} cannot reach it over {partner.fabric}: {met.why}")
            else:
                partner.met.add(report.rank)
                self._ask(met.peer)
