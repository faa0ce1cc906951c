"""A process's connections to other processes: the control port, the codec, and sessions on top."""

import structlog

from baton.core.errors import PeerError
from baton.core.frames import Said
from baton.core.ids import Boot, Link, Micros
from baton.core.session.session import SessionEvent, Sessions
from baton.ports.clock import Clock
from baton.ports.control import Control
from baton.wire.codec import decode, encode

log = structlog.get_logger()
TELL_EVERY = Micros(1_000_000)  # frames that are refused come as fast as a peer sends them


class Lines:
    """Sessions over a Control port."""

    def __init__(self, sessions: Sessions, control: Control, clock: Clock) -> None:
        self._sessions, self._control, self._clock = sessions, control, clock
        # the last answer of `timer`; nothing is due earlier, unless a link was dialled since
        self._due: Micros | None = None
        self._refused, self._tell_at = 0, Micros(0)  # frames since the last line about them

    def dial(self, address: str, expect: Boot | None) -> Link:
        """Open a session to the process that listens at
        `address`; `expect` is its boot, if known."""
        link = self._control.dial(address)
        self._sessions.dial(link, expect, self._clock.now())
        self._due = None
        return link

    def hang_up(self, link: Link) -> None:
        """Close a link that this process dialled."""
        self._sessions.hang_up(link)
        self.flush()  # sends its Bye
        self._control.hang_up(link)

    def send(self, boot: Boot, message: Said) -> bool:
        """Send a message; returns False if there is no session with `boot`."""
        return self._sessions.send(boot, message, self._clock.now())

    def ask_delivery(self, boot: Boot) -> None:
        """Report when `boot` has received all that was sent to it so far (`Delivered`)."""
        self._sessions.ask_delivery(boot)

    def receive(self) -> list[SessionEvent]:
        """Return everything that has happened since the last call."""
        now = self._clock.now()
        self._sessions.turned(now)
        for link, raw in self._control.receive():
            try:
                frame = decode(raw)
            except PeerError as error:
                self._refuse(link, str(error), now)
                continue
            self._sessions.receive(link, frame, now)
        for link in self._control.broken():
            self._sessions.broken(link, now)
            self._due = None
        if self._due is None or now >= self._due:
            self._sessions.on_timer(now)
        return self._sessions.events()

    def _refuse(self, link: Link, why: str, now: Micros) -> None:
        """Log that a frame is not taken, at most once a second."""
        self._refused += 1
        if now >= self._tell_at:
            log.warning("frame_refused", link=link, frames=self._refused, why=why)
            self._refused, self._tell_at = 0, Micros(now + TELL_EVERY)

    def flush(self) -> None:
        """Send every frame that is due. A frame that the
        port does not take is resent by its session."""
        if self._sessions.may_send:
            for link, frame in self._sessions.to_send(self._clock.now()):
                self._control.send(link, encode(frame))

    def timer(self) -> Micros | None:
        """Return when the sessions must be called next; None if no timer runs."""
        self._due = self._sessions.timer()
        return self._due

    def close(self) -> None:
        """Tell every peer that this process ends, so
        that none has to wait for the silence timeout."""
        self._sessions.close_all("the process ends", self._clock.now())
        self.flush()
        self._control.close()
