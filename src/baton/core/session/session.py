"""Sessions: numbered, acknowledged, in-order message streams over links that lose, repeat and
reorder frames.

    dialling side                             listening side
        │ ──Open(highest number known)──▶           │   chooses the next number, promises it
      PeerUp ◀──Opened(number)──                    │
        │ ──Beat or Data──▶                       PeerUp    the dialling side is known to have it
        ╎   Data and Beat both ways, until Bye, silence, overflow, or an answer from another boot
    PeerLost                                    PeerLost

Invariants:
- A pair of boots has one session at a time. The next one has a higher number, and the PeerLost of
  the earlier one comes before it.
- A frame counts only in the session whose number and boots it names. The sender of any other frame
  is told so (`WrongBoot`, which is never answered).
- Time in which this process did not run does not count as silence of a peer.
- Both sides of a session speak one protocol, the newest that both know. The dialling side says Open
  with its own newest, and after a WrongProtocol with the one that the other side names.

Sans-IO: `turned`, `receive`, `broken`, `to_send`, `timer`, `on_timer`, `events`.
"""

from collections.abc import Sequence

import msgspec

from baton.core.events import Delivered, MessageReceived, PeerLost
from baton.core.frames import (
    AnyFrame,
    Beat,
    Bye,
    Data,
    Open,
    Opened,
    Said,
    WrongBoot,
    WrongProtocol,
)
from baton.core.ids import Boot, Link, Micros
from baton.core.protocol import PROTOCOL, SPOKEN
from baton.core.session.older import as_known
from baton.core.session.stream import SessionLimits, Stream

__all__ = [
    "Delivered",
    "MessageReceived",
    "PeerLost",
    "PeerUp",
    "SessionEvent",
    "SessionLimits",
    "Sessions",
    "WrongPeer",
]


class PeerUp(msgspec.Struct, frozen=True):
    """A session has begun."""

    boot: Boot
    link: Link


class WrongPeer(msgspec.Struct, frozen=True):
    """The process at the other end of a link is not the one that we expect, or speaks another
    protocol. Reported once per reason."""

    link: Link
    why: str


SessionEvent = PeerUp | MessageReceived | Delivered | PeerLost | WrongPeer


class Session(msgspec.Struct):
    """A session that both sides know."""

    peer: Boot
    number: int
    link: Link  # on which we send
    protocol: int
    stream: Stream
    due: Micros | None = None  # its timer; None if something has happened since it was asked
    asked: int | None = None  # the message whose acknowledgement somebody waits for

    def look(self) -> Micros:
        """Return when its stream wants to be called, and remember that."""
        self.due = self.stream.timer()
        return self.due


class Promised(msgspec.Struct, frozen=True):
    """A session that the dialling side may not know of yet. Nothing is sent in it, and it ends
    without an event."""

    number: int
    protocol: int
    until: Micros


class Dialled(msgspec.Struct):
    """A link of ours on which a session is wanted."""

    expect: Boot | None
    next_at: Micros
    wait: Micros
    boot: Boot | None  # the peer that we expect, otherwise the one that answered last
    told: str = ""  # why the peer was wrong, as last reported


class Sessions:
    """The sessions of one process."""

    def __init__(self, boot: Boot, limits: SessionLimits, spoken: Sequence[int] = SPOKEN) -> None:
        """spoken: the protocols that it speaks, the newest last"""
        self.boot, self.limits = boot, limits
        self._spoken, self._newest = spoken, spoken[-1]
        self._sessions: dict[Boot, Session] = {}
        self._promised: dict[Boot, Promised] = {}
        self._numbers: dict[Boot, int] = {}  # the highest session number known, by peer
        self._dialled: dict[Link, Dialled] = {}
        self._out: list[tuple[Link, AnyFrame]] = []
        self._events: list[SessionEvent] = []
        # sessions that may have frames to send since `to_send`; some may have ended meanwhile
        self._stirred: set[Boot] = set()
        self._turned_at = Micros(0)

    # ---- verbs ----------------------------------------------------------------------------------

    def dial(self, link: Link, expect: Boot | None, now: Micros) -> None:
        """Open a session on a link of ours, and open another whenever it ends."""
        self._dialled[link] = Dialled(expect, now, self.limits.redial_first, expect)
        self._knock(link, self._dialled[link], now)

    def hang_up(self, link: Link) -> None:
        """Stop opening sessions on a link. A session on it ends without an event."""
        dialled = self._dialled.pop(link, None)
        session = (
            self._sessions.get(dialled.boot)
            if dialled is not None and dialled.boot is not None
            else None
        )
        if session is not None and session.link == link:
            del self._sessions[session.peer]
            self._out.append((link, Bye(self.boot, session.peer, session.number, "hung up")))

    def number(self, boot: Boot) -> int | None:
        """Return the number of the session with that boot; None if there is none."""
        session = self._sessions.get(boot)
        return session.number if session is not None else None

    def ask_delivery(self, boot: Boot) -> None:
        """Report when a boot has received all that was sent to it so far (`Delivered`). What ends a
        session before is reported as always."""
        session = self._sessions.get(boot)
        if session is not None:
            session.asked = session.stream.sent
            self._report_delivery(session)

    def _report_delivery(self, session: Session) -> None:
        if session.asked is not None and session.stream.acknowledged >= session.asked:
            session.asked = None
            self._events.append(Delivered(session.peer))

    def send(self, boot: Boot, message: Said, now: Micros) -> bool:
        """Queue a message, or what a peer of an older protocol knows of it. Returns False if there
        is no session. A full buffer ends the session."""
        session = self._sessions.get(boot)
        if session is None:
            return False
        if session.protocol != PROTOCOL:
            known = as_known(message, session.protocol)
            if known is None:
                return True
            message = known
        self._stir(session)
        if not session.stream.say(message):
            self._lose(session, f"{self.limits.buffer} messages unacknowledged", now, bye=True)
            return False
        return True

    def close(self, boot: Boot, why: str, now: Micros) -> None:
        """End the session with a boot, if there is one, and tell it why. A link that was dialled
        for it opens the next one."""
        session = self._sessions.get(boot)
        if session is not None:
            self._lose(session, why, now, bye=True)

    def close_all(self, why: str, now: Micros) -> None:
        """End all sessions, and tell the peers why."""
        for session in list(self._sessions.values()):
            self._lose(session, why, now, bye=True)
        self._dialled.clear()
        self._promised.clear()

    @property
    def may_send(self) -> bool:
        """Whether something has happened since `to_send`, so that there may be frames."""
        return bool(self._stirred or self._out)

    def to_send(self, now: Micros) -> list[tuple[Link, AnyFrame]]:
        """Return the frames that are due, in order."""
        out, self._out = self._out, []
        stirred, self._stirred = self._stirred, set()
        for boot in stirred if len(stirred) == 1 else [b for b in self._sessions if b in stirred]:
            session = self._sessions.get(boot)
            if session is None:
                continue
            session.due = None
            for frame in session.stream.to_send(now):
                out.append((session.link, frame))
        return out

    def events(self) -> list[SessionEvent]:
        """Return what has happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def timer(self) -> Micros | None:
        """Return when `on_timer` wants to be called; None if not at all."""
        soonest: Micros | None = None
        for session in self._sessions.values():  # runs in every turn, so it builds no lists
            due = session.due if session.due is not None else session.look()
            if soonest is None or due < soonest:
                soonest = due
        for dialled in self._dialled.values():
            if dialled.boot not in self._sessions and (
                soonest is None or dialled.next_at < soonest
            ):
                soonest = dialled.next_at
        for promised in self._promised.values():
            if soonest is None or promised.until < soonest:
                soonest = promised.until
        return soonest

    def on_timer(self, now: Micros) -> None:
        """Handle what is due: old promises, silent sessions, streams, links to dial again."""
        for boot in [b for b, p in self._promised.items() if now >= p.until]:
            del self._promised[boot]
        for session in [s for s in self._sessions.values() if s.due is None or now >= s.due]:
            if session.stream.silent(now):
                silence = f"silent for {self.limits.silence / 1e6:.1f} s"
                gone = "its connection has ended" if session.stream.broken else silence
                self._lose(session, gone, now, bye=True)
            else:
                self._stir(session)
                session.stream.on_timer(now)
        for link, dialled in self._dialled.items():
            if dialled.boot not in self._sessions and now >= dialled.next_at:
                self._knock(link, dialled, now)

    def turned(self, now: Micros) -> None:
        """This process looks at its links again. If it has not done so for more than a beat, it
        stood still and could hear nobody."""
        stood_still, self._turned_at = now - self._turned_at - self.limits.beat, now
        if stood_still > 0:
            for session in self._sessions.values():
                session.stream.was_deaf(stood_still)
                session.due = None

    def broken(self, link: Link, now: Micros) -> None:
        """The connection below a link has ended."""
        for session in self._sessions.values():
            if session.link == link:
                session.stream.broke(now)
                self._stir(session)

    def receive(self, link: Link, frame: AnyFrame, now: Micros) -> None:
        """Handle a frame that came in."""
        match frame:
            case Data() | Beat():
                self._on_traffic(link, frame, now)
            case Open():
                self._on_open(link, frame, now)
            case Opened():
                self._on_opened(link, frame, now)
            case Bye():
                self._on_bye(frame, now)
            case WrongBoot():
                self._on_wrong_boot(link, frame, now)
            case WrongProtocol():
                self._on_wrong_protocol(link, frame)

    # ---- opening --------------------------------------------------------------------------------

    def _knock(self, link: Link, dialled: Dialled, now: Micros) -> None:
        self._open(link, dialled, self._newest)
        dialled.next_at = Micros(now + dialled.wait)
        dialled.wait = Micros(min(dialled.wait * 2, self.limits.redial_most))

    def _open(self, link: Link, dialled: Dialled, protocol: int) -> None:
        known = self._numbers.get(dialled.boot, 0) if dialled.boot is not None else 0
        self._out.append((link, Open(protocol, self.boot, dialled.expect, known)))

    def _on_wrong_protocol(self, link: Link, frame: WrongProtocol) -> None:
        """The other side does not speak our newest protocol. If we speak its, we say Open in that;
        the next Open is in our newest again, as another version may be in its place then."""
        dialled = self._dialled.get(link)
        if frame.ours not in self._spoken:
            self._tell(link, self._no_common(frame.ours))
        elif dialled is not None and dialled.boot not in self._sessions:
            self._open(link, dialled, frame.ours)

    def _no_common(self, theirs: int) -> str:
        ours = " and ".join(str(protocol) for protocol in self._spoken)
        return (
            f"it speaks protocol {theirs}, we speak {ours}: install versions of Baton that have "
            "one in common"
        )

    def _on_open(self, link: Link, frame: Open, now: Micros) -> None:
        if frame.protocol not in self._spoken:
            self._out.append((link, WrongProtocol(self._newest, frame.protocol)))
            return
        if frame.src == self.boot or (frame.expect is not None and frame.expect != self.boot):
            meant = frame.expect if frame.expect is not None else self.boot
            self._out.append((link, WrongBoot(self.boot, frame.src, meant, 0)))
            return
        found = self._session_for(frame, now)
        if found is not None:
            self._out.append((link, Opened(found.protocol, self.boot, frame.src, found.number)))

    def _session_for(self, frame: Open, now: Micros) -> Session | Promised | None:
        """Return the session that an Open asks for: the present one, if its sender did not know of
        that; otherwise the next one. None if there are too many sessions."""
        session, promised = self._sessions.get(frame.src), self._promised.get(frame.src)
        if session is not None:
            if frame.session < session.number:
                return session
            self._lose(session, "it opened the next session", now, bye=False)
        elif promised is not None and frame.session < promised.number:
            return promised
        elif promised is None and len(self._sessions) + len(self._promised) >= self.limits.sessions:
            return None  # it will try again
        number = max(self._numbers.get(frame.src, 0), frame.session) + 1
        until = Micros(now + self.limits.silence)
        promise = self._promised[frame.src] = Promised(number, frame.protocol, until)
        self._remember(frame.src, number)
        return promise

    def _on_opened(self, link: Link, frame: Opened, now: Micros) -> None:
        dialled = self._dialled.get(link)
        if dialled is None or frame.dst != self.boot:
            return
        if frame.protocol not in self._spoken:
            self._tell(link, self._no_common(frame.protocol))
            return
        session, promised = self._sessions.get(frame.src), self._promised.get(frame.src)
        if dialled.boot != frame.src and dialled.boot in self._sessions:
            # It comes from an earlier boot. A later one would answer our frames with WrongBoot.
            return
        if dialled.expect not in (None, frame.src):
            return
        if session is not None and frame.session <= session.number:
            # It is repeated, or this is a second link to the same boot: one session serves both.
            dialled.boot = frame.src
            return
        both_knocked = promised is not None and promised.number == frame.session
        if frame.session <= self._numbers.get(frame.src, 0) and not both_knocked:
            return  # it belongs to a session that has ended
        if session is not None:
            self._lose(session, "the next session was opened", now, bye=False)
        dialled.boot, dialled.wait, dialled.told = frame.src, self.limits.redial_first, ""
        self._begin(frame.src, frame.session, link, frame.protocol, now).stream.beat()

    def _begin(self, peer: Boot, number: int, link: Link, protocol: int, now: Micros) -> Session:
        self._promised.pop(peer, None)
        self._remember(peer, number)
        stream = Stream(us=self.boot, peer=peer, session=number, limits=self.limits, now=now)
        session = self._sessions[peer] = Session(peer, number, link, protocol, stream)
        self._stirred.add(peer)
        self._events.append(PeerUp(peer, link))
        return session

    def _remember(self, peer: Boot, number: int) -> None:
        self._numbers.pop(peer, None)
        self._numbers[peer] = number
        if len(self._numbers) > self.limits.remembered:
            live = self._sessions.keys() | self._promised.keys() | {peer}
            oldest = next((b for b in self._numbers if b not in live), None)
            if oldest is not None:
                del self._numbers[oldest]

    # ---- ending ---------------------------------------------------------------------------------

    def _on_bye(self, frame: Bye, now: Micros) -> None:
        session, promised = self._sessions.get(frame.src), self._promised.get(frame.src)
        if frame.dst != self.boot:
            return
        if session is not None and frame.session == session.number:
            self._lose(session, f"it said: {frame.why}", now, bye=False)
        elif promised is not None and frame.session == promised.number:
            del self._promised[frame.src]

    def _on_wrong_boot(self, link: Link, frame: WrongBoot, now: Micros) -> None:
        if frame.dst != self.boot:
            return
        session, dialled = self._sessions.get(frame.meant), self._dialled.get(link)
        if session is not None and session.number == frame.session:
            ended = frame.src == frame.meant
            self._lose(
                session,
                "it has ended the session" if ended else f"boot {frame.src:x} is in its place",
                now,
                bye=False,
            )
        elif frame.src == self.boot:
            self._tell(link, "this process dials itself")
        elif frame.session == 0 and dialled is not None and dialled.expect == frame.meant:
            self._tell(link, f"boot {frame.src:x} answered, {frame.meant:x} was expected")

    def _tell(self, link: Link, why: str) -> None:
        dialled = self._dialled.get(link)
        if dialled is not None and dialled.boot not in self._sessions and dialled.told != why:
            dialled.told = why
            self._events.append(WrongPeer(link, why))

    def _stir(self, session: Session) -> None:
        """Something happens to a session's stream: frames may be due, and its timer may change."""
        session.due = None
        self._stirred.add(session.peer)

    def _lose(self, session: Session, why: str, now: Micros, *, bye: bool) -> None:
        del self._sessions[session.peer]
        if bye:
            self._out.append((session.link, Bye(self.boot, session.peer, session.number, why)))
        self._events.append(PeerLost(session.peer, why))
        for dialled in self._dialled.values():
            if dialled.boot == session.peer:
                dialled.next_at = Micros(now + dialled.wait)

    # ---- traffic --------------------------------------------------------------------------------

    def _on_traffic(self, link: Link, frame: Data | Beat, now: Micros) -> None:
        session = self._session_of(link, frame, now)
        if session is None:
            self._out.append((link, WrongBoot(self.boot, frame.src, frame.dst, frame.session)))
            return
        if session.link != link and session.link not in self._dialled:
            session.link = link  # it reconnected: frames under way on the old link are lost
            session.stream.say_again()
        self._stir(session)
        messages = session.stream.hear(frame, now)
        if messages is None:
            self._lose(
                session, f"it acknowledged message {frame.ack}, which was never sent", now, bye=True
            )
            return
        for message in messages:
            self._events.append(MessageReceived(session.peer, message))
        self._report_delivery(session)

    def _session_of(self, link: Link, frame: Data | Beat, now: Micros) -> Session | None:
        """Return the session in which a frame counts; None if there is none. A promised session
        begins here. A higher number than ours ends our session."""
        if frame.dst != self.boot:
            return None
        promised = self._promised.get(frame.src)
        if promised is not None and promised.number == frame.session:
            return self._begin(frame.src, frame.session, link, promised.protocol, now)
        session = self._sessions.get(frame.src)
        if session is not None and session.number < frame.session:
            self._lose(session, "it is in the next session", now, bye=False)
            return None
        return session if session is not None and session.number == frame.session else None
