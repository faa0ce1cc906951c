"""Rooms that generate: their tokens, their rows in a step, and the pages they grow into."""

from collections.abc import Sequence
from typing import TypeVar

from baton.core import holding
from baton.core.agreement import RowOrder, RowSums
from baton.core.ids import Micros, TokenIndex
from baton.core.leader import Leader
from baton.core.marks import Mark
from baton.core.messages import Drawn, FinishReason, Recompute, Ticket, Tokens
from baton.core.past import past_of
from baton.core.room import OpenRoom, RoomState


class Generation(OpenRoom):
    """A room whose tokens are generated on this worker."""

    def __init__(self, ticket: Ticket, now: Micros) -> None:
        super().__init__(ticket, now)
        self.generated: list[Drawn] = []  # in this epoch, the one after the prompt first
        self.told = 0  # of them, sent to the gateway

    @property
    def next_index(self) -> TokenIndex:
        """Index of the next token to draw."""
        return TokenIndex(len(self.ticket.said) + len(self.generated))

    @property
    def position(self) -> int:
        """Position of the last generated token: where the next step computes."""
        return self.length + len(self.generated) - 1


G = TypeVar("G", bound=Generation)


def decode_row(room: Generation) -> RowOrder:
    """The room's row in the next step: its last token in, the next one out."""
    return RowOrder(
        key=room.key,
        start=room.position,
        tokens=(room.generated[-1].token,),
        final={},
        valid=room.position + 1,
        sampling=room.ticket.sampling,
        index=room.next_index,
        past=past_of(room.ticket, room.generated),
    )


def drawn_of(ranks: Sequence[tuple[RowSums, ...]], row: int) -> Drawn:
    """The token of a row, from the one rank that samples."""
    return next(d for rows in ranks if (d := rows[row].drawn) is not None)


def next_rooms(leader: Leader[G]) -> list[G]:
    """Those whose next token can be computed now: every stage of a pipeline gets an equal share of all that run."""
    running = leader.in_state(RoomState.RUNNING)
    busy = leader.in_flight()
    share = -(-len(running) // leader.manifest.pp)
    return [room for room in running if room.key not in busy][:share]


def tell(leader: Leader[G], room: G, finish: FinishReason | None) -> None:
    """Send the gateway what it has not been told yet."""
    start = TokenIndex(len(room.ticket.said) + room.told)
    fresh = tuple(room.generated[room.told :])
    room.told = len(room.generated)
    leader.send(room.ticket.gateway, Tokens(room.key, start, fresh, finish))


def grow(leader: Leader[G], rooms: Sequence[G]) -> list[G]:
    """The rooms, oldest first, that have a page for their next position.

    Where none is free the youngest room is given up: its gateway opens a new epoch after the tokens said, so nobody
    waits while holding pages.
    """
    ready = [room for room in rooms if _grow(leader, room)]
    return [room for room in ready if room.state is RoomState.RUNNING]  # less those given up for an older one


def _grow(leader: Leader[G], room: G) -> bool:
    if room.state is not RoomState.RUNNING:
        return False
    if holding.grow(leader, room, room.position):
        return True
    if not leader.in_state(RoomState.ENDING):  # else pages come back in a moment, and this room sits out one step
        youngest = leader.in_state(RoomState.RUNNING)[-1]
        leader.marks[Mark.RECOMPUTE] += 1
        leader.send(youngest.ticket.gateway, Recompute(youngest.key))
        leader.end(youngest)
    return False
