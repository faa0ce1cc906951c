"""Whom a gateway gives a request: by what workers have cached and have to do, as they say and as it
has given them.

A page has 4 tokens. A token takes every worker 100 us unless a test says otherwise.
"""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from tests.core.build import KV, drawn, limits, manifest, submit
from tests.core.gateway.test_front import Bench

from baton.core.door import Cancel, RequestId
from baton.core.events import MessageReceived, PeerLost
from baton.core.gateway.known_caches import ASK_AGAIN_US
from baton.core.gateway.prompt_pages import PromptPages, page_kind
from baton.core.gateway.worker_choice import TIE
from baton.core.ids import Boot, Micros, TokenId
from baton.core.marks import Mark
from baton.core.messages import (
    AskCache,
    CacheChanged,
    Credits,
    Ended,
    FailCode,
    Failed,
    Paired,
    Recompute,
    Register,
    Ticket,
    Tokens,
    Unpaired,
)
from baton.core.prefill_cost import Backlog, PrefillCost

A, B, C = Boot(11), Boot(12), Boot(13)  # prefill
X, Y = Boot(21), Boot(22)  # decode
U, V = Boot(31), Boot(32)  # unified
COST = PrefillCost(100.0, 0.0)
T0 = Micros(0)
PROMPT = tuple(range(100))  # 24 pages and 4 tokens, which are computed in any case
WHOLE = 100 * 100  # microseconds


class Routing(Bench):
    """Workers that have room, and a gateway."""

    def __init__(
        self,
        prefill: Sequence[Boot] = (A, B),
        decode: Sequence[Boot] = (X,),
        unified: Sequence[Boot] = (),
        keeps: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.now = 0
        self.number = 0
        self.stated: dict[Boot, Credits] = {}
        self.heard: dict[Boot, int] = {}
        for boots, role in ((prefill, "prefill"), (decode, "decode"), (unified, "unified")):
            for boot in boots:
                register = Register(
                    role,
                    f"tcp://{boot}",
                    manifest(role, boot),
                    caches=keeps,
                    local_prefill=role == "decode",
                )
                self.tells(boot, register)
                self.states(boot)
        for source in prefill:
            for target in decode:
                self.tells(target, Paired(source, "shm"))

    def tells(self, sender: Boot, message: Any) -> list[Any]:
        self.front.step(MessageReceived(sender, message), Micros(self.now))
        return self.did()

    def states(self, boot: Boot, **changes: Any) -> list[Any]:
        """A worker states its capacity; what is not named is as before. It knows of all tickets."""
        worker = self.front.router.get(boot)
        before = self.stated.get(boot)
        if before is None:
            pages = {KV: 1000}
            before = Credits(0, boot, pages, pages, waiting=0, running=0, free_rooms=100)
            before = replace(before, ahead_pages=pages, prefill_cost=COST)
        fields = {"number": before.number + 1, "tickets": worker._sent} | changes
        self.stated[boot] = replace(before, **fields)
        return self.tells(boot, self.stated[boot])

    def caches(self, boot: Boot, tokens: Sequence[int], salt: str = "") -> None:
        """A worker says that it has the complete pages of a prompt but for its last token."""
        kind = page_kind(self.front.router.get(boot).register)
        pages = PromptPages(tuple(map(TokenId, tokens)), salt).chain(kind)
        self.heard[boot] = number = self.heard.get(boot, 0) + 1
        entered = b"".join(page.to_bytes(8, "little") for page in pages)
        self.tells(boot, CacheChanged(boot, number, entered, b""))

    def ask(self, tokens: Sequence[int] = PROMPT, **fields: Any) -> tuple[Boot, Boot] | None:
        """A client asks. Where the request goes; None if it waits."""
        self.number += 1
        request = replace(submit(self.number, tuple(tokens)), **fields)
        self.front.submit(request, Micros(self.now))
        return self.went()

    def went(self) -> tuple[Boot, Boot] | None:
        """Where the request has gone of which a ticket went out last."""
        tickets = [m for _, m in (d for d in self.did() if isinstance(d, tuple))]
        found = [(m.prefill, m.decode) for m in tickets if isinstance(m, Ticket)]
        assert len(set(found)) <= 1
        return found[0] if found else None

    def key(self, number: int) -> Any:
        return self.front.requests.get(RequestId(number)).key

    def queue(self, boot: Boot) -> Any:
        return self.front.router.get(boot).queue


def other(n: int, tokens: int = 100) -> tuple[int, ...]:
    """A prompt that has no page in common with any other."""
    return tuple(range(1000 * n, 1000 * n + tokens))


# ---- which worker computes a prompt --------------------------------------------------------------


@pytest.mark.parametrize("policy", ["priced", "mooncake", "lmetric", "cache_aware"])
def test_a_prompt_goes_where_its_beginning_is_cached(policy: str) -> None:
    routing = Routing((A, B, C), routing_policy=policy)
    routing.caches(A, PROMPT[:40])
    routing.caches(C, PROMPT[:80])
    assert routing.ask() == (C, X)


def test_a_beginning_under_another_salt_is_another_one() -> None:
    routing = Routing()
    routing.caches(B, PROMPT, salt="theirs")
    assert routing.ask() == (A, X)
    routing = Routing()
    routing.caches(B, PROMPT, salt="ours")
    assert routing.ask(cache_salt="ours") == (B, X)


@pytest.mark.parametrize(("wait", "takes"), [(10_285, B), (10_286, A), (11_001, A)])
def test_it_does_not_go_there_where_to_wait_costs_more_than_is_saved(
    wait: int, takes: Boot
) -> None:
    """B has 80 of 100 tokens, and one prompt to compute, so that work counts twice there. They have
    half a prompt on average, so that it counts 1.5 times at A: 15,000 us at A, 4,000 us and the wait
    at B. Prices that differ by 5 % are equal, and the first is taken."""
    routing = Routing()
    routing.caches(B, PROMPT[:81])
    routing.states(B, backlog=Backlog(1, 500, wait))
    assert routing.ask() == (takes, X)


def test_a_wait_that_has_passed_since_it_was_stated_does_not_count() -> None:
    routing = Routing()
    routing.caches(B, PROMPT[:81])
    routing.states(B, backlog=Backlog(1, 500, 20_000))
    routing.now = 9_715
    assert routing.ask() == (B, X)


def test_a_fast_worker_may_be_worth_more_than_a_cached_beginning() -> None:
    routing = Routing()
    routing.caches(A, PROMPT[:41])
    routing.states(B, prefill_cost=PrefillCost(70.0, 0.0))
    assert routing.ask() == (A, X), "6,000 and 7,000 us"
    routing.states(A, backlog=Backlog())
    routing.states(B, prefill_cost=PrefillCost(50.0, 0.1))
    assert routing.ask((*PROMPT[:40], *other(7, 60))) == (B, X), "6,000 and 5,500 us"


@pytest.mark.parametrize(("token_us", "takes"), [(100.0, B), (104.0, B), (106.0, A)])
def test_workers_whose_prices_are_nearly_equal_take_turns(token_us: float, takes: Boot) -> None:
    assert TIE == 1.05
    routing = Routing((A, B, C))
    routing.states(B, prefill_cost=PrefillCost(token_us, 0.0))
    routing.states(C, prefill_cost=PrefillCost(200.0, 0.0))
    assert routing.ask(other(1)) == (A, X)
    routing.states(A)
    assert routing.ask(other(2)) == (takes, X)
    routing.states(takes)
    assert routing.ask(other(3)) == (A, X)


def test_a_policy_that_does_not_predict_takes_the_lowest_price_however_near_others_are() -> None:
    routing = Routing(routing_policy="mooncake")
    routing.states(B, prefill_cost=PrefillCost(101.0, 0.0))
    for n in (1, 2):
        assert routing.ask(other(n)) == (A, X)
        routing.states(A)


def test_a_worker_that_has_computed_nothing_yet_is_taken_for_as_fast_as_others() -> None:
    routing = Routing((A,))
    routing.tells(B, Register("prefill", "tcp://b", manifest("prefill", B)))
    routing.tells(X, Paired(B, "shm"))
    assert routing.queue(B).cost == PrefillCost()
    routing.states(B, prefill_cost=None)
    routing.states(A, prefill_cost=PrefillCost(40.0, 0.0))
    assert routing.queue(B).cost == PrefillCost(40.0, 0.0)
    routing.states(B, prefill_cost=PrefillCost(70.0, 0.0))
    routing.states(A, prefill_cost=PrefillCost(30.0, 0.0))
    assert routing.queue(B).cost == PrefillCost(70.0, 0.0), "it has said so itself"


def test_prompts_that_are_equal_go_to_one_worker_at_once_and_different_ones_to_all() -> None:
    """The second waits 10,000 us at A and computes 4 tokens there, for 600 us: it would take B
    15,000 us."""
    routing = Routing()
    assert [routing.ask() for _ in range(4)] == [(A, X)] * 4
    assert routing.queue(A).tokens == 100 + 3 * 4, "what the first will have computed"
    assert routing.queue(A).free_at == WHOLE + 3 * 400
    routing = Routing()
    assert [routing.ask(other(n)) for n in range(4)] == [(A, X), (B, X), (A, X), (B, X)]


def test_where_workers_keep_no_pages_equal_prompts_are_shared_out() -> None:
    """Each is computed in full wherever it goes."""
    routing = Routing(keeps=False)
    assert [routing.ask() for _ in range(4)] == [(A, X), (B, X), (A, X), (B, X)]
    assert [routing.queue(boot).tokens for boot in (A, B)] == [200, 200]


def test_pages_that_will_be_computed_count_until_the_request_that_brings_them_has_ended() -> None:
    """B is the better choice but for them."""
    routing = Routing()
    assert routing.ask() == (A, X)
    routing.states(A, backlog=Backlog(0, 0, 2_000))
    assert routing.ask() == (A, X)
    routing.states(A)
    for number in (1, 2):
        for boot in (A, X):
            routing.tells(boot, Ended(routing.key(number)))
    assert routing.ask() == (B, X)


def test_what_a_gateway_counts_for_a_ticket_is_replaced_by_what_the_worker_says() -> None:
    routing = Routing((A,))
    for n in range(3):
        routing.ask(other(n))
    assert (routing.queue(A).prompts, routing.queue(A).tokens) == (3, 300)
    routing.states(A, tickets=2, backlog=Backlog(1, 30, 3_000))
    assert (routing.queue(A).prompts, routing.queue(A).tokens) == (2, 130)
    assert routing.queue(A).free_at == 3_000 + WHOLE


def test_an_older_statement_does_not_change_the_queue() -> None:
    routing = Routing((A,))
    routing.states(A, number=7, backlog=Backlog(1, 30, 3_000))
    routing.states(A, number=6, backlog=Backlog())
    assert routing.queue(A).tokens == 30


def test_a_request_that_goes_on_is_looked_for_with_what_was_generated_of_it() -> None:
    """A third page is complete with the first four tokens of the answer, and a fifth follows. Of
    the prompt alone A and B have the same, and B was given nothing yet."""
    routing, prompt = Routing(), tuple(range(8))
    assert routing.ask(prompt, limits=limits(9)) == (A, X)
    said = tuple(drawn(500 + n) for n in range(5))
    routing.tells(X, Tokens(routing.key(1), 0, said, None))
    routing.caches(A, (*prompt, 500, 501, 502, 503, 0))
    routing.states(A)
    routing.caches(B, (*prompt, 0))
    routing.front.step(MessageReceived(X, Recompute(routing.key(1))), T0)
    assert routing.went() == (A, X)


# ---- which workers are left out ------------------------------------------------------------------

OUT = {
    "no pages, and others wait": {"free_pages": {KV: 0}, "waiting": 2},
    "its queue is full": {"free_queue": 0},
    "too small": {"total_pages": {KV: 25}, "free_pages": {KV: 25}},
    "it drains": {"draining": True},
}


@pytest.mark.parametrize("why", OUT)
def test_where_the_best_has_no_room_the_next_best_is_taken(why: str) -> None:
    routing = Routing((A, B, C))
    routing.caches(B, PROMPT)
    routing.caches(C, PROMPT[:40])
    routing.states(B, **OUT[why])
    assert routing.ask() == (C, X)


def test_a_worker_that_is_no_pair_any_more_is_not_taken() -> None:
    routing = Routing()
    routing.caches(B, PROMPT)
    routing.tells(X, Unpaired(B, "gone"))
    assert routing.ask() == (A, X)
    routing.tells(X, Paired(B, "shm"))
    assert routing.ask(PROMPT[:90]) == (B, X)


def test_where_the_partner_of_the_best_is_full_the_next_best_with_a_free_one_is_taken() -> None:
    routing = Routing((A, B), ())
    for source, target in ((A, X), (B, Y)):
        routing.tells(target, Register("d", "tcp://d", manifest("decode", target)))
        routing.states(target)
        routing.tells(target, Paired(source, "shm"))
    routing.caches(B, PROMPT)
    routing.states(Y, free_rooms=0)
    assert routing.ask() == (A, X)
    routing.states(Y, free_rooms=1)
    assert routing.ask() == (B, Y)


def test_where_all_partners_are_full_the_best_computes_ahead() -> None:
    routing = Routing()
    routing.caches(B, PROMPT)
    routing.states(X, free_rooms=0)
    assert routing.ask() == (B, X)


def test_where_nobody_has_room_a_request_waits_and_is_given_to_the_best_that_has_it_first() -> None:
    routing = Routing()
    routing.caches(B, PROMPT)
    for boot in (A, B):
        routing.states(boot, **OUT["its queue is full"])
    assert routing.ask() is None
    routing.front.step(MessageReceived(A, replace(routing.stated[A], number=9, free_queue=1)), T0)
    assert routing.went() == (A, X)


def test_what_no_pair_could_hold_goes_to_the_one_with_the_fewest_rooms() -> None:
    routing = Routing()
    routing.caches(A, PROMPT)
    for boot in (A, B):
        routing.states(boot, **OUT["too small"])
    routing.states(A, running=1)
    assert routing.ask() == (B, X), "it says why it cannot be"


# ---- which worker generates ----------------------------------------------------------------------


@pytest.mark.parametrize(("more", "takes"), [(0, Y), (1, X)])
def test_the_partner_that_has_the_conversation_is_taken_if_it_is_not_more_loaded(
    more: int, takes: Boot
) -> None:
    """Rooms of a worker that is stuck stay open, so they come first."""
    routing = Routing((A,), (X, Y))
    routing.caches(Y, PROMPT)
    routing.states(X, running=5)
    routing.states(Y, running=5 + more)
    assert routing.ask(limits=limits(4)) == (A, takes)


def test_what_prefill_has_cached_itself_is_not_saved_again() -> None:
    """16 tokens more save 1,600 us, and one answer more costs 4,000."""
    routing = Routing((A,), (X, Y))
    routing.caches(A, PROMPT[:81])
    routing.caches(Y, PROMPT)
    assert routing.ask(limits=limits(4)) == (A, Y)
    assert routing.ask((*PROMPT[:80], *other(3, 30)), limits=limits(4)) == (A, X)


def test_of_partners_that_cost_the_same_the_one_that_has_more_is_taken() -> None:
    """What it has is not transferred to it."""
    routing = Routing((A,), (X, Y))
    routing.caches(A, PROMPT)
    routing.caches(Y, PROMPT[:41])
    assert routing.ask() == (A, Y)


def test_partners_that_are_alike_take_turns() -> None:
    routing = Routing((A,), (X, Y))
    assert routing.ask(other(1)) == (A, X)
    key = routing.key(1)
    routing.front.step(Cancel(RequestId(1), "enough"), T0)
    for boot in (A, X):
        routing.tells(boot, Ended(key))
        routing.states(boot)
    assert routing.ask(other(2)) == (A, Y)


def test_a_conversation_does_not_outweigh_answers_that_were_seen_to_be_slow() -> None:
    """A token every 100 ms, with one answer under way: 4 tokens cost the others 400 ms."""
    routing = Routing((A,), (X, Y))
    routing.caches(Y, PROMPT)
    routing.states(Y, running=1)
    assert routing.ask(limits=limits(200)) == (A, X), "200 tokens would slow it for too long"
    for n in range(40):
        routing.now = 100_000 * n
        routing.tells(X, Tokens(routing.key(1), n, (drawn(n),), None))
    key = routing.key(1)
    routing.front.step(Cancel(RequestId(1), "enough"), Micros(routing.now))
    for boot in (A, X):
        routing.tells(boot, Ended(key))
    routing.states(A)
    for boot, running in ((X, 0), (Y, 1)):
        routing.states(boot, running=running)
    assert routing.ask(limits=limits(4)) == (A, X)


@pytest.mark.parametrize("policy", ["round_robin", "least_load", "cache_aware", "mooncake"])
def test_policies_that_do_not_predict_take_the_partner_with_the_fewest_rooms(policy: str) -> None:
    routing = Routing((A,), (X, Y), routing_policy=policy)
    routing.caches(X, PROMPT)
    routing.states(X, running=1)
    assert routing.ask() == (A, Y)


# ---- unified workers, and policies without caches ------------------------------------------------


def test_a_unified_worker_that_has_the_beginning_is_taken_and_one_without_room_is_not() -> None:
    routing = Routing((), (), (U, V))
    routing.caches(V, PROMPT)
    assert routing.ask() == (V, V)
    routing.states(V, free_rooms=0, waiting=2)
    assert routing.ask() == (U, U)


@pytest.mark.parametrize(("prefill", "unified"), [((A, B, C), ()), ((), (U, V)), ((A,), (U, V))])
def test_round_robin_takes_one_after_the_other_whatever_is_cached(
    prefill: tuple[Boot, ...], unified: tuple[Boot, ...]
) -> None:
    routing = Routing(prefill, (X,), unified, routing_policy="round_robin")
    for boot in (*prefill, *unified):
        routing.caches(boot, PROMPT)
    went = [routing.ask(PROMPT) for _ in range(2 * len(prefill + unified))]
    turns = [*((boot, boot) for boot in unified), *((boot, X) for boot in prefill)]
    assert went == turns * 2


def test_least_load_takes_whoever_is_free_first() -> None:
    routing = Routing((A, B, C), routing_policy="least_load")
    routing.caches(A, PROMPT)
    for boot, us in ((A, 9_000), (B, 7_000), (C, 8_000)):
        routing.states(boot, backlog=Backlog(1, 10, us))
    assert [routing.ask() for _ in range(2)] == [(B, X), (C, X)]


@pytest.mark.parametrize("policy", ["round_robin", "least_load"])
def test_a_policy_that_does_not_look_at_caches_keeps_no_pages_of_requests(policy: str) -> None:
    routing = Routing(routing_policy=policy)
    routing.caches(A, PROMPT)
    assert routing.ask() == (A, X)
    assert routing.queue(A).tokens == 100
    assert len(routing.front.router.caches._coming) == 0


# ---- news of caches ------------------------------------------------------------------------------


def asked(done: list[Any]) -> list[Boot]:
    return [d[0] for d in done if isinstance(d, tuple) and isinstance(d[1], AskCache)]


def test_a_worker_is_asked_for_all_that_it_has_where_news_was_lost() -> None:
    routing = Routing()
    page = bytes(8)
    assert asked(routing.tells(B, CacheChanged(B, 1, page, b""))) == []
    assert asked(routing.tells(B, CacheChanged(B, 3, page, b""))) == [B]
    assert asked(routing.tells(B, CacheChanged(B, 4, page, b""))) == []
    assert asked(routing.states(A, cache_changes=1)) == [A], "of another worker credits say so"
    assert routing.front.marks[Mark.CACHE_NEWS_LOST] == 2
    routing.now += ASK_AGAIN_US
    assert asked(routing.states(B, cache_changes=5)) == [B]
    assert asked(routing.tells(B, CacheChanged(B, 6, page, b"", afresh=True))) == []
    assert asked(routing.states(B, cache_changes=6)) == []
    assert routing.front.router.get(B).cached_pages == 1


def test_news_of_somebody_who_has_not_registered_or_of_another_changes_nothing() -> None:
    routing = Routing()
    assert routing.tells(C, CacheChanged(C, 3, bytes(8), b"")) == []
    assert routing.tells(A, CacheChanged(B, 3, bytes(8), b"")) == []
    assert len(routing.front.router.caches) == 0


def test_of_a_worker_that_is_gone_nothing_is_known_and_its_successor_begins_with_nothing() -> None:
    routing = Routing()
    routing.caches(B, PROMPT)
    routing.ask()
    routing.front.step(PeerLost(B, "dead"), T0)
    routing.did()
    known = routing.front.router.caches
    assert (len(known), len(known._coming)) == (0, 24), "what was given again"
    routing.tells(C, Register("prefill", "tcp://c", manifest("prefill", C)))
    routing.tells(X, Paired(C, "shm"))
    assert routing.front.router.get(C).cached_pages == 0
    place = known.places([C])
    assert known.positions(place, 1, PromptPages(PROMPT, ""), coming=True) == [0]


def test_who_does_not_end_what_it_was_asked_to_end_comes_last() -> None:
    """Its own books show nothing any more, as the room is to end: it looks idle, with the prompt in
    its cache."""
    routing = Routing()
    routing.caches(A, PROMPT)
    routing.states(B, backlog=Backlog(3, 900, 90_000))
    assert routing.ask() == (A, X)
    (request,) = routing.front.requests
    gone = Failed(request.key, FailCode.HANDOFF_FAILED, "no progress", retry=True)
    routing.tells(X, gone)
    routing.tells(X, Ended(request.key))
    routing.states(A)
    for later_us, takes in ((400_000, A), (600_000, B)):
        routing.now = later_us
        routing.states(B, backlog=Backlog(3, 900, 90_000))
        assert routing.ask() == (takes, X)
