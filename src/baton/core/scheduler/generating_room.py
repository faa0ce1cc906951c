"""What a worker keeps of a room whose tokens it generates."""

from baton.core.handoff.birth_sums import RoomSums
from baton.core.ids import Micros, TokenId, TokenIndex
from baton.core.messages import Drawn, Ticket
from baton.core.scheduler.room import OpenRoom


class GeneratingRoom(OpenRoom):
    """A room whose tokens are generated on this worker."""

    def __init__(self, ticket: Ticket, now: Micros) -> None:
        super().__init__(ticket, now)
        self.generated: list[Drawn] = []  # in this epoch, the one after the prompt first
        self.told = 0  # how many of them were sent to the gateway
        # of its whole blocks; None where some are unknown or not needed
        self.sums: RoomSums | None = None
        self.resumed = False  # it has come back, and has generated nothing since
        self.overtaken = 0  # by rooms admitted while it was away or waited for memory
        self.preempted = 0  # times it gave way to a more urgent room that waited
        self.short = False  # it sits out, as no page was free for its next token
        self.covered: int | None = None  # the last position for which it is known to have its pages
        self.sealed = (
            0  # positions before it are in blocks that were ordered to be sealed, or in none
        )

    @property
    def alone(self) -> bool:
        """Whether its next row must have a step to itself. A suspect that has generated enough
        tokens is no longer treated as one."""
        return self.next_index < self.ticket.alone_until

    @property
    def cached(self) -> int:
        """Positions of the prompt that were not computed for this request."""
        return self.hit

    @property
    def next_index(self) -> TokenIndex:
        """Index of the next token to draw."""
        return TokenIndex(len(self.ticket.said) + len(self.generated))

    @property
    def position(self) -> int:
        """Position of the last generated token, which the next step computes."""
        return self.length + len(self.generated) - 1

    def tokens(self, start: int, end: int) -> tuple[TokenId, ...]:
        """Return the tokens of its sequence at positions [start, end), also generated ones."""
        more = self.generated[max(0, start - self.length) : max(0, end - self.length)]
        return (*self.context[start:end], *(drawn.token for drawn in more))
