"""Port: the link between a leader and the scheduler of the engine that its worker is a guest of
(vLLM).

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


class SchedulerLink(Protocol):
    """The scheduler's end."""

    def say(self, event: GuestEvent) -> None:
        """Tell the leader what the engine has done."""
        ...

    def news(self) -> list[GuestNews]:
        """Return what the leader has said since the last call."""
        ...

    def close(self) -> None:
        """Close it."""
        ...
