"""The table of a request's states: what it says, and that a front takes every arrow of it and no
other."""

from collections.abc import Callable
from itertools import product

import pytest
from tests.core.build import drawn, submit
from tests.core.gateway.test_front import T0, Bench, D, P, heard

from baton.core.door import Cancel, Emit, Finish, RequestId
from baton.core.events import MessageReceived
from baton.core.gateway.request import FrontSettings, Request
from baton.core.gateway.request_state import REQUEST, WITH_WORKERS, RequestSaw, RequestState
from baton.core.ids import Arrival, Boot, Key, Micros, Room, TokenIndex
from baton.core.messages import (
    Admitted,
    Ended,
    FailCode,
    Failed,
    FinishReason,
    FirstToken,
    Recompute,
    Tokens,
)

MESSAGES = {RequestSaw.FIRST_TOKEN, RequestSaw.ADMITTED, RequestSaw.TOKENS}
EVERY = list(product(RequestState, RequestSaw))


def request(state: RequestState) -> Request:
    made = Request(submit(1), Room(f"{1:032x}"), Arrival(1), T0, settings=FrontSettings())
    made.state = state
    return made


def reached(first: RequestState) -> set[RequestState]:
    found, frontier = {first}, [first]
    while frontier:
        here = frontier.pop()
        after = {target for (state, _), target in REQUEST.items() if state is here} - found
        found |= after
        frontier += after
    return found


@pytest.mark.parametrize(("state", "saw"), EVERY)
def test_a_request_moves_by_the_table_and_a_pair_that_it_lacks_is_our_bug(
    state: RequestState, saw: RequestSaw
) -> None:
    found = request(state)
    if (state, saw) in REQUEST:
        found.see(saw)
        assert found.state is REQUEST[state, saw]
    else:
        with pytest.raises(KeyError):
            found.see(saw)
        assert found.state is state


def test_every_state_is_reached_and_can_end_and_nothing_follows_the_end() -> None:
    assert reached(RequestState.WAITING) == set(RequestState)
    for state in RequestState:
        assert RequestState.ENDED in reached(state)
        assert ((state, RequestSaw.END) in REQUEST) == (state is not RequestState.ENDED)
    assert not any(state is RequestState.ENDED for state, _ in REQUEST)


@pytest.mark.parametrize(("state", "saw"), EVERY)
def test_what_is_legal_depends_on_whether_workers_have_the_request(
    state: RequestState, saw: RequestSaw
) -> None:
    """Both sides speak on sessions of their own: anything may come in any order, and twice, as long
    as they have it."""
    legal = (state, saw) in REQUEST
    match saw:
        case RequestSaw.BEGINS:
            assert legal == (state is RequestState.WAITING)
        case RequestSaw.RELEASED:
            assert legal == (state is RequestState.HELD)
        case RequestSaw.END:
            assert legal == (state is not RequestState.ENDED)
        case _:
            assert legal == (state in WITH_WORKERS)


@pytest.mark.parametrize(("state", "saw"), [pair for pair in EVERY if pair in REQUEST])
def test_what_decode_has_said_is_not_taken_back_by_what_comes_later(
    state: RequestState, saw: RequestSaw
) -> None:
    order = [
        RequestState.GIVEN,
        RequestState.ANSWERED,
        RequestState.ADMITTED,
        RequestState.STREAMING,
    ]
    if saw in MESSAGES:
        assert order.index(REQUEST[state, saw]) >= order.index(state)


def test_the_properties_are_those_of_the_states() -> None:
    assert {state for state in RequestState if request(state).with_workers} == WITH_WORKERS
    assert {state for state in RequestState if request(state).admitted} == {
        RequestState.ADMITTED,
        RequestState.STREAMING,
    }


# ---- the arrows that a front takes
# -------------------------------------------------------------------

Step = Callable[[Bench, Key], object]

STEPS: dict[str, Step] = {
    "first": lambda bench, key: bench.front.step(
        message(P, FirstToken(key, said(bench), drawn(7), None)), T0
    ),
    "only": lambda bench, key: bench.front.step(
        message(P, FirstToken(key, said(bench), drawn(7), FinishReason.STOP)), T0
    ),
    "admitted": lambda bench, key: bench.front.step(message(D, Admitted(key)), T0),
    "tokens": lambda bench, key: bench.front.step(
        message(D, Tokens(key, said(bench), (drawn(7),), None)), T0
    ),
    "last": lambda bench, key: bench.front.step(
        message(D, Tokens(key, said(bench), (drawn(7),), FinishReason.STOP)), T0
    ),
    "failed": lambda bench, key: bench.front.step(
        message(P, Failed(key, FailCode.HANDOFF_FAILED, "x", True)), T0
    ),
    "gives way": lambda bench, key: bench.front.step(message(D, Recompute(key)), T0),
    "ended": lambda bench, key: [
        bench.front.step(message(side, Ended(key)), T0) for side in (P, D)
    ],
    "cancel": lambda bench, key: bench.front.step(Cancel(RequestId(1), "gone"), T0),
}


def message(sender: Boot, said: object) -> object:
    return MessageReceived(sender, said)


def said(bench: Bench) -> TokenIndex:
    open_still = bench.front.requests.get(RequestId(1))
    return TokenIndex(len(open_still.said)) if open_still is not None else TokenIndex(0)


def test_a_front_takes_every_arrow_and_never_one_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All sequences of four of the steps; what is sent to the client goes by the state too."""
    taken: set[tuple[RequestState, RequestSaw]] = set()
    see = Request.see

    def noted(self: Request, saw: RequestSaw) -> None:
        taken.add((self.state, saw))
        see(self, saw)

    monkeypatch.setattr(Request, "see", noted)
    for names in product(STEPS, repeat=4):
        bench = Bench()
        bench.pair()
        key = bench.start()
        for name in names:
            before = bench.front.requests.get(RequestId(1))
            if before is None:
                break
            key, state = before.key, before.state
            STEPS[name](bench, key)
            done = heard(bench.did())
            assert (
                before.pair is not None
            ) == before.with_workers or before.state is RequestState.ENDED
            assert (bench.front.requests.get(RequestId(1)) is None) == (
                before.state is RequestState.ENDED
            )
            if any(isinstance(event, Emit) for event in done):
                ends = any(isinstance(event, Finish) for event in done)
                assert before.admitted or ends, "an unadmitted request can still be refused"
                assert state in WITH_WORKERS
    assert taken == REQUEST.keys() - {(RequestState.WAITING, RequestSaw.END)}, (
        "which needs a front without workers"
    )


def test_a_request_that_waits_can_end_too() -> None:
    bench = Bench()
    bench.front.submit(submit(1), Micros(0))
    waiting = bench.front.requests.get(RequestId(1))
    bench.front.step(Cancel(RequestId(1), "gone"), Micros(1))
    assert waiting.state is RequestState.ENDED
