"""The unified leader: prefill and decode in one worker, the colocated baseline.

    QUEUED ──pages held──▶ COMPUTING ──last chunk──▶ RUNNING ──finished──▶ ENDING ──quiet──▶ ENDED
                              RUNNING ──a page is short──▶ away and back: retraction.py

The same ticket, ledger, plans and reports as a split pair; only the handoff is missing, since the pages are its own. Complete
pages go to the prefix cache, those of generated tokens too (reuse.py): the next turn of a chat begins with them.
A step holds every running room's next token, and prompt chunks in what is left of the step's tokens.
"""

from collections.abc import Sequence

from baton.core.agreement import RowOrder, RowResult
from baton.core.handoff.birth_sums import add_sums, sums_of
from baton.core.ids import BlockIndex, GroupName, Micros, Rank, TokenIndex
from baton.core.manifest import Manifest
from baton.core.memory.chunks import ChunkRule
from baton.core.memory.pages import PageState
from baton.core.messages import Admitted, FirstToken, Ticket
from baton.core.scheduler.generation import completed, decode_row, drawn_of, tell
from baton.core.scheduler.prompt_chunks import add_chunks
from baton.core.scheduler.retraction import RETRACTION, GeneratingLeader
from baton.core.scheduler.room import LeaderSettings, RoomState, Saw, Table, finish_of
from baton.core.scheduler.unified_room import UnifiedRoom

UNIFIED: Table = RETRACTION | {
    (RoomState.QUEUED, Saw.HELD): RoomState.COMPUTING,
    (RoomState.QUEUED, Saw.END): RoomState.ENDED,  # it holds nothing
    (RoomState.COMPUTING, Saw.LAST_CHUNK): RoomState.RUNNING,
    (RoomState.COMPUTING, Saw.END): RoomState.ENDING,
    (RoomState.RUNNING, Saw.END): RoomState.ENDING,
    (RoomState.ENDING, Saw.END): RoomState.ENDING,
    (RoomState.ENDING, Saw.QUIET): RoomState.ENDED,
}


class UnifiedLeader(GeneratingLeader[UnifiedRoom]):
    """The leader of a unified worker."""

    table = UNIFIED

    def __init__(self, manifest: Manifest, settings: LeaderSettings, totals: dict[GroupName, int]) -> None:
        super().__init__(manifest, settings, totals)
        self._rule = ChunkRule(settings.step_tokens, settings.step_tokens)

    def _open(self, ticket: Ticket, now: Micros) -> UnifiedRoom:
        return UnifiedRoom(ticket, now)

    def pages_for(self, tokens: int) -> dict[GroupName, int]:
        """Enough for every chunk, and the token after the prompt."""
        return self.span.reserve(tokens, step=self.settings.step_tokens * self.manifest.pp)

    def _schedule(self, now: Micros) -> None:
        self.followers.look(self.rooms.in_state(RoomState.QUEUED), self.rooms.in_state(RoomState.COMPUTING), self.marks)
        self.resume()
        for room, reuse in self.admitted(self.rooms.in_state(RoomState.COMPUTING), PageState.COMPUTING, whole=False):
            room.ordered = room.done = self.reuse.begin(room, reuse, self.marks)
            room.sums = sums_of(reuse)
            self.send(room.ticket.gateway, Admitted(room.key))
        if self.may_step:
            self._compose()

    def _compose(self) -> None:
        rooms = self.rooms.in_state(RoomState.RUNNING, RoomState.COMPUTING)
        for lot in self.lots([r for r in rooms if r.state is RoomState.RUNNING or r.ordered < r.length]):
            self._compose_of(lot)
            if self.draft.batch:
                return

    def _compose_of(self, rooms: Sequence[UnifiedRoom]) -> None:
        running = self.ready([room for room in rooms if room.state is RoomState.RUNNING])
        for room in running:
            self.add_row(room, decode_row(room, self._completed(room)))
        computing = [room for room in rooms if room.state is RoomState.COMPUTING]
        add_chunks(self, computing, rule=self._rule, budget=self.settings.step_tokens - len(running), follow=1)

    def _completed(self, room: UnifiedRoom) -> dict[GroupName, tuple[BlockIndex, BlockIndex]]:
        """The block that the room's next step completes; sealed only for the prefix cache, which takes nothing unsealed."""
        return completed(self.state_table, room) if self.reuse.on and room.enters else {}

    def _on_batch(self, batch: list[tuple[UnifiedRoom, RowOrder]], ranks: list[tuple[RowResult, ...]], now: Micros) -> None:
        for i, (room, row) in enumerate(batch):
            if room.state is RoomState.ENDING:
                continue  # ended meanwhile
            if row.final and self.reuse.on and room.enters:
                self._keep(room, row, {Rank(r): rows[i].sums for r, rows in enumerate(ranks)})
            prompt = row.start < room.length
            if prompt:
                room.done = row.valid
                if row.sampling is None:
                    continue  # more of it is to come
                self.see(room, Saw.LAST_CHUNK)
                self.ledger.move(room.key, PageState.COMMITTED)
            drawn = drawn_of(ranks, i)
            room.generated.append(drawn)
            room.resumed = False
            finish = finish_of(drawn, generated=int(room.next_index), limits=room.ticket.limits)
            if prompt:
                room.told = 1
                self.send(room.ticket.gateway, FirstToken(room.key, TokenIndex(room.next_index - 1), drawn, finish, room.hit))
            else:
                tell(self, room, finish)
            if finish is not None:
                self.end(room)

    def _keep(self, room: UnifiedRoom, row: RowOrder, by_rank: dict[Rank, dict[GroupName, bytes]]) -> None:
        """Complete pages of what is computed go to the cache."""
        add_sums(room.sums, by_rank, self.placements)
        self.reuse.enter(room, row.valid, room.sums, self.marks)
