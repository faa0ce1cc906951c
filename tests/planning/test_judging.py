"""Which division wins, and with how much certainty."""

import random

import pytest

from baton.dev.fleet.served_request import ServedRequest
from baton.dev.planning.division import Division
from baton.dev.planning.judging import (
    Advice,
    ServedDivision,
    is_met,
    judge,
    result_of,
    sentence_of,
)
from baton.dev.planning.resampling import Resampling

SLOS = {"ttft": 100.0, "tpot": 10.0}
UNIFIED, SPLIT, OTHER = Division(unified=4), Division(1, 3), Division(2, 2)


def served(*, ttft_ms: float = 50, tpot_ms: float = 5, failure: str = "") -> ServedRequest:
    """A request with an answer of 11 tokens."""
    first = round(1e3 * ttft_ms)
    last = first + round(1e4 * tpot_ms)
    return ServedRequest(
        at=0, prompt_tokens=1, asked=11, first=first, last=last, tokens=11, failure=failure
    )


def divided(division: Division, met: list[bool]) -> ServedDivision:
    """What a division made of requests, of which these met the SLOs."""
    return ServedDivision(
        division=division,
        served=tuple(served(ttft_ms=50 if good else 500) for good in met),
        busy={},
        handed_over=0,
    )


def shares(seed: int, share: float, count: int = 600) -> list[bool]:
    """Chance."""
    chance = random.Random(seed)
    return [chance.random() < share for _ in range(count)]


@pytest.mark.parametrize(
    ("one", "met"),
    [
        (served(), True),
        (served(ttft_ms=100, tpot_ms=10), True),
        (served(ttft_ms=101), False),
        (served(tpot_ms=10.1), False),
        (served(failure="refused"), False),
    ],
)
def test_a_request_meets_every_limit_or_none_counts(one, met):
    assert is_met(one, SLOS) is met


def test_a_split_that_is_better_is_recommended_with_those_like_it():
    runs = [
        divided(UNIFIED, shares(1, 0.6)),
        divided(SPLIT, shares(2, 0.92)),
        divided(OTHER, shares(3, 0.89)),
    ]
    verdict = judge(runs, SLOS, Resampling(600, 0))
    assert (verdict.advice, verdict.best, verdict.alike) == (Advice.SPLIT, SPLIT, (OTHER,))
    assert 0.2 < verdict.advantage.low < 0.3 < verdict.advantage.high < 0.4
    assert "Disaggregate: 1p:3d, 1 prefill and 3 decode" in sentence_of(verdict)
    assert "2p:2d" in sentence_of(verdict)


def test_unified_workers_that_are_better_are_recommended():
    runs = [divided(UNIFIED, shares(1, 0.9)), divided(SPLIT, shares(2, 0.6))]
    verdict = judge(runs, SLOS, Resampling(600, 0))
    assert (verdict.advice, verdict.best, verdict.rival) == (Advice.UNIFIED, UNIFIED, SPLIT)
    assert sentence_of(verdict).startswith("Do not disaggregate: 4 unified workers")


def test_what_chance_alone_makes_is_noise():
    """The best of seven that are all alike passes for better in one of 40 cases: the interval has
    as much doubt to each side."""
    drawn, found = Resampling(600, 0), []
    for seed in range(80):
        runs = [divided(UNIFIED, shares(seed, 0.8))]
        runs += [divided(Division(p, 8 - p), shares(1000 * seed + p, 0.8)) for p in range(1, 8)]
        found.append(judge(runs, SLOS, drawn))
    noise = [v for v in found if v.advice is Advice.NOISE]
    assert len(noise) >= 75
    assert sentence_of(noise[0]).startswith("Within the noise: do not disaggregate")


def test_an_advantage_that_is_certain_but_tiny_is_noise():
    met = [True] * 1000
    runs = [divided(UNIFIED, [*met[:-5], *[False] * 5]), divided(SPLIT, met)]
    assert judge(runs, SLOS, Resampling(1000, 0)).advice is Advice.NOISE


def test_where_nothing_meets_the_slos_there_is_no_verdict():
    runs = [divided(d, [False] * 9) for d in (UNIFIED, SPLIT)]
    verdict = judge(runs, SLOS, Resampling(9, 0))
    assert verdict.advice is Advice.NEITHER
    assert "loosen the limits" in sentence_of(verdict)


def test_one_worker_cannot_be_split():
    verdict = judge([divided(Division(unified=1), [True] * 9)], SLOS, Resampling(9, 0))
    assert sentence_of(verdict) == "Do not disaggregate: 1 unified worker cannot be split."


def test_figures_are_of_answers_and_shares_of_all_requests():
    runs = [served(ttft_ms=t) for t in range(1, 100)] + [served(failure="refused")]
    one = ServedDivision(division=UNIFIED, served=tuple(runs), busy={}, handed_over=0)
    result = result_of(one, {"ttft": 50.0}, Resampling(100, 0), rate=10.0)
    assert (result.requests, result.failed, result.why) == (100, 1, "refused")
    assert (result.ttft_p50.value, result.ttft_p99.value) == (50.0, 99.0)
    assert result.attained.value == 0.5
    assert result.goodput.value == pytest.approx(5.0)
    assert result.attained.low < 0.5 < result.attained.high


def test_intervals_contain_the_truth_about_as_often_as_they_say():
    inside = 0
    for seed in range(60):
        found = Resampling(300, seed).share(shares(seed, 0.7, 300))
        inside += found.low <= 0.7 <= found.high
    assert 50 <= inside <= 60


def test_one_seed_draws_the_same():
    one, two = (Resampling(100, 3).share(shares(1, 0.5, 100)) for _ in range(2))
    assert one == two
