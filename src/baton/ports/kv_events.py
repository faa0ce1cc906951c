"""Port: tells whoever subscribes what enters and leaves this worker's prefix cache.

E1 `publish` never blocks, however slow or many the subscribers are, and may be called at any time
until `close`. E2 What it is given is numbered from 0 on, and sent in the order of the calls. E3 A
subscriber that misses something sees it by a number that is missing; that it happens is counted,
and a log line says so. E4 The memory that is held for subscribers is bounded. E5 `close` sends what
is still there, if that takes no longer than a moment.
"""

from typing import Protocol

from baton.core.effects import Publish


class EventPublisher(Protocol):
    """Publishes the changes of one worker's cache."""

    def publish(self, changes: Publish) -> None:
        """Queue what has changed in one turn of the leader."""
        ...

    def close(self) -> None:
        """End its thread and close its ports. May be called twice."""
        ...
