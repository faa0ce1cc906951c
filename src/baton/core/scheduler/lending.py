"""Lends cached state of a prompt to the prefill worker of its room, while the room is open.

    prefill ──Borrow(key, start)──▶ decode      pins the cached beginning of the room's context, as
                                                far as its sums are known; a checkpoint, where
                                                cached pages are not all (lending_checkpoints.py)
            ◀──Loan(key, runs, sums)──          pages and seals of the blocks from `start` on; nothing, if there are none
            ── reads, verifies ──
            ──Doubt(key, blocks)──▶             where something differs: has the pages hashed, gives up what is damaged
            ──Returned(key)──▶                  unpins
            ◀──Verdict──

The cache is searched by the tokens of the room's own ticket, so the page sizes of the two sides may
differ. A room has at most one loan. The loan ends with `Returned`, with the room, or with the
session to its prefill worker, whichever is first. Each of these is bounded in time, so the pin is
too. The pin is a courtesy: correctness does not depend on it, as lent pages are verified against
their sums like all state that is read.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any

from baton.core.errors import BatonError
from baton.core.handoff.birth_sums import sums_of
from baton.core.handoff.early import EarlyOffers
from baton.core.handoff.fetch_back import FetchBack
from baton.core.handoff.leg_sums import leg_sums
from baton.core.handoff.pairing import Partners
from baton.core.handoff.plan import PairPlan
from baton.core.ids import BlockIndex, Boot, GroupName, Micros, Page
from baton.core.manifest import Manifest
from baton.core.marks import Mark
from baton.core.memory.prefix_cache import CachedPage
from baton.core.messages import BlockRun, Borrow, Doubt, Intactness, Lends, Loan, Returned, Verdict
from baton.core.scheduler.checkpointing import Checkpointing
from baton.core.scheduler.decode_room import DecodeRoom
from baton.core.scheduler.lending_checkpoints import CheckpointLoans
from baton.core.scheduler.room import RoomState
from baton.core.scheduler.stage import Handlers, Stage
from baton.core.scheduler.worker import Worker

CHECKPOINTS_SINCE = 2  # the protocol with which checkpoints began to be lent


class Lending(Stage[DecodeRoom]):
    """The loans of one decode worker, and the doubts about them."""

    def __init__(
        self,
        worker: Worker[DecodeRoom],
        partners: Partners,
        early: EarlyOffers,
        checkpointing: Checkpointing,
    ) -> None:
        super().__init__(worker)
        self._partners, self._early = partners, early
        self._checkpoints = CheckpointLoans(worker, checkpointing)
        reuse = worker.reuse
        lends = reuse.on and (reuse.resumes or reuse.keeps)  # else prefill could not use it
        self._on = lends and worker.settings.fetch_back is not FetchBack.NEVER

    def kept(self) -> Mapping[str, Collection[Any]]:
        return {"checkpoint loans": self._checkpoints.open}

    def handlers(self) -> Handlers:
        return {Borrow: self._on_borrow, Returned: self._on_returned, Doubt: self._on_doubt}

    def way(self, theirs: Manifest, fabric: str) -> Lends | None:
        """Return how a worker that this one reads from may read from it: over the same fabric, by
        the plan of the reverse direction. None if it may not."""
        knows = self.worker.reuse.resumes or theirs.protocol >= CHECKPOINTS_SINCE
        plan = self._plan(theirs) if self._on and knows else None
        return Lends(fabric, plan.digest) if plan is not None else None

    def _plan(self, theirs: Manifest) -> PairPlan | None:
        ours = self.worker.manifest
        sides = ([side.placement(rank.rank) for rank in side.ranks] for side in (ours, theirs))
        try:
            return self.worker.plans.pair(*sides)
        except BatonError:  # they fit in one direction only
            return None

    # ---- a loan ---------------------------------------------------------------------------------

    def _on_borrow(self, sender: Boot, borrow: Borrow) -> None:
        room = self.worker.find(borrow.key)
        if (
            room is None
            and not self.worker.epochs.passed(borrow.key)
            and self._early.keep_borrow(sender, borrow, self.worker.now)
        ):
            self.worker.marks[Mark.EARLY_BORROW] += 1
        elif room is None:
            self.worker.send(sender, Loan(borrow.key, {}, ()))
        # A room that lends already has answered this question.
        elif not self.worker.ledger.lends(borrow.key):
            self._answer(room, borrow)

    def opened(self, room: DecodeRoom) -> None:
        """Answer a question that came before the ticket."""
        borrow = None if room.computes else self._early.borrow(room.key, room.ticket.prefill)
        if borrow is not None:
            self._answer(room, borrow)

    def _answer(self, room: DecodeRoom, borrow: Borrow) -> None:
        theirs, send = (
            self._partners.find(room.ticket.prefill),
            partial(self.worker.send, room.ticket.prefill),
        )
        plan = self._plan(theirs.manifest) if theirs is not None else None
        if plan is None or not self._on or room.state is RoomState.ENDING:
            send(Loan(room.key, {}, ()))
        elif self.worker.reuse.resumes:
            send(self._loan(room, borrow, plan))
        elif not self._checkpoints.begin(room, borrow, plan, send):
            send(Loan(room.key, {}, ()))

    def _loan(self, room: DecodeRoom, borrow: Borrow, plan: PairPlan) -> Loan:
        """Return a loan of what the cache has of a room's context from a block on. It stays pinned
        until the ledger is told that the loan has ended."""
        worker = self.worker
        k = worker.manifest.page_blocks
        chain = tuple(takewhile(lambda entry: entry.sums, worker.reuse.find(room, leaving=1)))
        end = BlockIndex(len(chain) * k)
        if end <= borrow.start:
            return Loan(room.key, {}, ())
        worker.ledger.lend(room.key, chain)
        worker.reuse.lent(end - borrow.start)
        blocks = dict.fromkeys(sorted(worker.ledger.cached), (borrow.start, end))
        runs = {
            group: BlockRun(start, past, _pages(chain, group, start // k))
            for group, (start, past) in blocks.items()
        }
        return Loan(
            room.key, runs, leg_sums(plan, sums_of(chain), blocks, dict.fromkeys(blocks, 0))
        )

    def forgotten(self, room: DecodeRoom) -> None:
        self._end(room)

    def _end(self, room: DecodeRoom) -> None:
        self.worker.ledger.end_loan(room.key)
        self._checkpoints.end(room.key)

    def peer_lost(self, boot: Boot, why: str) -> None:
        """End the loans to a prefill worker that is gone, which reads no more."""
        for room in [r for r in self.worker.rooms.values() if r.ticket.prefill == boot]:
            self._end(room)

    def _on_returned(self, sender: Boot, message: Returned) -> None:
        room = self.worker.find(message.key)
        if room is not None:
            self._end(room)

    # ---- what differs ---------------------------------------------------------------------------

    def _on_doubt(self, sender: Boot, doubt: Doubt) -> None:
        """Blocks of a loan differ from their sums, as prefill has read them."""
        room = self.worker.find(doubt.key)
        lent = (
            self._doubted(room, doubt) if room is not None and room.ticket.prefill == sender else []
        )
        if lent:
            self.worker.inspect(lent, partial(self._judged, sender, doubt, lent, self.worker.now))
        else:
            self._say(sender, doubt, Intactness.GONE)

    def _doubted(self, room: DecodeRoom, doubt: Doubt) -> list[CachedPage]:
        """Return the cached pages that hold the doubted blocks of a room's loan; none if one of
        them was not lent, or is no longer held.

        The doubt names a leg of the plan by which prefill reads. Every rank hashes whole pages, so
        the leg makes no difference.
        """
        worker = self.worker
        k, lent = worker.manifest.page_blocks, worker.ledger.loan(room.key)
        if doubt.group not in worker.ledger.cached or not all(
            0 <= block // k < len(lent) for block in doubt.blocks
        ):
            return []
        found = [lent[at] for at in sorted({block // k for block in doubt.blocks})]
        return found if all(worker.ledger.cache.holds(entry) for entry in found) else []

    def _judged(
        self,
        sender: Boot,
        doubt: Doubt,
        lent: list[CachedPage],
        asked: Micros,
        damaged: list[CachedPage],
    ) -> None:
        """Pages were hashed: tell prefill the result. A page that was given up meanwhile may hold
        another room's state now, so nothing can be said of it."""
        worker = self.worker
        held = [entry for entry in lent if worker.ledger.cache.holds(entry)]
        found = [entry for entry in held if entry in damaged]
        worker.scrubber.seen(asked, (entry for entry in held if entry not in damaged))
        worker.condemn(found)
        intact = Intactness.INTACT if len(held) == len(lent) else Intactness.GONE
        self._say(sender, doubt, Intactness.DAMAGED if found else intact)

    def _say(self, to: Boot, doubt: Doubt, found: Intactness) -> None:
        self.worker.marks[Mark[found.name]] += 1
        self.worker.send(to, Verdict(doubt.key, doubt.leg, doubt.group, doubt.blocks, found))


def _pages(chain: Sequence[CachedPage], group: GroupName, first: int) -> tuple[Page, ...]:
    return tuple(entry.pages[group] for entry in chain[first:])
