"""What each policy takes, in small tables of workers."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.core.gateway.prompt_queue import PromptQueue
from baton.core.gateway.routing_policy import ENOUGH, POLICIES, UNEVEN, UNEVEN_TIMES
from baton.core.ids import Boot, Micros
from baton.core.messages import Credits
from baton.core.prefill_cost import Backlog, PrefillCost

NOW = Micros(1_000_000)
COST = PrefillCost(100.0, 0.0)
TOKENS = 100


class Worker:
    """A candidate. Its wait is in microseconds from NOW."""

    def __init__(
        self,
        *,
        prompts: int = 0,
        tokens: int = 0,
        wait: int = 0,
        turn: int = 0,
        cached_pages: int = 0,
        cost: PrefillCost = COST,
        streams: int = 0,
    ) -> None:
        self.queue, self.turn, self.cached_pages = PromptQueue(), turn, cached_pages
        self.streams = streams
        backlog = Backlog(prompts, tokens, max(0, wait))
        said = Credits(1, Boot(2), {}, {}, waiting=0, running=0, backlog=backlog, prefill_cost=cost)
        self.queue.states(said, Micros(NOW + min(0, wait)))


def prices(
    policy: str, workers: Sequence[Worker], cached: Sequence[int] | None = None
) -> list[float]:
    none = [0] * len(workers)
    return POLICIES[policy].prices(workers, cached or none, TOKENS, NOW)


def taken(policy: str, workers: Sequence[Worker], cached: Sequence[int] | None = None) -> int:
    """The number of the worker that is taken: the first with the lowest price."""
    found = prices(policy, workers, cached)
    return found.index(min(found))


def test_round_robin_takes_the_one_whose_turn_was_longest_ago_whatever_it_has_to_do() -> None:
    workers = [Worker(turn=7), Worker(turn=3, wait=10**9, prompts=99), Worker(turn=8)]
    assert taken("round_robin", workers, [0, 0, 99]) == 1
    assert taken("round_robin", [*workers, Worker()]) == 3, "it has had none"


def test_least_load_takes_the_shortest_wait_whatever_is_cached() -> None:
    workers = [Worker(wait=500), Worker(wait=400, prompts=50), Worker(wait=900)]
    assert taken("least_load", workers, [99, 0, 99]) == 1
    assert prices("least_load", [Worker(wait=-300), Worker(wait=0)]) == [0, 0], (
        "how long it has been idle does not count"
    )


@pytest.mark.parametrize(
    ("queued", "cached", "pages", "takes"),
    [
        # a long beginning is cached: the longest
        ((3, 1, 2), (40, 0, 50), (9, 0, 9), 2),
        ((3, 1, 2), (0, 31, 0), (9, 9, 0), 1),
        # none is long enough: the smallest cache
        ((3, 1, 2), (30, 0, 10), (5, 6, 4), 2),
        ((0, 0, 0), (0, 0, 0), (2, 1, 3), 1),
        # the load is far from even: the shortest queue
        ((65, 1, 0), (90, 0, 0), (0, 1, 9), 2),
        ((UNEVEN, 1, 0), (90, 0, 0), (0, 1, 9), 0),
        ((200, 134, 134), (90, 0, 0), (0, 5, 5), 0),  # by 66 and not by half
        ((201, 133, 134), (90, 0, 0), (0, 5, 5), 1),
    ],
)
def test_cache_aware_takes_the_longest_beginning_or_the_smallest_cache_or_the_shortest_queue(
    queued: tuple[int, ...], cached: tuple[int, ...], pages: tuple[int, ...], takes: int
) -> None:
    assert (UNEVEN, UNEVEN_TIMES, ENOUGH) == (64, 1.5, 0.3)
    workers = [Worker(prompts=n, cached_pages=p) for n, p in zip(queued, pages, strict=True)]
    assert taken("cache_aware", workers, cached) == takes


def test_lmetric_multiplies_tokens_to_compute_by_requests_the_new_one_among_both() -> None:
    workers = [Worker(prompts=2, tokens=300), Worker(), Worker(prompts=1, tokens=20)]
    assert prices("lmetric", workers, [90, 0, 60]) == [310 * 3, 100 * 1, 60 * 2]


def test_mooncake_takes_the_shortest_time_to_the_first_token() -> None:
    """Wait, and the tokens that are not cached; what others pay does not count."""
    workers = [Worker(wait=5_000, prompts=9), Worker(wait=11_000), Worker(wait=-1)]
    assert prices("mooncake", workers, [50, 90, 0]) == [5_000 + 5_000, 11_000 + 1_000, 10_000]


def test_priced_counts_its_own_work_once_more_for_each_prompt_of_the_worker_and_at_least_the_mean() -> (
    None
):
    workers = [Worker(wait=5_000, prompts=5), Worker(wait=9_000, prompts=1), Worker()]
    mean = 6 / 3
    assert prices("priced", workers, [50, 90, 0]) == [
        5_000 + 5_000 * (1 + 5),
        9_000 + 1_000 * (1 + mean),
        10_000 * (1 + mean),
    ]


def test_priced_counts_its_own_work_once_more_for_each_answer_that_it_holds_up() -> None:
    workers = [Worker(wait=5_000, prompts=2, streams=3), Worker(streams=1)]
    assert prices("priced", workers, [50, 0]) == [
        5_000 + 5_000 * (1 + 2 + 3),
        10_000 * (1 + 1 + 1),
    ]


def test_under_load_priced_waits_for_a_cached_beginning_where_mooncake_does_not() -> None:
    workers = [Worker(wait=9_000, prompts=2), Worker(wait=1_000, prompts=2)]
    assert taken("mooncake", workers, [70, 0]) == 1
    assert taken("priced", workers, [70, 0]) == 0


@pytest.mark.parametrize("policy", ["mooncake", "priced"])
def test_a_worker_is_priced_by_what_a_token_and_a_pair_cost_it(policy: str) -> None:
    fast, slow = PrefillCost(10.0, 1.0), PrefillCost(50.0, 2.0)
    workers = [Worker(cost=slow), Worker(cost=fast)]
    assert prices(policy, workers, [40, 0]) == [60 * (50 + 2 * 70), 100 * (10 + 50)]
    assert prices(policy, workers, [40, 0]) == [slow.time(40, TOKENS), fast.time(0, TOKENS)]


@pytest.mark.parametrize("policy", POLICIES)
def test_workers_that_are_alike_have_one_price(policy: str) -> None:
    """So that the first is taken."""
    found = prices(policy, [Worker(wait=700, prompts=2, tokens=9) for _ in range(4)], [30] * 4)
    assert len(set(found)) == 1
    assert len(found) == 4


WORKER = st.tuples(
    *[st.integers(0, 100)] * 3, st.integers(-10_000, 100_000), st.integers(0, TOKENS - 1)
)


@settings(max_examples=60, deadline=None)
@given(st.lists(WORKER, min_size=1, max_size=5), st.sampled_from(sorted(POLICIES)))
def test_there_is_a_price_for_each_worker_and_none_gets_dearer_because_more_is_cached(
    drawn: list[tuple[int, int, int, int, int]], policy: str
) -> None:
    workers = [
        Worker(prompts=p, tokens=t, cached_pages=c, wait=w, turn=i)
        for i, (p, t, c, w, _) in enumerate(drawn)
    ]
    cached = [have for *_, have in drawn]
    found = prices(policy, workers, cached)
    assert len(found) == len(workers)
    if policy not in ("cache_aware", "round_robin"):
        assert all(price >= 0 for price in found)
        for i in range(len(workers)):
            more = [have + (n == i) * (TOKENS - 1 - have) for n, have in enumerate(cached)]
            assert prices(policy, workers, more)[i] <= found[i]


def test_it_is_known_which_policies_look_at_caches_and_which_predict() -> None:
    assert {name for name, policy in POLICIES.items() if policy.uses_caches} == {
        "cache_aware",
        "lmetric",
        "mooncake",
        "priced",
    }
    assert {name for name, policy in POLICIES.items() if policy.predicts} == {"priced"}
