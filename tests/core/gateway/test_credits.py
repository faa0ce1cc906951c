"""Admission by credits: what is sent to workers, what waits at the edge, and how long anything
waits in the middle."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.core.build import KV, drawn, limits, submit
from tests.core.gateway.test_front import GATEWAY, T0, Bench, D, P, heard
from tests.core.world import World, expected

from baton.core.door import Cancel, Fail, Finish, RequestId
from baton.core.errors import Overloaded
from baton.core.events import MessageReceived, TimerDue
from baton.core.ids import Boot, Key, Micros
from baton.core.messages import (
    Admitted,
    Credits,
    Ended,
    FailCode,
    Failed,
    FirstToken,
    Offer,
    Recompute,
    Ticket,
    Tokens,
    Withdrawn,
)


def credits(number: int = 1, free: int = 16, **more: Any) -> Credits:
    """Pages of 4 tokens, of 16."""
    fields = {
        "waiting": 0,
        "running": 0,
        "free_rooms": 8,
        "tickets": 0,
        "ahead_pages": {KV: 8},
    } | more
    return Credits(number, P, {KV: free}, {KV: 16}, **fields)


class Edge(Bench):
    """A front with a pair that states its credits."""

    def __init__(self, **settings: int) -> None:
        super().__init__(**settings)
        self.pair()
        self.now = 0

    def ask(self, number: int, tokens: int = 7, **fields: Any) -> list[int]:
        """A request of two pages, three in decode with 8 tokens; the numbers of those that begin
        now."""
        request = submit(number, tuple(range(tokens)))
        self.front.submit(replace(request, **fields), Micros(self.now))
        return self.begun()

    def begun(self) -> list[int]:
        self.done = self.did()
        tickets = [
            m for _, m in (d for d in self.done if isinstance(d, tuple)) if isinstance(m, Ticket)
        ]
        return [int(t.key.room, 16) for t in tickets if t.prefill == P][::2]

    def hear(self, sender: Boot, message: Any) -> list[int]:
        """Whoever states its credits states its own."""
        own = replace(message, worker=sender) if isinstance(message, Credits) else message
        self.front.step(MessageReceived(sender, own), Micros(self.now))
        return self.begun()

    def both(self, free_p: int, free_d: int) -> None:
        self.hear(P, credits(free=free_p))
        self.hear(D, credits(free=free_d))

    def key(self, number: int) -> Key:
        return self.front.requests.get(RequestId(number)).key


def waiting(edge: Edge, now: int = 0) -> tuple[int, int, dict[str, int]]:
    """Length, age of the oldest in ms, refusals."""
    view = edge.front.queue(Micros(now))
    return view.length, view.oldest_ms, view.refused


def test_what_fits_is_sent_and_the_rest_waits_at_the_edge_in_order():
    edge = Edge()
    edge.both(free_p=6, free_d=16)
    assert [edge.ask(n) for n in range(1, 7)] == [[1], [2], [3], [], [], []]
    assert waiting(edge, 5_000) == (3, 5, {})
    assert edge.hear(P, credits(2, free=0, tickets=3)) == [4, 5], (
        "two may wait at the worker, so that it does not idle"
    )
    assert edge.hear(P, credits(3, free=0, waiting=2, tickets=5)) == []
    assert edge.hear(P, credits(4, free=2, waiting=0, tickets=5)) == [6]


def test_how_long_they_waited_is_counted_once_they_have_their_turn():
    edge = Edge()
    edge.hear(P, credits(free=0, waiting=2))
    edge.ask(1)
    edge.ask(2)
    edge.now = 3_000
    assert edge.hear(P, credits(2, free=0, waiting=1)) == [1]
    view = edge.front.queue(Micros(3_000)).waited
    assert (sum(view.counts), view.total_us) == (1, 3_000)


def test_tickets_under_way_count_as_if_the_worker_had_them():
    edge = Edge()
    edge.both(free_p=8, free_d=16)
    assert [edge.ask(n) for n in (1, 2)] == [[1], [2]]
    edge.hear(P, credits(2, free=6, tickets=1))  # said before the second came
    assert [edge.ask(n) for n in (3, 4, 5)] == [[3], [4], []]


def test_an_older_statement_changes_nothing():
    edge = Edge()
    edge.hear(P, credits(5, free=0, waiting=2))
    assert edge.ask(1) == []
    assert edge.hear(P, credits(4, free=16)) == []
    assert edge.hear(P, credits(6, free=16)) == [1]


def test_when_decode_is_full_prefill_runs_ahead_up_to_the_share_that_it_states():
    edge = Edge()
    edge.hear(P, credits(ahead_pages={KV: 5}))
    edge.hear(D, credits(free=0))
    assert [edge.ask(n) for n in (1, 2, 3, 4)] == [[1], [2], [], []]
    assert edge.hear(D, Admitted(edge.key(1))) == [3], "what is admitted is not ahead any more"
    assert edge.hear(D, Ended(edge.key(2))) == [4], "nor what has ended"


def test_one_prompt_may_run_ahead_whatever_its_size():
    edge = Edge()
    edge.hear(P, credits(ahead_pages={KV: 1}))
    edge.hear(D, credits(free=0))
    assert [edge.ask(n) for n in (1, 2)] == [[1], []]


def test_decode_has_as_many_rooms_as_it_states():
    edge = Edge()
    edge.hear(P, credits(ahead_pages={KV: 0}))
    edge.hear(D, credits(free_rooms=2))
    assert [edge.ask(n) for n in (1, 2, 3)] == [[1], [2], []]
    assert edge.hear(D, Admitted(edge.key(1))) == [], "no statement knows of it yet"
    assert edge.hear(D, credits(2, free_rooms=2, tickets=2)) == [3]


def test_admitted_pages_count_until_the_next_statement():
    edge = Edge()
    edge.hear(P, credits(ahead_pages={KV: 0}))
    edge.hear(D, credits(free=4))
    assert [edge.ask(n) for n in (1, 2, 3)] == [[1], [2], []]
    edge.hear(D, Admitted(edge.key(1)))
    assert edge.begun() == []
    assert edge.hear(D, credits(2, free=4, tickets=2)) == [3]


def test_of_two_decode_workers_the_one_with_room_is_chosen():
    edge, other = Edge(), Boot(4)
    edge.pair(P, other)
    edge.hear(D, credits(free=1))
    edge.hear(other, credits(free=16))
    for n in range(1, 5):
        edge.ask(n)
    assert {r.pair for r in edge.front.requests} == {(P, other)}


def test_what_no_pair_could_ever_hold_is_not_kept_waiting():
    edge = Edge()
    edge.both(free_p=0, free_d=0)
    assert edge.ask(1, tokens=100) == [1], "the worker says why it cannot be"


def test_a_worker_that_has_refused_as_its_queue_is_full_is_given_nothing_before_it_says_that_there_is_room():
    edge = Edge()
    edge.both(free_p=16, free_d=16)
    assert edge.ask(1) == [1]
    refused = edge.key(1)
    assert (
        edge.hear(D, Failed(refused, FailCode.OVERLOADED, "64 requests wait already", True)) == []
    )
    for side in (P, D):
        assert edge.hear(side, Ended(refused)) == []
    assert not heard(edge.done), "it waits at the gateway"
    assert edge.hear(D, credits(2)) == [1]


def test_who_cancels_at_the_head_lets_the_next_one_go():
    edge = Edge()
    edge.hear(P, credits(free=1, waiting=2))
    assert [edge.ask(1, tokens=30), edge.ask(2, tokens=3)] == [[], []]
    edge.hear(P, credits(2, free=2))
    edge.front.step(Cancel(RequestId(1), "gone"), T0)
    edge.begun()
    assert edge.front.queue(T0).length == 0


def test_what_workers_had_already_goes_before_what_is_new():
    edge = Edge()
    assert edge.ask(1) == [1]
    edge.hear(D, Tokens(edge.key(1), 0, (drawn(7), drawn(8)), None))
    edge.both(free_p=0, free_d=0)
    edge.hear(P, credits(2, free=0, waiting=2))
    edge.ask(2, priority=-9)
    edge.hear(D, Recompute(edge.key(1)))
    assert edge.hear(P, credits(3, free=2)) == [1]
    assert edge.front.requests.get(RequestId(1)).epoch == 2


# ---- refused at once, and waited in vain ---------------------------------------------------------


def test_the_queue_is_bounded():
    edge = Edge(max_queued=2)
    edge.hear(P, credits(free=0, waiting=2))
    edge.ask(1)
    edge.ask(2)
    with pytest.raises(Overloaded, match=r"2 requests wait already \(--max-queued-requests\)"):
        edge.ask(3)
    assert waiting(edge) == (2, 0, {"full": 1})
    assert edge.front.open_requests == 2


def test_who_would_wait_too_long_is_refused_at_once_and_told_when_to_come_again():
    """Five leave, one a second, of which none is admitted; of 30 seconds of patience a quarter is
    taken on."""
    edge = Edge(queue_ms=30_000)
    edge.hear(P, credits(free=0, waiting=2))
    for n in range(1, 11):
        edge.ask(n)
    for n in range(1, 6):
        edge.now = n * 1_000_000
        assert edge.hear(P, credits(2 * n, free=0, waiting=1, tickets=n - 1)) == [n]
        edge.hear(P, credits(2 * n + 1, free=0, waiting=2, tickets=n))
    with pytest.raises(Overloaded, match="would come in 11000 ms") as raised:
        edge.ask(11)
    assert raised.value.retry_after_s == 4
    edge.ask(12, priority=-1)  # its turn comes sooner
    assert edge.front.queue(T0).refused == {"slow": 1}


def test_waiting_at_the_edge_ends_with_the_limit_and_the_remedy():
    edge = Edge(queue_ms=3_000)
    edge.hear(P, credits(free=0, waiting=2))
    edge.ask(1)
    edge.ask(2, limits=limits(deadline_ms=2_000))
    assert edge.front.next_wake() == 1_000_000
    edge.front.step(TimerDue(), Micros(1_000_000))
    assert [h.request for h in heard(edge.did())] == [2], "of its own time a request waits half"
    edge.front.step(TimerDue(), Micros(3_000_000))
    (fail,) = heard(edge.did())
    assert (fail.code, fail.request) == (FailCode.QUEUE_TIMEOUT, 1)
    assert "waited 3000 ms" in fail.detail
    assert "--queue-timeout" in fail.detail
    assert waiting(edge) == (0, 0, {"timeout": 2})
    assert edge.front.open_requests == 0


def test_a_ticket_says_how_long_it_may_wait_and_later_ones_only_what_is_left():
    edge = Edge(queue_ms=3_000)
    edge.ask(1)
    assert {m.admit_ms for _, m in edge.done} == {3_000}
    edge.now = 1_000_000
    edge.hear(P, Withdrawn(edge.key(1)))
    assert {m.admit_ms for _, m in edge.done if isinstance(m, Ticket)} == {2_000}
    edge.hear(D, Admitted(edge.key(1)))
    edge.hear(D, Failed(edge.key(1), FailCode.HANDOFF_FAILED, "x", True))
    assert {m.admit_ms for _, m in edge.done if isinstance(m, Ticket)} == {3_000}, (
        "it had been admitted"
    )
    edge.hear(D, Tokens(edge.key(1), 0, (drawn(7),), None))
    gave_way = edge.key(1)
    edge.hear(D, Recompute(gave_way))
    edge.hear(D, Ended(gave_way))
    # a handoff of it failed before: it begins again when both sides are done with it
    edge.hear(P, Ended(gave_way))
    assert {m.admit_ms for _, m in edge.done if isinstance(m, Ticket)} == {59_000}, (
        "what has begun has its deadline alone"
    )


def test_a_refusal_that_crosses_admitted_is_tried_again_and_not_shown():
    edge = Edge()
    edge.ask(1)
    late = Failed(edge.key(1), FailCode.QUEUE_TIMEOUT, "not admitted", False)
    edge.hear(P, FirstToken(edge.key(1), 0, drawn(7), None))
    edge.hear(D, Admitted(edge.key(1)))
    assert edge.hear(P, late) == [1]
    assert not heard(edge.done)


def test_the_gateway_ends_what_its_workers_keep_waiting_too_long():
    edge = Edge(queue_ms=3_000, grace_ms=500)
    edge.ask(1)
    edge.front.step(TimerDue(), Micros(3_499_999))
    assert not heard(edge.did())
    edge.front.step(TimerDue(), Micros(3_500_000))
    assert [h.code for h in heard(edge.did())] == [FailCode.QUEUE_TIMEOUT]


def test_who_tries_a_pair_out_goes_to_that_pair_past_the_queue():
    edge, other = Edge(max_queued=1), Boot(4)
    edge.pair(P, other)
    for boot in (P, D, other):
        edge.hear(boot, credits(free=0, waiting=2))
    edge.ask(1)
    for n, pair in ((2, (P, other)), (3, (P, D)), (4, (P, other))):
        assert edge.ask(n, pair=pair) == [n]
        assert {to for to, _ in edge.done} == set(pair)
    assert edge.front.queue(T0).length == 1
    edge.hear(other, Failed(edge.key(2), FailCode.HANDOFF_FAILED, "torn", True))
    assert edge.begun() == []
    assert edge.front.requests.get(RequestId(2)).pair == (P, other), "and tries that one again"


def test_who_tries_a_pair_that_is_none_hears_so():
    edge = Edge()
    assert edge.ask(1, pair=(P, Boot(9))) == []
    assert [h.code for h in heard(edge.done)] == [FailCode.WORKER_LOST]
    assert edge.front.open_requests == 0


# ---- with real leaders ---------------------------------------------------------------------------


def flood(world: World, count: int, tokens: int = 9) -> list[tuple[int, ...]]:
    prompts = [tuple((7 * i + n) % 500 for i in range(tokens)) for n in range(count)]
    for n, prompt in enumerate(prompts, 1):
        world.submit(submit(n, prompt))
    return prompts


@pytest.mark.parametrize("role", ["split", "unified"])
def test_a_flood_over_tiny_pools_is_served_in_order_and_leaves_nothing(role):
    """Three pages hold a prompt, four with its answer: two or three at a time."""
    world = World()
    for n, kind in enumerate(["prefill", "decode"] if role == "split" else ["unified"], 2):
        world.add(kind, n, pages=9)
    world.run()
    world.advance(20)
    prompts = flood(world, 12)
    assert world.front.queue(world.now).length >= 7
    world.advance(2_000)
    assert [world.tokens(n) for n in range(1, 13)] == [expected(p, 4) for p in prompts]
    assert all(isinstance(world.end(n), Finish) for n in range(1, 13))
    assert world.clean
    assert world.front.open_requests == 0
    assert world.front.queue(world.now).length == 0


def test_workers_hold_no_queue_of_their_own():
    world = World()
    world.add("prefill", 2, pages=9)
    world.add("decode", 3, pages=9)
    world.run()
    world.advance(20)
    world.hold = lambda source, target, message: isinstance(message, Offer)  # nothing gets on
    flood(world, 12)
    world.advance(500)
    assert sum(len(n.leader.worker.rooms) for n in world.nodes.values()) <= 2 * 5, (
        "three begun, two ahead, on both sides"
    )
    assert world.front.queue(world.now).length >= 7


def middle(**limits: float) -> World:
    """Decode hears of no offer, so that it admits nothing."""
    world = World(queue_ms=3_000)
    world.add("prefill", 2, pages=16, **limits)
    world.add("decode", 3, pages=16)
    world.run()
    world.hold = lambda source, target, message: isinstance(message, Offer)
    return world


def test_prefill_computes_ahead_of_admission_up_to_its_share():
    world = middle(ahead=0.5)
    flood(world, 6)
    world.advance(100)
    leader = world.nodes[Boot(2)].leader
    assert 16 - leader.worker.ledger.free()[KV] == 6, (
        "two prompts of three pages; a third would be more than half of 16"
    )
    world.release()
    world.advance(500)
    assert all(isinstance(world.end(n), Finish) for n in range(1, 7))
    assert world.clean


def test_what_waits_in_the_middle_holds_memory_until_its_patience_is_over_and_no_longer():
    """Neither side hears of the other; the gateway is not needed to end it."""
    world = middle()
    flood(world, 2)
    world.advance(2_900)
    assert not world.clean
    world.advance(200)
    assert world.clean
    for n in (1, 2):
        end = world.end(n)
        assert isinstance(end, Fail)
        assert end.code is FailCode.QUEUE_TIMEOUT
    assert [m.code for s, _, m in world.log if s == 2 and isinstance(m, Failed)] == [
        FailCode.QUEUE_TIMEOUT
    ] * 2


def test_credits_say_how_many_tickets_they_know_of_and_what_may_run():
    world = middle(ahead=0.25, max_rooms=5)
    flood(world, 2)
    world.advance(100)
    stated = [m for s, t, m in world.log if isinstance(m, Credits) and (s, t) == (2, GATEWAY)][-1]
    assert (stated.tickets, stated.ahead_pages, stated.free_rooms) == (2, {KV: 4}, 4)
    assert (stated.waiting, stated.running) == (1, 1), "one prompt may run ahead, whatever its size"


def test_a_worker_that_drains_gets_nothing_more_and_what_it_has_goes_on():
    edge = Edge()
    edge.both(free_p=16, free_d=16)
    assert edge.ask(1) == [1]
    assert edge.hear(D, credits(2, draining=True, tickets=1)) == []
    assert edge.front.usable_pairs() == []
    assert edge.ask(2) == [], "it waits for other workers"
    assert edge.key(1).epoch == 1, "the request that it has is not moved"
    assert edge.hear(D, credits(3, tickets=1)) == [2], "another worker, or this one as it was"
