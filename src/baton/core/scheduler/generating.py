"""Generates tokens: in each step, every running room that has a page for its next token has it
computed.

    RUNNING ──row──▶ every rank computes it, one draws ──Tokens──▶ gateway ──finished──▶ ENDING
               └ with drafts of the tokens after it: several are drawn (drafting.py)

Pages of generated tokens enter the prefix cache when they are complete. The page of a room's next
position is not complete, so it belongs to the room alone, and a cached page is never written.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from baton.core.agreement import RowOrder
from baton.core.handoff.birth_sums import add_sums
from baton.core.ids import BlockIndex, GroupName, Rank, TokenId, TokenIndex
from baton.core.marks import Mark
from baton.core.memory.chunks import final_blocks
from baton.core.memory.pages import PageState
from baton.core.memory.state import StateTable
from baton.core.messages import (
    Admitted,
    Drawn,
    FinishReason,
    FirstToken,
    PromptLogprobs,
    Tokens,
)
from baton.core.past import past_of
from baton.core.scheduler.admission import Reuse
from baton.core.scheduler.batches import Outcomes
from baton.core.scheduler.checkpointing import Checkpointing
from baton.core.scheduler.drafting import Drafting, RowDrafts
from baton.core.scheduler.generating_room import GeneratingRoom
from baton.core.scheduler.preemption import Preemption
from baton.core.scheduler.room import RoomState, Saw, finish_of
from baton.core.scheduler.stage import Stage, all_drawn_of, drafts_of
from baton.core.scheduler.worker import Worker

G = TypeVar("G", bound=GeneratingRoom)


class Generating(Stage[G]):
    """Generates the tokens of one worker's running rooms."""

    def __init__(
        self, worker: Worker[G], preemption: Preemption[G], checkpointing: Checkpointing
    ) -> None:
        super().__init__(worker)
        self._checkpointing = checkpointing
        self._preemption, self._drafting = preemption, Drafting(worker, preemption)
        self._drafted: list[RowDrafts] = []  # of each row of the step that is composed

    def forgotten(self, room: G) -> None:
        self._drafting.forget(room)

    def kept(self) -> Mapping[str, Collection[Any]]:
        return self._drafting.kept()

    def admitted(self, room: G, reuse: Reuse) -> None:
        if room.state is not RoomState.RESUMING:
            self.resumed(room)

    def resumed(self, room: G) -> None:
        """Tell the room's gateway, and its prefill worker if that is another worker."""
        for boot in dict.fromkeys((room.ticket.prefill, room.ticket.gateway)):
            if boot != self.worker.manifest.boot:
                self.worker.send(boot, Admitted(room.key))

    def due(self) -> list[G]:
        return self.worker.rooms.in_state(RoomState.RUNNING)

    def add_rows(self, rooms: Sequence[G], tokens: int) -> int:
        """Add the next token of each running room that has a page for it."""
        running = [r for r in rooms if r.state is RoomState.RUNNING and not r.awaits_grammar]
        self.worker.marks[Mark.GRAMMAR_AWAITED] += any(room.awaits_grammar for room in rooms)
        ready, self._drafted = self._preemption.ready(running), []
        if ready:
            self._drafting.composing(len(ready))
        left = tokens // 2 - len(ready)  # the other half is for prompts
        for room in ready:
            drafts = self._drafting.of(room, left)
            # The prefix cache takes only sealed blocks.
            final = completed(self.worker.state_table, room) if room.enters else {}
            row = decode_row(room, final, drafts.tokens)
            row = msgspec.structs.replace(row, drafts=drafts.ahead) if drafts.ahead else row
            self.worker.add_row(room, row)
            self._drafted.append(drafts)
            left -= len(drafts.tokens)
        return len(ready) + sum(len(drafts.tokens) for drafts in self._drafted)

    def stepping(self, tokens: int) -> None:
        drafted, self._drafted = self._drafted, []
        own = len(drafted) + sum(len(drafts.tokens) for drafts in drafted)
        self._drafting.stepping(drafted, others=tokens > own)

    def first(self, room: G, row: RowOrder, drawn: Drawn | None) -> None:
        """A chunk of a prompt was computed on this worker. After the last one the room runs, and
        has its first token."""
        if drawn is None:
            return
        self.worker.see(room, Saw.LAST_CHUNK)
        self.worker.ledger.move(room.key, PageState.COMMITTED)
        finish = self._drew(room, drawn)
        room.told = 1
        self._tell_scores(room)
        said = FirstToken(room.key, TokenIndex(room.next_index - 1), drawn, finish, room.cached)
        self.worker.send(room.ticket.gateway, said)
        if finish is not None:
            self.worker.end(room)

    def rows_ended(self, batch: Sequence[tuple[G, RowOrder]], ranks: Outcomes) -> None:
        worker, total = self.worker, 0
        for i, (room, row) in enumerate(batch):
            if room.state is not RoomState.RUNNING or row.start < room.length:
                continue  # it has ended meanwhile, or the row belongs to another stage
            if row.final:
                assert room.sums is not None, (
                    "what is sealed here goes to the cache with the sums of all before it"
                )
                add_sums(
                    room.sums,
                    {Rank(r): rows[i].sums for r, rows in enumerate(ranks)},
                    worker.placements,
                )
            drawn = all_drawn_of(ranks, i)
            assert drawn, "every row of a running room draws"
            finish = None
            for each in drawn:
                finish = self._drew(room, each)
                total += 1
                if finish is not None:
                    break
            self._drafting.drawn(room, len(row.ahead), len(drawn), drafts_of(ranks, i))
            worker.reuse.enter(room, row.valid, room.sums, worker.marks)
            self._tell(room, finish)
            if finish is not None:
                self._checkpointing.answered(room)
                worker.end(room)
        if total:
            self._drafting.stepped(total)

    def _drew(self, room: G, drawn: Drawn) -> FinishReason | None:
        """Take a room's next token. Returns why it ends the request; None if it does not."""
        room.generated.append(drawn)
        room.resumed = False
        return finish_of(drawn, generated=int(room.next_index), limits=room.ticket.limits)

    def _tell(self, room: G, finish: FinishReason | None) -> None:
        """Send the gateway the tokens that it has not been sent yet."""
        start = TokenIndex(len(room.ticket.said) + room.told)
        cached, fresh = 0 if room.told else room.cached, tuple(room.generated[room.told :])
        room.told = len(room.generated)
        self._tell_scores(room)
        self.worker.send(room.ticket.gateway, Tokens(room.key, start, fresh, finish, cached))

    def _tell_scores(self, room: G) -> None:
        """Send the gateway the prompt's logprobs, if they are wanted, before the first token."""
        if room.scores is not None:
            self.worker.send(room.ticket.gateway, PromptLogprobs(room.key, room.scores))
            room.scores = None


def decode_row(
    room: GeneratingRoom,
    final: Mapping[GroupName, tuple[BlockIndex, BlockIndex]] | None = None,
    drafts: Sequence[TokenId] = (),
) -> RowOrder:
    """Return the room's row in the next step: it takes the last token and draws the next one, and
    the one after each draft that is right.

    final: complete blocks that are to be sealed
    """
    ticket, generated, position = room.ticket, room.generated, room.position
    guessed = [Drawn(token, None, ()) for token in drafts]
    ahead = [past_of(ticket, (*generated, *guessed[:n])) for n in range(1, len(drafts) + 1)]
    return RowOrder(
        key=room.key,
        start=position,
        tokens=(generated[-1].token, *drafts),
        final=dict(final or {}),
        valid=position + 1,
        sampling=ticket.sampling,
        index=room.next_index,
        past=past_of(ticket, generated),
        said=1 + len(drafts),
        ahead=tuple(ahead),
    )


def completed(
    table: StateTable, room: GeneratingRoom
) -> dict[GroupName, tuple[BlockIndex, BlockIndex]]:
    """Return the blocks of every group that lasts which the room's next step completes, or drafts
    of the step before have completed; empty if none. They are sealed once: each is returned once.
    """
    start, end = max(room.sealed, room.length), room.position + 1
    room.sealed = end
    if start // table.block_tokens == end // table.block_tokens:
        return {}
    found = final_blocks(table, start=start, end=end, length=end + 1)
    return {group: blocks for group, blocks in found.items() if group in table.lasting}
