"""One side of a session, frame by frame."""

import itertools
from collections.abc import Callable

import msgspec
import pytest

from baton.core.frames import AnyFrame, Beat, Bye, Data, Open, Opened, WrongBoot, WrongProtocol
from baton.core.ids import Boot, Epoch, Key, Link, Micros, Room
from baton.core.messages import AnyMessage, AskLedger, CacheChanged, Close, Trial
from baton.core.protocol import OLDEST, PROTOCOL
from baton.core.session.session import (
    Delivered,
    MessageReceived,
    PeerLost,
    PeerUp,
    SessionEvent,
    SessionLimits,
    Sessions,
    WrongPeer,
)

US, THEM, OTHER = Boot(1), Boot(2), Boot(3)
LINK, ELSEWHERE = Link(7), Link(8)
N = 5  # number of the session in every state that has one
LIMITS = SessionLimits()


class Side:
    """A process at a time of the test's choosing."""

    def __init__(self, **limits: int) -> None:
        self.sessions = Sessions(US, msgspec.structs.replace(LIMITS, **limits))
        self.now = 0

    def hears(
        self, *frames: AnyFrame, link: Link = LINK
    ) -> tuple[list[SessionEvent], list[AnyFrame]]:
        """What happens and what is answered."""
        for frame in frames:
            self.sessions.receive(link, frame, Micros(self.now))
        return self.sessions.events(), self.says()

    def says(self) -> list[AnyFrame]:
        return [frame for _, frame in self.sessions.to_send(Micros(self.now))]

    def waits(self, micros: int) -> tuple[list[SessionEvent], list[AnyFrame]]:
        self.now += micros
        self.sessions.on_timer(Micros(self.now))
        return self.sessions.events(), self.says()

    def send(self, question: int = 0) -> bool:
        return self.sessions.send(THEM, AskLedger(question), Micros(self.now))


def open_(known: int = N - 1, **changes: object) -> Open:
    return msgspec.structs.replace(Open(PROTOCOL, THEM, None, known), **changes)


def data(number: int = 1, session: int = N, ack: int = 0) -> Data:
    return Data(THEM, US, session, number, ack, (AskLedger(number),))


def beat(session: int = N, ack: int = 0, held: int = 0) -> Beat:
    return Beat(THEM, US, session, ack, held)


def nothing(**limits: int) -> Side:
    return Side(**limits)


def promised(**limits: int) -> Side:
    side = Side(**limits)
    assert side.hears(open_()) == ([], [Opened(PROTOCOL, US, THEM, N)])
    return side


def listening(**limits: int) -> Side:
    """The session is open; we listened."""
    side = promised(**limits)
    events, answers = side.hears(beat())
    assert (events, answers) == ([PeerUp(THEM, LINK)], [])
    return side


def knocking(**limits: int) -> Side:
    side = Side(**limits)
    side.sessions.dial(LINK, None, Micros(0))
    assert side.says() == [Open(PROTOCOL, US, None, 0)]
    return side


def dialled(**limits: int) -> Side:
    """The session is open; we dialled."""
    side = knocking(**limits)
    events, answers = side.hears(Opened(PROTOCOL, THEM, US, N))
    assert (events, answers) == ([PeerUp(THEM, LINK)], [Beat(US, THEM, N, 0, 0)])
    return side


WRONG_LOWER, WRONG, WRONG_HIGHER = (WrongBoot(US, THEM, US, n) for n in (N - 1, N, N + 1))
UP, LOST, GOT = "up", "lost", "got"
# frame -> what each state makes of it: (events, answers); a state that is not named does nothing at
# all
TABLE: dict[str, tuple[AnyFrame, dict[Callable[..., Side], tuple[list[str], list[AnyFrame]]]]] = {
    "an Open said without knowing of the session": (
        open_(N - 1),
        {
            nothing: ([], [Opened(PROTOCOL, US, THEM, N)]),
            promised: ([], [Opened(PROTOCOL, US, THEM, N)]),
            listening: ([], [Opened(PROTOCOL, US, THEM, N)]),
            knocking: ([], [Opened(PROTOCOL, US, THEM, N)]),
            dialled: ([], [Opened(PROTOCOL, US, THEM, N)]),
        },
    ),
    "an Open said after the session": (
        open_(N),
        {
            nothing: ([], [Opened(PROTOCOL, US, THEM, N + 1)]),
            promised: ([], [Opened(PROTOCOL, US, THEM, N + 1)]),
            listening: ([LOST], [Opened(PROTOCOL, US, THEM, N + 1)]),
            knocking: ([], [Opened(PROTOCOL, US, THEM, N + 1)]),
            dialled: ([LOST], [Opened(PROTOCOL, US, THEM, N + 1)]),
        },
    ),
    "an Open for another boot": (
        open_(expect=OTHER),
        {
            state: ([], [WrongBoot(US, THEM, OTHER, 0)])
            for state in (nothing, promised, listening, knocking, dialled)
        },
    ),
    "an Open of another version": (
        open_(protocol=PROTOCOL + 1),
        {
            state: ([], [WrongProtocol(PROTOCOL, PROTOCOL + 1)])
            for state in (nothing, promised, listening, knocking, dialled)
        },
    ),
    "an Open of the version before": (
        open_(protocol=OLDEST),
        {
            nothing: ([], [Opened(OLDEST, US, THEM, N)]),
            # of one process every Open has one protocol; what was promised counts
            promised: ([], [Opened(PROTOCOL, US, THEM, N)]),
            listening: ([], [Opened(PROTOCOL, US, THEM, N)]),
            knocking: ([], [Opened(OLDEST, US, THEM, N)]),
            dialled: ([], [Opened(PROTOCOL, US, THEM, N)]),
        },
    ),
    "an Open of an older version": (
        open_(protocol=OLDEST - 1),
        {
            state: ([], [WrongProtocol(PROTOCOL, OLDEST - 1)])
            for state in (nothing, promised, listening, knocking, dialled)
        },
    ),
    "an Opened of the version before": (
        Opened(OLDEST, THEM, US, N),
        {knocking: ([UP], [Beat(US, THEM, N, 0, 0)])},
    ),
    "an Opened of the session": (
        Opened(PROTOCOL, THEM, US, N),
        {knocking: ([UP], [Beat(US, THEM, N, 0, 0)])},
    ),
    "an Opened of the next session": (
        Opened(PROTOCOL, THEM, US, N + 1),
        {
            knocking: ([UP], [Beat(US, THEM, N + 1, 0, 0)]),
            dialled: ([LOST, UP], [Beat(US, THEM, N + 1, 0, 0)]),
        },
    ),
    "an Opened for another boot": (Opened(PROTOCOL, THEM, OTHER, N + 1), {}),
    "an Opened of another version": (
        Opened(PROTOCOL + 1, THEM, US, N + 1),
        {knocking: (["wrong"], [])},
    ),
    "an Opened of another boot": (
        Opened(PROTOCOL, OTHER, US, N),
        {knocking: ([UP], [Beat(US, OTHER, N, 0, 0)])},
    ),
    "a Beat of a lower session": (
        beat(N - 1),
        {state: ([], [WRONG_LOWER]) for state in (nothing, promised, listening, knocking, dialled)},
    ),
    "a Beat": (
        beat(),
        {nothing: ([], [WRONG]), promised: ([UP], []), knocking: ([], [WRONG])},
    ),
    "a Beat of a higher session": (
        beat(N + 1),
        {
            nothing: ([], [WRONG_HIGHER]),
            promised: ([], [WRONG_HIGHER]),
            knocking: ([], [WRONG_HIGHER]),
            listening: ([LOST], [WRONG_HIGHER]),
            dialled: ([LOST], [WRONG_HIGHER]),
        },
    ),
    "a message": (
        data(),
        {
            nothing: ([], [WRONG]),
            promised: ([UP, GOT], []),
            knocking: ([], [WRONG]),
            listening: ([GOT], []),
            dialled: ([GOT], []),
        },
    ),
    "a message of a lower session": (
        data(session=N - 1),
        {state: ([], [WRONG_LOWER]) for state in (nothing, promised, listening, knocking, dialled)},
    ),
    "a message for another boot": (
        msgspec.structs.replace(data(), dst=OTHER),
        {
            state: ([], [WrongBoot(US, THEM, OTHER, N)])
            for state in (nothing, promised, listening, knocking, dialled)
        },
    ),
    "a message that was overtaken": (
        data(2),
        {
            nothing: ([], [WRONG]),
            promised: ([UP], [Beat(US, THEM, N, 0, 2)]),
            knocking: ([], [WRONG]),
            listening: ([], [Beat(US, THEM, N, 0, 2)]),
            dialled: ([], [Beat(US, THEM, N, 0, 2)]),
        },
    ),
    "an acknowledgement of what was never said": (
        beat(ack=1),
        {
            nothing: ([], [WRONG]),
            promised: (
                [UP, LOST],
                [Bye(US, THEM, N, "it acknowledged message 1, which was never sent")],
            ),
            knocking: ([], [WRONG]),
            listening: (
                [LOST],
                [Bye(US, THEM, N, "it acknowledged message 1, which was never sent")],
            ),
            dialled: (
                [LOST],
                [Bye(US, THEM, N, "it acknowledged message 1, which was never sent")],
            ),
        },
    ),
    "a Bye": (Bye(THEM, US, N, "x"), {listening: ([LOST], []), dialled: ([LOST], [])}),
    "a Bye of a lower session": (Bye(THEM, US, N - 1, "x"), {}),
    "a Bye for another boot": (Bye(THEM, OTHER, N, "x"), {}),
    "a WrongBoot of the session": (
        WrongBoot(OTHER, US, THEM, N),
        {listening: ([LOST], []), dialled: ([LOST], [])},
    ),
    "a WrongBoot of a lower session": (WrongBoot(OTHER, US, THEM, N - 1), {}),
    "a WrongBoot for another boot": (WrongBoot(OTHER, THEM, THEM, N), {}),
    "a WrongProtocol": (WrongProtocol(PROTOCOL + 1, PROTOCOL), {knocking: (["wrong"], [])}),
    "a WrongProtocol of an older version": (
        WrongProtocol(OLDEST - 1, PROTOCOL),
        {knocking: (["wrong"], [])},
    ),
    "a WrongProtocol of the version before": (
        WrongProtocol(OLDEST, PROTOCOL),
        # it may come late: a session that has begun goes on
        {knocking: ([], [Open(OLDEST, US, None, 0)])},
    ),
}
KINDS = {PeerUp: UP, PeerLost: LOST, MessageReceived: GOT, WrongPeer: "wrong"}


@pytest.mark.parametrize(
    "state", [nothing, promised, listening, knocking, dialled], ids=lambda s: s.__name__
)
@pytest.mark.parametrize("what", TABLE)
def test_every_frame_in_every_state(what: str, state: Callable[..., Side]) -> None:
    frame, outcomes = TABLE[what]
    events, answers = state().hears(frame)
    assert ([KINDS[type(e)] for e in events], answers) == outcomes.get(state, ([], []))


# ---- versions and boots --------------------------------------------------------------------------


def test_another_version_is_named_with_ours_and_once() -> None:
    side = knocking()
    frame = WrongProtocol(PROTOCOL + 1, PROTOCOL)
    events, _ = side.hears(frame, frame)
    [wrong] = events
    assert isinstance(wrong, WrongPeer)
    assert f"it speaks protocol {PROTOCOL + 1}, we speak {OLDEST} and {PROTOCOL}" in wrong.why
    assert "install" in wrong.why


def test_every_dial_begins_with_the_newest_protocol() -> None:
    """The process at an address may be replaced by one of another version at any time."""
    side = knocking()
    side.hears(WrongProtocol(OLDEST, PROTOCOL))
    _, frames = side.waits(LIMITS.redial_first)
    assert frames == [Open(PROTOCOL, US, None, 0)]


def older(**limits: int) -> Side:
    """The session with a peer of the version before is open; we dialled."""
    side = knocking(**limits)
    side.hears(WrongProtocol(OLDEST, PROTOCOL), Opened(OLDEST, THEM, US, N))
    return side


def older_dialled(**limits: int) -> Side:
    """The session with a peer of the version before is open; it dialled."""
    side = Side(**limits)
    side.hears(open_(protocol=OLDEST), beat())
    return side


@pytest.mark.parametrize("state", [older, older_dialled, dialled, listening])
def test_a_peer_of_the_version_before_is_told_what_it_knows(state: Callable[..., Side]) -> None:
    side = state()
    news = CacheChanged(US, 1, b"", b"")
    for message in (AskLedger(1), news, AskLedger(2)):
        assert side.sessions.send(THEM, message, Micros(0))
    said = [m for frame in side.says() if isinstance(frame, Data) for m in frame.messages]
    old = state in (older, older_dialled)
    assert said == [AskLedger(1), *([] if old else [news]), AskLedger(2)]


def test_a_process_that_dials_itself_is_told() -> None:
    side = knocking()
    _, answers = side.hears(Open(PROTOCOL, US, None, 0), link=ELSEWHERE)
    events, answers = side.hears(*answers)
    assert (events, answers) == ([WrongPeer(LINK, "this process dials itself")], [])


def test_an_answer_of_a_boot_that_was_here_before_ends_nothing() -> None:
    side = dialled()
    assert side.hears(Opened(PROTOCOL, OTHER, US, N + 3)) == ([], [])
    assert side.sessions.number(THEM) == N


def test_a_bye_takes_back_a_promise() -> None:
    side = promised()
    side.hears(Bye(THEM, US, N, "x"))
    assert side.hears(beat()) == ([], [WRONG])


def test_of_several_promises_the_one_that_ends_first_is_waited_for() -> None:
    side = promised()
    side.now = 1_000_000
    side.hears(open_(src=OTHER))
    side.now = 1_500_000
    side.hears(open_(src=Boot(4)))
    side.now = 2_000_000
    side.hears(open_(known=N))  # it has lost what it was promised: a new one
    assert side.sessions.timer() == 1_000_000 + LIMITS.silence


def test_a_promise_ends_without_an_event() -> None:
    side = promised()
    assert side.sessions.timer() == LIMITS.silence
    assert side.waits(LIMITS.silence) == ([], [])
    assert side.sessions.timer() is None
    assert side.hears(beat()) == ([], [WRONG])
    assert side.hears(open_(0)) == ([], [Opened(PROTOCOL, US, THEM, N + 1)])


def test_a_second_link_to_the_same_boot_shares_the_session() -> None:
    side = dialled()
    side.sessions.dial(ELSEWHERE, None, Micros(0))
    side.says()
    assert side.hears(Opened(PROTOCOL, THEM, US, N), link=ELSEWHERE) == ([], [])
    for _ in range(10):
        side.hears(beat())
        _, said = side.waits(100_000)
        assert not any(isinstance(frame, Open) for frame in said)
    side.hears(Bye(THEM, US, N, "x"))
    _, said = side.waits(LIMITS.redial_most)
    assert said == [Open(PROTOCOL, US, None, N)] * 2


# ---- messages ------------------------------------------------------------------------------------


def test_a_message_is_on_the_wire_at_once() -> None:
    side = listening()
    assert side.send(9)
    assert side.says() == [Data(US, THEM, N, 1, 0, (AskLedger(9),))]
    assert side.says() == []


def test_without_a_session_nothing_is_taken() -> None:
    for state in (nothing, promised, knocking):
        assert not state().send()


def test_an_acknowledgement_rides_on_an_answer_or_comes_soon() -> None:
    side = listening()
    assert side.hears(data(1)) == ([MessageReceived(THEM, AskLedger(1))], [])
    side.send()
    assert [f.ack for f in side.says() if isinstance(f, Data)] == [1]
    assert side.waits(20_000)[1] == []
    side.hears(data(2, ack=1))
    assert side.waits(20_000)[1] == [Beat(US, THEM, N, 2, 0)]


def test_a_flood_is_acknowledged_before_its_time() -> None:
    side = listening()
    _, said = side.hears(*(data(n) for n in range(1, LIMITS.ack_every + 1)))
    assert said == [Beat(US, THEM, N, LIMITS.ack_every, 0)]


def test_a_repeated_message_is_acknowledged_again_and_delivered_once() -> None:
    side = listening()
    side.hears(data(1))
    side.waits(20_000)
    assert side.hears(data(1)) == ([], [])
    assert side.waits(20_000)[1] == [Beat(US, THEM, N, 1, 0)]


def test_what_comes_too_far_ahead_is_not_kept_and_blocks_nothing() -> None:
    side = listening(window=4)
    side.hears(*(data(n) for n in (2, 3, 4, 5, 99)))
    events, _ = side.hears(data(1))
    assert [e.message.question for e in events if isinstance(e, MessageReceived)] == [1, 2, 3, 4]
    events, _ = side.hears(data(5))
    assert [e.message.question for e in events if isinstance(e, MessageReceived)] == [5]


def test_a_gap_is_told_once_and_filled_at_once() -> None:
    side = listening()
    _, said = side.hears(data(2), data(3))
    assert said == [Beat(US, THEM, N, 0, 2)]
    assert side.hears(data(4))[1] == []
    for question in range(4):
        side.send(question)
    side.says()
    gap = beat(ack=1, held=4)
    assert [f.number for f in side.hears(gap)[1] if isinstance(f, Data)] == [2, 3]
    assert side.hears(gap)[1] == [], "a repeated frame sends nothing again"


def test_what_is_not_acknowledged_is_said_again_ever_more_slowly() -> None:
    side = listening()
    side.send()
    side.says()
    waits = []
    for _ in range(5):
        before = side.now
        side.hears(beat())
        while not any(isinstance(frame, Data) for frame in side.waits(10_000)[1]):
            pass
        waits.append(side.now - before)
    first, most = LIMITS.resend_first, LIMITS.resend_most
    assert waits == [first, 2 * first, most, most, most]
    side.hears(beat(ack=1))
    side.send()
    side.says()
    side.hears(beat(ack=1))
    assert any(isinstance(f, Data) for f in side.waits(first)[1]), "progress makes it patient again"


def test_no_more_than_a_window_is_on_the_wire() -> None:
    side = listening(window=4, burst=2)
    for question in range(10):
        side.send(question)
    assert [f.number for f in side.says() if isinstance(f, Data)] == [1, 2, 3, 4]
    assert [f.number for f in side.hears(beat(ack=3))[1] if isinstance(f, Data)] == [5, 6, 7]
    _, said = side.waits(LIMITS.resend_first)
    assert [f.number for f in said if isinstance(f, Data)] == [4, 5], "a burst"
    assert [f.number for f in side.hears(beat(ack=5))[1] if isinstance(f, Data)] == [6, 7, 8, 9]


def test_an_acknowledgement_of_what_is_kept_but_not_on_the_wire_ends_the_session() -> None:
    side = listening(window=2)
    for question in range(3):
        side.send(question)
    side.says()
    why = "it acknowledged message 3, which was never sent"
    assert side.hears(beat(ack=3)) == ([PeerLost(THEM, why)], [Bye(US, THEM, N, why)])


# ---- messages that share a frame -----------------------------------------------------------------


def close(number: int) -> Close:
    return Close(Room(str(number)))


def lots(frames: list[AnyFrame]) -> dict[int, list[AnyMessage]]:
    return {f.number: list(f.messages) for f in frames if isinstance(f, Data)}


def shared(first: int, count: int, ack: int = 0) -> Data:
    return msgspec.structs.replace(
        data(first, ack=ack), messages=tuple(close(first + i) for i in range(count))
    )


def rooms(events: list[SessionEvent]) -> list[str]:
    return [e.message.room for e in events if isinstance(e, MessageReceived)]


def test_small_messages_said_together_share_a_frame_and_large_ones_go_alone() -> None:
    side = listening(pack=3)
    said = [close(1), close(2), AskLedger(3), AskLedger(4), close(5), close(6), close(7), close(8)]
    for message in said:
        side.sessions.send(THEM, message, Micros(0))
    assert lots(side.says()) == {1: said[:2], 3: said[2:3], 4: said[3:4], 5: said[4:7], 8: said[7:]}
    assert side.says() == []


def test_messages_that_are_not_neighbours_never_share_a_frame() -> None:
    side = listening(window=3)
    for number in range(1, 6):
        side.sessions.send(THEM, close(number), Micros(0))
    assert lots(side.says()) == {1: [close(1), close(2), close(3)]}
    assert lots(side.hears(beat(ack=1, held=3))[1]) == {2: [close(2)], 4: [close(4)]}


def test_a_frame_of_which_a_part_has_come_already_brings_the_rest() -> None:
    side = listening()
    assert rooms(side.hears(shared(1, 3))[0]) == ["1", "2", "3"]
    assert rooms(side.hears(shared(2, 4))[0]) == ["4", "5"]
    assert rooms(side.hears(shared(8, 2))[0]) == []
    assert rooms(side.hears(shared(6, 3))[0]) == ["6", "7", "8", "9"]
    assert rooms(side.hears(shared(1, 9))[0]) == []


def test_of_a_frame_that_reaches_too_far_ahead_the_nearer_part_is_kept() -> None:
    side = listening(window=4)
    assert rooms(side.hears(shared(2, 9))[0]) == []
    assert rooms(side.hears(shared(1, 1))[0]) == ["1", "2", "3", "4"]
    assert rooms(side.hears(shared(5, 6))[0]) == ["5", "6", "7", "8", "9", "10"]


def test_a_flood_in_one_frame_is_acknowledged_before_its_time() -> None:
    side = listening()
    assert side.hears(shared(1, LIMITS.ack_every - 1))[1] == []
    assert side.hears(shared(LIMITS.ack_every, 1))[1] == [Beat(US, THEM, N, LIMITS.ack_every, 0)]
    assert side.hears(shared(LIMITS.ack_every + 1, LIMITS.ack_every))[1] == [
        Beat(US, THEM, N, 2 * LIMITS.ack_every, 0)
    ]


def test_a_full_buffer_ends_the_session() -> None:
    side = listening(buffer=3)
    assert [side.send() for _ in range(5)] == [True, True, True, False, False]
    assert side.sessions.events() == [PeerLost(THEM, "3 messages unacknowledged")]
    assert side.says() == [Bye(US, THEM, N, "3 messages unacknowledged")]


def test_a_reconnected_peer_is_answered_where_it_is_and_told_again_what_was_under_way() -> None:
    side = listening()
    side.send(9)
    side.says()
    side.sessions.receive(ELSEWHERE, beat(), Micros(0))
    assert side.sessions.to_send(Micros(0)) == [
        (ELSEWHERE, Data(US, THEM, N, 1, 0, (AskLedger(9),)))
    ]


# ---- time and ends -------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [listening, dialled])
def test_silence_is_a_loss_and_talk_is_not(state: Callable[..., Side]) -> None:
    side = state()
    for _ in range(10):
        side.hears(beat())
        assert side.waits(LIMITS.silence - 1)[0] == []
    side.hears(beat())
    events, said = side.waits(LIMITS.silence)
    assert events == [PeerLost(THEM, "silent for 3.0 s")]
    assert isinstance(said[0], Bye)


@pytest.mark.parametrize("state", [listening, dialled])
def test_who_stood_still_itself_gives_the_others_time_to_be_heard(
    state: Callable[..., Side],
) -> None:
    side = state()
    side.sessions.turned(Micros(side.now))
    side.now += 10 * LIMITS.silence
    side.sessions.turned(Micros(side.now))
    assert side.waits(0)[0] == []
    for _ in range((LIMITS.silence - LIMITS.beat) // LIMITS.beat - 1):
        side.sessions.turned(Micros(side.now + LIMITS.beat))
        assert side.waits(LIMITS.beat)[0] == []
    side.sessions.turned(Micros(side.now + LIMITS.beat))
    assert side.waits(LIMITS.beat)[0] == [PeerLost(THEM, "silent for 3.0 s")]


def test_a_dialled_link_is_tried_again_ever_more_slowly_and_with_a_bound() -> None:
    side = dialled()
    side.hears(Bye(THEM, US, N, "x"))
    times = []
    while len(times) < 10:
        timer = side.sessions.timer()
        assert timer is not None
        _, said = side.waits(timer - side.now)
        assert said == [Open(PROTOCOL, US, None, N)]
        times.append(side.now)
    waits = [b - a for a, b in itertools.pairwise(times)]
    assert waits == sorted(waits)
    assert times[0] <= LIMITS.redial_first
    assert waits[-1] == waits[-2] == LIMITS.redial_most


def test_hanging_up_says_bye_and_is_no_event() -> None:
    side = dialled()
    side.sessions.hang_up(LINK)
    assert (side.sessions.events(), side.says()) == ([], [Bye(US, THEM, N, "hung up")])
    assert side.sessions.timer() is None
    side.sessions.hang_up(LINK)
    assert side.hears(Opened(PROTOCOL, THEM, US, N + 1)) == ([], [])


def test_close_ends_one_session_and_the_link_opens_the_next() -> None:
    side = dialled()
    side.sessions.close(THEM, "enough", Micros(0))
    side.sessions.close(OTHER, "enough", Micros(0))
    assert (side.sessions.events(), side.says()) == (
        [PeerLost(THEM, "enough")],
        [Bye(US, THEM, N, "enough")],
    )
    assert side.waits(LIMITS.redial_most)[1] == [Open(PROTOCOL, US, None, N)]


def test_close_all_leaves_nothing_to_do() -> None:
    side = dialled()
    side.hears(msgspec.structs.replace(open_(), src=OTHER))
    side.sessions.close_all("the end", Micros(0))
    assert side.says() == [Bye(US, THEM, N, "the end")]
    assert side.sessions.timer() is None


# ---- bounds --------------------------------------------------------------------------------------


def test_no_more_sessions_than_the_limit() -> None:
    side = listening(sessions=2)
    opens = [msgspec.structs.replace(open_(), src=Boot(100 + n)) for n in range(3)]
    assert [len(side.hears(frame)[1]) for frame in opens] == [1, 0, 0]
    side.waits(LIMITS.silence)
    assert len(side.hears(opens[2])[1]) == 1


def test_numbers_of_the_dead_are_forgotten_before_those_of_the_living() -> None:
    side = listening(remembered=4)
    for n in range(50):
        boot = Boot(100 + n)
        side.hears(
            msgspec.structs.replace(open_(), src=boot),
            Beat(boot, US, N, 0, 0),
            Bye(boot, US, N, "x"),
        )
    assert len(side.sessions._numbers) <= 4
    assert side.hears(Bye(THEM, US, N, "x"), open_(0))[1] == [Opened(PROTOCOL, US, THEM, N + 1)]


# ---- the connection below ------------------------------------------------------------------------


@pytest.mark.parametrize("state", [listening, dialled])
def test_a_peer_whose_connection_has_ended_is_lost_soon(state: Callable[..., Side]) -> None:
    side = state()
    side.waits(10_000)
    side.sessions.broken(LINK, Micros(side.now))
    events, _ = side.waits(LIMITS.reconnect - 1)
    assert events == []
    events, answers = side.waits(1)
    assert events == [PeerLost(THEM, "its connection has ended")]
    assert [type(frame) for frame in answers][:1] == [Bye]


@pytest.mark.parametrize("state", [listening, dialled])
def test_a_peer_that_connects_again_is_not_lost_and_is_told_again(
    state: Callable[..., Side],
) -> None:
    side = state()
    side.send(1)
    (said,) = side.says()
    side.waits(10_000)
    side.sessions.broken(LINK, Micros(side.now))
    side.waits(LIMITS.reconnect - 1)
    link = LINK if state is dialled else ELSEWHERE  # who dials us comes on a new link
    events, answers = side.hears(beat(), link=link)
    assert (events, answers) == ([], [said])
    side.hears(beat(ack=1), link=link)
    assert side.waits(LIMITS.silence - 1)[0] == []
    assert side.waits(1)[0] == [PeerLost(THEM, "silent for 3.0 s")]


def test_it_is_called_often_until_it_is_heard() -> None:
    side = dialled()
    side.sessions.broken(LINK, Micros(side.now))
    assert side.says() == [Beat(US, THEM, N, 0, 0)]
    for _ in range(3):
        assert side.sessions.timer() == side.now + LIMITS.probe
        assert side.waits(LIMITS.probe) == ([], [Beat(US, THEM, N, 0, 0)])
    side.hears(beat())
    assert side.waits(LIMITS.probe) == ([], [])


@pytest.mark.parametrize("state", [nothing, promised, knocking])
def test_without_a_session_a_broken_link_is_nothing(state: Callable[..., Side]) -> None:
    side = state()
    side.sessions.broken(LINK, Micros(0))
    assert (side.sessions.events(), side.says()) == ([], [])


def test_the_link_of_another_session_is_nothing_to_this_one() -> None:
    side = listening()
    side.sessions.broken(ELSEWHERE, Micros(0))
    assert side.waits(LIMITS.silence - 1)[0] == []


def test_a_break_that_is_said_twice_does_not_give_a_peer_more_time() -> None:
    side = dialled()
    side.sessions.broken(LINK, Micros(0))
    side.waits(LIMITS.reconnect - 1)
    side.sessions.broken(LINK, Micros(side.now))
    assert side.waits(1)[0] == [PeerLost(THEM, "its connection has ended")]


@pytest.mark.parametrize("state", [listening, dialled])
def test_delivery_is_reported_once_all_that_was_said_before_is_acknowledged(
    state: Callable[..., Side],
) -> None:
    side = state()
    side.send(1)
    side.send(2)
    side.sessions.ask_delivery(THEM)
    side.send(3)
    side.says()
    assert side.hears(beat(ack=1))[0] == []
    assert side.hears(beat(ack=2))[0] == [Delivered(THEM)]
    assert side.hears(beat(ack=3))[0] == [], "it was asked for once"
    side.sessions.ask_delivery(THEM)
    assert side.sessions.events() == [Delivered(THEM)], "nothing is under way"


def test_what_a_session_ends_before_is_not_delivered() -> None:
    side = listening()
    side.send(1)
    side.says()
    side.sessions.ask_delivery(THEM)
    assert [type(event) for event in side.waits(LIMITS.silence)[0]] == [PeerLost]
    side.sessions.ask_delivery(THEM)
    assert side.sessions.events() == []


def test_what_somebody_waits_for_is_acknowledged_at_once() -> None:
    side = listening()
    assert side.hears(data()) == ([MessageReceived(THEM, AskLedger(1))], []), "in time"
    trial = Trial(Key(Room("1"), Epoch(1)), True)
    events, answers = side.hears(Data(THEM, US, N, 2, 0, (trial,)))
    assert (events, answers) == ([MessageReceived(THEM, trial)], [Beat(US, THEM, N, 2, 0)])
