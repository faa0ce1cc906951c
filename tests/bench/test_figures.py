"""Statistics against definitions written out, and the schedule."""

import math
import statistics
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.core.errors import ConfigError
from baton.dev.bench.client import RequestOutcome
from baton.dev.bench.figures import is_good, parse_slos, spread, summarize
from baton.dev.bench.schedule import arrivals, traced
from baton.dev.bench.workload import Item

moments = st.integers(0, 10**8).map(lambda micros: micros / 1e6)


@st.composite
def outcomes(draw):
    sent, *times, ended = sorted(draw(st.lists(moments, min_size=3, max_size=8)))
    failure = draw(st.sampled_from(["", "", "timeout", "HTTP 503"]))
    tokens = draw(st.integers(len(times), len(times) + 3))
    return RequestOutcome(
        due=sent, sent=sent, ended=ended, times=tuple(times), prompt_tokens=draw(st.integers(1, 9)), output_tokens=tokens,
        failure=failure,
    )  # fmt: skip


@given(st.lists(moments, min_size=2, max_size=50))
def test_percentiles_are_those_of_the_standard_library(values):
    found = spread(values)
    cuts = statistics.quantiles([1e3 * v for v in values], n=100, method="inclusive")
    assert [found.p50, found.p90, found.p99] == pytest.approx([cuts[49], cuts[89], cuts[98]])
    assert (found.mean, found.max) == pytest.approx(
        (1e3 * statistics.fmean(values), 1e3 * max(values))
    )


@given(
    st.lists(outcomes(), min_size=1, max_size=20),
    st.dictionaries(st.sampled_from(["ttft", "tpot", "e2el", "stall"]), moments),
)
def test_goodput_counts_requests_within_every_limit(found, limits):
    slos = {name: 1e3 * limit for name, limit in limits.items() if limit > 0}
    good = 0
    for o in found:
        first, last = o.times[0], o.times[-1]
        takes = {
            "ttft": first - o.sent,
            "e2el": last - o.sent,
            "tpot": (last - first) / (o.output_tokens - 1) if o.output_tokens > 1 else 0,
            "stall": max([b - a for a, b in pairwise(o.times)] + [0]),
        }
        good += o.failure == "" and all(takes[name] * 1e3 <= limit for name, limit in slos.items())
    summary = summarize(found, slos)
    fine = [o for o in found if not o.failure]
    duration = max(o.ended for o in found) - min(o.sent for o in found)
    assert summary.good == (good if slos else None)
    assert sum(is_good(o, slos) for o in found) == (good if slos else len(fine))
    assert summary.completed + sum(summary.failures.values()) == len(found)
    assert summary.output_tokens == sum(o.output_tokens for o in fine)
    sent_away = [1e3 * (o.ended - o.sent) for o in found if o.failure == "HTTP 503"]
    assert summary.refused_ms.max == pytest.approx(max(sent_away, default=0.0))
    assert summary.output_throughput * duration == pytest.approx(
        summary.output_tokens if duration else 0
    )
    assert summary.itl_ms.max == pytest.approx(
        1e3 * max([b - a for o in fine for a, b in pairwise(o.times)] + [0])
    )


def test_tpot_leaves_the_first_token_out():
    one = RequestOutcome(due=0, sent=0, ended=3, times=(1.0, 2.0, 3.0), output_tokens=5)
    assert summarize([one], {}).tpot_ms.p50 == 500  # tokens may share an event


def test_nothing_is_all_zero():
    assert summarize([], {"ttft": 1.0}).goodput == 0


@pytest.mark.parametrize(
    ("texts", "slos"),
    [
        (["ttft:200", "tpot:50"], {"ttft": 200, "tpot": 50}),
        (["ttft:200 e2el:1e4"], {"ttft": 200, "e2el": 10_000}),
        (["stall:9.5,ttft:1"], {"stall": 9.5, "ttft": 1}),
        ([], {}),
    ],
)
def test_slos_as_vllm_spells_them(texts, slos):
    assert parse_slos(texts) == slos


@pytest.mark.parametrize(
    "text", ["ttft", "ttft:", "ttft:x", "ttft:0", "ttft:-1", "itl:5", "ttft:nan"]
)
def test_slos_that_cannot_be(text):
    with pytest.raises(ConfigError, match=f"--goodput {text}"):
        parse_slos([text])


@given(st.integers(0, 200), st.floats(0.01, 1e4), st.floats(0.2, 20), st.integers(0, 9))
def test_a_schedule_depends_on_its_seed_alone(count, rate, burstiness, seed):
    due = arrivals(count, rate=rate, burstiness=burstiness, seed=seed)
    assert due == arrivals(count, rate=rate, burstiness=burstiness, seed=seed)
    assert len(due) == count
    assert due == sorted(due)
    assert due[:1] == [0.0][:count]
    if count > 2:
        assert due != arrivals(count, rate=rate, burstiness=burstiness, seed=seed + 1)


@pytest.mark.parametrize(("burstiness", "variation"), [(1.0, 1.0), (4.0, 0.5), (0.25, 2.0)])
def test_gaps_have_the_mean_of_the_rate_and_the_spread_of_the_burstiness(burstiness, variation):
    gaps = [b - a for a, b in pairwise(arrivals(20_001, rate=8.0, burstiness=burstiness, seed=1))]
    assert statistics.fmean(gaps) == pytest.approx(1 / 8, rel=0.05)
    # 1 / sqrt(shape)
    assert statistics.stdev(gaps) / statistics.fmean(gaps) == pytest.approx(variation, rel=0.05)


def test_poisson_gaps_are_exponential():
    gaps = [b - a for a, b in pairwise(arrivals(20_001, rate=1.0, burstiness=1.0, seed=2))]
    for t in (0.5, 1.0, 2.0):
        assert sum(g > t for g in gaps) / len(gaps) == pytest.approx(math.exp(-t), abs=0.01)


def test_all_at_once():
    assert arrivals(3, rate=math.inf, burstiness=1.0, seed=0) == [0, 0, 0]


@pytest.mark.parametrize(
    ("rate", "burstiness"), [(0, 1), (-1, 1), (math.nan, 1), (1, 0), (1, math.inf)]
)
def test_rates_that_cannot_be(rate, burstiness):
    with pytest.raises(ConfigError, match=r"--(request-rate|burstiness)"):
        arrivals(3, rate=rate, burstiness=burstiness, seed=0)


def test_a_trace_is_obeyed_only_when_it_states_every_arrival():
    assert traced([Item("a", 1, 0.0), Item("b", 1, 2.0)]) == [0.0, 2.0]
    assert traced([Item("a", 1, 0.0), Item("b", 1)]) is None
