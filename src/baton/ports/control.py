"""Port: the control plane's datagrams. A session (core/session/session.py) on top makes them
reliable.

C1 `send` never blocks; False means the frame was not taken (full, or the link is gone). C2 Frames
of one link arrive whole or not at all; they may be lost, repeated or reordered. C3 A link is named
by this port alone; a name is never used again within one port's life. C4 Frames over
`max_frame_bytes` are refused on both ends. C5 `close` frees every descriptor and ends every thread;
it may be called twice. C6 Off loopback the transport is encrypted and mutually authenticated; there
is no other mode. C7 Whenever `receive` has something after having been empty, the descriptor of
`fileno` polls readable, or stays readable until `receive` has been called and returned nothing.
"""

from typing import Protocol

from baton.core.ids import Link


class Control(Protocol):
    """Unreliable datagrams between processes."""

    @property
    def bound_address(self) -> str | None:
        """Where others can dial; None for a port that does not listen."""
        ...

    def dial(self, address: str) -> Link:
        """Start a link to a listening port; frames may be sent at once, and may be lost."""
        ...

    def send(self, link: Link, frame: bytes) -> bool:
        """Hand over one frame; False if it was not taken."""
        ...

    def receive(self) -> list[tuple[Link, bytes]]:
        """All frames that have come in, in no promised order. Links made by the other end appear
        here first."""
        ...

    def hang_up(self, link: Link) -> None:
        """Forget a link; frames under way may be lost."""
        ...

    def fileno(self) -> int:
        """A descriptor to poll for reading (C7)."""
        ...

    def close(self) -> None:
        """Free everything (C5)."""
        ...
