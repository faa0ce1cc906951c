"""Rooms that generate: their tokens, and their rows in a step."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from baton.core.agreement import RowOrder, RowResult
from baton.core.ids import BlockIndex, GroupName, Micros, TokenId, TokenIndex
from baton.core.memory.chunks import final_blocks
from baton.core.memory.state import StateTable
from baton.core.messages import Drawn, FinishReason, Ticket, Tokens
from baton.core.past import past_of
from baton.core.scheduler.leader import Leader
from baton.core.scheduler.room import OpenRoom


class Generation(OpenRoom):
    """A room whose tokens are generated on this worker."""

    def __init__(self, ticket: Ticket, now: Micros) -> None:
        super().__init__(ticket, now)
        self.generated: list[Drawn] = []  # in this epoch, the one after the prompt first
        self.told = 0  # of them, sent to the gateway
        self.resumed = False  # it has come back, and has generated nothing since
        self.overtaken = 0  # later rooms admitted while it is away, or waits for memory
        self.preempted = 0  # times it gave way to one that waited
        self.short = False  # it sits out, as no page was free for its next token
        self.covered: int | None = None  # the last position for which it was looked whether it has its pages, and it has

    @property
    def alone(self) -> bool:
        """A suspect that has gone on for long enough is one no more."""
        return self.next_index < self.ticket.alone_until

    @property
    def next_index(self) -> TokenIndex:
        """Index of the next token to draw."""
        return TokenIndex(len(self.ticket.said) + len(self.generated))

    def tokens(self, start: int, end: int) -> tuple[TokenId, ...]:
        """Those of its sequence at these positions, generated ones among them."""
        more = self.generated[max(0, start - self.length) : max(0, end - self.length)]
        return (*self.context[start:end], *(drawn.token for drawn in more))

    @property
    def position(self) -> int:
        """Position of the last generated token: where the next step computes."""
        return self.length + len(self.generated) - 1


G = TypeVar("G", bound=Generation)


def decode_row(room: Generation, final: Mapping[GroupName, tuple[BlockIndex, BlockIndex]] | None = None) -> RowOrder:
    """The room's row in the next step: its last token in, the next one out. final: blocks that it completes, to be sealed."""
    return RowOrder(
        key=room.key,
        start=room.position,
        tokens=(room.generated[-1].token,),
        final=dict(final or {}),
        valid=room.position + 1,
        sampling=room.ticket.sampling,
        index=room.next_index,
        past=past_of(room.ticket, room.generated),
    )


def completed(table: StateTable, room: Generation) -> dict[GroupName, tuple[BlockIndex, BlockIndex]]:
    """The block that the room's next step completes, of every group; empty where it completes none."""
    if (room.position + 1) % table.block_tokens:
        return {}
    return final_blocks(table, start=room.position, end=room.position + 1, length=room.position + 2)


def drawn_of(ranks: Sequence[tuple[RowResult, ...]], row: int) -> Drawn:
    """The token of a row, from the one rank that samples."""
    return next(d for rows in ranks if (d := rows[row].drawn) is not None)


def tell(leader: Leader[G], room: G, finish: FinishReason | None, *, cached: int = 0) -> None:
    """Send the gateway what it has not been told yet. cached: see Tokens."""
    start = TokenIndex(len(room.ticket.said) + room.told)
    fresh = tuple(room.generated[room.told :])
    room.told = len(room.generated)
    leader.send(room.ticket.gateway, Tokens(room.key, start, fresh, finish, cached))
