"""Sessions: numbered, acknowledged, in-order message streams over links that lose, repeat and reorder frames.

    dialling side ──Open──▶ listening side ──Opened──▶        then Data and Beat both ways, until Bye, silence,
                                                              overflow, or a frame of another boot or higher session

One session per pair of boots at a time. Inside it every message is delivered once and in order; its end is `PeerLost` on
both sides, and the next session between the same boots has a higher number. Sans-IO: `receive`, `to_send`, `timer`,
`on_timer`, `events`.
"""

from collections import deque

import msgspec

from baton.core.frames import AnyFrame, Beat, Bye, Data, Open, Opened, WrongBoot, WrongProtocol
from baton.core.ids import Boot, Link, Micros
from baton.core.messages import PROTOCOL, AnyMessage


class SessionLimits(msgspec.Struct, frozen=True):
    """Times in microseconds, counts in frames."""

    silence: Micros = Micros(3_000_000)  # without a frame for so long the peer is lost
    beat: Micros = Micros(500_000)  # at least one frame in so long
    ack_delay: Micros = Micros(10_000)  # an unanswered message is acknowledged after so long
    resend: Micros = Micros(200_000)  # an unacknowledged message is sent again after so long
    redial_first: Micros = Micros(100_000)
    redial_most: Micros = Micros(1_000_000)
    buffer: int = 8192  # unacknowledged messages; one more ends the session
    ahead: int = 1024  # messages kept that came before an earlier one


class PeerUp(msgspec.Struct, frozen=True):
    """A session has begun."""

    boot: Boot
    link: Link


class Received(msgspec.Struct, frozen=True):
    """A message, once and in order."""

    boot: Boot
    message: AnyMessage


class PeerLost(msgspec.Struct, frozen=True):
    """A session has ended."""

    boot: Boot
    why: str


class WrongPeer(msgspec.Struct, frozen=True):
    """Whoever listens at a dialled address is not whom we expect, or speaks another protocol."""

    link: Link
    why: str


SessionEvent = PeerUp | Received | PeerLost | WrongPeer


class Session:
    """One side of one session."""

    def __init__(self, peer: Boot, number: int, link: Link, now: Micros) -> None:
        self.peer, self.number, self.link = peer, number, link
        self.sent = 0  # number of the last message
        self.unacked: deque[tuple[int, AnyMessage]] = deque()
        self.fresh: deque[tuple[int, AnyMessage]] = deque()  # not on the wire yet
        self.got = 0  # highest number received in order
        self.early: dict[int, AnyMessage] = {}
        self.heard_at = now
        self.said_at = now
        self.resend_at: Micros | None = None
        self.ack_at: Micros | None = None


class Dialled(msgspec.Struct):
    """A link of ours that wants a session."""

    link: Link
    expect: Boot | None
    next_at: Micros
    wait: Micros
    peer: Boot | None = None  # of the session that lives on it


class Sessions:
    """All sessions of one process."""

    def __init__(self, boot: Boot, limits: SessionLimits) -> None:
        self.boot, self.limits = boot, limits
        self._sessions: dict[Boot, Session] = {}
        self._numbers: dict[Boot, int] = {}  # highest session number known, per peer
        self._dialled: dict[Link, Dialled] = {}
        self._out: list[tuple[Link, AnyFrame]] = []
        self._events: list[SessionEvent] = []

    # ---- verbs ----------------------------------------------------------------------------------

    def dial(self, link: Link, expect: Boot | None, now: Micros) -> None:
        """Open a session on a link of ours, and again whenever it ends."""
        self._dialled[link] = Dialled(link, expect, now, self.limits.redial_first)
        self._knock(self._dialled[link], now)

    def hang_up(self, link: Link) -> None:
        """Stop opening sessions on a link; one that lives on it ends without an event."""
        dialled = self._dialled.pop(link, None)
        if dialled is not None and dialled.peer is not None:
            session = self._sessions.pop(dialled.peer, None)
            if session is not None:
                self._out.append((link, Bye(self.boot, session.peer, session.number, "hung up")))

    def send(self, boot: Boot, message: AnyMessage, now: Micros) -> bool:
        """Queue a message; False without a session. A full buffer ends the session."""
        session = self._sessions.get(boot)
        if session is None:
            return False
        if len(session.unacked) >= self.limits.buffer:
            self._lose(session, f"{self.limits.buffer} messages unacknowledged", now, bye=True)
            return False
        session.sent += 1
        session.unacked.append((session.sent, message))
        session.fresh.append((session.sent, message))
        if session.resend_at is None:
            session.resend_at = Micros(now + self.limits.resend)
        return True

    def close_all(self, why: str, now: Micros) -> None:
        """End everything and say so."""
        for session in list(self._sessions.values()):
            self._lose(session, why, now, bye=True)
        self._dialled.clear()

    def to_send(self, now: Micros) -> list[tuple[Link, AnyFrame]]:
        """Frames that are due, in order."""
        for session in self._sessions.values():
            while session.fresh:
                number, message = session.fresh.popleft()
                self._out.append((session.link, self._data(session, number, message)))
                session.said_at, session.ack_at = now, None
        out, self._out = self._out, []
        return out

    def events(self) -> list[SessionEvent]:
        """What has happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def timer(self) -> Micros | None:
        """When `on_timer` wants to be called."""
        times: list[int] = [d.next_at for d in self._dialled.values() if d.peer is None]
        for s in self._sessions.values():
            times += [s.heard_at + self.limits.silence, s.said_at + self.limits.beat]
            times += [t for t in (s.resend_at, s.ack_at) if t is not None]
        return Micros(min(times)) if times else None

    def on_timer(self, now: Micros) -> None:
        """Time has passed."""
        for session in list(self._sessions.values()):
            if now >= session.heard_at + self.limits.silence:
                self._lose(session, f"silent for {self.limits.silence / 1e6:.1f} s", now, bye=True)
                continue
            if session.resend_at is not None and now >= session.resend_at:
                self._resend(session, now)
            due = session.ack_at is not None and now >= session.ack_at
            if due or now >= session.said_at + self.limits.beat:
                self._beat(session, now)
        for dialled in list(self._dialled.values()):
            if dialled.peer is None and now >= dialled.next_at:
                self._knock(dialled, now)

    def receive(self, link: Link, frame: AnyFrame, now: Micros) -> None:
        """A frame came in."""
        match frame:
            case Open():
                self._on_open(link, frame, now)
            case Opened():
                self._on_opened(link, frame, now)
            case Data() | Beat():
                self._on_traffic(link, frame, now)
            case Bye():
                session = self._session_of(link, frame.src, frame.dst, frame.session)
                if session is not None:
                    self._lose(session, f"it said: {frame.why}", now, bye=False)
            case WrongBoot():
                self._on_wrong_boot(link, frame, now)
            case WrongProtocol():
                why = f"it speaks protocol {frame.ours}, we speak {PROTOCOL}"
                self._events.append(WrongPeer(link, why))

    # ---- opening --------------------------------------------------------------------------------

    def _knock(self, dialled: Dialled, now: Micros) -> None:
        known = self._numbers.get(dialled.expect, 0) if dialled.expect is not None else max(self._numbers.values(), default=0)
        self._out.append((dialled.link, Open(PROTOCOL, self.boot, dialled.expect, known)))
        dialled.next_at = Micros(now + dialled.wait)
        dialled.wait = Micros(min(dialled.wait * 2, self.limits.redial_most))

    def _on_open(self, link: Link, frame: Open, now: Micros) -> None:
        if frame.protocol != PROTOCOL:
            self._out.append((link, WrongProtocol(PROTOCOL, frame.protocol)))
            return
        if frame.expect is not None and frame.expect != self.boot:
            self._out.append((link, WrongBoot(self.boot, frame.src, frame.expect, 0)))
            return
        lower = self._sessions.get(frame.src)
        if lower is not None and lower.link == link and lower.number > frame.session and lower.got == 0:
            # The same knock again: our answer was lost or is under way.
            self._out.append((link, Opened(PROTOCOL, self.boot, frame.src, lower.number)))
            return
        if lower is not None:
            self._lose(lower, "it opened the next session", now, bye=False)
        number = max(self._numbers.get(frame.src, 0), frame.session) + 1
        self._begin(frame.src, number, link, now)
        self._out.append((link, Opened(PROTOCOL, self.boot, frame.src, number)))

    def _on_opened(self, link: Link, frame: Opened, now: Micros) -> None:
        dialled = self._dialled.get(link)
        if dialled is None or frame.dst != self.boot or frame.session <= self._numbers.get(frame.src, 0):
            return  # late or repeated
        if dialled.expect is not None and frame.src != dialled.expect:
            self._events.append(WrongPeer(link, f"boot {frame.src:x} answered, {dialled.expect:x} was expected"))
            return
        for boot in {frame.src, dialled.peer} & self._sessions.keys():
            assert boot is not None
            self._lose(self._sessions[boot], "the next session was opened", now, bye=False)
        dialled.peer, dialled.wait = frame.src, self.limits.redial_first
        self._begin(frame.src, frame.session, link, now)
        self._beat(self._sessions[frame.src], now)

    def _begin(self, peer: Boot, number: int, link: Link, now: Micros) -> None:
        self._sessions[peer] = Session(peer, number, link, now)
        self._numbers[peer] = number
        self._events.append(PeerUp(peer, link))

    def _on_wrong_boot(self, link: Link, frame: WrongBoot, now: Micros) -> None:
        if frame.dst != self.boot:
            return
        session = self._sessions.get(frame.meant)
        if session is not None and session.link == link and session.number == frame.session:
            self._lose(session, f"boot {frame.src:x} answers in its place", now, bye=False)
        elif frame.session == 0 and link in self._dialled:
            self._events.append(WrongPeer(link, f"boot {frame.src:x} answered, {frame.meant:x} was expected"))

    def _lose(self, session: Session, why: str, now: Micros, *, bye: bool) -> None:
        del self._sessions[session.peer]
        if bye:
            self._out.append((session.link, Bye(self.boot, session.peer, session.number, why)))
        self._events.append(PeerLost(session.peer, why))
        dialled = self._dialled.get(session.link)
        if dialled is not None and dialled.peer == session.peer:
            dialled.peer, dialled.next_at = None, Micros(now + dialled.wait)

    # ---- traffic --------------------------------------------------------------------------------

    def _session_of(self, link: Link, src: Boot, dst: Boot, number: int) -> Session | None:
        session = self._sessions.get(src)
        if dst == self.boot and session is not None and session.number == number and session.link == link:
            return session
        return None

    def _on_traffic(self, link: Link, frame: Data | Beat, now: Micros) -> None:
        session = self._session_of(link, frame.src, frame.dst, frame.session)
        if session is None:
            ended = frame.src not in self._sessions and frame.session <= self._numbers.get(frame.src, 0)
            if frame.dst != self.boot or ended:
                self._out.append((link, WrongBoot(self.boot, frame.src, frame.dst, frame.session)))
            return  # of a lower session, or of one whose Opened is still under way
        session.heard_at = now
        while session.unacked and session.unacked[0][0] <= frame.ack:
            session.unacked.popleft()
            session.resend_at = Micros(now + self.limits.resend) if session.unacked else None
        if isinstance(frame, Data):
            self._take(session, frame, now)

    def _take(self, session: Session, frame: Data, now: Micros) -> None:
        if frame.number > session.got and len(session.early) < self.limits.ahead:
            session.early[frame.number] = frame.message
        while (message := session.early.pop(session.got + 1, None)) is not None:
            session.got += 1
            self._events.append(Received(session.peer, message))
        if session.ack_at is None:
            session.ack_at = Micros(now + self.limits.ack_delay)

    def _resend(self, session: Session, now: Micros) -> None:
        fresh = {number for number, _ in session.fresh}
        for number, message in session.unacked:
            if number not in fresh:
                self._out.append((session.link, self._data(session, number, message)))
        session.said_at, session.ack_at = now, None
        session.resend_at = Micros(now + self.limits.resend)

    def _beat(self, session: Session, now: Micros) -> None:
        self._out.append((session.link, Beat(self.boot, session.peer, session.number, session.got)))
        session.said_at, session.ack_at = now, None

    def _data(self, session: Session, number: int, message: AnyMessage) -> Data:
        return Data(self.boot, session.peer, session.number, number, session.got, message)
