"""The prefill leader: computes prompts in chunks and offers their sealed blocks.

    QUEUED ──pages held──▶ COMPUTING ──last chunk──▶ OFFERED ──Received──▶ ENDING ──quiet──▶ ENDED
       │                     │ ▲                        │
       │             fetch back: borrowing.py      │
       └───────────────────────┴────────────────────────┴── END (abort, peer lost, ...) ──▶ ENDING, or ENDED from QUEUED

Offer 0 goes out when the pages of the whole prompt are held; what of them is cached is offered at once, with the sums it had
at birth, and after each chunk the blocks that it made final, with their birth sums per leg; the last offer carries the record.
`FirstToken` goes to the gateway at once. Complete pages of a chunk go to the prefix cache when it has ended (reuse.py).
"""

from collections.abc import Sequence
from functools import partial

from baton.core.agreement import Rehash, Report, RowOrder, RowResult
from baton.core.errors import BatonError, Mismatch
from baton.core.handoff.birth_sums import add_sums, sums_of
from baton.core.handoff.leg_sums import leg_sums
from baton.core.handoff.plan import PairPlan
from baton.core.ids import BlockIndex, Boot, GroupName, Micros, Rank, TokenIndex
from baton.core.manifest import Manifest, require_fit
from baton.core.marks import Mark
from baton.core.memory.chunks import ChunkRule, final_blocks
from baton.core.memory.pages import PageState
from baton.core.memory.prefix_cache import CachedPage
from baton.core.memory.state import extent_blocks
from baton.core.messages import (
    Admitted,
    BlockRun,
    Doubt,
    Drawn,
    FailCode,
    FirstToken,
    Hello,
    HelloBack,
    Intactness,
    LegSums,
    Loan,
    Offer,
    Received,
    Record,
    Refused,
    Stale,
    Ticket,
    Verdict,
    Withdrawn,
)
from baton.core.scheduler.borrowing import Borrowing
from baton.core.scheduler.holding import beyond, slide, take
from baton.core.scheduler.inspections import Differing
from baton.core.scheduler.leader import Leader
from baton.core.scheduler.prefill_room import PrefillRoom
from baton.core.scheduler.prompt_chunks import add_chunks
from baton.core.scheduler.room import LeaderSettings, RoomState, Saw, Table, finish_of

PREFILL: Table = {
    (RoomState.QUEUED, Saw.HELD): RoomState.COMPUTING,
    (RoomState.QUEUED, Saw.END): RoomState.ENDED,  # it holds nothing
    (RoomState.COMPUTING, Saw.ADMITTED): RoomState.COMPUTING,
    (RoomState.COMPUTING, Saw.ASKED): RoomState.BORROWING,
    (RoomState.BORROWING, Saw.ADMITTED): RoomState.BORROWING,
    (RoomState.BORROWING, Saw.BORROWED): RoomState.COMPUTING,
    (RoomState.BORROWING, Saw.END): RoomState.ENDING,
    (RoomState.COMPUTING, Saw.LAST_CHUNK): RoomState.OFFERED,
    (RoomState.COMPUTING, Saw.END): RoomState.ENDING,
    (RoomState.OFFERED, Saw.ADMITTED): RoomState.OFFERED,
    (RoomState.OFFERED, Saw.RECEIVED): RoomState.ENDING,
    (RoomState.OFFERED, Saw.END): RoomState.ENDING,
    (RoomState.ENDING, Saw.ADMITTED): RoomState.ENDING,  # crossed with our end
    (RoomState.ENDING, Saw.RECEIVED): RoomState.ENDING,
    (RoomState.ENDING, Saw.LAST_CHUNK): RoomState.ENDING,  # its batch was under way
    (RoomState.ENDING, Saw.END): RoomState.ENDING,
    (RoomState.ENDING, Saw.QUIET): RoomState.ENDED,
}
HOLDING = (RoomState.COMPUTING, RoomState.BORROWING, RoomState.OFFERED)


class PrefillLeader(Leader[PrefillRoom]):
    """The leader of a prefill worker."""

    table = PREFILL

    def __init__(self, manifest: Manifest, settings: LeaderSettings, totals: dict[GroupName, int]) -> None:
        super().__init__(manifest, settings, totals)
        self._plans: dict[Boot, PairPlan] = {}  # by decode worker
        self.borrowing = Borrowing(self, took=self._took)
        self._rule = ChunkRule(settings.step_tokens, settings.last_chunk_tokens)
        self._handlers |= {
            Hello: self._on_hello,
            Admitted: self._on_admitted,
            Received: self._on_received,
            Doubt: self._on_doubt,
            Loan: self.borrowing.on_loan,
            Verdict: self.borrowing.on_verdict,
        }

    def _open(self, ticket: Ticket, now: Micros) -> PrefillRoom:
        return PrefillRoom(ticket, now)

    def _waits(self, room: PrefillRoom) -> bool:
        """What is computed ahead of decode's admission holds memory, so it has a deadline too."""
        return not room.admitted

    def _ahead_pages(self) -> dict[GroupName, int]:
        """The stated share of the pool, divided among the decode workers: one that is full keeps no other one waiting."""
        share = self.settings.ahead / max(1, len(self._plans)) if self.settings.ahead < 1 else 1
        return {g: int(n * share) for g, n in self.ledger.totals().items()}

    def _waits_for(self, room: PrefillRoom) -> Boot | None:
        """Decode, which reads and says Received."""
        return room.ticket.decode if room.state is RoomState.OFFERED and room.admitted else None

    def pages_for(self, tokens: int) -> dict[GroupName, int]:
        """Enough for every chunk of a prompt."""
        return self.span.reserve(tokens, step=self.settings.step_tokens * self.manifest.pp)

    def _refuse(self, ticket: Ticket) -> str:
        return "" if ticket.decode in self._plans else f"not paired with decode worker {ticket.decode:x}"

    # ---- pairing --------------------------------------------------------------------------------

    def _on_hello(self, sender: Boot, hello: Hello, now: Micros) -> None:
        theirs = hello.manifest
        try:
            require_fit(self.manifest, theirs)
            plan = self.plans.pair(self.placements, [theirs.placement(r.rank) for r in theirs.ranks])
            if plan.digest != hello.plan:
                raise Mismatch("plan digest", plan.digest, hello.plan)
        except BatonError as error:  # whatever of ours says that they do not fit
            self.send(sender, Refused(str(error)))
            return
        self._plans[sender] = plan
        self.send(sender, HelloBack(plan.digest))
        self.borrowing.meet_lender(hello)

    def _on_peer_lost(self, boot: Boot, why: str, now: Micros) -> None:
        self._plans.pop(boot, None)
        self.borrowing.lose_lender(boot)
        for room in [r for r in self.rooms.values() if r.ticket.decode == boot]:
            self.marks[Mark.DECODE_LOST] += 1
            self.fail(room, FailCode.WORKER_LOST, f"decode worker {boot:x} was lost: {why}", retry=True)

    def _next_due(self) -> Micros | None:
        dues = (super()._next_due(), self.borrowing.timer())
        return min((due for due in dues if due is not None), default=None)

    def _on_timer(self, now: Micros) -> None:
        self.borrowing.on_timer(now)
        super()._on_timer(now)

    def _on_report(self, report: Report, now: Micros) -> None:
        self.borrowing.met(report)

    # ---- schedule -------------------------------------------------------------------------------

    def _schedule(self, now: Micros) -> None:
        self._hold_pages(now)
        if self.may_step:
            self._compose()
            if self.draft.batch:
                self.borrowing.stepping(sum(len(row.tokens) for row in self.draft.batch))

    def _hold_pages(self, now: Micros) -> None:
        """Pages of whole prompts, oldest request first: whoever does not fit keeps the younger ones waiting.

        What runs ahead of decode's admission is bounded; beyond it the rooms of that decode worker alone wait.
        """
        queued = self.rooms.in_state(RoomState.QUEUED)
        leading = self.rooms.in_state(RoomState.COMPUTING, RoomState.BORROWING) if queued else []
        for room in queued:
            if self.followers.waits(room, leading, self.marks):
                continue
            reuse = self.reuse.find(room)
            if self._too_far_ahead(room, reuse):
                self.marks[Mark.TOO_FAR_AHEAD] += 1
                continue
            if not take(self, room, self.pages_for(room.length), PageState.COMPUTING, reuse=reuse):
                self._make_way(room, reuse)
                return
            self.followers.forget(room.key)
            leading.append(room)
            self.see(room, Saw.HELD)
            room.progress = now
            self._offer(room, {}, (), None)
            self._begin(room, reuse)

    def _begin(self, room: PrefillRoom, reuse: Sequence[CachedPage]) -> None:
        """What is cached of the prompt is computed already: it can be fetched at once."""
        room.ordered = room.done = self.reuse.begin(room, reuse, self.marks)
        if reuse:
            room.sums = sums_of(reuse)
            self._offer_from(room, 0)
        self.borrowing.borrow(room)

    def _offer_from(self, room: PrefillRoom, start: int) -> None:
        there = final_blocks(self.state_table, start=start, end=room.done, length=room.length)
        self._offer(room, self._runs(room, there), self._leg_sums(room, there), None)

    def _took(self, room: PrefillRoom) -> None:
        """More of a prompt is there, fetched back."""
        self.reuse.enter(room, room.done, room.sums, self.marks)
        self._offer_from(room, room.hit)

    def _too_far_ahead(self, room: PrefillRoom, reuse: Sequence[CachedPage]) -> bool:
        """Whether rooms that this one's decode worker has not admitted hold so much that it must wait; one never must."""
        if self.settings.ahead >= 1:
            return False
        held = self.rooms.in_state(*HOLDING)
        ahead = [r.key for r in held if not r.admitted and r.ticket.decode == room.ticket.decode]
        pages, own = self.ledger.count(ahead, beside=reuse), beyond(self.pages_for(room.length), reuse)
        return bool(ahead) and any(pages[g] + own[g] > n for g, n in self._ahead_pages().items())

    def _make_way(self, room: PrefillRoom, reuse: Sequence[CachedPage]) -> None:
        """Withdraw younger rooms that decode has not admitted, the youngest first, until this one will fit.

        An admitted room is never withdrawn, nor is any while blocks are not verified: decode would not notice.
        """
        want, coming = beyond(self.pages_for(room.length), reuse), [r.key for r in self.rooms.in_state(RoomState.ENDING)]
        held = self.rooms.in_state(*HOLDING)
        younger = [r for r in held if r.ticket.came > room.ticket.came and not r.admitted and self.manifest.seal]
        chosen: list[PrefillRoom] = []
        while younger and not self.ledger.fits(want, reuse=reuse, ended=coming):
            chosen.append(younger.pop())
            coming.append(chosen[-1].key)
        if not self.ledger.fits(want, reuse=reuse, ended=coming):
            return  # it would not help
        for victim in chosen:
            self.marks[Mark.WITHDRAWN] += 1
            for boot in (victim.ticket.decode, victim.ticket.gateway):
                self.send(boot, Withdrawn(victim.key))
            self.end(victim)

    def _compose(self) -> None:
        computing = [room for room in self.rooms.in_state(RoomState.COMPUTING) if room.ordered < room.length]
        first = next(iter(self.lots(computing)), [])
        add_chunks(self, first, rule=self._rule, budget=self.settings.step_tokens, follow=0)

    # ---- results --------------------------------------------------------------------------------

    def _on_batch(self, batch: list[tuple[PrefillRoom, RowOrder]], ranks: list[tuple[RowResult, ...]], now: Micros) -> None:
        self.borrowing.stepped()
        self.progress.did(now)
        for i, (room, row) in enumerate(batch):
            if room.state is not RoomState.COMPUTING:
                continue  # ended meanwhile
            drawn = next((rows[i].drawn for rows in ranks if rows[i].drawn is not None), None)
            room.done, room.progress = row.valid, now
            add_sums(room.sums, {Rank(r): rows[i].sums for r, rows in enumerate(ranks)}, self.placements)
            self.reuse.enter(room, room.done, room.sums, self.marks)
            self._offer_chunk(room, row.final, drawn)
            self._keep_window(room)

    def _keep_window(self, room: PrefillRoom) -> None:
        """Of a prompt that is computed, pages that are not handed over return to the pool."""
        if room.state is RoomState.OFFERED:
            slide(self, room, room.length, tokens=room.length)

    def _offer_chunk(self, room: PrefillRoom, final: dict[GroupName, tuple[BlockIndex, BlockIndex]], drawn: Drawn | None) -> None:
        record = None
        if room.done == room.length:
            assert drawn is not None, "the last chunk draws"
            generated = len(room.ticket.said) + 1
            finish = finish_of(drawn, generated=generated, limits=room.ticket.limits)
            record = Record(room.length, drawn, finish, room.cached)
            self.see(room, Saw.LAST_CHUNK)
            self.ledger.move(room.key, PageState.FULL)
        self._offer(room, self._runs(room, final), self._leg_sums(room, final), record)
        if record is not None:
            first = TokenIndex(len(room.ticket.said))
            self.send(room.ticket.gateway, FirstToken(room.key, first, record.first, record.finish, room.cached))
            if record.finish is not None:
                self.marks[Mark.FINISHED_AT_FIRST] += 1
                self.end(room)  # it never enters decode

    def _runs(self, room: PrefillRoom, final: dict[GroupName, tuple[BlockIndex, BlockIndex]]) -> dict[GroupName, BlockRun]:
        """These blocks, and the pages that hold them."""
        held, gone = self.ledger.held(room.key), self.ledger.begins(room.key)
        k = {g: self.manifest.blocks_per_page(g) for g in final}
        return {g: BlockRun(a, b, held[g][a // k[g] - gone[g] : (b - 1) // k[g] + 1 - gone[g]]) for g, (a, b) in final.items()}

    def _leg_sums(self, room: PrefillRoom, final: dict[GroupName, tuple[BlockIndex, BlockIndex]]) -> tuple[LegSums, ...]:
        plan = self._plans.get(room.ticket.decode)
        if plan is None or not self.manifest.seal:
            return ()
        return leg_sums(plan, room.sums, final, {group: self._first(room, group) for group in final})

    def _first(self, room: PrefillRoom, group: GroupName) -> int:
        """The first block of the group's extent: row 0 of its sums."""
        return extent_blocks(self.state_table.group(group).extent, room.length, self.state_table.block_tokens).start

    def _offer(
        self,
        room: PrefillRoom,
        runs: dict[GroupName, BlockRun],
        sums: tuple[LegSums, ...],
        record: Record | None,
    ) -> None:
        self.send(room.ticket.decode, Offer(room.key, room.offers, runs, sums, record))
        room.offers += 1

    # ---- what decode says -----------------------------------------------------------------------

    def _on_admitted(self, sender: Boot, message: Admitted, now: Micros) -> None:
        room = self.find(message.key)
        if room is None or (room.state, Saw.ADMITTED) not in self.table:
            self.marks[Mark.ADMITTED_TOO_LATE] += 1
            self.send(sender, Stale(message.key))
            return
        self.see(room, Saw.ADMITTED)
        room.admitted, room.progress = True, now

    def _on_received(self, sender: Boot, message: Received, now: Micros) -> None:
        room = self.find(message.key)
        if room is not None and (room.state, Saw.RECEIVED) in self.table:
            self.leave(room, Saw.RECEIVED)

    def _on_doubt(self, sender: Boot, doubt: Doubt, now: Micros) -> None:
        room = self.find(doubt.key)
        plan = self._plans.get(sender)
        if room is None or plan is None or not self._has_sums(room, doubt):
            self.marks[Mark.GONE] += 1
            gone = Verdict(doubt.key, doubt.leg, doubt.group, doubt.blocks, Intactness.GONE)
            self.send(sender, gone)
            return
        room.progress = now
        order, rows = self.new_order(), [b - self._first(room, doubt.group) for b in doubt.blocks]
        birth = {(r, doubt.group): room.sums[r, doubt.group][rows] for r in self._with(room, doubt.group)}
        self.inspections.expect(order, birth, partial(self._judge, doubt))
        self.draft.rehash.append(Rehash(order, doubt.key, room.length, doubt.group, doubt.blocks))

    def _has_sums(self, room: PrefillRoom, doubt: Doubt) -> bool:
        known = min((len(room.sums[r, doubt.group]) for r in self._with(room, doubt.group)), default=0)
        first = self._first(room, doubt.group) if known else 0
        return room.state is not RoomState.ENDING and all(first <= b < first + known for b in doubt.blocks)

    def _with(self, room: PrefillRoom, group: GroupName) -> list[Rank]:
        """Ranks that hold something of the group: a pipeline stage may have none of its layers."""
        return [r for r, g in room.sums if g == group and self.placements[r].block_bytes(g)]

    def _judge(self, doubt: Doubt, differing: Differing) -> None:
        """Our own blocks, hashed again, against their sums at birth."""
        self.progress.did(self._now)
        room = self.find(doubt.key)
        assert room is not None, "a rank is quiet after its last answer"
        wrong = {rank: rows.nonzero()[0].tolist() for (rank, _), rows in differing.items() if rows.any()}
        damaged = sorted({doubt.blocks[row] for rows in wrong.values() for row in rows})
        if damaged:
            self._condemn(room, doubt.group, damaged[0])
        if room.state is RoomState.ENDING:
            return
        self.marks[Mark.DAMAGED if damaged else Mark.INTACT] += 1
        found = Intactness.DAMAGED if damaged else Intactness.INTACT
        self.send(room.ticket.decode, Verdict(doubt.key, doubt.leg, doubt.group, doubt.blocks, found))
        if damaged:
            why = f"blocks {damaged} of group {doubt.group} changed in prefill's own memory (ranks {sorted(wrong)})"
            self.fail(room, FailCode.HANDOFF_FAILED, why, retry=True)

    def _condemn(self, room: PrefillRoom, group: GroupName, block: BlockIndex) -> None:
        """A block is damaged: its page leaves the cache with all that was computed above it, and so do the rooms that hold any
        of it, whose state may have been computed from it."""
        page = block // self.manifest.blocks_per_page(group) - self.ledger.begins(room.key)[group]
        others = self.ledger.condemn(room.key, page) - {room.key}
        self.end_all(others, f"a page that it shares changed in prefill's own memory (block {block} of group {group})")
