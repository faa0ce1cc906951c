"""The rule: what is fetched back and what is computed, by what was seen of both."""

import pytest

from baton.core.handoff.fetch_back import FIXED_US, DecayingRate, FetchBack, FetchBackRule


def test_a_rate_begins_with_its_prior_and_follows_what_it_sees() -> None:
    rate = DecayingRate((100.0, 1_000.0), 10_000.0)
    assert rate.time(50) == 500
    for _ in range(200):
        rate.saw(400, 1_000)
    assert rate.time(50) == pytest.approx(125, rel=0.01)
    for _ in range(200):
        rate.saw(10, 1_000)
    assert rate.time(50) == pytest.approx(5_000, rel=0.01), "what is long ago counts for nothing"


def test_a_small_sample_says_less_than_a_large_one() -> None:
    rate = DecayingRate((100.0, 1_000.0), 1e9)
    rate.saw(1, 1_000)
    rate.saw(10_000, 100_000)
    assert rate.time(10_101) == pytest.approx(102_000)


def measured(*, bytes_a_ms: float, mode: FetchBack = FetchBack.AUTO) -> FetchBackRule:
    rule = FetchBackRule(mode)
    for _ in range(100):
        rule.read.saw(bytes_a_ms * 100, 100_000)
    return rule


@pytest.mark.parametrize(
    ("tokens", "pays"),
    # a token costs 200 us to compute, 100 us to read; 2 ms are fixed
    [(1, False), (19, False), (21, True), (10_000, True)],
)
def test_longer_beginnings_pay(tokens: int, pays: bool) -> None:
    assert FIXED_US == 2_000
    rule = measured(bytes_a_ms=10_000)
    assert rule.pays(compute_us=tokens * 200, nbytes=tokens * 1_000) is pays


def test_a_slow_wire_or_a_fast_engine_never_does() -> None:
    assert not measured(bytes_a_ms=4_000).pays(compute_us=20e6, nbytes=100_000_000)
    assert not measured(bytes_a_ms=10_000).pays(compute_us=5e6, nbytes=100_000_000)


def test_what_the_operator_says_beats_the_rule() -> None:
    assert measured(bytes_a_ms=1.0, mode=FetchBack.ALWAYS).pays(compute_us=200, nbytes=1 << 40)
    never = measured(bytes_a_ms=1e9, mode=FetchBack.NEVER)
    assert not never.pays(compute_us=1e10, nbytes=1)
