"""The request logic of the gateway, message by message."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.build import drawn, manifest, submit
from tests.core.driven import DrivenFront

from baton.core.door import Cancel, Emit, Fail, Finish, RequestId
from baton.core.effects import Send
from baton.core.errors import Overloaded
from baton.core.events import MessageReceived, PeerLost, TimerDue
from baton.core.gateway.assignment import LOOK_AGAIN_US
from baton.core.gateway.front import Front
from baton.core.gateway.request import FrontSettings, Say
from baton.core.ids import Boot, Epoch, Key, Micros
from baton.core.messages import (
    Abort,
    Admitted,
    Close,
    Ended,
    FailCode,
    Failed,
    FinishReason,
    FirstToken,
    Introduce,
    Paired,
    Recompute,
    Register,
    Ticket,
    Tokens,
    Unpaired,
)

GATEWAY, P, D = Boot(1), Boot(2), Boot(3)
T0 = Micros(0)


class Bench:
    """A front, and what it did since the last look."""

    def __init__(self, **settings: int) -> None:
        self.front = DrivenFront(Front(GATEWAY, FrontSettings(**settings)))

    def pair(self, prefill: Boot = P, decode: Boot = D) -> None:
        for boot, role in ((prefill, "prefill"), (decode, "decode")):
            self.front.step(
                MessageReceived(boot, Register(role, f"tcp://{boot}", manifest(role, boot))), T0
            )
        self.front.step(MessageReceived(decode, Paired(prefill, "shm")), T0)
        self.front.effects()

    def did(self) -> list[Any]:
        return [e.heard if isinstance(e, Say) else (e.to, e.message) for e in self.front.effects()]

    def say(self, sender: Boot, message: Any, now: int = 0) -> list[Any]:
        self.front.step(MessageReceived(sender, message), Micros(now))
        return self.did()

    def start(self, number: int = 1) -> Key:
        self.front.submit(submit(number), T0)
        tickets = [m for _, m in self.did() if isinstance(m, Ticket)]
        assert len({t.key for t in tickets}) == 1
        return tickets[0].key


def test_a_ticket_carries_the_priority_and_nobody_is_served_by_it() -> None:
    """Recorded: it is in what both workers get, and in the journal."""
    bench = Bench()
    bench.pair()
    bench.front.submit(msgspec.structs.replace(submit(1), priority=-3), T0)
    tickets = [message for _, message in bench.did() if isinstance(message, Ticket)]
    assert [t.priority for t in tickets] == [-3, -3]


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.pair()
    return bench


def heard(done: list[Any]) -> list[Any]:
    return [d for d in done if isinstance(d, Emit | Finish | Fail)]


def test_workers_are_introduced_in_either_order() -> None:
    for order in ((P, D), (D, P)):
        bench = Bench()
        for boot in order:
            role = "prefill" if boot == P else "decode"
            bench.front.step(
                MessageReceived(boot, Register(role, "tcp://p", manifest(role, boot))), T0
            )
        sends = [e for e in bench.front.effects() if isinstance(e, Send)]
        assert [(s.to, type(s.message)) for s in sends] == [(D, Introduce)]


def test_both_leaders_get_the_same_ticket_and_the_client_each_token_once(bench: Bench) -> None:
    key = bench.start()
    assert bench.say(P, FirstToken(key, 0, drawn(7), None)) == [], (
        "held back until decode holds memory"
    )
    assert bench.say(D, Admitted(key)) == [Emit(RequestId(1), 0, (drawn(7),))]
    assert bench.say(D, Tokens(key, 0, (drawn(7), drawn(8)), None)) == [
        Emit(RequestId(1), 1, (drawn(8),))
    ]
    done = bench.say(D, Tokens(key, 2, (drawn(9),), FinishReason.LENGTH))
    assert heard(done) == [
        Emit(RequestId(1), 2, (drawn(9),)),
        Finish(RequestId(1), FinishReason.LENGTH, key),
    ]
    assert bench.front.open_requests == 1, "its room is not closed"
    assert bench.say(P, Ended(key)) == []
    assert bench.say(D, Ended(key)) == [(P, Close(key.room)), (D, Close(key.room))]
    assert bench.front.open_requests == 0


def test_a_request_that_ends_at_its_first_token_does_not_wait_for_decode(bench: Bench) -> None:
    key = bench.start()
    done = bench.say(P, FirstToken(key, 0, drawn(7), FinishReason.STOP))
    assert heard(done) == [
        Emit(RequestId(1), 0, (drawn(7),)),
        Finish(RequestId(1), FinishReason.STOP, key),
    ]
    assert (D, Abort(key, "finished")) in done


def test_another_token_at_a_known_index_ends_the_request(bench: Bench) -> None:
    key = bench.start()
    bench.say(P, FirstToken(key, 0, drawn(7), None))
    bench.say(D, Admitted(key))
    done = bench.say(D, Tokens(key, 0, (drawn(6), drawn(8)), None))
    assert [d.code for d in heard(done)] == [FailCode.HANDOFF_FAILED]
    assert {(P, Abort), (D, Abort)} <= {(d[0], type(d[1])) for d in done if isinstance(d, tuple)}


def test_a_gap_ends_the_request(bench: Bench) -> None:
    key = bench.start()
    assert isinstance(heard(bench.say(D, Tokens(key, 1, (drawn(8),), None)))[0], Fail)


def test_a_failed_epoch_goes_on_after_what_was_said(bench: Bench) -> None:
    key = bench.start()
    bench.say(D, Tokens(key, 0, (drawn(7), drawn(8)), None))
    done = bench.say(D, Failed(key, FailCode.HANDOFF_FAILED, "x", True))
    tickets = [m for _, m in done if isinstance(m, Ticket)]
    assert [t.key for t in tickets] == [Key(key.room, Epoch(2))] * 2
    assert {t.said for t in tickets} == {(7, 8)}
    assert bench.say(D, Tokens(key, 2, (drawn(9),), None)) == [], "an old epoch changes nothing"
    assert heard(bench.say(D, Tokens(tickets[0].key, 2, (drawn(9),), None))) == [
        Emit(RequestId(1), 2, (drawn(9),))
    ]


def test_failures_are_bounded_and_giving_way_is_not_one(bench: Bench) -> None:
    key = bench.start()
    for epoch in range(1, 8):
        assert not heard(bench.say(D, Recompute(Key(key.room, Epoch(epoch)))))
    assert not heard(
        bench.say(D, Failed(Key(key.room, Epoch(8)), FailCode.HANDOFF_FAILED, "x", True))
    )
    assert not heard(
        bench.say(D, Failed(Key(key.room, Epoch(9)), FailCode.HANDOFF_FAILED, "x", True))
    )
    for side in (P, D):  # a suspect begins again when it is known that it has ended nobody
        assert not heard(bench.say(side, Ended(Key(key.room, Epoch(9)))))
    done = heard(
        bench.say(D, Failed(Key(key.room, Epoch(10)), FailCode.HANDOFF_FAILED, "why", True))
    )
    assert done == [Fail(RequestId(1), FailCode.HANDOFF_FAILED, "why", Key(key.room, Epoch(10)))]


def test_where_it_may_not_wait_a_lost_decode_ends_an_answer_at_once_and_counts_as_ended() -> None:
    bench = Bench(failover_waits=False)
    bench.pair()
    key = bench.start()
    bench.say(D, Tokens(key, 0, (drawn(7),), None))
    bench.front.step(PeerLost(D, "silence"), T0)
    done = bench.did()
    assert [d.code for d in heard(done)] == [FailCode.WORKER_LOST]
    assert (P, Abort) in {(d[0], type(d[1])) for d in done if isinstance(d, tuple)}
    assert bench.say(P, Ended(key)) == [(P, Close(key.room))]


def test_an_answer_that_has_begun_waits_for_a_successor_and_goes_on_behind_its_last_token() -> None:
    bench = Bench(wait_for_workers_ms=100)
    bench.pair()
    key = bench.start()
    bench.say(D, Tokens(key, 0, (drawn(7), drawn(8)), None))
    bench.front.step(PeerLost(D, "silence"), T0)
    bench.say(P, Ended(key))
    late = Micros(T0 + 1_000_000)  # longer than a request waits of whose answer nothing is said
    bench.front.step(TimerDue(), late)
    assert heard(bench.did()) == []
    bench.pair(P, Boot(4))
    assert bench.front.key_of(RequestId(1)) == Key(key.room, Epoch(2))
    again = Key(key.room, Epoch(2))
    assert [d.code for d in heard(bench.say(Boot(4), Tokens(again, 1, (drawn(8),), None)))] == []
    assert bench.say(Boot(4), Tokens(again, 2, (drawn(9),), None)) == [
        Emit(RequestId(1), 2, (drawn(9),))
    ]


def test_an_answer_waits_for_a_successor_until_its_deadline(bench: Bench) -> None:
    key = bench.start()
    bench.say(D, Tokens(key, 0, (drawn(7),), None))
    bench.front.step(PeerLost(D, "silence"), T0)
    bench.did()
    due = bench.front.requests.get(RequestId(1)).deadline
    bench.front.step(TimerDue(), Micros(due - 1))
    assert heard(bench.did()) == []
    bench.front.step(TimerDue(), due)
    assert [d.code for d in heard(bench.did())] == [FailCode.DEADLINE_EXCEEDED]


@pytest.mark.parametrize("lost", [P, D])
def test_a_request_that_has_heard_nothing_waits_for_the_successor_of_a_lost_worker(
    bench: Bench, lost: Boot
) -> None:
    key = bench.start()
    bench.front.step(PeerLost(lost, "silence"), T0)
    other = D if lost == P else P
    done = bench.did()
    assert (other, Abort) in {(d[0], type(d[1])) for d in done if isinstance(d, tuple)}
    assert heard(done) == []
    assert bench.say(other, Ended(key)) == []
    role, pair = ("prefill", (Boot(9), D)) if lost == P else ("decode", (P, Boot(9)))
    bench.front.step(
        MessageReceived(Boot(9), Register(role, "tcp://9", manifest(role, Boot(9)))), T0
    )
    bench.front.step(MessageReceived(pair[1], Paired(pair[0], "shm")), T0)
    tickets = {(to, m.key.epoch) for to, m in bench.did() if isinstance(m, Ticket)}
    assert tickets == {(Boot(9), 2), (other, 2)}


@pytest.mark.parametrize("lost", [P, D])
def test_without_a_successor_it_fails_in_its_time(lost: Boot) -> None:
    bench = Bench(wait_for_workers_ms=100)
    bench.pair()
    bench.start()
    bench.front.step(PeerLost(lost, "silence"), T0)
    assert heard(bench.did()) == []
    assert bench.front.next_wake() == T0 + 100_000
    bench.front.step(TimerDue(), Micros(T0 + 100_000))
    assert [d.code for d in heard(bench.did())] == [FailCode.WORKER_LOST]


def test_a_lost_prefill_is_nothing_to_a_request_that_streams(bench: Bench) -> None:
    key = bench.start()
    bench.say(D, Tokens(key, 0, (drawn(7), drawn(8)), None))
    bench.front.step(PeerLost(P, "silence"), T0)
    assert bench.did() == []
    assert heard(bench.say(D, Tokens(key, 2, (drawn(9),), FinishReason.STOP)))


def test_a_lost_decode_fails_over_where_there_is_another(bench: Bench) -> None:
    bench.pair(P, Boot(4))
    key = bench.start()
    bench.say(D, Tokens(key, 0, (drawn(7),), None))
    bench.front.step(PeerLost(D, "silence"), T0)
    tickets = [m for _, m in bench.did() if isinstance(m, Ticket)]
    assert {(t.decode, t.said) for t in tickets} == {(Boot(4), (7,))}


def test_a_cancelled_request_is_aborted_on_both_sides_and_not_heard_of_again(bench: Bench) -> None:
    key = bench.start()
    bench.front.step(Cancel(RequestId(1), "client gone"), T0)
    assert [(to, type(m)) for to, m in bench.did()] == [(P, Abort), (D, Abort)]
    assert bench.say(D, Tokens(key, 0, (drawn(7),), None)) == []
    bench.front.step(Cancel(RequestId(1), "again"), T0)
    assert bench.did() == []


def test_without_workers_a_request_waits_and_then_fails() -> None:
    bench = Bench(wait_for_workers_ms=100)
    bench.front.submit(submit(), T0)
    assert bench.front.next_wake() == 100_000
    bench.front.step(TimerDue(), Micros(100_000))
    assert [d.code for d in heard(bench.did())] == [FailCode.WORKER_LOST]


def test_a_waiting_request_starts_when_a_pair_appears() -> None:
    bench = Bench()
    bench.front.submit(submit(), T0)
    for boot, role in ((P, "prefill"), (D, "decode")):
        bench.front.step(MessageReceived(boot, Register(role, "tcp://p", manifest(role, boot))), T0)
    bench.did()
    done = bench.say(D, Paired(P, "shm"))
    assert [type(m) for _, m in done] == [Ticket, Ticket]


def test_an_epoch_has_a_deadline_of_its_own_at_the_gateway(bench: Bench) -> None:
    bench.start()
    bench.front.step(TimerDue(), Micros(62_000_000))
    assert [d.code for d in heard(bench.did())] == [FailCode.DEADLINE_EXCEEDED]


STEPS = ("ask", "cancel", "pair", "unpair", "lose", "doubt", "ring", "wait")


@given(st.lists(st.sampled_from(STEPS), max_size=25))
@settings(max_examples=200, deadline=None)
def test_the_timer_rings_at_the_latest_when_something_is_due(steps: list[str]) -> None:
    bench, now, asked = Bench(wait_for_workers_ms=500), 0, 0
    front = bench.front
    bench.pair()
    for step in steps:
        match step:
            case "ask":
                asked += 1
                front.submit(submit(asked, deadline_ms=700), Micros(now))
            case "cancel":
                front.step(Cancel(RequestId(asked), "gone"), Micros(now))
            case "pair":
                bench.pair()
            case "unpair":
                front.step(MessageReceived(D, Unpaired(P, "why")), Micros(now))
            case "lose":
                front.step(PeerLost(D, "silence"), Micros(now))
            case "doubt":
                for request in list(front.requests):
                    front.step(
                        MessageReceived(P, Failed(request.key, FailCode.WORKER_LOST, "x", True)),
                        Micros(now),
                    )
            case "ring":
                front.step(TimerDue(), Micros(now))
            case "wait":
                now += 300_000
        dues = front._dues()
        assert (front.next_wake() is None) == (not dues)
        assert not dues or front.next_wake() <= min(dues)
        if step == "ring":
            # Whoever waits for a pair's time to generate in is looked at again soon, and once when
            # requests have waited for a pair for as long as they may; nobody else is.
            waits = front.usable_pairs() and any(not r.with_workers for r in front.requests)
            soon = {now + LOOK_AGAIN_US} if waits else set()
            soon |= {now + 500_000} if front.edge.pairless == now else set()
            assert not dues or front.next_wake() in {min(dues), *soon}
            assert not dues or front.next_wake() > now, "it does not ring again and again"


def test_the_room_and_epoch_of_a_request_are_told_while_it_is_open(bench: Bench) -> None:
    key = bench.start()
    assert bench.front.key_of(RequestId(1)) == key
    bench.say(D, Failed(key, FailCode.HANDOFF_FAILED, "x", True))
    assert bench.front.key_of(RequestId(1)) == Key(key.room, Epoch(2))
    bench.front.step(Cancel(RequestId(1), "gone"), T0)
    assert bench.front.key_of(RequestId(1)) is None


def test_the_table_is_bounded() -> None:
    bench = Bench(max_requests=1)
    bench.front.submit(submit(1), T0)
    with pytest.raises(Overloaded):
        bench.front.submit(submit(2), T0)


def test_messages_of_strangers_change_nothing(bench: Bench) -> None:
    key = bench.start()
    assert bench.say(Boot(99), Tokens(key, 0, (drawn(7),), FinishReason.STOP)) == []
    assert bench.say(Boot(99), Failed(key, FailCode.HANDOFF_FAILED, "x", False)) == []


def test_a_pair_that_one_side_calls_lost_is_not_used_until_it_is_paired_again(bench: Bench) -> None:
    key = bench.start()
    done = bench.say(P, Failed(key, FailCode.WORKER_LOST, "not paired with decode worker", True))
    assert not heard(done)
    assert not [m for _, m in done if isinstance(m, Ticket)], "the request waits"
    bench.front.step(TimerDue(), Micros(1_000_000))
    assert [type(m) for _, m in bench.did()] == [Introduce]
    done = bench.say(D, Paired(P, "shm"))
    assert {m.key.epoch for _, m in done if isinstance(m, Ticket)} == {2}
