"""Checkpoints of sequences, where a model has state that does not last: what cached pages lack at
the end of a prompt or of an answer is kept in host memory, and a later prompt that begins with that
goes on from there.

    last chunk, last token ──Keep──▶ every rank has its part ──▶ found by later prompts ──evicted, or its pages are gone──▶ forget

    QUEUED ──pages held, the cached ones shared──▶ RESUMING ──every rank has its part back, as it was computed──▶ COMPUTING
       ▲                                              │
       └── a rank has not: the checkpoint is forgotten ┘

What is kept is bounded by the smallest host store of the ranks; what was used longest ago goes
first, and all of it goes before a preempted room is computed again.

Within a long prompt there are checkpoints too, at multiples of a number of tokens, so that prompts
that begin alike have the same ones: chunks end there, and what another prompt has left there is not
kept again. A prompt may have a part of the store for them; if it is too long for that, it has them
at every second multiple, or fourth, ..

A room in RESUMING has told nobody yet, not even by Offer 0, so it can give up its pages and wait
anew. The rest of a prompt is computed in the same pages, and tokens are generated there. So a room
that is being kept is *still*: it has no step, and is not preempted, until the copies have been
made. What is kept of it was not sealed before; ranks hash it beside the copy. Only a prompt that
ends on a prefill worker is sealed, and has no more steps.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from baton.core.agreement import Ballot, Keep, Report, Resume, Vote, unpack_sums
from baton.core.ids import CheckpointName, Key, Rank
from baton.core.marks import Mark
from baton.core.memory.checkpoints import (
    KeptSums,
    PromptCheckpoint,
    kept_at_most,
    kept_blocks,
    kept_bytes,
    kept_every,
)
from baton.core.memory.host_ledger import Measure
from baton.core.messages import Clear, ResetCache
from baton.core.scheduler.admission import Reuse
from baton.core.scheduler.decode_room import DecodeRoom
from baton.core.scheduler.generating_room import GeneratingRoom
from baton.core.scheduler.prefill_room import PrefillRoom
from baton.core.scheduler.resumed_sums import kept_sums, resumed_sums
from baton.core.scheduler.room import OpenRoom, RoomState, Saw
from baton.core.scheduler.stage import Handlers, Stage
from baton.core.scheduler.worker import Worker

ComputedRoom = PrefillRoom | DecodeRoom
PART = 4  # one prompt has at most this part of the host memory for checkpoints before its end


class Checkpointing(Stage[Any]):
    """Keeps the checkpoints of one worker that computes prompts, and lets prompts resume from
    them."""

    def __init__(self, worker: Worker[Any]) -> None:
        super().__init__(worker)
        self._book, self._host = worker.reuse.checkpoints, worker.host
        self._keeps: dict[int, PromptCheckpoint] = {}  # on their way to the host stores, by order
        self._resuming: dict[Key, PromptCheckpoint] = {}
        self.still: set[Key] = set()  # rooms whose state must not change while it is copied
        self._every, self._most = 0, 0  # tokens between checkpoints; how many a prompt may have
        if worker.reuse.keeps:
            self._every = kept_every(worker.placements, worker.settings.keep_every)
            each = max(map(kept_at_most, worker.placements))
            self._most = worker.settings.host_bytes // PART // each
        self._last_name = 0
        self._left = 0  # cached pages that had left the cache when the book was last looked through

    def kept(self) -> dict[str, Collection[Any]]:
        return {"keeps": self._keeps, "resuming": self._resuming, "still": self.still}

    def held(self) -> set[CheckpointName]:
        """Return the names under which the host stores hold something."""
        return {one.name for one in (*self._book, *self._keeps.values(), *self._resuming.values())}

    # ---- keeping --------------------------------------------------------------------------------

    def computed(self, room: ComputedRoom) -> None:
        """The whole prompt of a room is computed: what cached pages lack is to be kept."""
        if not self.worker.reuse.keeps:
            return
        if isinstance(room, PrefillRoom):
            sums = kept_sums(room, self.worker.state_table, self.worker.manifest.page_blocks)
            self._keep(room, room.length, sums)
        elif self._keep(room, room.length, None):
            self.still.add(room.key)

    def ends_at(self, room: ComputedRoom) -> int:
        """Return where the next chunk of a room's prompt ends at the latest: at its end, or where
        it is to be kept before that."""
        every = self._every_of(room)
        return min(room.length, (room.ordered // every + 1) * every)

    def _every_of(self, room: ComputedRoom) -> int:
        """Return at multiples of how many tokens a room's prompt is to be kept."""
        if not self._most:
            return room.length
        every = self._every
        while (room.length - 1) // every > self._most:
            every *= 2
        return every

    def waits(self, room: ComputedRoom) -> bool:
        """Whether the next chunk of a room's prompt must wait: what is before that is to be kept,
        or is being kept."""
        return room.key in self.still or (
            room.done < room.ordered and self._is_end(room, room.ordered)
        )

    def _is_end(self, room: ComputedRoom, position: int) -> bool:
        """Whether a room's prompt is to be kept at this position before its end."""
        if position % self._every_of(room) or not 0 < position < room.length:
            return False
        return self._book.same(*self.worker.reuse.ending(room, position)) is None

    def chunk_ended(self, room: ComputedRoom) -> None:
        """A chunk of a room's prompt is computed on every rank, and no page is given up yet."""
        if room.done == room.length:
            self.computed(room)
        elif room.done < room.ordered:
            return  # its state goes on; what was kept of it then may have been forgotten since
        elif self._is_end(room, room.done) and self._keep(room, room.done, None):
            self.still.add(room.key)

    def answered(self, room: GeneratingRoom) -> None:
        """A room has its last token, which is not computed, and still has all of its pages. What
        cached pages lack of what is before that token is to be kept."""
        if self.worker.reuse.keeps:
            self._keep(room, room.position, None)

    def _keep(self, room: OpenRoom, length: int, sums: KeptSums | None) -> bool:
        """Order the ranks to keep what cached pages lack of the first `length` positions of a room,
        if that is worth it. Returns whether they do.

        sums: of the blocks; None if the ranks are to report them
        """
        worker, reuse = self.worker, self.worker.reuse
        pages = length // reuse.page_tokens
        if not pages:
            return False  # there is no page that it could belong to
        page, tail = reuse.ending(room, length)
        if (known := self._book.same(page, tail)) is not None:
            self._book.use(known)
            return False
        chain = worker.ledger.chain(room.key)
        if len(chain) < pages:
            return False  # not all of what lasts is cached
        if not self.make_space([length], kept_bytes):
            worker.marks[Mark.CHECKPOINT_NOT_KEPT] += 1
            return False
        self._last_name += 1
        name, order = CheckpointName(self._last_name), worker.new_order()
        self._host.take(name, length, kept_bytes)
        self._keeps[order] = PromptCheckpoint(
            name,
            length=length,
            page=page,
            tail=tail,
            last=chain[pages - 1],
            sums=sums or {},
            beyond=length - room.length,
        )
        worker.draft.keep.append(Keep(order, name, room.key, length, seal=sums is None))
        worker.orders.expect(order, room.key, self._kept, by_all=True)
        return True

    def make_space(self, lengths: Collection[int], measure: Measure) -> bool:
        """Forget what was used longest ago until every host store has space for these states.
        Returns False, and forgets nothing, if that would not be enough.

        lengths: the positions of each
        """
        idle = self._book.idle()
        if not self._host.fits(lengths, measure, without=[one.name for one in idle]):
            return False
        for oldest in idle:
            if self._host.fits(lengths, measure):
                break
            self.worker.marks[Mark.CHECKPOINT_EVICTED] += 1
            self._forget(oldest)
        return True

    def _kept(self, key: Key, order: int, vote: Vote, by_rank: Mapping[Rank, Ballot]) -> None:
        """Every rank has kept its part, or one of them could not."""
        one = self._keeps.pop(order)
        self.still.discard(key)
        if vote is Vote.ARRIVED and not one.sums:
            one.sums = {
                (Rank(rank), group): unpack_sums(raw, placement.unit_count(group))
                for rank, placement in enumerate(self.worker.placements)
                for group, raw in by_rank[Rank(rank)].sums.items()
            }
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

    def handlers(self) -> Handlers:
        """After the cache has been emptied, by the stage that answers."""
        return dict.fromkeys((Clear, ResetCache), lambda sender, message: self.schedule())

    def report(self, report: Report) -> None:
        """A rank may have found cached pages damaged."""
        self.schedule()

    def schedule(self) -> None:
        """Forget the checkpoints whose cached pages are gone, before any room is admitted."""
        cache = self.worker.ledger.cache
        if cache.left != self._left:
            self._left = cache.left
            for one in [one for one in self._book if not cache.has(one.last)]:
                self._forget(one)

    # ---- resuming -------------------------------------------------------------------------------

    def admitted(self, room: ComputedRoom, reuse: Reuse) -> None:
        """A room has its pages: bring back what it goes on from."""
        one = room.checkpoint
        if room.state is not RoomState.RESUMING:
            return
        assert one is not None, "it was found before the pages were taken"
        room.foreseen = one.length
        self.bring(room.key, one, self._resumed)

    def bring(
        self, key: Key, one: PromptCheckpoint, then: Callable[[Key, PromptCheckpoint, bool], None]
    ) -> None:
        """Order the ranks to bring a checkpoint into the pages that a key has for it. `then` is
        told whether it is there as it was computed, unless the key is forgotten before; otherwise
        the checkpoint is of no use any more."""
        self._book.pin(one)
        self._resuming[key] = one
        order = self.worker.new_order()
        self.worker.draft.resume.append(Resume(order, one.name, key, one.length))
        # until all ranks have voted, some of them may still be copying into its pages
        counted = partial(self._brought, then)
        self.worker.orders.expect(order, key, counted, by_all=True)

    def forgotten(self, room: ComputedRoom) -> None:
        """A room that ended while it was resuming holds nothing any more."""
        self.let_go(room.key)

    def let_go(self, key: Key) -> None:
        """Nothing is brought into pages of a key any more. It need not have been."""
        if key in self._resuming:
            self._release(key)

    def _release(self, key: Key) -> PromptCheckpoint:
        one = self._resuming.pop(key)
        self._book.unpin(one)
        if self._book.same(one.page, one.tail) is not one:
            self._forget(one)  # it was removed meanwhile
        return one

    def _brought(
        self,
        then: Callable[[Key, PromptCheckpoint, bool], None],
        key: Key,
        order: int,
        vote: Vote,
        by_rank: Mapping[Rank, Ballot],
    ) -> None:
        """Every rank has its part of a checkpoint back, or one of them could not bring it back."""
        if self.worker.agreement.drops(key):
            return  # some of them have not even hashed it
        one = self._resuming[key]
        right = vote is Vote.ARRIVED and self._as_computed(one, by_rank)
        if not right:
            self.worker.marks[Mark.CHECKPOINT_UNUSABLE] += 1
            self._book.remove(one)
        self._release(key)
        then(key, one, right)

    def _resumed(self, key: Key, one: PromptCheckpoint, right: bool) -> None:
        """A room may go on from a checkpoint, or must wait anew."""
        worker, room = self.worker, self.worker.rooms[key]
        if room.state is not RoomState.RESUMING:
            return  # it has ended meanwhile
        if right:
            worker.marks[Mark.CHECKPOINT_USED] += 1
            worker.marks[Mark.ANSWER_USED] += one.beyond > 0
            worker.marks[Mark.PART_USED] += one.beyond < 0
            worker.marks[Mark.LOCAL_USED] += worker.manifest.role == "decode"
            worker.see(room, Saw.RESUMED)
            worker.reuse.resumed(room, one.length)
            room.ordered = room.done = one.length
            room.foreseen, room.progress = 0, worker.now
            kept = kept_blocks(worker.state_table, one.length, worker.manifest.page_blocks)
            room.sums = resumed_sums(
                one.sums,
                {group: blocks.start for group, blocks in kept.items()},
                worker.ledger.chain(key),
                worker.state_table,
                computed=one.length,
                length=room.length,
            )
            for tell in worker.on_resumed:
                tell(room)
            return
        begin_anew(worker, room)

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


def begin_anew(worker: Worker[Any], room: ComputedRoom) -> None:
    """A room has its pages, of which nobody was told, and not the state that it was to go on from:
    it gives them up and waits anew."""
    worker.see(room, Saw.NOT_RESUMED)
    worker.ledger.give_back(room.key)
    worker.draft.vacate.append(room.key)
    room.checkpoint, room.foreseen = None, 0
