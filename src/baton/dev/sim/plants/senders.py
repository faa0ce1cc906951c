"""Messages from the wrong party, and messages that are sent twice."""

from typing import Any

from baton.core.ids import Boot
from baton.core.messages import Abort, Offer, Ticket
from baton.core.scheduler.leader import Leader
from baton.core.session import senders
from baton.dev.sim.parts import Parts, Replaced
from baton.dev.sim.plants.plant import Plant


def _anybody(sender: Boot, message: Any, knows: senders.Knows) -> bool:
    return True


def _unasked(*kinds: type[Any]) -> Parts:
    """Do not check who may send these."""
    return Parts(
        replaced=(Replaced(senders, "RULES", {**senders.RULES, **dict.fromkeys(kinds, _anybody)}),)
    )


def _takes_twice(self: Leader, sender: Boot, ticket: Ticket) -> None:
    if self.worker.epochs.highest(ticket.key.room) == ticket.key.epoch:
        self.worker.epochs.close(ticket.key.room)
    _on_ticket(self, sender, ticket)


_on_ticket = Leader._on_ticket


PLANTS = (
    Plant(
        "offer_of_anybody",
        "an offer counts whoever makes it: one of another room, by a confused worker, takes "
        "the place of the right one",
        ("read_at_once", "memory_order", "no_spurious_failure", "right_commit"),
        7,
        lambda: _unasked(Offer),
    ),
    Plant(
        "abort_of_anybody",
        "a room ends because somebody says so who is not its gateway",
        ("end_said",),
        7,
        lambda: _unasked(Abort),
    ),
    Plant(
        "senders_unasked",
        "every message counts, whoever says it",
        ("end_said", "memory_order", "right_tokens", "ended_once", "no_spurious_failure"),
        7,
        lambda: _unasked(*senders.RULES),
    ),
    Plant(
        "ticket_taken_twice",
        "a ticket of the same epoch that is said twice opens its room twice",
        ("ended_once", "one_owner", "read_at_once", "sealed_once", "end_said"),
        7,
        lambda: Parts(replaced=(Replaced(Leader, "_on_ticket", _takes_twice),)),
    ),
)
