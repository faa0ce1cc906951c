"""One HTTP request to a simulated vLLM, from its client to the end of its answer."""

from collections.abc import Callable
from dataclasses import dataclass

from baton.core.ids import Key, TokenId
from baton.core.messages import Ticket


@dataclass(frozen=True)
class SimAnswerEvent:
    """A server-sent event. token: None if it has none; finish: why the answer ends"""

    token: TokenId | None
    finish: str | None


@dataclass(eq=False)
class Call:
    """The request.

    Attributes:
        url: where it goes
        most: tokens that are wanted
        hear: takes an event
        broken: the connection has ended; why
        closed: the client has left
    """

    url: str
    ticket: Ticket
    most: int
    hear: Callable[[SimAnswerEvent], None]
    broken: Callable[[str], None]
    closed: bool = False

    @property
    def key(self) -> Key:
        """The room that it names."""
        return self.ticket.key
