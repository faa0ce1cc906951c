"""The sentence about where the time of a request went."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.test_timelines import (
    NAMES,
    ONE,
    REQUEST,
    D,
    P,
    U,
    Watched,
    key,
    ordinary,
    phases,
    ticket,
)

from baton.core.door import Cancel, Emit, Finish, RequestId
from baton.core.effects import Send
from baton.core.events import MessageReceived
from baton.core.gateway.request import Say
from baton.core.ids import Boot, Room, TokenIndex
from baton.core.messages import (
    Abort,
    Ended,
    FailCode,
    Failed,
    FinishReason,
    FirstToken,
    Recompute,
    Tokens,
    Withdrawn,
)
from baton.core.scheduler.room import AWAITS_TURN, RoomState
from baton.gateway.verdict import (
    _WORDS,
    DOCUMENTED,
    Cause,
    PhaseSide,
    RequestFacts,
    cause_of,
    duration,
    listed,
    verdict_of,
)

SECOND = 1_000_000
FACTS = RequestFacts("p0", "d0", "d0", 7, 812, 512, 64)
ALONE = RequestFacts("u0", "u0", "u0", 1, 812, 0, 64)
DOCS = Path(__file__).parents[2] / "docs"


def on(name: str, us: int, *, gateway: bool = False, decode: bool = False) -> PhaseSide:
    return PhaseSide(name, us, gateway, decode, None)


def said(facts: RequestFacts, *sides: PhaseSide) -> str:
    verdict = verdict_of(sides, facts)
    assert verdict is not None
    return verdict.says


def test_sentences() -> None:
    assert said(FACTS, on("awaits_turn", 11_800_000), on("running", 500_000, decode=True)) == (
        "12.3 s: 11.8 s (96%) waiting in the queue of prefill worker p0, behind 7 other prompts."
    )
    assert said(
        ALONE, on("queued", 2 * SECOND), on("running", SECOND), on("computing", SECOND)
    ) == (
        "4.00 s: 2.00 s (50%) waiting in the queue of worker u0, behind 1 other prompt. The rest: "
        "1.00 s generating 64 tokens on u0 and 1.00 s computing its prompt (812 tokens that were "
        "not cached) on worker u0."
    )
    assert said(FACTS, on("fetching", 80_000, decode=True)).startswith(
        "80 ms: 80 ms (100%) in KV transfer: moving the KV cache of its prompt from p0 to d0."
    )
    assert said(FACTS, on("offloaded", 80_000, decode=True)).endswith(
        "preempted: d0 ran out of KV cache memory, and others needed this request's pages."
    )
    assert said(FACTS._replace(behind=0), on("queued", 5)).endswith("of prefill worker p0.")


def test_a_request_of_no_time_has_none() -> None:
    assert verdict_of((), FACTS) is None


@pytest.mark.parametrize(
    ("name", "gateway", "decode", "cause"),
    [
        ("queued", True, False, Cause.NO_ROOM),
        ("queued", False, False, Cause.QUEUE),
        (AWAITS_TURN, False, False, Cause.QUEUE),
        ("queued", False, True, Cause.DECODE_MEMORY),
        ("awaits_decode", True, False, Cause.DECODE_MEMORY),
        ("committing", False, True, Cause.TRANSFER),
        ("restoring", False, True, Cause.PREEMPTION),
        ("messages", True, False, Cause.MESSAGES),
        ("unknown", False, True, Cause.FAILURE),
        ("ending", False, True, Cause.MESSAGES),
        ("a state of a later version", False, True, Cause.MESSAGES),
    ],
)
def test_what_a_phase_is_due_to(name: str, gateway: bool, decode: bool, cause: Cause) -> None:
    assert cause_of(PhaseSide(name, 1, gateway, decode, None)) is cause


def test_every_state_of_a_room_is_due_to_something_but_its_end() -> None:
    names = {*(state.value for state in RoomState), AWAITS_TURN}
    unnamed = {n for n in names if cause_of(on(n, 1)) is Cause.MESSAGES}
    assert unnamed == {"ending", "ended"}


@given(st.dictionaries(st.sampled_from(["queued", "computing", "fetching"]), st.integers(0, 99)))
def test_the_largest_share_is_named(spent: Mapping[str, int]) -> None:
    verdict = verdict_of([on(name, us) for name, us in spent.items()], FACTS)
    if not any(spent.values()):
        assert verdict is None
    else:
        assert verdict is not None
        assert verdict.us == max(spent.values())


def test_each_cause_has_words_and_a_section_of_the_documentation() -> None:
    assert set(_WORDS) == set(Cause)
    heads = re.findall(r"^#+ (.*)$", (DOCS / "slow-requests.md").read_text(), re.M)
    anchors = {re.sub(r"[^a-z0-9 -]", "", head.lower()).replace(" ", "-") for head in heads}
    assert anchors >= {cause.value for cause in Cause}
    assert DOCUMENTED.endswith("docs/slow-requests.md")
    for words in _WORDS.values():
        assert words.advice.endswith(".")


@pytest.mark.parametrize(
    ("us", "text"),
    [(900, "0.9 ms"), (80_400, "80 ms"), (1_234_000, "1.23 s"), (12_345_000, "12.3 s")],
)
def test_durations(us: int, text: str) -> None:
    assert duration(us) == text
    assert duration(150 * SECOND) == "2.5 min"


def test_lists() -> None:
    assert [listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])] == [
        "a",
        "a and b",
        "a, b and c",
    ]


# ---- of what a gateway notes ---------------------------------------------------------------------


def cause(watched: Watched) -> Cause:
    verdict = watched.found.verdict
    assert verdict is not None
    return verdict.cause


def test_an_ordinary_request_was_busy_generating() -> None:
    watched = Watched()
    ordinary(watched)
    assert cause(watched) is Cause.GENERATION


def first(watched: Watched, us: int, epoch: int = 1) -> None:
    emit = Say(Emit(REQUEST, TokenIndex(0), (ONE,)))
    watched.at(us, MessageReceived(P, FirstToken(key(epoch), TokenIndex(0), ONE, None)), emit)


def finishes(watched: Watched, us: int, epoch: int = 1) -> None:
    last = Tokens(key(epoch), TokenIndex(1), (ONE,), FinishReason.LENGTH)
    watched.at(us, MessageReceived(D, last), Say(Finish(REQUEST, FinishReason.LENGTH)))


@pytest.mark.parametrize(("message", "sender"), [(Recompute, D), (Withdrawn, P)])
def test_what_is_computed_again_after_a_preemption_is_due_to_it(
    message: type, sender: Boot
) -> None:
    watched = Watched()
    watched.arrives(0)
    watched.begins(0, ticket())
    first(watched, 100)
    again = [Send(boot, Abort(key(), "")) for boot in (P, D)]
    watched.at(300, MessageReceived(sender, message(key())), *again)
    watched.begins(500, ticket(2))
    finishes(watched, 2_000, 2)
    watched.closes(
        (2_100, P, Ended(key(), phases(computing=100))),
        (2_100, D, Ended(key(), phases(fetching=100, running=200))),
        (2_100, P, Ended(key(2), phases(queued=300, computing=700))),
        (2_100, D, Ended(key(2), phases(queued=400, fetching=600, running=500))),
    )
    assert cause(watched) is Cause.PREEMPTION
    verdict = watched.found.verdict
    assert verdict is not None
    assert verdict.us == 2_000 - 100 - 200 - 500, "all but its first computation, and its tokens"
    assert f"preempted: {NAMES[sender]} ran out" in verdict.says


def test_what_is_done_again_after_a_failure_is_not_called_a_queue() -> None:
    watched = Watched()
    watched.arrives(0)
    watched.begins(0, ticket())
    failed = Failed(key(), FailCode.HANDOFF_FAILED, "", True)
    watched.at(50, MessageReceived(P, failed), *(Send(b, Abort(key(), "")) for b in (P, D)))
    watched.begins(60, ticket(2))
    first(watched, 900, 2)
    finishes(watched, 1_000, 2)
    watched.closes(
        (1_100, P, Ended(key(2), phases(queued=800, computing=20))),
        (1_100, D, Ended(key(2), phases(running=100))),
    )
    assert cause(watched) is Cause.FAILURE


def test_it_says_how_many_prompts_were_before_it() -> None:
    """Those of its own prefill worker that are neither computed nor gone."""
    watched = Watched()
    rooms = [Room(f"{n:032x}") for n in range(1, 6)]
    for number, room in enumerate(rooms, 1):
        watched.arrives(number, request=number, room=room)
        one = ticket() if number != 3 else ticket(prefill=U, decode=U)
        watched.begins(number, type(one)(**_of(one, room)))
    emit = Say(Emit(RequestId(1), TokenIndex(0), (ONE,)))
    watched.at(10, MessageReceived(P, FirstToken(key(1, rooms[0]), TokenIndex(0), ONE, None)), emit)
    watched.at(11, Cancel(RequestId(2), "left"))
    watched.arrives(12, request=9)
    watched.begins(12, ticket())
    watched.at(20, Cancel(RequestId(9), "left"))
    watched.owing.clear()
    watched.at(21, MessageReceived(P, Ended(key(), phases(queued=8))))
    verdict = watched.found.verdict
    assert verdict is not None
    assert "behind 2 other prompts" in verdict.says, "the fourth and the fifth"


def _of(one: object, room: Room) -> dict[str, object]:
    fields = {name: getattr(one, name) for name in one.__struct_fields__}  # type: ignore[attr-defined]
    return fields | {"key": key(1, room)}


def test_the_slowest_are_those_that_did_not_generate_for_longest() -> None:
    watched = Watched()
    for number, (waited, ran) in enumerate([(100, 9_000), (700, 5), (400, 900)], 1):
        room = Room(f"{number:032x}")
        watched.arrives(0, request=number, room=room)
        one = ticket(prefill=U, decode=U)
        watched.begins(0, type(one)(**_of(one, room)))
        emit = Say(Emit(RequestId(number), TokenIndex(0), (ONE,)))
        watched.at(
            waited, MessageReceived(U, Tokens(key(1, room), TokenIndex(0), (ONE,), None)), emit
        )
        last = Tokens(key(1, room), TokenIndex(1), (ONE,), FinishReason.LENGTH)
        end = Say(Finish(RequestId(number), FinishReason.LENGTH))
        watched.at(waited + ran, MessageReceived(U, last), end)
        watched.owing.clear()
        told = phases(computing=waited, running=ran)
        watched.at(waited + ran, MessageReceived(U, Ended(key(1, room), told)))
    slowest = watched.timelines.slowest
    assert [t.id for t in slowest(2, 60)] == ["cmpl-2", "cmpl-3"]
    assert [t.id for t in slowest(9, 60)] == ["cmpl-2", "cmpl-3", "cmpl-1"]
    watched.wall += 100
    assert slowest(9, 60) == []
    assert len(slowest(9, 200)) == 3
