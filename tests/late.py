"""A control plane that goes wrong on order: wraps a real one, for tests of what stands above it.

    rules are tried in order; the first that matches a message and has not been used up decides what
    happens to that message

A message is known by its session and number: when its session says it again, the copy shares the
fate of the first. Frames that are made up here, or held, are handed over at the next call, which
the beats of the sessions bring within half a second. HELD, SILENCE and the repetition after CUT
stay inside C2; EMPTY and the end that CUT tells are words put into others' mouths.
"""

from collections.abc import Callable, Sequence
from enum import Enum

import msgspec
import structlog

from baton.core.frames import AnyFrame, Beat, Bye, Data, Open, WrongProtocol
from baton.core.ids import Boot, Link, Micros, Room
from baton.core.messages import AnyMessage, Close, Offer
from baton.ports.clock import Clock
from baton.ports.control import Control
from baton.wire.codec import decode, encode

log = structlog.get_logger()


class Fate(Enum):
    """What happens to a message."""

    HELD = "held"  # it is under way for `hold_ms`, and with it all that its session says behind it
    EMPTY = "empty"  # it arrives as one that says nothing; its session lives on without it
    SILENCE = "silence"  # it and whatever its session says from then on vanish, both ways
    # it arrives, then its session ends on both sides; in the next one all frames of the old one
    # come again
    CUT = "cut"


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which messages a fate meets: the first `count` (None = all) of those that match."""

    fate: Fate
    kind: str  # the message's type by name
    number: int | None = None  # of an Offer
    last: bool = False  # only an Offer that carries the record
    count: int | None = 1
    hold_ms: int = 0
    # CUT: the old frames come again behind the first message of this type in the next session
    again_at: str = ""

    def matches(self, message: AnyMessage) -> bool:
        """Whether the rule means a message of this content."""
        if self.kind != type(message).__name__:
            return False
        offer = message if isinstance(message, Offer) else None
        right_number = self.number is None or (offer is not None and offer.number == self.number)
        return right_number and (not self.last or (offer is not None and offer.record is not None))


class _Name(msgspec.Struct, frozen=True):
    """One message of one session."""

    peer: Boot
    session: int
    number: int
    ours: bool  # we say it


class _Held(msgspec.Struct, frozen=True):
    due: Micros
    link: Link
    raw: bytes
    ours: bool


class _Cut(msgspec.Struct, frozen=True):
    session: int
    again_at: str
    frames: tuple[tuple[bytes, bool], ...]


class LateControl:
    """ports.control.Control around `inner`.

    look: called before each frame, may call `order`
    heed: called with each message once and whether we say it, before it goes on
    """

    def __init__(
        self,
        inner: Control,
        *,
        clock: Clock,
        look: Callable[[], None] = lambda: None,
        heed: Callable[[AnyMessage, bool], None] = lambda message, ours: None,
    ) -> None:
        self._inner, self._clock, self._look, self._heed = inner, clock, look, heed
        self._rules: tuple[Rule, ...] = ()
        self._used: list[int] = []
        self._met: dict[_Name, tuple[Rule | None, Micros]] = {}  # and when
        self._silent: set[tuple[Boot, int]] = set()
        self._held: list[_Held] = []
        self._said: dict[Boot, list[tuple[bytes, bool]]] = {}  # all frames since the last cut
        self._cuts: dict[Boot, _Cut] = {}
        self._heard: list[tuple[Link, bytes]] = []

    def order(self, rules: Sequence[Rule]) -> None:
        """From now on these rules; what has met its fate keeps it."""
        self._rules, self._used = tuple(rules), [0] * len(rules)

    # ---- port -----------------------------------------------------------------------------------

    @property
    def bound_address(self) -> str | None:
        return self._inner.bound_address

    def dial(self, address: str) -> Link:
        return self._inner.dial(address)

    def send(self, link: Link, frame: bytes) -> bool:
        self._release()
        self._pass(link, frame, ours=True)
        return True  # what the inner port did not take, the session says again

    def receive(self) -> list[tuple[Link, bytes]]:
        self._release()
        for link, raw in self._inner.receive():
            self._pass(link, raw, ours=False)
        heard, self._heard = self._heard, []
        return heard

    def broken(self) -> list[Link]:
        return self._inner.broken()

    def hang_up(self, link: Link) -> None:
        self._inner.hang_up(link)

    def fileno(self) -> int:
        return self._inner.fileno()

    def close(self) -> None:
        self._inner.close()

    # ---- inside ---------------------------------------------------------------------------------

    def _go(self, link: Link, raw: bytes, *, ours: bool) -> None:
        if ours:
            self._inner.send(link, raw)
        else:
            self._heard.append((link, raw))

    def _release(self) -> None:
        now = self._clock.now()
        due = [h for h in self._held if now >= h.due]
        self._held = [h for h in self._held if now < h.due]
        for held in due:
            self._go(held.link, held.raw, ours=held.ours)
        if due and not self._held:
            log.warning("planted_over", frames=len(due))

    def _pass(self, link: Link, raw: bytes, *, ours: bool) -> None:
        self._look()
        frame = decode(raw)
        peer = _peer(frame, ours=ours)
        if peer is None:
            self._go(link, raw, ours=ours)
            return
        for alone in _apart(frame):
            raw = encode(alone)
            self._said.setdefault(peer, []).append((raw, ours))
            self._message(link, raw, alone, _Name(peer, alone.session, alone.number, ours))
        if isinstance(frame, Data):
            return
        self._said.setdefault(peer, []).append((raw, ours))
        if not (isinstance(frame, Beat | Bye) and (peer, frame.session) in self._silent):
            self._go(link, raw, ours=ours)

    def _message(self, link: Link, raw: bytes, frame: Data, name: _Name) -> None:
        first = name not in self._met
        if first:
            self._meet(frame.messages[0], name)
        rule, met_at = self._met[name]
        fate = rule.fate if rule is not None else None
        if fate is Fate.SILENCE:
            self._silent.add((name.peer, name.session))
        if (name.peer, name.session) in self._silent:
            return
        if fate is Fate.HELD and self._clock.now() < (due := Micros(met_at + rule.hold_ms * 1000)):
            self._held.append(_Held(due, link, raw, name.ours))
            return
        if fate is Fate.EMPTY:
            raw = encode(msgspec.structs.replace(frame, messages=(Close(Room("")),)))
        self._go(link, raw, ours=name.ours)
        if fate is Fate.CUT and first:
            self._cut(link, frame, name, rule.again_at)
        elif first:
            self._again(link, frame, name)

    def _meet(self, message: AnyMessage, name: _Name) -> None:
        rule = self._rule(message)
        self._met[name] = (rule, self._clock.now())
        self._heed(message, name.ours)
        if rule is not None:
            kind = type(message).__name__
            log.warning(
                "planted", fate=rule.fate.value, kind=kind, session=name.session, number=name.number
            )

    def _rule(self, message: AnyMessage) -> Rule | None:
        for i, rule in enumerate(self._rules):
            if rule.matches(message) and (rule.count is None or self._used[i] < rule.count):
                self._used[i] += 1
                return rule
        return None

    def _cut(self, link: Link, frame: Data, name: _Name, again_at: str) -> None:
        """Tell both sides, each in the other's name."""
        farewell = Bye(frame.src, frame.dst, frame.session, "planted")
        back = Bye(frame.dst, frame.src, frame.session, "planted")
        self._go(link, encode(farewell), ours=name.ours)
        self._go(link, encode(back), ours=not name.ours)
        self._cuts[name.peer] = _Cut(name.session, again_at, tuple(self._said.pop(name.peer)))

    def _again(self, link: Link, frame: Data, name: _Name) -> None:
        cut = self._cuts.get(name.peer)
        if (
            cut is None
            or name.session <= cut.session
            or type(frame.messages[0]).__name__ != cut.again_at
        ):
            return
        del self._cuts[name.peer]
        log.warning(
            "planted", fate="again", session=cut.session, now=name.session, frames=len(cut.frames)
        )
        for raw, ours in cut.frames:
            self._go(link, raw, ours=ours)


def _apart(frame: AnyFrame) -> list[Data]:
    """The messages of a frame, each in one of its own."""
    if not isinstance(frame, Data):
        return []
    return [
        msgspec.structs.replace(frame, number=n, messages=(m,))
        for n, m in enumerate(frame.messages, frame.number)
    ]


def _peer(frame: AnyFrame, *, ours: bool) -> Boot | None:
    if isinstance(frame, WrongProtocol):
        return None
    if isinstance(frame, Open):
        return frame.expect if ours else frame.src
    return frame.dst if ours else frame.src
