"""Port: the control plane's datagrams. A session (core/session/session.py) on top makes them
reliable.

C1 `send` never blocks. False means that the frame was not taken (full, or the link is gone). C2 A
frame arrives whole or not at all. Frames of one link may be lost, repeated or reordered. C3 Only
this port names links, and it never uses a name twice. C4 Frames over `max_frame_bytes` are refused
on both ends. C5 `close` frees every descriptor and ends every thread; it may be called twice. C6
Off loopback the transport is encrypted and mutually authenticated; there is no other mode. C7 When
frames come in while `receive` has none, the descriptor of `fileno` becomes readable, or stays
readable until `receive` has been called and returned nothing. C8 When the process at the other
end of a link dies on a host that runs, `broken` names the link once, soon, and not before
`receive` has returned all frames of it that had come; the descriptor becomes readable for it (C7).
A broken connection need not mean a dead process: links that were dialled connect again by
themselves, and frames after that may come on a new link. C9 When the keys of two processes differ,
or one of them has none, the log of each names the address of the other, now and then for as long as
it lasts. Nothing that answers at an address ends a link: it connects once the keys agree.
"""

from typing import Protocol

from baton.core.ids import Link


class Control(Protocol):
    """Unreliable datagrams between processes."""

    @property
    def bound_address(self) -> str | None:
        """The address that others can dial; None for a port that does not listen."""
        ...

    def dial(self, address: str) -> Link:
        """Start a link to a listening port. Frames may be sent at once, and may be lost."""
        ...

    def send(self, link: Link, frame: bytes) -> bool:
        """Hand over one frame. Returns False if it was not taken."""
        ...

    def receive(self) -> list[tuple[Link, bytes]]:
        """Return all frames that have come in, in no particular order. Links that the other end has
        made first appear here."""
        ...

    def broken(self) -> list[Link]:
        """Return the links whose connection has ended since the last call (C8)."""
        ...

    def hang_up(self, link: Link) -> None:
        """Forget a link. Frames under way may be lost."""
        ...

    def fileno(self) -> int:
        """Return a descriptor to poll for reading (C7)."""
        ...

    def close(self) -> None:
        """Free everything (C5)."""
        ...
