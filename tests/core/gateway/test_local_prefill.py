"""When a decode worker computes a prompt itself: where that costs all requests less.

A page has 4 tokens. A token takes every worker 100 us.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.core.build import manifest
from tests.core.gateway.test_routing import COST, PROMPT, WHOLE, A, Routing, X, Y, other

from baton.core.ids import Boot, GroupName
from baton.core.memory.state import Group, Unit, Window
from baton.core.messages import Register, Unpaired
from baton.core.prefill_cost import Backlog

BOTH = {(A, X), (X, X)}


def service(**changes: Any) -> Routing:
    """A prefill and a decode worker."""
    return Routing((A,), (X,), **({"local_prefill": True} | changes))


def test_without_leave_no_decode_worker_computes_a_prompt() -> None:
    routing = service(local_prefill=False)
    routing.caches(X, PROMPT)
    assert routing.ask() == (A, X)
    assert routing.front.usable_pairs() == [(A, X)]


def test_it_computes_what_it_has_most_of() -> None:
    """The last answer of a conversation is in its cache alone."""
    routing = service()
    routing.caches(A, PROMPT[:40])
    routing.caches(X, PROMPT[:80])
    assert routing.ask() == (X, X)


def test_its_streams_count_as_much_as_the_request() -> None:
    """With half of the prompt cached it would compute for half as long: that is less than the whole
    prompt elsewhere while one stream at most stands still for it."""
    for streams, due in ((0, (X, X)), (1, None), (2, (A, X))):
        routing = service()
        routing.caches(X, PROMPT[:52])  # 13 pages
        routing.states(X, running=streams)
        found = routing.ask()
        assert found == due if due else found in BOTH, f"{streams} streams"


@given(
    wait=st.integers(0, 20 * WHOLE),
    streams=st.integers(0, 12),
    pages=st.integers(0, 24),
)
def test_the_lower_sum_of_delays_is_taken(wait: int, streams: int, pages: int) -> None:
    """An oracle in integers: prefill has one prompt, of `wait`."""
    routing = service()
    if pages:
        routing.caches(X, PROMPT[: 4 * pages + 1])
    prompts = int(wait > 0)
    routing.states(A, backlog=Backlog(prompts, 1, wait) if wait else Backlog())
    routing.states(X, running=streams)
    # twice the price, as the two workers have half a prompt on average
    there = 2 * wait + WHOLE * (2 + 2 * prompts)
    here = (WHOLE - 400 * pages) * (2 + prompts + 2 * streams)
    found = routing.ask()
    if there > 1.06 * here:
        assert found == (X, X)
    elif here > 1.06 * there:
        assert found == (A, X)
    else:
        assert found in BOTH


def test_it_serves_while_there_is_no_prefill_worker() -> None:
    routing = service()
    routing.tells(X, Unpaired(A, "gone"))
    assert routing.ask() == (X, X)
    routing = service(local_prefill=False)
    routing.tells(X, Unpaired(A, "gone"))
    assert routing.ask() is None


def test_a_decode_worker_that_does_not_say_so_computes_no_prompt() -> None:
    """One of protocol 1, a guest, or one whose pools hold no chunk of a prompt."""
    routing = service()
    routing.tells(Y, Register("decode", "tcp://y", manifest("decode", Y)))
    assert routing.front.usable_pairs() == [(X, X), (A, X)]


def test_a_decode_worker_of_a_model_with_a_window_computes_prompts_if_it_says_so() -> None:
    routing = Routing((), (), local_prefill=True)
    made = manifest("decode", Y)
    groups = (*made.table.groups, Group(GroupName("window"), Unit.PAGE, Window(20)))
    windowed = replace(made, table=replace(made.table, groups=groups))
    routing.tells(Y, Register("decode", "tcp://y", windowed, local_prefill=True))
    assert routing.front.usable_pairs() == [(Y, Y)]


def test_a_worker_that_drains_computes_no_prompt() -> None:
    routing = service()
    routing.states(X, draining=True)
    assert routing.ask() is None


def test_its_own_prompts_make_it_wait() -> None:
    """What it was given counts at once, before it says so."""
    routing = service()
    went = [routing.ask(other(n)) for n in range(1, 9)]
    assert {went.count((A, X)), went.count((X, X))} != {0, 8}, "both compute"
    assert routing.queue(A).tokens + routing.queue(X).tokens == 8 * len(PROMPT)


@pytest.mark.parametrize("policy", ["priced", "mooncake"])
def test_unified_workers_with_answers_to_generate_are_dearer_only_where_streams_count(
    policy: str,
) -> None:
    u, v = Boot(31), Boot(32)
    routing = Routing((), (), (u, v), routing_policy=policy)
    for boot, running in ((u, 3), (v, 0)):
        routing.states(boot, running=running, prefill_cost=COST)
    found = {routing.front.router.get(boot).streams for boot in (u, v)}
    assert found == {3, 0}
    assert routing.ask() == ((v, v) if policy == "priced" else (u, u))
