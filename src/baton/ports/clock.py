"""Port: time. K1 it never goes back; K2 it is in microseconds from an arbitrary start."""

from typing import Protocol

from baton.core.ids import Micros


class Clock(Protocol):
    """A monotonic clock."""

    def now(self) -> Micros:
        """Microseconds since an arbitrary start; never smaller than before."""
        ...
