"""Port: time.

K1 It never goes back. K2 It is in microseconds from an arbitrary start.
"""

from typing import Protocol

from baton.core.ids import Micros


class Clock(Protocol):
    """A monotonic clock."""

    def now(self) -> Micros:
        """Return the microseconds since an arbitrary start; never less than before."""
        ...
