"""What a worker still has to compute, from its last statement and the tickets that it had not heard
of then."""

from hypothesis import given, settings
from hypothesis import strategies as st

from baton.core.gateway.prompt_queue import PromptQueue
from baton.core.ids import Boot, Micros
from baton.core.messages import Credits
from baton.core.prefill_cost import Backlog, PrefillCost

COST, NOTHING = PrefillCost(100.0, 0.0), Backlog()


def credits(tickets: int, backlog: Backlog = NOTHING, cost: PrefillCost | None = COST) -> Credits:
    return Credits(
        1,
        Boot(2),
        {},
        {},
        waiting=0,
        running=0,
        tickets=tickets,
        backlog=backlog,
        prefill_cost=cost,
    )


def figures(queue: PromptQueue) -> tuple[int, int, int]:
    return queue.prompts, queue.tokens, queue.free_at


def stated(cost: PrefillCost = COST) -> PromptQueue:
    queue = PromptQueue()
    queue.states(credits(0, cost=cost), Micros(0))
    return queue


def test_a_ticket_counts_as_soon_as_it_goes_out_less_what_is_cached() -> None:
    queue = stated()
    queue.gives(1, 60, 100, Micros(1_000))
    assert figures(queue) == (1, 40, 5_000)
    queue.gives(2, 0, 10, Micros(2_000))
    assert figures(queue) == (2, 50, 6_000)
    queue.gives(3, 0, 10, Micros(90_000))
    assert figures(queue) == (3, 60, 91_000), "it was idle in between"


def test_attention_counts_from_where_the_cached_part_ends() -> None:
    queue = stated(PrefillCost(10.0, 2.0))
    queue.gives(1, 50, 100, Micros(0))
    assert queue.free_at == 50 * 10 + 2 * 50 * 75


def test_a_statement_replaces_what_was_thought_and_tickets_that_it_knows_of_count_in_it_alone() -> (
    None
):
    queue = stated()
    for number in (1, 2, 3):
        queue.gives(number, 0, 10 * number, Micros(0))
    assert figures(queue) == (3, 60, 6_000)
    queue.states(credits(2, Backlog(1, 7, 650)), Micros(500))
    assert figures(queue) == (2, 37, 500 + 650 + 3_000)
    queue.states(credits(3, Backlog(1, 12, 1_200)), Micros(900))
    assert figures(queue) == (1, 12, 2_100)
    queue.states(credits(3), Micros(9_000))
    assert figures(queue) == (0, 0, 9_000)


def test_a_cost_that_is_stated_holds_for_later_tickets() -> None:
    queue = stated()
    queue.gives(1, 0, 10, Micros(0))
    queue.states(credits(0, cost=PrefillCost(7.0, 0.0)), Micros(0))
    assert queue.cost == PrefillCost(7.0, 0.0)
    assert queue.free_at == 1_000, "of the ticket under way it is not known again"
    queue.gives(2, 0, 10, Micros(0))
    assert queue.free_at == 1_070


def test_until_a_worker_has_said_what_prompts_cost_it_is_told_what_they_cost_others() -> None:
    queue = PromptQueue()
    queue.states(credits(0, cost=None), Micros(0))
    assert (queue.measured, queue.cost) == (False, PrefillCost())
    queue.costs(PrefillCost(7.0, 0.5))
    assert (queue.measured, queue.token_us, queue.pair_us) == (False, 7.0, 0.5)
    queue.states(credits(0), Micros(0))
    assert (queue.measured, queue.token_us, queue.pair_us) == (True, 100.0, 0.0)
    queue.states(credits(0, cost=None), Micros(0))
    assert (queue.measured, queue.cost) == (True, COST)


STEP = st.tuples(
    st.integers(0, 5_000),  # time passes
    st.booleans(),  # a ticket, or a statement
    st.integers(0, 50),  # cached, or tickets that the statement does not know of
    st.integers(1, 50),  # tokens beyond, or backlog
)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEP, max_size=20))
def test_every_ticket_counts_once_whenever_statements_come(
    steps: list[tuple[int, bool, int, int]],
) -> None:
    queue, now, known = stated(), 0, 0
    given_, said = list[int](), NOTHING
    busy_until = 0
    for gap, is_ticket, a, b in steps:
        now += gap
        if is_ticket:
            given_.append(b)
            queue.gives(len(given_), a, a + b, Micros(now))
            busy_until = max(busy_until, now) + 100 * b
        else:
            known, said = max(known, len(given_) - a), Backlog(b, 3 * b, 70 * b)
            queue.states(credits(known, said), Micros(now))
            busy_until = now + said.us + 100 * sum(given_[known:])
        unheard = given_[known:]
        assert figures(queue) == (
            said.prompts + len(unheard),
            said.tokens + sum(unheard),
            busy_until,
        )


def test_a_worker_that_is_late_is_taken_to_need_as_long_again() -> None:
    queue = stated()
    queue.gives(1, 0, 100, Micros(0))
    assert [queue.wait_us(Micros(at)) for at in (0, 4_000, 10_000, 15_000)] == [
        *(10_000, 6_000, 0),
        5_000,
    ]
    queue.states(credits(1), Micros(15_000))
    assert queue.wait_us(Micros(99_000)) == 0, "it has nothing to do"
