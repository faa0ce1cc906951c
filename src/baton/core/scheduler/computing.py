"""Computes prompts in chunks: rooms in order, each with as much of its prompt as the step still has
space for.

COMPUTING ──chunk──▶ every rank computes and seals it ──▶ its complete pages enter the prefix cache ──▶ the next stage goes on
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from baton.core.agreement import RowOrder
from baton.core.handoff.birth_sums import add_sums, sums_of
from baton.core.ids import Key, Rank, TokenIndex
from baton.core.marks import Mark
from baton.core.memory.chains import PagesUnderWay, known
from baton.core.memory.chunks import ChunkRule, final_blocks, next_chunk
from baton.core.memory.prefix_cache import PageHash
from baton.core.messages import Drawn
from baton.core.past import past_of
from baton.core.prefill_cost import Backlog
from baton.core.prompt_scores import Score, joined
from baton.core.scheduler.admission import Reuse
from baton.core.scheduler.batches import Outcomes
from baton.core.scheduler.checkpointing import Checkpointing, ComputedRoom
from baton.core.scheduler.room import UNTOLD, RoomState
from baton.core.scheduler.stage import Stage, drawn_of, scores_of
from baton.core.scheduler.worker import Worker

UNCOMPUTED = (RoomState.QUEUED, RoomState.RESUMING, RoomState.BORROWING, RoomState.COMPUTING)


class Computing(Stage[Any]):
    """Computes the prompts of one worker."""

    def __init__(
        self,
        worker: Worker[Any],
        checkpointing: Checkpointing,
        *,
        rule: ChunkRule,
        then: Callable[[Any, RowOrder, Drawn | None], None],
    ) -> None:
        """then: takes a room whose chunk is computed on every rank, the chunk's row, and the next
        token if the chunk was the last one"""
        super().__init__(worker)
        self._checkpointing, self._rule, self._then = checkpointing, rule, then
        # Where tokens are generated, they follow the prompt in the same pages, so that its last
        # block is still written to.
        self._follow = int(worker.role.generates)
        self._tokens = self._pairs = 0  # of the rows in the batch that this turn composes

        self._chains: dict[Key, list[PageHash]] = {}  # of the prompts of open rooms
        self._coming = PagesUnderWay[PageHash]()  # the pages of these chains

    def kept(self) -> dict[str, Collection[Any]]:
        return {"steps": self.worker.prefill.under_way, "chains": self._chains}

    def opened(self, room: ComputedRoom) -> None:
        """Note how much of a prompt will have been computed when its turn comes: what is cached,
        and what rooms before it compute."""
        if not room.computes:
            return
        reuse, chain = self.worker.reuse, self.worker.reuse.chain(room)
        if reuse.keeps:
            one = None if room.computes_all else reuse.checkpoint_of(room)
            room.foreseen = one.length if one is not None else 0
        elif not room.computes_all:
            pages = known(chain, lambda page: page in self._coming or reuse.has(page))
            room.foreseen = pages * reuse.page_tokens
        self._chains[room.key] = chain
        self._coming.add(chain)

    def forgotten(self, room: ComputedRoom) -> None:
        self._coming.drop(self._chains.pop(room.key, []))

    def admitted(self, room: ComputedRoom, reuse: Reuse) -> None:
        """The cached part of the prompt counts as computed."""
        room.takes_turns = room.computes
        room.waits_since = self.worker.now if room.computes else None
        if not room.computes or room.state in UNTOLD:
            return
        room.ordered = room.done = self.worker.reuse.begin(room, reuse, self.worker.marks)
        room.foreseen = 0
        room.sums = sums_of(reuse)

    def due(self) -> list[ComputedRoom]:
        return [
            room
            for room in self.worker.rooms.in_state(RoomState.COMPUTING)
            if room.ordered < room.length
        ]

    def add_rows(self, rooms: Sequence[ComputedRoom], tokens: int) -> int:
        """Add the next chunk of each room's prompt, as long as the step has tokens left."""
        left, block = tokens, self.worker.state_table.block_tokens
        for room in rooms:
            if left <= 0:
                break
            if room.state is not RoomState.COMPUTING or self._checkpointing.waits(room):
                continue
            size = next_chunk(
                done=room.ordered,
                length=room.length,
                budget=left,
                rule=self._rule,
                block_tokens=block,
            )
            size = min(size, self._checkpointing.ends_at(room) - room.ordered)
            if room.awaits_grammar and room.ordered + size == room.length:
                self.worker.marks[Mark.GRAMMAR_AWAITED] += 1
                continue  # the last chunk draws the first token
            self.worker.blocks.slide(room, room.done, tokens=room.length + self._follow)
            start, end = room.ordered, room.ordered + size
            self.worker.waited(room)
            self.worker.add_row(room, self._chunk(room, start, end))
            self._tokens += size
            self._pairs += size * (start + end) // 2
            room.ordered = end
            left -= size
        return tokens - left

    def stepping(self, tokens: int) -> None:
        self.worker.prefill.stepping(self._tokens, self._pairs, self.worker.now)
        self._tokens = self._pairs = 0

    def stepped(self) -> None:
        self.worker.prefill.stepped(self.worker.now)

    def backlog(self) -> Backlog:
        rooms = self.worker.rooms.in_state(*UNCOMPUTED)
        rest = [(max(r.done, r.foreseen), r.length) for r in rooms if r.computes]
        rest = [(start, end) for start, end in rest if start < end]
        us = sum(self.worker.prefill.cost.time(start, end) for start, end in rest)
        return Backlog(len(rest), sum(end - start for start, end in rest), round(us))

    def _chunk(self, room: ComputedRoom, start: int, end: int) -> RowOrder:
        last = end == room.length
        return RowOrder(
            key=room.key,
            start=start,
            tokens=room.context[start:end],
            final=final_blocks(
                self.worker.state_table, start=start, end=end, length=room.length + self._follow
            ),
            valid=end,
            sampling=room.ticket.sampling if last else None,
            index=TokenIndex(len(room.ticket.said)),
            past=past_of(room.ticket) if last else None,
            score=self._score(room, end) if room.scores is not None else None,
            said=max(0, end - max(start, len(room.ticket.prompt))),
            # nobody has kept what is optional of the positions before it; a checkpoint has
            cold=start > 0 and start == room.cached and not self.worker.reuse.keeps,
        )

    def _score(self, room: ComputedRoom, end: int) -> Score:
        assert room.scores is not None, "they are wanted"
        return Score(room.scores.top, None if end == room.length else room.context[end])

    def rows_ended(self, batch: Sequence[tuple[ComputedRoom, RowOrder]], ranks: Outcomes) -> None:
        worker = self.worker
        for i, (room, row) in enumerate(batch):
            if room.state is not RoomState.COMPUTING:
                continue  # it has ended meanwhile, or the row belongs to another stage
            room.done, room.progress = row.valid, worker.now
            if room.done == room.ordered:
                room.waits_since = worker.now
            if row.score is not None:
                part = scores_of(ranks, i)
                assert part is not None, "the rank that samples scores as well"
                assert room.scores is not None, "they are told after the last chunk"
                room.scores = joined(room.scores, part)
            if self._wants_sums(room):
                assert room.sums is not None, "it has had sums since it was admitted"
                add_sums(
                    room.sums,
                    {Rank(r): rows[i].sums for r, rows in enumerate(ranks)},
                    worker.placements,
                )
                worker.reuse.enter(room, room.done, room.sums, worker.marks)
            self._checkpointing.chunk_ended(room)
            self._then(room, row, drawn_of(ranks, i))

    def _wants_sums(self, room: ComputedRoom) -> bool:
        """Whether the sums of a prompt are needed: for the handoff, and otherwise only for the
        prefix cache."""
        return not self.worker.role.generates or room.enters
