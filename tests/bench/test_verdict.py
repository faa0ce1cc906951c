"""The verdict on made-up figures, and the cross-over against its definition."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.dev.bench.client import RequestOutcome
from baton.dev.bench.figures import summarize
from baton.dev.bench.verdict import LoadPoint, Point, Winner, cross_overs, crossing, sentence

SLOS = {"ttft": 1000.0}


def run(good, bad=0):
    """Ten seconds in which so many requests met the SLO, and so many did not."""
    waits = [0.5] * good + [2.0] * bad
    return summarize(
        [RequestOutcome(due=0, sent=0, ended=10, times=(w,), output_tokens=1) for w in waits], SLOS
    )


def point(split, unified, *, prompt=128, concurrency=1):
    return Point(LoadPoint(prompt, concurrency), SLOS, run(split, 1), run(unified, 1))


@pytest.mark.parametrize(
    ("split", "unified", "winner", "gain"),
    [
        (10, 5, Winner.SPLIT, 2.0),
        (5, 10, Winner.UNIFIED, 0.5),
        (100, 96, Winner.EVEN, 100 / 96),
        (0, 0, Winner.NEITHER, None),
        (3, 0, Winner.SPLIT, None),
        (0, 3, Winner.UNIFIED, 0.0),
    ],
)
def test_who_wins(split, unified, winner, gain):
    found = point(split, unified)
    assert found.winner is winner
    assert found.gain == (None if gain is None else pytest.approx(gain))


@given(st.lists(st.sampled_from(Winner), max_size=7))
def test_a_cross_over_is_where_all_before_is_not_split_and_nothing_after_is_anything_else(winners):
    fits = [
        i
        for i in range(len(winners))
        if winners[i] is Winner.SPLIT
        and Winner.SPLIT not in winners[:i]
        and set(winners[i:]) <= {Winner.SPLIT, Winner.NEITHER}
    ]
    assert crossing(winners) == (fits[0] if fits else None)


def test_cross_overs_are_told_by_prompt_length_from_the_lightest_load_on():
    points = [
        point(9, 3, concurrency=32),
        point(3, 9, concurrency=1),
        point(9, 3, concurrency=8),
        point(3, 9, prompt=16),
        point(9, 3, prompt=64, concurrency=1),
        point(3, 9, prompt=64, concurrency=8),
    ]
    assert cross_overs(points) == [
        "128 tokens: split pays from 8 at once on",
        "16 tokens: split does not pay at any load tried",
        "64 tokens: no single cross-over; split pays at 1 at once",
    ]


def test_the_verdict_in_a_sentence():
    points = [
        point(30, 10, concurrency=8),
        point(20, 18, concurrency=32),
        point(5, 10),
        point(0, 0, prompt=9),
    ]
    assert sentence(points) == (
        "Disaggregation pays at 2 of 3 loads and costs at 1; most at 128 tokens, 8 at once "
        "(goodput 3.00 against 1.00 a second, x3.00); least at 128 tokens, 1 at once "
        "(goodput 0.50 against 1.00 a second, x0.50)."
    )
    assert sentence([point(0, 0)]).startswith("No verdict")
    assert "unified 0" in sentence([point(4, 0)])
