"""A worker that drains takes no more requests, and leaves when those that it has have ended.

    Drain (an operator asks a gateway), DrainAsked (SIGTERM)
        ──▶ Credits say it: gateways send no more tickets
        ──▶ no room has been open for LINGER_US ──▶ Leave

Tickets that a gateway sent before it heard of this are served like the others.
"""

from baton.core.effects import Leave
from baton.core.ids import Micros

LINGER_US = 500_000  # longer than a ticket is under way


class Draining:
    """Whether one worker drains, and when it leaves.

    Attributes:
        on: the worker drains
    """

    def __init__(self) -> None:
        self.on = False
        self._role: str | None = None
        self._leave_at: Micros | None = None
        self._left = False

    def ask(self, role: str | None) -> None:
        """Drain. role: the one in which the worker is to begin again afterwards; None = it ends.
        The last one asked for counts."""
        self.on, self._role = True, role

    def look(self, now: Micros, *, rooms: int, gateways: int) -> None:
        """Note what is open at the end of a turn.

        Args:
            rooms: how many rooms are open
            gateways: how many may have sent a ticket that is under way
        """
        if not self.on or rooms or self._left:
            self._leave_at = None
        elif self._leave_at is None:
            self._leave_at = Micros(now + (LINGER_US if gateways else 0))

    def leaves(self, now: Micros) -> Leave | None:
        """Return the worker's last effect once it is due, and then never again. To be asked when a
        timer is due: all messages that had come before are handled then, tickets among them."""
        if self._leave_at is None or now < self._leave_at:
            return None
        self._left, self._leave_at = True, None
        return Leave(self._role)

    def timer(self) -> Micros | None:
        """Return when the worker leaves if no room is opened; None if that is not known."""
        return self._leave_at
