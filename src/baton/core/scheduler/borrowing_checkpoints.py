"""Fetches checkpoints back: what decode has kept at the end of an answer, where a prompt cannot be
computed on from cached pages alone.

    QUEUED ──pages held──▶ BORROWING ──Loan, read and verified on every rank──▶ COMPUTING   the rest
       ▲                      │
       └── nothing longer than what is kept here, not whole, not in time, .. ─┘

A room is asked about as soon as it has its pages, before anything is done with them and anybody is
told. Of whole sequences it borrows what follows the cached pages that its own checkpoint belongs
to, and all of the windows and slots at the loan's end, whatever it has itself. Its windows are
moved there, so they cannot serve an earlier position again. So if nothing comes of it, the room
gives up its pages and waits anew, and goes on from its own checkpoint, or computes all, without
asking again.
"""

from collections.abc import Mapping

from baton.core.agreement import Ballot, Fetch, unpack_sums
from baton.core.ids import BlockIndex, GroupName, Rank
from baton.core.manifest import Manifest
from baton.core.marks import Mark
from baton.core.memory.checkpoints import kept_bytes
from baton.core.memory.pages import PageState
from baton.core.messages import BlockRun, Borrow, Loan
from baton.core.scheduler.admission import Reuse
from baton.core.scheduler.borrowing import Borrowing, whole
from baton.core.scheduler.checkpointing import begin_anew
from baton.core.scheduler.lending_checkpoints import lent_blocks
from baton.core.scheduler.prefill_room import PrefillRoom
from baton.core.scheduler.resumed_sums import resumed_sums
from baton.core.scheduler.room import Saw
from baton.core.scheduler.stage import Stage
from baton.core.scheduler.worker import Worker


class AskingFirst(Stage[PrefillRoom]):
    """Has decode asked before other stages begin with a room's pages."""

    def __init__(self, worker: Worker[PrefillRoom], borrowing: "BorrowingCheckpoints") -> None:
        super().__init__(worker)
        self._borrowing = borrowing

    def admitted(self, room: PrefillRoom, reuse: Reuse) -> None:
        self._borrowing.asks(room, reuse)


class BorrowingCheckpoints(Borrowing):
    """The fetch-backs of one prefill worker whose prompts begin with checkpoints."""

    def admitted(self, room: PrefillRoom, reuse: Reuse) -> None:
        """Do nothing: other stages have begun with the room's pages."""

    def asks(self, room: PrefillRoom, reuse: Reuse) -> None:
        """A room has pages for its prompt: ask decode for a longer checkpoint than the one here,
        where that would be worth it."""
        known = room.begins_at
        if room.asked or not self._may_ask(room) or known == room.length - 1:
            return
        start = BlockIndex(len(reuse) * self.worker.manifest.page_blocks)
        if not self._worth(room, start, room.length - 1):
            self.worker.marks[Mark.NOT_WORTH_IT] += 1
            return
        room.asked = True
        self._ask(room, Borrow(room.key, start, known))

    def fits(self, room: PrefillRoom, lender: Manifest, loan: Loan) -> bool:
        """Whether the loan is all state of a longer beginning than is known here, and leaves the
        prompt a token."""
        if not room.begins_at < loan.length < room.length:
            return False
        due = self._due(room, loan.length)
        return loan.runs.keys() == due.keys() and all(
            (run.start, run.end) == due[group] and whole(lender, group, run)
            for group, run in loan.runs.items()
        )

    def _due(
        self, room: PrefillRoom, length: int
    ) -> Mapping[GroupName, tuple[BlockIndex, BlockIndex]]:
        start = BlockIndex(self.worker.ledger.shared(room.key) * self.worker.manifest.page_blocks)
        table = self.worker.state_table
        return lent_blocks(table.groups, length, start, table.block_tokens)

    def worth_it(self, room: PrefillRoom, loan: Loan) -> bool:
        start = self.worker.ledger.shared(room.key) * self.worker.manifest.page_blocks
        return self._worth(room, BlockIndex(start), loan.length)

    def _worth(self, room: PrefillRoom, start: BlockIndex, length: int) -> bool:
        return self.pace.pays(
            compute_us=self.worker.prefill.cost.time(room.begins_at, length),
            nbytes=self._bytes(start, length),
        )

    def _bytes(self, start: int, length: int) -> int:
        """Return the bytes of a loan on all ranks."""
        reuse, k = self.worker.reuse, self.worker.manifest.page_blocks
        cached = length // reuse.page_tokens * k - start
        beside = sum(kept_bytes(placement, length) for placement in self.worker.placements)
        return max(0, cached) * reuse.block_bytes + beside

    def nbytes(self, runs: Mapping[GroupName, BlockRun]) -> int:
        sizes = {group: sum(p.block_bytes(group) for p in self.worker.placements) for group in runs}
        return sum((run.end - run.start) * sizes[group] for group, run in runs.items())

    def order(self, room: PrefillRoom, loan: Loan) -> None:
        self.worker.blocks.slide(room, loan.length, tokens=room.length)
        super().order(room, loan)

    def arrived(self, room: PrefillRoom, fetch: Fetch, ballots: Mapping[Rank, Ballot]) -> None:
        worker, chain = self.worker, self.worker.ledger.chain(room.key)
        here = len(chain) * worker.reuse.page_tokens
        worker.marks[Mark.CHECKPOINT_BORROWED] += 1
        worker.see(room, Saw.RESUMED)
        worker.reuse.resumed(room, here)
        room.borrowed = fetch.length - here
        worker.reuse.borrowed(room.borrowed // worker.state_table.block_tokens)
        worker.ledger.move(room.key, PageState.COMPUTING)
        room.ordered = room.done = fetch.length
        room.foreseen, room.progress = 0, worker.now
        sums = {
            (rank, group): unpack_sums(raw, worker.placements[rank].unit_count(group))
            for rank, ballot in ballots.items()
            for group, raw in ballot.sums.items()
            if worker.placements[rank].block_bytes(group)
        }
        room.sums = resumed_sums(
            sums,
            {group: run.start for group, run in fetch.runs.items()},
            chain,
            worker.state_table,
            computed=fetch.length,
            length=room.length,
        )
        worker.reuse.enter(room, room.done, room.sums, worker.marks)
        for tell in worker.on_resumed:
            tell(room)

    def go_on(self, room: PrefillRoom) -> None:
        """Nothing comes back, or not whole: begin anew without it."""
        room.answer_by = None
        begin_anew(self.worker, room)
