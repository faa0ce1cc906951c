"""Prefill's side of the handoff: offers the sealed blocks of a prompt to the decode worker of its
room.

    QUEUED ──pages held──▶ COMPUTING ──last chunk──▶ OFFERED ──Received──▶ ENDING ──quiet──▶ ENDED
       │                     │ ▲                        │
       │             fetch back: borrowing.py           │
       └───────────────────────┴────────────────────────┴── END (abort, peer lost, ...) ──▶ ENDING, or ENDED from QUEUED

Offer 0 goes out when the pages of the whole prompt are held. Blocks that are cached are offered at
once, with the sums they had at birth. After each chunk the blocks that the chunk made final are
offered, with their birth sums per leg. The last offer carries the record, and `FirstToken` goes to
the gateway at the same time.
"""

from collections.abc import Mapping
from functools import partial

from baton.core.agreement import Rehash, RowOrder
from baton.core.errors import BatonError, Mismatch
from baton.core.handoff.leg_sums import leg_sums
from baton.core.handoff.plan import PairPlan
from baton.core.ids import BlockIndex, Boot, GroupName, Rank, TokenIndex
from baton.core.manifest import require_fit
from baton.core.marks import Mark
from baton.core.memory.chunks import final_blocks
from baton.core.memory.pages import PageState
from baton.core.memory.state import Unit, extent_blocks
from baton.core.messages import (
    Admitted,
    BlockRun,
    Doubt,
    Drawn,
    FailCode,
    FinishReason,
    FirstToken,
    Hello,
    HelloBack,
    Intactness,
    LegSums,
    Offer,
    PromptLogprobs,
    Received,
    Record,
    Refused,
    Stale,
    Ticket,
    Verdict,
)
from baton.core.scheduler.admission import Reuse
from baton.core.scheduler.inspections import Differing
from baton.core.scheduler.prefill_room import PrefillRoom
from baton.core.scheduler.room import UNTOLD, RoomState, Saw, finish_of
from baton.core.scheduler.stage import Handlers, Stage
from baton.core.scheduler.worker import Worker

Final = Mapping[GroupName, tuple[BlockIndex, BlockIndex]]  # blocks [start, end) of each group


class Offering(Stage[PrefillRoom]):
    """Offers the blocks of one prefill worker's prompts, and answers decode workers."""

    def __init__(self, worker: Worker[PrefillRoom]) -> None:
        super().__init__(worker)
        self._plans: dict[Boot, PairPlan] = {}  # by decode worker

    def handlers(self) -> Handlers:
        return {
            Hello: self._on_hello,
            Admitted: self._on_admitted,
            Received: self._on_received,
            Doubt: self._on_doubt,
            Stale: self._on_stale,
        }

    def refuse(self, ticket: Ticket) -> str:
        return (
            ""
            if ticket.decode in self._plans
            else f"not paired with decode worker {ticket.decode:x}"
        )

    def waits_for(self, room: PrefillRoom) -> Boot | None:
        """Decode, which reads the blocks and says `Received`."""
        return room.ticket.decode if room.state is RoomState.OFFERED and room.admitted else None

    def stepped(self) -> None:
        """Report progress: decode may wait for the next chunk."""
        self.worker.progress.did(self.worker.now)

    @property
    def pairs(self) -> int:
        """How many decode workers are paired with this one."""
        return len(self._plans)

    def pairs_with(self, boot: Boot) -> bool:
        """Whether a decode worker is paired with this one."""
        return boot in self._plans

    # ---- pairing --------------------------------------------------------------------------------

    def _on_hello(self, sender: Boot, hello: Hello) -> None:
        theirs = hello.manifest
        try:
            require_fit(self.worker.manifest, theirs)
            plan = self.worker.plans.pair(
                self.worker.placements, [theirs.placement(r.rank) for r in theirs.ranks]
            )
            if plan.digest != hello.plan:
                raise Mismatch("plan digest", plan.digest, hello.plan)
        except BatonError as error:  # any reason why the two do not fit
            self.worker.send(sender, Refused(str(error)))
            return
        self._plans[sender] = plan
        self.worker.send(sender, HelloBack(plan.digest))

    def peer_lost(self, boot: Boot, why: str) -> None:
        self._plans.pop(boot, None)
        for room in [r for r in self.worker.rooms.values() if r.ticket.decode == boot]:
            self.worker.marks[Mark.DECODE_LOST] += 1
            self.worker.fail(
                room, FailCode.WORKER_LOST, f"decode worker {boot:x} was lost: {why}", retry=True
            )

    # ---- offers ---------------------------------------------------------------------------------

    def admitted(self, room: PrefillRoom, reuse: Reuse) -> None:
        """The pages of the whole prompt are held. Decode can fetch its cached part at once."""
        room.progress = self.worker.now
        if room.state in UNTOLD:
            return  # it may have to give up its pages again
        self._offer(room, {}, (), None)
        if reuse:
            self._offer_from(room, 0)

    def resumed(self, room: PrefillRoom) -> None:
        """Offer what is complete before the checkpoint."""
        self._offer(room, {}, (), None)
        self._offer_from(room, 0)

    def brought(self, room: PrefillRoom) -> None:
        """More of a prompt has been fetched back: put it in the cache, and offer it."""
        self.worker.reuse.enter(room, room.done, room.sums, self.worker.marks)
        self._offer_from(room, room.hit)

    def _offer_from(self, room: PrefillRoom, start: int) -> None:
        there = final_blocks(
            self.worker.state_table, start=start, end=room.done, length=room.length
        )
        self._offer(room, self._runs(room, there), self._leg_sums(room, there), None)

    def computed(self, room: PrefillRoom, row: RowOrder, drawn: Drawn | None) -> None:
        """A chunk is computed on every rank: offer the blocks that it made final, with the record
        after the last of them."""
        if room.done == room.length:
            assert drawn is not None, "the last chunk draws"
            self.complete(room, drawn, row.final)
        else:
            self.offer(room, row.final)

    def offer(self, room: PrefillRoom, final: Final) -> None:
        """Offer blocks that a chunk made final, before the last one."""
        self._offer(room, self._runs(room, final), self._leg_sums(room, final), None)

    def complete(self, room: PrefillRoom, drawn: Drawn, final: Final) -> None:
        """The prompt is computed and the first token drawn: offer the last blocks with the
        record. What ends at its first token never enters decode; only guests hand that over too:
        the gateway has asked both engines, and decode's must not fail before the gateway has heard
        of the end from here."""
        generated = len(room.ticket.said) + 1
        finish = finish_of(drawn, generated=generated, limits=room.ticket.limits)
        ends = finish is not None and not self.worker.role.guest
        record = Record(room.length, drawn, finish if ends else None, room.cached, room.scores)
        self.worker.see(room, Saw.LAST_CHUNK)
        self.worker.ledger.move(room.key, PageState.FULL)
        self._offer(room, self._runs(room, final), self._leg_sums(room, final), record)
        self._tell(room, record, finish)
        if ends:
            self.worker.marks[Mark.FINISHED_AT_FIRST] += 1
            self.worker.end(room)
        else:
            # Pages that are not handed over return to the pool.
            self.worker.blocks.slide(room, room.length, tokens=room.length)

    def _tell(self, room: PrefillRoom, record: Record, finish: FinishReason | None) -> None:
        """Send the gateway the first token, and before it the prompt's logprobs if they are
        wanted."""
        gateway, first = room.ticket.gateway, TokenIndex(len(room.ticket.said))
        if record.scores is not None:
            self.worker.send(gateway, PromptLogprobs(room.key, record.scores))
            room.scores = None
        said = FirstToken(room.key, first, record.first, finish, record.cached)
        self.worker.send(gateway, said)

    def _runs(self, room: PrefillRoom, final: Final) -> dict[GroupName, BlockRun]:
        """Return these blocks together with the pages that hold them."""
        held, gone = self.worker.ledger.held(room.key), self.worker.ledger.begins(room.key)
        k = {g: self.worker.manifest.blocks_per_page(g) for g in final}
        return {
            g: BlockRun(a, b, held[g][a // k[g] - gone[g] : (b - 1) // k[g] + 1 - gone[g]])
            for g, (a, b) in final.items()
        }

    def _leg_sums(self, room: PrefillRoom, final: Final) -> tuple[LegSums, ...]:
        plan = self._plans.get(room.ticket.decode)
        if plan is None or not self.worker.manifest.seal:
            return ()
        return leg_sums(
            plan, room.sums, final, {group: self._first(room, group) for group in final}
        )

    def _first(self, room: PrefillRoom, group: GroupName) -> int:
        """Return the first block of the group's extent, which is row 0 of its sums."""
        return extent_blocks(
            self.worker.state_table.group(group).extent,
            room.length,
            self.worker.state_table.block_tokens,
        ).start

    def _offer(
        self,
        room: PrefillRoom,
        runs: dict[GroupName, BlockRun],
        sums: tuple[LegSums, ...],
        record: Record | None,
    ) -> None:
        self.worker.send(room.ticket.decode, Offer(room.key, room.offers, runs, sums, record))
        room.offers += 1

    # ---- what decode says -----------------------------------------------------------------------

    def _on_admitted(self, sender: Boot, message: Admitted) -> None:
        room = self.worker.find(message.key)
        if room is None or (room.state, Saw.ADMITTED) not in self.worker.role.table:
            self.worker.marks[Mark.ADMITTED_TOO_LATE] += 1
            self.worker.send(sender, Stale(message.key))
            return
        self.worker.see(room, Saw.ADMITTED)
        room.admitted, room.progress = True, self.worker.now

    def _on_received(self, sender: Boot, message: Received) -> None:
        room = self.worker.find(message.key)
        if room is not None and (room.state, Saw.RECEIVED) in self.worker.role.table:
            self.worker.leave(room, Saw.RECEIVED)

    def _on_doubt(self, sender: Boot, doubt: Doubt) -> None:
        room = self.worker.find(doubt.key)
        plan = self._plans.get(sender)
        if room is None or plan is None or not self._has_sums(room, doubt):
            self.worker.marks[Mark.GONE] += 1
            gone = Verdict(doubt.key, doubt.leg, doubt.group, doubt.blocks, Intactness.GONE)
            self.worker.send(sender, gone)
            return
        room.progress = self.worker.now
        order, rows = (
            self.worker.new_order(),
            [b - self._first(room, doubt.group) for b in doubt.blocks],
        )
        birth = {
            (r, doubt.group): room.sums[r, doubt.group][rows] for r in self._with(room, doubt.group)
        }
        self.worker.inspections.expect(order, birth, partial(self._judge, doubt))
        self.worker.draft.rehash.append(
            Rehash(order, doubt.key, room.length, doubt.group, doubt.blocks)
        )

    def _has_sums(self, room: PrefillRoom, doubt: Doubt) -> bool:
        known = min(
            (len(room.sums[r, doubt.group]) for r in self._with(room, doubt.group)), default=0
        )
        first = self._first(room, doubt.group) if known else 0
        return room.state is not RoomState.ENDING and all(
            first <= b < first + known for b in doubt.blocks
        )

    def _with(self, room: PrefillRoom, group: GroupName) -> list[Rank]:
        """Return the ranks that hold a part of the group. A stage may have none of its layers."""
        return [r for r, g in room.sums if g == group and self.worker.placements[r].block_bytes(g)]

    def _judge(self, doubt: Doubt, differing: Differing) -> None:
        """Ranks have hashed doubted blocks: compare them with their birth sums, and tell decode."""
        self.worker.progress.did(self.worker.now)
        room = self.worker.find(doubt.key)
        assert room is not None, "a rank is quiet after its last answer"
        wrong = {
            rank: rows.nonzero()[0].tolist() for (rank, _), rows in differing.items() if rows.any()
        }
        damaged = sorted({doubt.blocks[row] for rows in wrong.values() for row in rows})
        if damaged:
            self.condemn(room, doubt.group, damaged[0])
        if room.state is RoomState.ENDING:
            return
        self.worker.marks[Mark.DAMAGED if damaged else Mark.INTACT] += 1
        found = Intactness.DAMAGED if damaged else Intactness.INTACT
        self.worker.send(
            room.ticket.decode, Verdict(doubt.key, doubt.leg, doubt.group, doubt.blocks, found)
        )
        if damaged:
            why = (
                f"blocks {damaged} of group {doubt.group} changed in prefill's own memory "
                f"(ranks {sorted(wrong)})"
            )
            self.worker.fail(room, FailCode.HANDOFF_FAILED, why, retry=True)

    def condemn(self, room: PrefillRoom, group: GroupName, block: BlockIndex) -> None:
        """A block is damaged. Its page leaves the cache with all that was computed above it, and
        rooms that hold any of these pages end, because their state may have been computed from
        them. Of a block of a window, these are the cached pages of the same positions."""
        if self.worker.state_table.group(group).unit is Unit.SLOT:
            return  # it has the state at the end: nothing was computed from that
        page = block // self.worker.manifest.blocks_per_page(group)
        others = self.worker.ledger.condemn(room.key, page) - {room.key}
        self.worker.end_all(
            others,
            "a page that it shares changed in prefill's own memory "
            f"(block {block} of group {group})",
        )

    def _on_stale(self, sender: Boot, stale: Stale) -> None:
        room = self.worker.find(stale.key)
        if room is not None and room.state is not RoomState.ENDING:
            self.worker.marks[Mark.STALE_HEARD] += 1
            self.worker.fail(
                room, FailCode.HANDOFF_FAILED, "the other side does not know this epoch", retry=True
            )
