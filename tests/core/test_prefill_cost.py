"""How long prompts take a worker, fitted to the steps that it has run."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from baton.core.ids import Micros
from baton.core.prefill_cost import Backlog, MeasuredPrefill, PrefillCost

PRIOR = PrefillCost()


def test_before_anything_is_measured_it_is_two_thousand_tokens_a_second() -> None:
    assert MeasuredPrefill().cost == PRIOR == PrefillCost(500.0, 0.0)


@pytest.mark.parametrize(("start", "end"), [(0, 1), (0, 7), (3, 7), (5, 5), (100, 1000)])
def test_the_time_of_a_part_is_that_of_its_tokens_and_of_all_positions_up_to_each(
    start: int, end: int
) -> None:
    pairs = sum(position + 0.5 for position in range(start, end))
    assert PrefillCost(3.0, 0.25).time(start, end) == 3.0 * (end - start) + 0.25 * pairs


@given(st.tuples(*[st.integers(0, 4000)] * 3).map(sorted))
def test_two_parts_take_as_long_as_the_whole(at: list[int]) -> None:
    cost, (start, middle, end) = PrefillCost(120.0, 0.015), at
    parts = cost.time(start, middle) + cost.time(middle, end)
    assert parts == pytest.approx(cost.time(start, end))


def test_backlogs_add_up() -> None:
    assert Backlog(1, 20, 300) + Backlog(4, 50, 600) == Backlog(5, 70, 900)


def steps(cost: PrefillCost, chunks: list[tuple[int, int]]) -> list[tuple[int, float, float]]:
    """The steps that compute these [start, end) of prompts: tokens, pairs, microseconds."""
    return [
        (end - start, (end - start) * (start + end) / 2, cost.time(start, end))
        for start, end in chunks
    ]


CHUNKS = [(0, 512), (512, 1024), (1024, 1536), (1536, 2048), (0, 100), (4000, 4096)]


@settings(max_examples=30, deadline=None)
@given(st.floats(20, 2000), st.floats(0, 0.5))
def test_both_costs_are_found_in_steps_without_noise(token_us: float, pair_us: float) -> None:
    true, measured = PrefillCost(token_us, pair_us), MeasuredPrefill()
    for _ in range(400):
        for step in steps(true, CHUNKS):
            measured.saw(*step)
    assert measured.cost.token_us == pytest.approx(token_us, rel=0.05)
    assert measured.cost.time(0, 4096) == pytest.approx(true.time(0, 4096), rel=0.02)
    assert measured.cost.time(3000, 4096) == pytest.approx(true.time(3000, 4096), rel=0.03)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 8192), st.integers(0, 30_000), st.integers(1, 5_000_000)),
        min_size=1,
        max_size=30,
    )
)
def test_whatever_is_measured_no_cost_is_negative(seen: list[tuple[int, int, int]]) -> None:
    measured = MeasuredPrefill()
    for tokens, before, us in seen:
        measured.saw(tokens, tokens * (before + tokens / 2), us)
        assert measured.cost.token_us > 0
        assert measured.cost.pair_us >= 0


def test_where_all_steps_are_alike_tokens_alone_account_for_the_time() -> None:
    measured = MeasuredPrefill()
    for _ in range(2000):
        measured.saw(256, 256 * 128, 64_000)
    assert measured.cost == PrefillCost(pytest.approx(250, rel=0.01), 0.0)


@pytest.mark.parametrize("count", [1, 5, 50])
@pytest.mark.parametrize("tokens", [16, 256])
def test_steps_that_are_slow_and_alike_say_nothing_of_attention(tokens: int, count: int) -> None:
    """They take twice the time of the prior. If it were laid upon their few pairs, a long prompt
    would seem to take minutes, and no gateway would ever give the worker one again."""
    measured = MeasuredPrefill()
    for _ in range(count):
        measured.saw(tokens, tokens * tokens / 2, 1_000 * tokens)
    assert 4096 * 500 <= measured.cost.time(0, 4096) <= 4096 * 1_000 * 1.05


def test_a_first_step_that_takes_a_second_does_not_make_long_prompts_take_hours() -> None:
    measured = MeasuredPrefill()
    measured.saw(10, 50, 1_000_000)
    assert measured.cost.time(0, 4096) < 4096 * 1_000


def test_where_attention_would_seem_to_take_less_than_nothing_tokens_alone_account() -> None:
    measured = MeasuredPrefill()
    for _ in range(100):
        measured.saw(100, 5_000, 60_000)
        measured.saw(100, 500_000, 20_000)
    assert measured.cost.pair_us == 0
    assert measured.cost.token_us == pytest.approx(400, rel=0.05)


def test_a_step_of_late_counts_more_than_one_of_long_ago() -> None:
    """Half of what was measured is forgotten whenever ten seconds are full."""
    slow, fast, measured = PrefillCost(400.0, 0.2), PrefillCost(100.0, 0.05), MeasuredPrefill()
    for _ in range(100):
        for step in steps(slow, CHUNKS):
            measured.saw(*step)
    assert measured.cost.time(0, 4096) == pytest.approx(slow.time(0, 4096), rel=0.01)
    us = 0.0
    while us < 60_000_000:
        for step in steps(fast, CHUNKS):
            measured.saw(*step)
            us += step[2]
    assert measured.cost.time(0, 4096) == pytest.approx(fast.time(0, 4096), rel=0.03)


# ---- steps that overlap --------------------------------------------------------------------------


def timed(*events: tuple[int, int]) -> list[tuple[int, int]]:
    """Tokens and microseconds of each step that counts. Each event: (when, tokens of the step that
    begins), or (when, -1) where the oldest step under way ends."""
    measured, found = MeasuredPrefill(), list[tuple[int, int]]()
    measured.saw = lambda tokens, pairs, us: found.append((tokens, us))  # type: ignore[method-assign]
    for at, tokens in events:
        if tokens < 0:
            measured.stepped(Micros(at))
        else:
            measured.stepping(tokens, tokens * tokens // 2, Micros(at))
    assert measured.under_way == []
    return found


def test_a_step_that_begins_before_the_last_has_ended_counts_from_that_end() -> None:
    assert timed((1000, 10), (1100, 20), (5000, -1), (6000, -1)) == [(10, 4000), (20, 1000)]


def test_a_step_that_begins_after_the_last_has_ended_counts_from_its_beginning() -> None:
    assert timed((1000, 10), (5000, -1), (9000, 20), (9500, -1)) == [(10, 4000), (20, 500)]


def test_a_step_that_only_generates_is_not_measured_and_the_next_one_counts_from_its_end() -> None:
    assert timed((1000, 0), (1100, 20), (5000, -1), (6000, -1)) == [(20, 1000)]


def test_a_step_takes_some_time_even_if_the_clock_stood_still() -> None:
    assert timed((1000, 10), (1000, -1)) == [(10, 1)]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 900), st.integers(1, 64), st.integers(1, 900)),
        min_size=1,
        max_size=12,
    )
)
def test_a_device_that_takes_one_step_after_the_other_is_timed_exactly(
    given_: list[tuple[int, int, int]],
) -> None:
    """Each step is ordered so long after the last one was, with so many tokens, and takes the
    device so long. Two may be under way: the third is ordered when the first has ended."""
    ends, ordered, events = list[int](), 0, list[tuple[int, int]]()
    for i, (gap, tokens, us) in enumerate(given_):
        ordered = max(ordered + gap, ends[i - 2] if i > 1 else 0)
        ends.append(max(ordered, ends[-1] if ends else 0) + us)
        events.append((ordered, tokens))
    assume(ends[0] > 0)
    # what ends at the moment at which another begins ends first
    merged = [(at, -1) for at in ends] + events
    merged.sort(key=lambda event: (event[0], event[1] >= 0))
    assert timed(*merged) == [(tokens, us) for _, tokens, us in given_]
