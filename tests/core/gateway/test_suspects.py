"""What the gateway makes of workers that end: who is tried alone, who waits, who is refused, who is
innocent."""

from typing import Any

import pytest
from tests.core.build import drawn, submit
from tests.core.gateway.test_front import T0, Bench, heard

from baton.core.door import Fail, RequestId
from baton.core.events import PeerLost, TimerDue
from baton.core.gateway.suspects import MARGIN
from baton.core.ids import Boot, Epoch, Key, Micros
from baton.core.messages import (
    Credits,
    Ended,
    FailCode,
    Failed,
    Recompute,
    Ticket,
    Tokens,
    Trial,
    Withdrawn,
)

P2, D2 = Boot(12), Boot(13)


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.pair()
    bench.pair(P2, D2)
    return bench


def tickets(done: list[Any]) -> list[Ticket]:
    """One of each epoch."""
    return list(
        {
            m.key: m for _, m in (d for d in done if isinstance(d, tuple)) if isinstance(m, Ticket)
        }.values()
    )


def start(bench: Bench, number: int = 1) -> Ticket:
    bench.front.submit(submit(number), T0)
    (ticket,) = tickets(bench.did())
    assert not ticket.alone_until
    return ticket


def lose(bench: Bench, boot: Boot) -> list[Any]:
    bench.front.step(PeerLost(boot, "killed"), T0)
    return bench.did()


def test_who_was_with_a_worker_that_ended_is_computed_alone_for_a_while(bench: Bench) -> None:
    first = start(bench)
    bench.say(first.decode, Tokens(first.key, 0, (drawn(7), drawn(8)), None))
    (again,) = tickets(lose(bench, first.decode))
    assert again.said == (7, 8)
    assert again.alone_until == 2 + MARGIN


def test_who_gave_way_is_no_suspect(bench: Bench) -> None:
    first = start(bench)
    (again,) = tickets(bench.say(first.decode, Recompute(first.key)))
    assert not again.alone_until


@pytest.mark.parametrize("said", [False, True])
def test_who_gave_way_and_is_still_computed_where_a_worker_ends_is_a_suspect(
    bench: Bench, said: bool
) -> None:
    """A step of it was under way there, unless the worker has said that it has ended it."""
    first = start(bench)
    bench.say(first.prefill, Withdrawn(first.key))
    (elsewhere,) = tickets(lose(bench, first.decode))
    assert elsewhere.prefill != first.prefill
    (request,) = bench.front.requests
    request.alone_until = 0  # as if that had not counted
    if said:
        for epoch in (1, 2):
            bench.say(first.prefill, Ended(Key(first.key.room, Epoch(epoch))))
    lose(bench, first.prefill)
    assert bool(request.alone_until) is not said


@pytest.mark.parametrize("alone", [False, True])
def test_nobody_has_ended_a_worker_that_was_to_end(bench: Bench, alone: bool) -> None:
    first = start(bench)
    (again,) = tickets(lose(bench, first.prefill)) if alone else (first,)
    if alone:
        bench.say(again.decode, Trial(again.key, over=False))
    drains = Credits(1, again.decode, {}, {}, 0, 1, draining=True)
    bench.say(again.decode, drains)
    assert not heard(lose(bench, again.decode))
    (request,) = bench.front.requests
    assert request.failures == int(alone)


def test_nor_has_anyone_if_its_partner_says_so_first(bench: Bench) -> None:
    first = start(bench)
    bench.say(first.decode, Credits(1, first.decode, {}, {}, 0, 1, draining=True))
    gone = Failed(first.key, FailCode.WORKER_LOST, "decode worker was lost", retry=True)
    (again,) = tickets(bench.say(first.prefill, gone))
    assert again.decode != first.decode
    (request,) = bench.front.requests
    assert not request.failures
    assert not request.alone_until


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_a_worker_that_ends_in_a_step_of_a_suspect_convicts_it(bench: Bench, side: str) -> None:
    first = start(bench)
    (again,) = tickets(lose(bench, first.prefill))
    boot = getattr(again, side)
    bench.say(boot, Trial(again.key, over=False))
    (end,) = heard(lose(bench, boot))
    assert isinstance(end, Fail)
    assert end.code is FailCode.POISON
    assert end.request == RequestId(1)


def test_a_step_that_is_over_convicts_nobody(bench: Bench) -> None:
    first = start(bench)
    (again,) = tickets(lose(bench, first.prefill))
    bench.say(again.prefill, Trial(again.key, over=False))
    bench.say(again.prefill, Trial(again.key, over=True))
    assert not heard(lose(bench, again.prefill))


def test_each_step_of_a_worker_that_does_not_number_them_counts(bench: Bench) -> None:
    """A worker of protocol 1."""
    first = start(bench)
    (again,) = tickets(lose(bench, first.prefill))
    for over in (False, True, False):
        bench.say(again.prefill, Trial(again.key, over=over))
    (end,) = heard(lose(bench, again.prefill))
    assert isinstance(end, Fail)
    assert end.code is FailCode.POISON


@pytest.mark.parametrize("again_over", [True, False])
def test_what_a_worker_says_again_of_an_earlier_step_changes_nothing(
    bench: Bench, *, again_over: bool
) -> None:
    first = start(bench)
    (again,) = tickets(lose(bench, first.prefill))
    bench.say(again.prefill, Trial(again.key, over=False, step=1))
    bench.say(again.prefill, Trial(again.key, over=True, step=1))
    if again_over:  # while the next step is under way
        bench.say(again.prefill, Trial(again.key, over=False, step=2))
    bench.say(again.prefill, Trial(again.key, over=again_over, step=1))
    assert bool(heard(lose(bench, again.prefill))) == again_over


def test_whoever_was_there_during_another_ones_step_is_innocent(bench: Bench) -> None:
    first = start(bench)
    (suspect,) = tickets(lose(bench, first.prefill))
    bench.pair(Boot(22), Boot(23))
    other = start(bench, 2)
    while other.prefill != suspect.prefill:
        other = start(bench, len(bench.front.requests) + 1)
    bench.say(suspect.prefill, Trial(suspect.key, over=False))
    done = lose(bench, suspect.prefill)
    assert [(end.request, end.code) for end in heard(done)] == [(RequestId(1), FailCode.POISON)]
    again = [t for t in tickets(done) if t.key.room == other.key.room]
    assert [t.alone_until for t in again] == [0]
    assert bench.front.requests.in_room(other.key.room).failures == 0


def two_on_the_same_workers(bench: Bench) -> tuple[Ticket, Ticket]:
    """A suspect, and another request on its two workers."""
    first = start(bench)
    (suspect,) = tickets(lose(bench, first.prefill))
    other = start(bench, 2)
    assert (other.prefill, other.decode) == (suspect.prefill, suspect.decode)
    return suspect, other


def test_who_has_ended_its_prefill_worker_is_not_innocent_because_decode_tries_another_one(
    bench: Bench,
) -> None:
    suspect, other = two_on_the_same_workers(bench)
    bench.say(suspect.decode, Trial(suspect.key, over=False))
    bench.say(
        other.decode, Failed(other.key, FailCode.WORKER_LOST, "the prefill worker was lost", True)
    )
    assert bench.front.requests.in_room(other.key.room).failures == 1
    assert not bench.front.requests.in_room(other.key.room).acquitted


def test_who_misses_a_worker_that_tries_another_one_is_innocent(bench: Bench) -> None:
    suspect, other = two_on_the_same_workers(bench)
    bench.say(suspect.prefill, Trial(suspect.key, over=False))
    bench.say(
        other.decode, Failed(other.key, FailCode.WORKER_LOST, "the prefill worker was lost", True)
    )
    assert bench.front.requests.in_room(other.key.room).failures == 0


def test_who_is_with_a_worker_that_gives_up_for_another_one_is_innocent(bench: Bench) -> None:
    suspect, other = two_on_the_same_workers(bench)
    bench.say(suspect.decode, Trial(suspect.key, over=False))
    bench.say(suspect.decode, Failed(suspect.key, FailCode.POISON, "a step hangs", False))
    bench.say(other.decode, Failed(other.key, FailCode.WORKER_LOST, "decode gives up", True))
    assert bench.front.requests.in_room(other.key.room).failures == 0
    lose(bench, suspect.decode)
    assert not bench.front.epochs.suspects


def test_a_step_of_an_earlier_epoch_of_its_own_makes_nobody_innocent(bench: Bench) -> None:
    """It was withdrawn while it was computed alone; the worker that it ended is missed before the
    gateway has lost it."""
    first = start(bench)
    (suspect,) = tickets(lose(bench, first.prefill))
    bench.front.epochs.suspects.heard(
        suspect.prefill, Trial(Key(suspect.key.room, first.key.epoch), over=False)
    )
    bench.say(
        suspect.decode,
        Failed(suspect.key, FailCode.WORKER_LOST, "the prefill worker was lost", True),
    )
    assert bench.front.requests.in_room(suspect.key.room).failures == 2


def test_a_suspect_that_gave_way_waits_until_its_step_is_over(bench: Bench) -> None:
    first = start(bench)
    (suspect,) = tickets(lose(bench, first.prefill))
    bench.say(suspect.prefill, Trial(suspect.key, over=False))
    assert not tickets(bench.say(suspect.prefill, Withdrawn(suspect.key)))
    assert not tickets(bench.say(suspect.decode, Ended(suspect.key)))
    assert [t.key.epoch for t in tickets(bench.say(suspect.prefill, Ended(suspect.key)))] == [
        Epoch(3)
    ]


def test_a_suspect_whose_handoff_fails_waits_until_its_workers_have_said_that_they_live(
    bench: Bench,
) -> None:
    """A prefill worker that it ended is silent, and decode misses its blocks long before anybody
    misses the worker."""
    first = start(bench)
    (again,) = tickets(lose(bench, first.prefill))
    assert not tickets(
        bench.say(again.decode, Failed(again.key, FailCode.HANDOFF_FAILED, "x", True))
    )
    assert not tickets(bench.say(again.decode, Ended(again.key)))
    assert [t.key for t in tickets(bench.say(again.prefill, Ended(again.key)))] == [
        Key(again.key.room, Epoch(3))
    ]


def test_a_suspect_that_waits_is_convicted_when_its_worker_is_lost(bench: Bench) -> None:
    first = start(bench)
    (again,) = tickets(lose(bench, first.prefill))
    bench.say(again.prefill, Trial(again.key, over=False))
    bench.say(again.decode, Failed(again.key, FailCode.HANDOFF_FAILED, "x", True))
    assert [end.code for end in heard(lose(bench, again.prefill))] == [FailCode.POISON]


def test_a_suspect_that_waits_has_its_deadline(bench: Bench) -> None:
    first = start(bench)
    (again,) = tickets(lose(bench, first.prefill))
    bench.say(again.decode, Failed(again.key, FailCode.HANDOFF_FAILED, "x", True))
    bench.front.step(TimerDue(), Micros(120_000_000))
    assert len(heard(bench.did())) == 1
    assert not tickets(
        bench.say(again.prefill, Ended(again.key)) + bench.say(again.decode, Ended(again.key))
    )
