"""Fetches state back: cached state of a prompt that a decode worker has, where that is cheaper than
computing it.

    COMPUTING ──Borrow──▶ BORROWING ──Loan──▶ ordered as a fetch, patiently ──verified on every rank──▶ COMPUTING   the rest
                             ├── nothing there, no answer in time, not worth it ────────────────────▶ COMPUTING   all of it
                             └── not whole, not in time, the source gone: when all reads have ended ─▶ COMPUTING   all of it

A room borrows what follows its own cached pages, up to the last whole block before its last token.
It reads into pages of its own, which it has held for the whole prompt since its admission. Decode
is asked only if the pair is connected in this direction too, and only if the rule
(handoff/fetch_back.py) would fetch all that is missing. The rule is applied again to what decode
then offers. Blocks that have arrived count as computed: they are offered to decode and enter the
cache, with the sums that their verification found. If blocks differ from the lender's sums, the
lender is told (`Doubt`) and hashes them in its own memory (lending.py). No request fails because of
any of this. A room never waits for memory here, and its time is bounded: `answer_ms` for the
answer, a deadline for the read.
"""

from collections.abc import Iterable, Mapping

import msgspec

from baton.core.agreement import Ballot, ConnectOrder, Fetch, Report, Vote
from baton.core.errors import BatonError
from baton.core.handoff.birth_sums import add_sums
from baton.core.handoff.fetch_back import FetchBack, FetchBackRule
from baton.core.handoff.plan import PairPlan
from baton.core.ids import BlockIndex, Boot, GroupName, Key, Micros, Rank
from baton.core.manifest import Manifest
from baton.core.marks import Mark
from baton.core.memory.pages import PageState
from baton.core.messages import BlockRun, Borrow, Doubt, Hello, Intactness, Loan, Returned, Verdict
from baton.core.scheduler.admission import Reuse
from baton.core.scheduler.offering import Offering
from baton.core.scheduler.prefill_room import PrefillRoom
from baton.core.scheduler.room import RoomState, Saw
from baton.core.scheduler.stage import Handlers, Stage
from baton.core.scheduler.worker import Worker

SLOWER = 8  # a read may take this many times as long as at the usual rate


class Lender(msgspec.Struct):
    """A decode worker that lends, and our ranks that are connected to it."""

    manifest: Manifest
    connected: set[Rank]


class Borrowing(Stage[PrefillRoom]):
    """The fetch-backs of one prefill worker, from the question to the arrival of the blocks."""

    def __init__(self, worker: Worker[PrefillRoom], offering: Offering) -> None:
        super().__init__(worker)
        self._offering = offering
        self.pace = FetchBackRule(worker.settings.fetch_back)
        self._lenders: dict[Boot, Lender] = {}

    def handlers(self) -> Handlers:
        return {Hello: self._meet_lender, Loan: self.on_loan, Verdict: self._on_verdict}

    def _meet_lender(self, sender: Boot, hello: Hello) -> None:
        """A decode worker has paired with us. Connect to it if it lends."""
        theirs, lends = hello.manifest, hello.lends
        wanted = (
            self.worker.reuse.on
            and (self.worker.reuse.resumes or self.worker.reuse.keeps)
            and self.worker.manifest.seal
            and self.pace.mode is not FetchBack.NEVER
        )
        if (
            not wanted
            or lends is None
            or theirs.boot in self._lenders
            or not self._offering.pairs_with(sender)
        ):
            return
        if any(lends.fabric not in rank.exposures for rank in self.worker.manifest.ranks):
            return  # we do not have that fabric
        try:
            plan: PairPlan = self.worker.plans.pair(
                [theirs.placement(r.rank) for r in theirs.ranks], self.worker.placements
            )
        except BatonError:  # they fit in the other direction only
            return
        if plan.digest == lends.plan:
            self._lenders[theirs.boot] = Lender(theirs, set())
            self.worker.draft.connect.append(ConnectOrder(theirs, lends.fabric))

    def peer_lost(self, boot: Boot, why: str) -> None:
        """A decode worker is gone, and reads from it end."""
        if self._lenders.pop(boot, None) is not None:
            self.worker.draft.disconnect.append(boot)

    # ---- asking ---------------------------------------------------------------------------------

    def admitted(self, room: PrefillRoom, reuse: Reuse) -> None:
        """A room has pages for its prompt: ask decode for what is not cached here, where that is
        worth it."""
        lacking = self._last_block(room) - self._block(room.done)
        if not self._may_ask(room) or lacking < self.worker.manifest.page_blocks:
            return
        if self._pays(room, lacking):
            self._ask(room, Borrow(room.key, self._block(room.done)))
        else:
            self.worker.marks[Mark.NOT_WORTH_IT] += 1

    def _may_ask(self, room: PrefillRoom) -> bool:
        """Whether what decode has of a room's prompt would be of use, and can be read."""
        lender = self._lenders.get(room.ticket.decode)
        reached = lender is not None and len(lender.connected) == len(self.worker.placements)
        return reached and not room.computes_all

    def _ask(self, room: PrefillRoom, borrow: Borrow) -> None:
        self.worker.see(room, Saw.ASKED)
        self.worker.ledger.move(room.key, PageState.FETCHING)
        room.answer_by = Micros(self.worker.now + self.worker.settings.answer_ms * 1000)
        self.worker.send(room.ticket.decode, borrow)

    def _block(self, position: int) -> BlockIndex:
        return BlockIndex(position // self.worker.state_table.block_tokens)

    def _last_block(self, room: PrefillRoom) -> BlockIndex:
        """Return the block of the last token, which must be computed."""
        return self._block(room.length - 1)

    def _pays(self, room: PrefillRoom, blocks: int) -> bool:
        past = room.done + blocks * self.worker.state_table.block_tokens
        return self.pace.pays(
            compute_us=self.worker.prefill.cost.time(room.done, past),
            nbytes=blocks * self.worker.reuse.block_bytes,
        )

    def timer(self) -> Micros | None:
        """Return when the earliest answer is due."""
        due: Micros | None = None
        for room in self.worker.rooms.in_state(RoomState.BORROWING):
            if room.answer_by is not None and (due is None or room.answer_by < due):
                due = room.answer_by
        return due

    def on_timer(self) -> None:
        """An answer may be overdue."""
        for room in self.worker.rooms.in_state(RoomState.BORROWING):
            if room.answer_by is not None and self.worker.now >= room.answer_by:
                self.worker.marks[Mark.NOT_ANSWERED] += 1
                self.go_on(room)

    # ---- reading --------------------------------------------------------------------------------

    def on_loan(self, sender: Boot, loan: Loan) -> None:
        """Decode says what it lends."""
        room = self.worker.find(loan.key)
        if room is not None and room.loan is not None:
            return  # it is being read, and is returned when all reads have ended
        asked = (
            room is not None and room.state is RoomState.BORROWING and room.answer_by is not None
        )
        if room is None or not asked:
            if loan.runs:
                self.worker.marks[Mark.LOAN_TOO_LATE] += 1
                self.worker.send(sender, Returned(loan.key))
            return
        lender = self._lenders.get(sender)
        fits = lender is not None and self.fits(room, lender.manifest, loan)
        if fits and self.worth_it(room, loan):
            self.order(room, loan)
            return
        self.worker.marks[Mark.NOT_WORTH_IT if fits else Mark.NOTHING_LENT] += 1
        if loan.runs:
            self.worker.send(sender, Returned(loan.key))
        self.go_on(room)

    def fits(self, room: PrefillRoom, lender: Manifest, loan: Loan) -> bool:
        """Whether the loan is usable: every group that lasts must be lent the same blocks, directly
        after those that are here."""
        first, ends = self._block(room.done), {run.end for run in loan.runs.values()}
        if loan.runs.keys() != set(self.worker.ledger.cached) or len(ends) != 1:
            return False
        end = ends.pop()
        right = all(run.start == first and whole(lender, g, run) for g, run in loan.runs.items())
        return right and first < end <= self._last_block(room)

    def worth_it(self, room: PrefillRoom, loan: Loan) -> bool:
        """Whether to read a usable loan, and not compute what it has."""
        return self._pays(room, _blocks(loan.runs))

    def nbytes(self, runs: Mapping[GroupName, BlockRun]) -> int:
        """Return the bytes of these blocks on all ranks."""
        return _blocks(runs) * self.worker.reuse.block_bytes

    def order(self, room: PrefillRoom, loan: Loan) -> None:
        """Order the ranks to read a loan into the room's own pages."""
        usual_ms = self.pace.read.time(self.nbytes(loan.runs)) / 1000
        room.answer_by, room.progress, room.reads_since = None, self.worker.now, self.worker.now
        room.loan = Fetch(
            order=self.worker.new_order(),
            follows=None,
            only=(),
            key=room.key,
            source=room.ticket.decode,
            length=loan.length or room.length,
            runs=loan.runs,
            sums=loan.sums,
            deadline_ms=min(
                self.worker.settings.fetch_ms,
                max(self.worker.settings.answer_ms, int(SLOWER * usual_ms)),
            ),
            tell=True,
            patient=True,
        )
        # Until all ranks have voted, some of them may still be reading.
        self.worker.orders.expect(room.loan.order, room.key, self._loan_read, by_all=True)
        self.worker.draft.fetch.append(room.loan)

    def report(self, report: Report) -> None:
        """A rank has connected to lenders, or has failed to reach them."""
        for result in report.connected:
            lender = self._lenders.get(result.peer)
            if lender is not None and result.why:
                self.peer_lost(result.peer, result.why)
            elif lender is not None:
                lender.connected.add(report.rank)

    def _loan_read(self, key: Key, order: int, vote: Vote, ballots: Mapping[Rank, Ballot]) -> None:
        room = self.worker.rooms[key]
        if room.state is not RoomState.BORROWING:
            return
        fetch, room.loan = room.loan, None
        assert fetch is not None, "it is what was ordered"
        self._doubt(fetch, ballots.values())
        self.worker.send(fetch.source, Returned(room.key))
        if any(ballot.vote is not Vote.ARRIVED for ballot in ballots.values()):
            self.worker.marks[Mark.BORROWED_IN_VAIN] += 1
            self.go_on(room)
            return
        self.worker.marks[Mark.BORROWED] += 1
        self.pace.read.saw(self.nbytes(fetch.runs), max(1, self.worker.now - room.reads_since))
        self.arrived(room, fetch, ballots)

    def _doubt(self, fetch: Fetch, ballots: Iterable[Ballot]) -> None:
        """Have the lender look at blocks that differ from its sums: they changed on their way, or
        in its memory. It is asked before the loan is returned, as its pages may be given up then. A
        read that failed is no reason to doubt."""
        for s in dict.fromkeys(s for ballot in ballots for s in ballot.suspects):
            self.worker.send(fetch.source, Doubt(fetch.key, s.leg, s.group, s.blocks))

    def _on_verdict(self, sender: Boot, verdict: Verdict) -> None:
        """Count damage for the operator. The prompt is computed in any case."""
        self.worker.marks[Mark.LOAN_DAMAGED] += verdict.found is Intactness.DAMAGED

    def arrived(self, room: PrefillRoom, fetch: Fetch, ballots: Mapping[Rank, Ballot]) -> None:
        """All that was lent is here, on every rank."""
        blocks = _blocks(fetch.runs)
        self.worker.reuse.borrowed(blocks)
        add_sums(
            room.sums,
            {rank: ballot.sums for rank, ballot in ballots.items()},
            self.worker.placements,
        )
        room.borrowed = blocks * self.worker.state_table.block_tokens
        room.ordered = room.done = room.done + room.borrowed
        self.go_on(room)
        self._offering.brought(room)

    def go_on(self, room: PrefillRoom) -> None:
        """Compute what has not arrived."""
        room.answer_by, room.progress = None, self.worker.now
        self.worker.see(room, Saw.BORROWED)
        self.worker.ledger.move(room.key, PageState.COMPUTING)


def whole(lender: Manifest, group: GroupName, run: BlockRun) -> bool:
    """Whether a run has as many of the lender's pages as its blocks lie in."""
    k = lender.blocks_per_page(group)
    return 0 <= run.start < run.end and len(run.pages) == (run.end - 1) // k - run.start // k + 1


def _blocks(runs: Mapping[GroupName, BlockRun]) -> int:
    return next(run.end - run.start for run in runs.values())
