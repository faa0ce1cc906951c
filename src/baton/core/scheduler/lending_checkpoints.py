"""Lends checkpoints: what a prompt can be computed on from, where cached pages are not enough.

    a checkpoint ──pages taken, Resume──▶ every rank has its part, as it was computed ──▶ Loan: cached pages | pages of the loan
                                               └── a rank has not ──▶ Loan without runs
    Returned, the room's or its prefill worker's end ──drop──▶ every rank is quiet ──▶ its pages return

What cached pages lack lies in host memory, and prefill reads from the pools. So it is brought into
pages that belong to the loan alone (`ids.loan_key`), as if a room went on from it. Cached pages are
pinned as for any loan. A loan waits for no memory: if its pages are not free, there is none.
"""

from collections.abc import Callable, Mapping

import msgspec
import numpy as np

from baton.core.handoff.birth_sums import RoomSums, sums_of
from baton.core.handoff.leg_sums import leg_sums
from baton.core.handoff.plan import PairPlan
from baton.core.ids import BlockIndex, GroupName, Key, loan_key
from baton.core.marks import Mark
from baton.core.memory.checkpoints import PromptCheckpoint
from baton.core.memory.state import Full, Group, Window, extent_blocks
from baton.core.messages import BlockRun, Borrow, Loan
from baton.core.scheduler.checkpointing import Checkpointing
from baton.core.scheduler.decode_room import DecodeRoom
from baton.core.scheduler.worker import Worker

Ready = Callable[[Loan], None]


class CheckpointLoan(msgspec.Struct, frozen=True):
    """A checkpoint that is being brought back to be lent."""

    borrow: Borrow
    plan: PairPlan  # by which prefill reads
    ready: Ready


class CheckpointLoans:
    """The checkpoints that one decode worker lends."""

    def __init__(self, worker: Worker[DecodeRoom], checkpointing: Checkpointing) -> None:
        self._worker, self._checkpointing = worker, checkpointing
        self.open: dict[Key, CheckpointLoan] = {}  # by loan key

    def begin(self, room: DecodeRoom, borrow: Borrow, plan: PairPlan, ready: Ready) -> bool:
        """Bring the longest checkpoint that a room's context begins with into pages of its own.
        Returns False if there is none that is longer than what prefill has, or no space for it.

        ready: takes the loan when every rank has its part of it
        """
        worker, key = self._worker, loan_key(room.key)
        one = worker.reuse.checkpoint_of(room)
        if one is None or one.length <= max(borrow.known, borrow.start * self._b):
            return False
        if room.lent:
            return False  # once is enough, and what was lent may not be given back yet
        chain = one.last.chain()
        fresh = len(worker.scrubber.fresh(chain)) == len(chain)
        if not fresh or not all(entry.sums for entry in chain):
            return False
        worker.ledger.lend(room.key, chain)  # first, as taking pages evicts what nobody has pinned
        begins = {g.name: self._begin(g, one.length) for g in worker.state_table.groups}
        past = worker.span.past(one.length)
        if not worker.blocks.lodge(key, {g: past[g] - n for g, n in begins.items()}, begins):
            worker.ledger.end_loan(room.key)
            worker.marks[Mark.CHECKPOINT_NOT_LENT] += 1
            return False
        self.open[key], room.lent = CheckpointLoan(borrow, plan, ready), True
        self._checkpointing.bring(key, one, self._brought)
        return True

    def _begin(self, group: Group, length: int) -> int:
        """Return how many pages of a group come before those that a loan has of its own."""
        match group.extent:
            case Full():
                return length // self._worker.reuse.page_tokens
            case Window():
                return self._worker.span.gone(length)[group.name]
            case _:
                return 0

    def _brought(self, key: Key, one: PromptCheckpoint, right: bool) -> None:
        loan = self.open.get(key)
        if loan is None:
            return  # it has ended meanwhile
        if right:
            self._worker.marks[Mark.CHECKPOINT_LENT] += 1
            loan.ready(self._loan(key, one, loan))
            return
        self.end(loan.borrow.key)
        self._worker.ledger.end_loan(loan.borrow.key)
        loan.ready(Loan(loan.borrow.key, {}, ()))

    def _loan(self, key: Key, one: PromptCheckpoint, loan: CheckpointLoan) -> Loan:
        """Return the loan of a checkpoint that is in its pages."""
        worker, borrow = self._worker, loan.borrow
        blocks = lent_blocks(worker.state_table.groups, one.length, borrow.start, self._b)
        chain = one.last.chain()
        own, begins = worker.ledger.held(key), worker.ledger.begins(key)
        runs: dict[GroupName, BlockRun] = {}
        for group, (start, past) in blocks.items():
            shared = [entry.pages[group] for entry in chain if group in entry.pages]
            pages, first = (*shared, *own[group]), begins[group] - len(shared)
            page = start // worker.manifest.blocks_per_page(group)
            runs[group] = BlockRun(start, past, pages[page - first :])
        worker.reuse.lent(max(past - start for start, past in blocks.values()))
        sums, firsts = self._sums(one), {g: start for g, (start, _) in blocks.items()}
        firsts |= dict.fromkeys(worker.ledger.cached, BlockIndex(0))
        return Loan(borrow.key, runs, leg_sums(loan.plan, sums, blocks, firsts), one.length)

    def _sums(self, one: PromptCheckpoint) -> RoomSums:
        """Return the sums of all blocks of a checkpoint, those of its cached pages first."""
        found = sums_of(one.last.chain())
        for where, rows in one.sums.items():
            before = found.get(where)
            found[where] = rows if before is None else np.concatenate((before, rows))
        return found

    @property
    def _b(self) -> int:
        return self._worker.state_table.block_tokens

    def end(self, room: Key) -> None:
        """Prefill reads nothing of a loan any more. There need not have been one."""
        key = loan_key(room)
        if self.open.pop(key, None) is not None:
            self._worker.draft.drop.append(key)
            self._worker.beside[key] = lambda: self._quiet(key)

    def _quiet(self, key: Key) -> None:
        """No rank touches the pages of a loan any more."""
        self._checkpointing.let_go(key)
        self._worker.orders.forget(key, self._worker.agreement)
        self._worker.ledger.give_back(key)


def lent_blocks(
    groups: tuple[Group, ...], length: int, start: BlockIndex, block_tokens: int
) -> Mapping[GroupName, tuple[BlockIndex, BlockIndex]]:
    """Return the blocks [start, past) of each group that a loan of `length` positions has, if the
    reader has what is before block `start` of whole sequences."""
    found = {}
    for group in groups:
        due = extent_blocks(group.extent, length, block_tokens)
        first = start if isinstance(group.extent, Full) else due.start
        found[group.name] = BlockIndex(first), BlockIndex(due.end)
    return found
