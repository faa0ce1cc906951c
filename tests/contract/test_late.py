"""The orders that a late control plane takes do what they say, or the end-to-end tests that use
them prove nothing."""

from itertools import count

import msgspec
import pytest
from tests.late import Fate, LateControl, Rule

from baton.core.frames import AnyFrame, Beat, Bye, Data
from baton.core.ids import Boot, Epoch, Key, Link, Micros, Room
from baton.core.messages import AnyMessage, Close, Drawn, Ended, Offer, Received, Record, Stale
from baton.wire.codec import decode, encode

US, PEER, OTHER = Boot(1), Boot(2), Boot(3)
LINK = Link(7)
KEY = Key(Room("r"), Epoch(1))
RECORD = Record(3, Drawn(5, None, ()), None)
HOLD_MS = 100


class Wire:
    """The inner control plane: what goes out and what comes in, and the clock."""

    bound_address = None

    def __init__(self) -> None:
        self.time = Micros(0)
        self.sent: list[tuple[Link, bytes]] = []
        self.coming: list[tuple[Link, bytes]] = []

    def now(self) -> Micros:
        return self.time

    def send(self, link: Link, frame: bytes) -> bool:
        self.sent.append((link, frame))
        return True

    def receive(self) -> list[tuple[Link, bytes]]:
        coming, self.coming = self.coming, []
        return coming


class Rig:
    """A control plane under rules, seen from both ends."""

    def __init__(self, *rules: Rule) -> None:
        self.wire = Wire()
        self.heeded: list[tuple[str, bool]] = []
        self.control = LateControl(
            self.wire,
            clock=self.wire,
            heed=lambda m, ours: self.heeded.append((type(m).__name__, ours)),
        )
        self.control.order(rules)

    def say(self, *frames: AnyFrame) -> list[AnyFrame]:
        """What goes out when we say these."""
        for frame in frames:
            assert self.control.send(LINK, encode(frame))
        return self.out()

    def out(self) -> list[AnyFrame]:
        sent, self.wire.sent = self.wire.sent, []
        assert all(link == LINK for link, _ in sent)
        return [decode(raw) for _, raw in sent]

    def hear(self, *frames: AnyFrame) -> list[AnyFrame]:
        """What comes in when these arrive."""
        self.wire.coming += [(LINK, encode(frame)) for frame in frames]
        return [decode(raw) for _, raw in self.control.receive()]

    def wait(self, ms: int) -> None:
        self.wire.time = Micros(self.wire.time + ms * 1000)


def data(
    number: int, message: AnyMessage, *, session: int = 1, ours: bool = True, peer: Boot = PEER
) -> Data:
    src, dst = (US, peer) if ours else (peer, US)
    return Data(src, dst, session, number, 0, (message,))


def offer(number: int, record: Record | None = None) -> Offer:
    return Offer(KEY, number, {}, (), record)


def beat(session: int = 1, *, ours: bool = True, peer: Boot = PEER) -> Beat:
    return Beat(*((US, peer) if ours else (peer, US)), session, 0, 0)


def test_without_rules_everything_passes_and_each_message_is_heeded_once() -> None:
    rig = Rig()
    frames = [data(1, offer(0)), data(1, offer(0)), beat(), data(2, Stale(KEY))]
    assert rig.say(*frames) == frames
    back = [data(1, Stale(KEY), ours=False), beat(ours=False)]
    assert rig.hear(*back) == back
    assert rig.heeded == [("Offer", True), ("Stale", True), ("Stale", False)]


@pytest.mark.parametrize(
    ("rule", "met"),
    [
        (Rule(Fate.SILENCE, "Stale"), [3]),
        (Rule(Fate.SILENCE, "Offer"), [1]),
        (Rule(Fate.SILENCE, "Offer", number=1), [2]),
        (Rule(Fate.SILENCE, "Offer", last=True), [4]),
        (Rule(Fate.SILENCE, "Offer", count=2), [1, 2]),
        (Rule(Fate.SILENCE, "Offer", count=None), [1, 2, 4]),
    ],
)
def test_a_rule_meets_what_it_names(rule: Rule, met: list[int]) -> None:
    """Each message in a session of its own, as a silent one lets nothing else through."""
    messages = [offer(0), offer(1), Stale(KEY), offer(2, RECORD)]
    passed = Rig(rule).say(*(data(1, m, session=n) for n, m in enumerate(messages, 1)))
    assert [n for n in range(1, 5) if n not in {f.session for f in passed}] == met


def test_new_orders_begin_anew() -> None:
    rig = Rig(Rule(Fate.EMPTY, "Stale"))
    numbers = count(1)
    first, second = (rig.say(data(next(numbers), Stale(KEY)))[0].messages for _ in range(2))
    rig.control.order([Rule(Fate.EMPTY, "Stale")])
    third = rig.say(data(next(numbers), Stale(KEY)))[0].messages
    assert (first, second, third) == ((Close(Room("")),), (Stale(KEY),), (Close(Room("")),))


def test_a_held_message_and_its_copies_come_when_they_are_due() -> None:
    rig = Rig(Rule(Fate.HELD, "Offer", hold_ms=HOLD_MS))
    late = data(1, offer(0))
    assert rig.say(late, data(2, Stale(KEY)), beat()) == [data(2, Stale(KEY)), beat()]
    rig.wait(HOLD_MS - 1)
    assert rig.say(late) == []
    rig.wait(1)
    assert rig.hear() == []
    assert rig.out() == [late, late]
    assert rig.say(late) == [late]


def test_an_emptied_message_keeps_its_number_and_copies_are_empty_too() -> None:
    rig = Rig(Rule(Fate.EMPTY, "Offer"))
    empty = data(1, Close(Room("")))
    assert rig.say(data(1, offer(0)), data(1, offer(0)), data(2, offer(1))) == [
        empty,
        empty,
        data(2, offer(1)),
    ]


def test_of_messages_that_share_a_frame_each_has_its_own_fate() -> None:
    rig = Rig(Rule(Fate.EMPTY, "Stale"))
    others = (Ended(KEY), Received(KEY))
    shared = msgspec.structs.replace(
        data(4, Stale(KEY)), messages=(others[0], Stale(KEY), others[1])
    )
    assert rig.say(shared) == [data(4, others[0]), data(5, Close(Room(""))), data(6, others[1])]
    assert rig.say(data(5, Stale(KEY))) == [data(5, Close(Room("")))], "said again in other company"


def test_silence_takes_one_session_both_ways_and_no_other() -> None:
    rig = Rig(Rule(Fate.SILENCE, "Offer"))
    assert rig.say(beat(), data(1, offer(0)), beat(), data(2, Stale(KEY))) == [beat()]
    assert rig.hear(beat(ours=False), data(1, Stale(KEY), ours=False), Bye(PEER, US, 1, "")) == []
    others = [beat(2), beat(peer=OTHER), data(1, offer(0), session=2)]
    assert rig.say(*others) == others


def test_a_cut_tells_both_sides_and_the_next_session_has_the_old_frames_again() -> None:
    rig = Rig(Rule(Fate.CUT, "Offer", again_at="Stale"))
    heard, said = data(1, Stale(KEY), ours=False), data(1, offer(0))
    assert rig.hear(heard) == [heard]
    assert rig.say(said) == [said, Bye(US, PEER, 1, "planted")]
    assert rig.hear() == [Bye(PEER, US, 1, "planted")]
    assert rig.say(data(1, Stale(KEY), peer=OTHER), data(2, Stale(KEY))) == [
        data(1, Stale(KEY), peer=OTHER),
        data(2, Stale(KEY)),
    ]
    assert rig.say(data(1, offer(1), session=2)) == [data(1, offer(1), session=2)]
    trigger = data(2, Stale(KEY), session=2)
    assert rig.say(trigger, trigger) == [trigger, said, trigger]
    assert rig.hear() == [heard]
