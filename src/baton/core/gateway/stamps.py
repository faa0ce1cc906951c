"""A gateway's logical clock: which of two requests came first, also where two gateways have given
them out.

    worker ──Register, Credits: the highest stamp of all tickets that it has seen──▶ gateway
    worker ◀──Ticket: a stamp above its own last one and above all that were heard── gateway       (Lamport, CACM 21(7), 1978)

No two clocks are compared: a gateway that starts, or was cut off, goes on behind what its workers
have seen. So a request is passed only by those of another gateway that were given out before that
one heard of it. Two may be given the same stamp; then the boot of the gateway decides, on every
worker alike (`Ticket.came`).
"""

from baton.core.ids import Stamp


class Stamps:
    """Counts the stamps that a gateway gives out, above all that it has heard."""

    def __init__(self) -> None:
        self._highest = Stamp(0)

    def heard(self, stamp: Stamp) -> None:
        """A worker has seen this stamp."""
        self._highest = max(self._highest, stamp)

    def next(self) -> Stamp:
        """Return the stamp of a request whose first epoch begins now."""
        self._highest = Stamp(self._highest + 1)
        return self._highest
