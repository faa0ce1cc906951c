"""The unified leader: prefill and decode in one worker, the colocated baseline.

    QUEUED ──pages held──▶ COMPUTING ──last chunk──▶ RUNNING ──finished──▶ ENDING ──quiet──▶ ENDED

The same ticket, ledger, plans and reports as a split pair; only the handoff is missing, since the pages are its own.
A step holds every running room's next token, and prompt chunks in what is left of the step's tokens.
"""

from baton.core.agreement import Hold, Report, RowOrder
from baton.core.chunks import ChunkRule, final_blocks, next_chunk
from baton.core.generation import Generation, decode_row, drawn_of, grow, tell
from baton.core.ids import GroupName, Micros, TokenIndex
from baton.core.leader import Leader
from baton.core.manifest import Manifest
from baton.core.messages import Admitted, FirstToken, Ticket
from baton.core.pages import PageState
from baton.core.room import LeaderSettings, RoomState, Saw, Table, finish_of

UNIFIED: Table = {
    (RoomState.QUEUED, Saw.HELD): RoomState.COMPUTING,
    (RoomState.QUEUED, Saw.END): RoomState.ENDED,  # it holds nothing
    (RoomState.COMPUTING, Saw.LAST_CHUNK): RoomState.RUNNING,
    (RoomState.COMPUTING, Saw.END): RoomState.ENDING,
    (RoomState.RUNNING, Saw.END): RoomState.ENDING,
    (RoomState.ENDING, Saw.END): RoomState.ENDING,
    (RoomState.ENDING, Saw.QUIET): RoomState.ENDED,
}


class UnifiedRoom(Generation):
    """A request computed and continued in the same pages."""

    def __init__(self, ticket: Ticket, now: Micros) -> None:
        super().__init__(ticket, now)
        self.done = 0  # prompt positions computed


class UnifiedLeader(Leader[UnifiedRoom]):
    """See the head of this module."""

    table = UNIFIED

    def __init__(self, manifest: Manifest, settings: LeaderSettings, totals: dict[GroupName, int]) -> None:
        super().__init__(manifest, settings, totals)
        self._rule = ChunkRule(settings.step_tokens, settings.step_tokens)
        self._rows: list[tuple[UnifiedRoom, int | None]] = []  # of the batch under way; end of its chunk, if one

    def _open(self, ticket: Ticket, now: Micros) -> UnifiedRoom:
        return UnifiedRoom(ticket, now)

    def _stalls(self, room: UnifiedRoom) -> bool:
        return False

    def _schedule(self, now: Micros) -> None:
        active = len(self.in_state(RoomState.COMPUTING, RoomState.RUNNING))
        for room in self.in_state(RoomState.QUEUED):
            if active >= self.settings.max_rooms:
                break
            taken = self.ledger.take(room.key, self.pages_for(room.length + 1), PageState.COMPUTING)
            if taken is None:
                break
            active += 1
            self.see(room, Saw.HELD)
            self.draft.hold.append(Hold(room.key, taken))
            self.send(room.ticket.gateway, Admitted(room.key))
        if self._batch is None:
            self._compose()

    def _compose(self) -> None:
        running = grow(self, self.in_state(RoomState.RUNNING))
        self._rows = [(room, None) for room in running]
        self.draft.batch += [decode_row(room) for room in running]
        budget = self.settings.step_tokens - len(running)
        for room in self.in_state(RoomState.COMPUTING):
            if budget <= 0:
                return
            block = self.state_table.block_tokens
            size = next_chunk(done=room.done, length=room.length, budget=budget, rule=self._rule, block_tokens=block)
            end = room.done + size
            self.draft.batch.append(self._chunk(room, end))
            self._rows.append((room, end))
            budget -= size

    def _chunk(self, room: UnifiedRoom, end: int) -> RowOrder:
        return RowOrder(
            key=room.key,
            start=room.done,
            tokens=room.context[room.done : end],
            # The prompt's tail block goes on being written here, so only whole blocks are final.
            final=final_blocks(self.state_table, start=room.done, end=end, length=room.length + 1),
            valid=end,
            sampling=room.ticket.sampling if end == room.length else None,
            index=TokenIndex(len(room.ticket.said)),
        )

    def _on_batch(self, reports: list[Report], now: Micros) -> None:
        for i, (room, end) in enumerate(self._rows):
            if room.state is RoomState.ENDING:
                continue  # ended meanwhile
            if end is not None:
                room.done = end
                if end < room.length:
                    continue
                self.see(room, Saw.LAST_CHUNK)
                self.ledger.move(room.key, PageState.COMMITTED)
            drawn = drawn_of(reports, i)
            room.generated.append(drawn)
            finish = finish_of(drawn, generated=int(room.next_index), limits=room.ticket.limits)
            if end is not None:
                room.told = 1
                self.send(room.ticket.gateway, FirstToken(room.key, TokenIndex(room.next_index - 1), drawn, finish))
            else:
                tell(self, room, finish)
            if finish is not None:
                self.end(room)
