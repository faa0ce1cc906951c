"""Who may send what: for every type of message, the party that may make this statement. The same
message from anybody else changes nothing.

    about an epoch      whom its ticket names: its gateway, its prefill worker, its decode worker
    about a room        the gateway that opened it
    about a worker      that worker, whose boot the message or its manifest names
    an order            any gateway

A session identifies the sender and keeps out repeated messages; this table says whether that sender
may send the message. If an epoch is not open, no ticket names its parties, and a message about it
can only be answered: `Stale`, or `Verdict`. Messages that name nobody (Paired, Unpaired, and the
answers HelloBack and Refused) are about their sender, so anybody may send them.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from baton.core.frames import Said
from baton.core.ids import Boot, Key, Room
from baton.core.messages import (
    Abort,
    Admitted,
    AskCache,
    AskLedger,
    Borrow,
    CacheChanged,
    Clear,
    Close,
    Credits,
    Doubt,
    Drain,
    Ended,
    Failed,
    FirstToken,
    Hello,
    Introduce,
    Loan,
    Offer,
    Progress,
    PromptLogprobs,
    Received,
    Recompute,
    Register,
    ResetCache,
    Returned,
    Stale,
    Ticket,
    Tokens,
    Trial,
    Verdict,
    Withdrawn,
)


class Knows(Protocol):
    """What a process knows about the parties of epochs and rooms."""

    def ticket_of(self, key: Key) -> Ticket | None:
        """Return the ticket of an epoch that is open here; None if it is not."""
        ...

    def owner_of(self, room: Room) -> Boot | None:
        """Return the gateway of a room that is known here; None if it is not."""
        ...

    def is_gateway(self, boot: Boot) -> bool:
        """Whether the process with that boot is a gateway that is connected."""
        ...


Rule = Callable[[Boot, Any, Knows], bool]  # arguments: sender, message, what is known here


def _from_gateway(sender: Boot, message: Any, knows: Knows) -> bool:
    ticket = knows.ticket_of(message.key)
    return ticket is None or sender == ticket.gateway


def _from_prefill(sender: Boot, message: Any, knows: Knows) -> bool:
    ticket = knows.ticket_of(message.key)
    return ticket is None or sender == ticket.prefill


def _from_decode(sender: Boot, message: Any, knows: Knows) -> bool:
    ticket = knows.ticket_of(message.key)
    return ticket is None or sender == ticket.decode


def _from_either(sender: Boot, message: Any, knows: Knows) -> bool:
    ticket = knows.ticket_of(message.key)
    return ticket is None or sender == ticket.prefill or sender == ticket.decode


def _from_its_gateway(sender: Boot, message: Ticket, knows: Knows) -> bool:
    return sender == message.gateway and knows.owner_of(message.key.room) in (None, sender)


def _from_the_owner(sender: Boot, message: Close, knows: Knows) -> bool:
    return knows.owner_of(message.room) in (None, sender)


def _of_itself(sender: Boot, message: Register | Hello, knows: Knows) -> bool:
    return sender == message.manifest.boot


def _of_its_own(sender: Boot, message: Credits | CacheChanged | Progress, knows: Knows) -> bool:
    return sender == message.worker


def _from_a_gateway(sender: Boot, message: Any, knows: Knows) -> bool:
    return knows.is_gateway(sender)


RULES: Mapping[type[Any], Rule] = {
    Ticket: _from_its_gateway,
    Close: _from_the_owner,
    Abort: _from_gateway,
    **dict.fromkeys((FirstToken, Offer, Withdrawn, Borrow, Returned), _from_prefill),
    **dict.fromkeys((Tokens, Recompute, Admitted, Received, Loan), _from_decode),
    **dict.fromkeys((PromptLogprobs, Failed, Ended, Stale, Trial, Doubt, Verdict), _from_either),
    **dict.fromkeys((Register, Hello), _of_itself),
    **dict.fromkeys((Credits, CacheChanged, Progress), _of_its_own),
    **dict.fromkeys((Introduce, AskCache, AskLedger, Clear, ResetCache, Drain), _from_a_gateway),
}


def may_say(sender: Boot, message: Said, knows: Knows) -> bool:
    """Whether a message may come from its sender."""
    rule = RULES.get(type(message))
    return rule is None or rule(sender, message, knows)
