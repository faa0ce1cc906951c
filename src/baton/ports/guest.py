"""Port: the engine that a worker is a guest of (vLLM), as its leader sees it.

G1 No call blocks. G2 Events come in the order in which the engine says them, and none is lost while
both sides live. G3 `fileno` is readable when there may be events. G4 News reach the engine in the
order of the calls.
"""

from typing import Protocol

from baton.core.effects import GuestNews
from baton.core.events import GuestEvent


class GuestLink(Protocol):
    """The leader's end."""

    def events(self) -> list[GuestEvent]:
        """Return what the engine has done since the last call."""
        ...

    def tell(self, news: GuestNews) -> None:
        """Tell the engine."""
        ...

    def fileno(self) -> int:
        """The descriptor to poll."""
        ...

    def close(self) -> None:
        """Close it."""
        ...
