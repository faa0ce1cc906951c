"""The checks over a gateway's journal, against histories made by hand: good ones pass, and each bad
one is named."""

from typing import Any

import msgspec
import pytest
from tests.trace.histories import (
    DECODE,
    GOOD,
    ONE,
    PREFILL,
    drawn,
    expect,
    front_parts,
    fronts,
    judged,
    key,
    request,
    tickets,
)

from baton.core.door import Cancel, Emit, Fail, Finish, RequestId
from baton.core.effects import Send
from baton.core.events import MessageReceived, PeerLost, Submitted, TimerDue
from baton.core.gateway.request import Say
from baton.core.ids import Boot, Room, TokenIndex
from baton.core.messages import Admitted, Close, Ended, FailCode, FinishReason, FirstToken, Tokens
from baton.trace.checks.attempts import Attempts
from baton.trace.checks.clients import ClientStreams
from baton.trace.log import Raised, Step

NEW = key(1, 2)

# ---- clients ------------------------------------------------------------------------------------

R = RequestId(1)


def submitted(number: int = 1, *, digits: int = 32, room: int | None = None) -> Submitted:
    return Submitted(request(number), Room(f"{room or number:0{digits}x}"))


def submits(number: int = 1, *sends: Any, digits: int = 32, room: int | None = None) -> Step:
    return fronts(submitted(number, digits=digits, room=room), *(sends or tickets(number)))


def says(message: Any, *heard: Any, sender: Boot = DECODE, sends: tuple[Any, ...] = ()) -> Step:
    return fronts(MessageReceived(sender, message), *(Say(h) for h in heard), *sends)


def emit(start: int, *tokens: int) -> Emit:
    return Emit(R, TokenIndex(start), tuple(drawn(t) for t in tokens))


def tokens(start: int, *values: int, k: Any = ONE, finish: FinishReason | None = None) -> Tokens:
    return Tokens(k, TokenIndex(start), tuple(drawn(t) for t in values), finish)


def first_token(k: Any = ONE, finish: FinishReason | None = None) -> FirstToken:
    return FirstToken(k, TokenIndex(0), drawn(5), finish)


LENGTH = FinishReason.LENGTH
FAIL = Fail(R, FailCode.WORKER_LOST, "x")
BEGUN = [submits(), says(Admitted(ONE)), says(first_token(), emit(0, 5))]
STREAMS = [
    (
        [
            *BEGUN,
            says(tokens(0, 5, 6, 7), emit(1, 6, 7)),
            says(tokens(3, 8, finish=LENGTH), emit(3, 8), Finish(R, LENGTH)),
        ],
        GOOD,
    ),
    ([submits(), says(first_token(), sender=PREFILL), says(Admitted(ONE), emit(0, 5))], GOOD),
    ([submits(), says(first_token(finish=LENGTH), emit(0, 5), Finish(R, LENGTH))], GOOD),
    ([submits(), says(first_token(), emit(0, 5))], "before it was admitted"),
    ([submits(), says(tokens(0, 5, 6), emit(0, 5, 6))], GOOD),
    (
        [submits(), says(Admitted(key(1, 7))), says(first_token(), emit(0, 5))],
        "before it was admitted",
    ),
    ([*BEGUN, says(tokens(0, 5, 6), emit(0, 5, 6))], "index 0 again"),
    ([*BEGUN, says(tokens(2, 6), emit(2, 6))], "index 2 too early"),
    ([*BEGUN, says(tokens(1, 6), emit(1, 9))], "no worker of its epoch said"),
    ([*BEGUN, says(tokens(1, 6, k=key(1, 4)), emit(1, 6))], "no worker of its epoch said"),
    ([*BEGUN, fronts(TimerDue(), Say(FAIL)), says(tokens(1, 6), emit(1, 6))], "after its end"),
    ([*BEGUN, fronts(TimerDue(), Say(FAIL)), fronts(TimerDue(), Say(FAIL))], "after its end"),
    ([*BEGUN, fronts(TimerDue(), Say(Finish(R, LENGTH)), Say(FAIL))], "after its end"),
    ([*BEGUN, fronts(Cancel(R, "gone")), fronts(TimerDue(), Say(FAIL))], "after its end"),
    ([fronts(submitted(), Raised("Overloaded", "full"))], GOOD),
    (
        [fronts(submitted(), Raised("Overloaded", "full")), fronts(TimerDue(), Say(FAIL))],
        "before it was submitted",
    ),
    ([submits(), submits()], "while it was open"),
    ([submits(digits=16)], "not 128 random bits"),
    (
        [
            *BEGUN,
            fronts(PeerLost(DECODE, "x"), *tickets(epoch=2, said=(5,))),
            says(tokens(1, 6, k=NEW), emit(1, 6)),
        ],
        GOOD,
    ),
    (
        [
            submits(),
            says(Admitted(ONE)),
            fronts(PeerLost(DECODE, "x"), *tickets(epoch=2)),
            says(first_token(NEW), emit(0, 5)),
        ],
        "before it was admitted",
    ),
]


@pytest.mark.parametrize(("steps", "why"), STREAMS)
def test_client_streams(steps: list[Step], why: str | None) -> None:
    expect(judged(ClientStreams(), front_parts(), steps), why)


# ---- attempts -----------------------------------------------------------------------------------

TO_PREFILL, TO_DECODE = tickets()
ENDS = [says(Ended(ONE), sender=PREFILL), says(Ended(ONE), sender=DECODE)]
CLOSE = Send(PREFILL, Close(ONE.room))
LOST = PeerLost(DECODE, "x")
ATTEMPTS = [
    ([submits(), *ENDS, fronts(TimerDue(), CLOSE, Send(DECODE, Close(ONE.room)))], GOOD),
    ([submits(), ENDS[0], fronts(LOST, CLOSE)], GOOD),
    ([submits(), fronts(LOST, *tickets(epoch=2))], GOOD),
    ([*BEGUN, fronts(LOST, *tickets(epoch=2, said=(5,)))], GOOD),
    ([submits(), submits(2, *tickets(2), room=1)], "was used before"),
    ([submits(1, *tickets(2))], "not open"),
    ([submits(), fronts(LOST, *tickets(epoch=3))], "after epoch 1"),
    ([submits(), fronts(LOST, *tickets(epoch=2)), fronts(TimerDue(), *tickets())], "after epoch 2"),
    ([submits(1, TO_PREFILL), fronts(LOST, *tickets(epoch=2))], "1 side only"),
    (
        [submits(1, TO_PREFILL, Send(DECODE, msgspec.structs.replace(TO_DECODE.message, stamp=9)))],
        "different tickets",
    ),
    ([submits(1, *tickets(gateway=8))], "another gateway"),
    ([submits(1, TO_PREFILL, Send(Boot(9), TO_DECODE.message))], "does not name"),
    ([*BEGUN, fronts(LOST, *tickets(epoch=2))], "0 tokens were told; the client heard 1"),
    ([submits(), fronts(TimerDue(), CLOSE)], "had not ended"),
    ([submits(), ENDS[0], fronts(TimerDue(), CLOSE)], "had not ended"),
    (
        [submits(), fronts(LOST, *tickets(epoch=2, decode=7)), *ENDS, fronts(TimerDue(), CLOSE)],
        "epochs [2] had not ended",
    ),
    ([fronts(TimerDue(), CLOSE)], "was closed and is not open"),
]


@pytest.mark.parametrize(("steps", "why"), ATTEMPTS)
def test_attempts(steps: list[Step], why: str | None) -> None:
    found = judged(Attempts(), front_parts(), steps)
    expect(found[:1], why)
