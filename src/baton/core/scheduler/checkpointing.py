"""Checkpoints of prompts, where a model has state that does not last: what cached pages lack at the
end of a prompt is kept in host memory, and a later prompt that begins with it goes on from there.

    last chunk ──Keep──▶ every rank has its part ──▶ found by later prompts ──evicted, or its cached pages are gone──▶ forget

    QUEUED ──pages held, the cached ones shared──▶ RESUMING ──every rank has its part back, as it was computed──▶ COMPUTING
       ▲                                              │
       └── a rank has not: the checkpoint is forgotten ┘

What is kept is bounded by the smallest host store of the ranks; what was used longest ago goes
first. A room in RESUMING has offered nothing yet, not even Offer 0, so it can give up its pages and
wait anew.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from baton.core.agreement import Ballot, Keep, Resume, RowOrder, Vote, unpack_sums
from baton.core.ids import CheckpointName, Key, Rank
from baton.core.marks import Mark
from baton.core.memory.checkpoints import PromptCheckpoint, kept_blocks, kept_bytes
from baton.core.memory.host_ledger import HostLedger
from baton.core.messages import Drawn
from baton.core.scheduler.admission import Reuse
from baton.core.scheduler.constraining import Constraining
from baton.core.scheduler.offering import Offering
from baton.core.scheduler.prefill_room import PrefillRoom
from baton.core.scheduler.resumed_sums import kept_sums, resumed_sums
from baton.core.scheduler.room import RoomState, Saw
from baton.core.scheduler.stage import Stage
from baton.core.scheduler.worker import Worker

Then = Callable[[PrefillRoom, RowOrder, Drawn | None], None]


class Checkpointing(Stage[PrefillRoom]):
    """Keeps the checkpoints of one prefill worker, and lets prompts resume from them."""

    def __init__(
        self,
        worker: Worker[PrefillRoom],
        offering: Offering,
        constraining: Constraining[PrefillRoom],
    ) -> None:
        super().__init__(worker)
        self._constraining = constraining
        self._offering, self._book = offering, worker.reuse.checkpoints
        self._host = HostLedger(worker.placements, worker.settings.host_bytes, measure=kept_bytes)
        self._keeps: dict[int, PromptCheckpoint] = {}  # on their way to the host stores, by order
        self._resuming: dict[Key, PromptCheckpoint] = {}
        self._last_name = 0
        self._left = 0  # cached pages that had left the cache when the book was last looked through

    def host_view(self) -> dict[str, int]:
        return (
            {"total": self._host.total, "used": max(self._host.used())} if self._host.total else {}
        )

    def kept(self) -> dict[str, Collection[Any]]:
        return {"keeps": self._keeps, "resuming": self._resuming}

    def held(self) -> set[CheckpointName]:
        """Return the names under which the host stores hold something."""
        return {one.name for one in (*self._book, *self._keeps.values(), *self._resuming.values())}

    # ---- keeping --------------------------------------------------------------------------------

    def computed(self, room: PrefillRoom, row: RowOrder, drawn: Drawn | None) -> None:
        """A chunk is computed on every rank. After the last one, order what cached pages lack to be
        kept, before the room gives up any page; then offer the chunk's blocks."""
        if room.done == room.length and self.worker.reuse.keeps:
            self._keep(room)
        self._offering.computed(room, row, drawn)

    def _keep(self, room: PrefillRoom) -> None:
        worker, reuse = self.worker, self.worker.reuse
        pages = room.length // reuse.page_tokens
        if not pages:
            return  # no page that it could belong to
        page, tail = reuse.ending(room)
        if (known := self._book.same(page, tail)) is not None:
            self._book.use(known)
            return
        chain = worker.ledger.chain(room.key)
        if len(chain) < pages:
            return  # not all of what lasts is cached
        if not self._make_space(room.length):
            worker.marks[Mark.CHECKPOINT_NOT_KEPT] += 1
            return
        self._last_name += 1
        name, order = CheckpointName(self._last_name), worker.new_order()
        sums = kept_sums(room, worker.state_table, worker.manifest.page_blocks)
        self._host.take(name, room.length)
        self._keeps[order] = PromptCheckpoint(
            name, length=room.length, page=page, tail=tail, last=chain[pages - 1], sums=sums
        )
        worker.draft.keep.append(Keep(order, name, room.key, room.length))
        worker.orders.expect(order, room.key, self._kept, by_all=True)

    def _make_space(self, length: int) -> bool:
        """Forget what was used longest ago until there is space in every host store. Returns False
        if there never is, or if rooms resume from all that is left."""
        if not self._host.could_ever_fit(length):
            return False
        while not self._host.fits([length]):
            oldest = self._book.oldest()
            if oldest is None:
                return False
            self.worker.marks[Mark.CHECKPOINT_EVICTED] += 1
            self._forget(oldest)
        return True

    def _kept(self, key: Key, order: int, vote: Vote, by_rank: Mapping[Rank, Ballot]) -> None:
        """Every rank has kept its part, or one of them could not."""
        one = self._keeps.pop(order)
        if vote is not Vote.ARRIVED:
            self.worker.marks[Mark.COPY_FAILED] += 1
        elif self.worker.ledger.cache.has(one.last) and not self._book.same(one.page, one.tail):
            self.worker.marks[Mark.CHECKPOINT_KEPT] += 1
            self._book.add(one)
            return
        self._forget(one)

    def _forget(self, one: PromptCheckpoint) -> None:
        """A checkpoint is of no use. Its copies go once nobody reads them."""
        self._book.remove(one)
        if not self._book.pinned(one):
            self._host.give_back(one.name)
            self.worker.draft.forget.append(one.name)

    def schedule(self) -> None:
        """Forget the checkpoints whose cached pages are gone, before any room is admitted."""
        cache = self.worker.ledger.cache
        if cache.left != self._left:
            self._left = cache.left
            for one in [one for one in self._book if not cache.has(one.last)]:
                self._forget(one)

    # ---- resuming -------------------------------------------------------------------------------

    def admitted(self, room: PrefillRoom, reuse: Reuse) -> None:
        """A room has its pages: bring back what it goes on from."""
        one = room.checkpoint
        if room.state is not RoomState.RESUMING:
            return
        assert one is not None, "it was found before the pages were taken"
        self._book.pin(one)
        self._resuming[room.key], room.foreseen = one, one.length
        order = self.worker.new_order()
        self.worker.draft.resume.append(Resume(order, one.name, room.key, one.length))
        # until all ranks have voted, some of them may still be copying into its pages
        self.worker.orders.expect(order, room.key, self._resumed, by_all=True)

    def forgotten(self, room: PrefillRoom) -> None:
        """A room that ended while it was resuming holds nothing any more."""
        if room.key in self._resuming:
            self._release(room.key)

    def _release(self, key: Key) -> PromptCheckpoint:
        one = self._resuming.pop(key)
        self._book.unpin(one)
        if self._book.same(one.page, one.tail) is not one:
            self._forget(one)  # it was removed meanwhile
        return one

    def _resumed(self, key: Key, order: int, vote: Vote, by_rank: Mapping[Rank, Ballot]) -> None:
        """Every rank has its part of a checkpoint back, or one of them could not bring it back."""
        worker, room = self.worker, self.worker.rooms[key]
        if room.state is not RoomState.RESUMING:
            return  # it has ended meanwhile
        one = self._resuming[key]
        if vote is Vote.ARRIVED and self._as_computed(one, by_rank):
            self._release(key)
            worker.marks[Mark.CHECKPOINT_USED] += 1
            worker.see(room, Saw.RESUMED)
            worker.reuse.resumed(room, one.length)
            room.ordered = room.done = one.length
            room.foreseen, room.progress = 0, worker.now
            room.sums = resumed_sums(
                one,
                worker.ledger.chain(key),
                worker.state_table,
                page_blocks=worker.manifest.page_blocks,
                length=room.length,
            )
            self._offering.resumed(room)
            self._constraining.constrain(room)
            return
        worker.marks[Mark.CHECKPOINT_UNUSABLE] += 1
        self._book.remove(one)
        self._release(key)
        worker.see(room, Saw.NOT_RESUMED)
        worker.ledger.give_back(key)
        worker.draft.vacate.append(key)
        room.checkpoint, room.foreseen = None, 0

    def _as_computed(self, one: PromptCheckpoint, by_rank: Mapping[Rank, Ballot]) -> bool:
        """Whether all blocks that have come back have the sums that they had at birth."""
        due = kept_blocks(self.worker.state_table, one.length, self.worker.manifest.page_blocks)
        for rank, placement in enumerate(self.worker.placements):
            told = by_rank[Rank(rank)].sums
            for group, blocks in due.items():
                if not blocks.size or not placement.block_bytes(group):
                    continue
                found = unpack_sums(told[group], placement.unit_count(group))
                if (found != one.sums[Rank(rank), group]).any():
                    return False
        return True
