"""Drawn tokens against a sampler in plain Python, and their frequencies against the
probabilities."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.engine.draws import draw_rows

from baton.core.ids import TokenId, TokenIndex
from baton.core.messages import Drawn, FailCode, RowFailure, Sampling
from baton.core.mixing import mix64
from baton.core.past import Past
from baton.core.work import Draw
from baton.engine import sampler
from baton.engine.sampler import FIRST_LOOK, draw, uniform

PLAIN = Sampling(temperature=1.0, top_p=1.0, top_k=0, seed=7, logprobs=None)


def drawn(logits: list[float] | torch.Tensor, sampling: Sampling, index: int = 0) -> Drawn:
    return draw(torch.as_tensor(logits, dtype=torch.float32), Draw(sampling, TokenIndex(index)))


def candidates(logits: torch.Tensor, sampling: Sampling) -> dict[int, float]:
    """Token -> weight of those that may be drawn, by sorting; likelier first, equal ones by their
    ids."""
    values = [float(x) for x in logits]
    top = max(values)
    weights = {i: math.exp((x - top) / sampling.temperature) for i, x in enumerate(values)}
    ranked = sorted(weights, key=lambda i: (-values[i], i))
    total = math.fsum(weights.values())
    likeliest = max(weights.values()) / total
    ranked = [i for i in ranked if weights[i] / total >= sampling.min_p * likeliest]
    if sampling.top_k:
        ranked = ranked[: sampling.top_k]
    if sampling.top_p < 1:
        total, reached, kept = math.fsum(weights[i] for i in ranked), 0.0, []
        for i in ranked:
            kept.append(i)
            reached += weights[i]
            if reached >= sampling.top_p * total:
                break
        ranked = kept
    return {i: weights[i] for i in sorted(ranked)}


def expected(logits: torch.Tensor, sampling: Sampling, index: int) -> set[int]:
    """The token where the cumulated probabilities, by token id, pass the random number; two where
    it lies on a border."""
    kept = candidates(logits, sampling)
    total, at = math.fsum(kept.values()), 0.0
    aim, found = uniform(sampling.seed, index) * total, set()
    for token, weight in kept.items():
        if at - 1e-12 * total <= aim < at + weight + 1e-12 * total and weight > 0:
            found.add(token)
        at += weight
    return found


def random_logits(size: int, seed: int, spread: float = 2.0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * spread


# ---- the random numbers -------------------------------------------------------------------------


def test_mix64_is_splitmix64():
    """The published outputs for seed 1234567."""
    known = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert [mix64(1234567, i) for i in range(5)] == known


def test_random_numbers_are_uniform_and_unrelated_between_indices_and_seeds():
    """Seeds of the choices of one request, and counters, are neighbours: their numbers must not
    be."""
    grid = np.array([[uniform(seed, index) for index in range(200)] for seed in range(200)])
    assert grid.min() >= 0
    assert grid.max() < 1
    counts = np.histogram(grid, bins=20, range=(0, 1))[0]
    # chi-square, 19 degrees: 1e-4 above 49
    assert ((counts - grid.size / 20) ** 2 / (grid.size / 20)).sum() < 50
    pairs = [(grid[:, :-1], grid[:, 1:]), (grid[:-1], grid[1:]), (grid[:-1, 1:], grid[1:, :-1])]
    assert all(abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.025 for a, b in pairs)  # 5 sigma
    assert len(np.unique(grid)) == grid.size


@pytest.mark.parametrize("seed", [0, 2**63, 2**64 - 1])
def test_every_64_bit_seed_is_a_seed(seed):
    assert 0 <= uniform(seed, 2**31) < 1
    assert uniform(seed, 3) != uniform(seed ^ (1 << 63), 3)


# ---- greedy -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("logits", "token"),
    [([0, 3, 1, 3], 1), ([2, 2, 2], 0), ([-5, -1, -1], 1), ([float("-inf"), 0], 1)],
)
def test_greedy_takes_the_lowest_of_the_largest(logits, token):
    assert drawn(logits, replace(PLAIN, temperature=0.0, top_k=1, top_p=0.1)).token == token


def test_greedy_ties_far_apart():
    """Compiled argmax works in vectors: the first of equals must win over all of a large
    vocabulary."""
    for first in (0, 1, 7, 31, 4_000, 49_000):
        logits = torch.zeros(49_152)
        logits[[first, 49_100, 49_151]] = 1.0
        assert drawn(logits, replace(PLAIN, temperature=0.0)).token == first


# ---- which token --------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.sampled_from([-30.0, -1.0, 0.0, 0.5, 0.5, 3.0, 3.25]) | st.floats(-8, 8, width=32),
        min_size=1,
        max_size=30,
    ),
    st.sampled_from([0.05, 0.7, 1.0, 2.0]),
    st.sampled_from([0, 1, 2, 5, 30, 100]),
    st.sampled_from([1.0, 0.999, 0.9, 0.5, 1e-6]),
    st.sampled_from([0.0, 0.0, 0.03, 0.4, 1.0]),
    st.integers(0, 2**64 - 1),
)
def test_draws_are_those_of_the_plain_sampler(logits, temperature, top_k, top_p, min_p, seed):
    values = torch.tensor(logits, dtype=torch.float32)
    sampling = Sampling(
        temperature=temperature, top_p=top_p, top_k=top_k, seed=seed, logprobs=None, min_p=min_p
    )
    for index in range(4):
        assert drawn(values, sampling, index).token in expected(values, sampling, index)


@pytest.mark.parametrize("top_p", [0.01, 0.3, 0.9, 0.9999])
@pytest.mark.parametrize("top_k", [0, FIRST_LOOK - 1, FIRST_LOOK + 1, 3000])
@pytest.mark.parametrize("spread", [0.01, 3.0])
def test_a_vocabulary_larger_than_the_first_look(top_p, top_k, spread):
    """Nearly flat logits need more than the first look; equal ones lie across its edge."""
    logits = random_logits(4000, 3, spread).round(decimals=2)
    sampling = replace(PLAIN, top_p=top_p, top_k=top_k)
    for index in range(20):
        assert drawn(logits, sampling, index).token in expected(logits, sampling, index)


@pytest.mark.parametrize(
    ("top_k", "top_p", "kept"),
    [
        (0, 1.0, {0, 1, 2, 3, 4}),
        (5, 1.0, {0, 1, 2, 3, 4}),
        (9, 1.0, {0, 1, 2, 3, 4}),
        (1, 1.0, {1}),  # of the equals 1 and 3
        (2, 1.0, {1, 3}),
        (3, 1.0, {1, 3, 0}),  # of the equals 0, 2 and 4
        (0, 0.35, {1}),
        (0, 0.37, {1, 3}),
        (0, 0.75, {1, 3, 0}),
        (0, 1e-9, {1}),
        (2, 0.49, {1}),  # top_p counts what top_k left
        (2, 0.51, {1, 3}),
    ],
)
def test_the_edges_of_top_k_and_top_p(top_k, top_p, kept):
    """Probabilities 1/11 three times and 4/11 twice."""
    low, high = math.log(1.0), math.log(4.0)
    logits = torch.tensor([low, high, low, high, low])
    sampling = replace(PLAIN, top_k=top_k, top_p=top_p)
    assert set(candidates(logits, sampling)) == kept
    assert {drawn(logits, replace(sampling, seed=s)).token for s in range(300)} == kept


def test_a_forbidden_token_is_never_drawn():
    logits = random_logits(50, 5)
    logits[::2] = float("-inf")
    for sampling in (
        PLAIN,
        replace(PLAIN, top_k=40),
        replace(PLAIN, top_p=0.999999),
        replace(PLAIN, temperature=50.0),
    ):
        assert all(drawn(logits, replace(sampling, seed=s)).token % 2 == 1 for s in range(200))


@pytest.mark.parametrize("temperature", [1e-3, 1e-5])  # below, the gateway asks for greedy
@pytest.mark.parametrize("top_p", [1.0, 0.9])
@pytest.mark.filterwarnings("error")
def test_a_temperature_near_zero_is_greedy(temperature, top_p):
    sampling = replace(PLAIN, temperature=temperature, top_p=top_p)
    for sign in (1, -1):
        logits = torch.tensor([1.0, 40.0, 39.0, -60.0]) * sign
        assert {drawn(logits, sampling, i).token for i in range(20)} == {int(logits.argmax())}


@pytest.mark.parametrize(("number", "token"), [(0.0, 1), (0.25, 3), (0.5, 4), (1 - 2**-53, 5)])
def test_a_random_number_on_a_border_takes_the_token_that_begins_there(monkeypatch, number, token):
    """At 0 and at a border a forbidden token, whose interval is empty, begins and ends at the same
    place."""
    monkeypatch.setattr(sampler, "uniform", lambda _seed, _index: number)
    never = float("-inf")
    # equal weights are exact
    assert drawn([never, 0.0, never, 0.0, 0.0, 0.0, never], PLAIN).token == token


# ---- how often ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sampling",
    [
        PLAIN,
        replace(PLAIN, temperature=0.6),
        replace(PLAIN, temperature=1.7, top_k=6),
        replace(PLAIN, top_p=0.8),
        replace(PLAIN, temperature=0.8, top_k=7, top_p=0.9),
    ],
    ids=["plain", "cold", "top_k", "top_p", "all"],
)
@pytest.mark.parametrize("over", ["seeds", "indices"])
def test_tokens_come_as_often_as_they_should(sampling, over):
    logits, n = random_logits(12, 11, 1.0), 4000
    kept = candidates(logits, sampling)
    total = math.fsum(kept.values())
    orders = [
        (replace(sampling, seed=i), 3) if over == "seeds" else (sampling, i) for i in range(n)
    ]
    counts = Counter(drawn(logits, s, i).token for s, i in orders)
    assert set(counts) <= set(kept)
    chi = sum((counts[t] - n * w / total) ** 2 / (n * w / total) for t, w in kept.items())
    freedom = len(kept) - 1
    assert chi < freedom + 5 * math.sqrt(2 * freedom)


# ---- depends on nothing else --------------------------------------------------------------------


def test_a_draw_depends_on_its_own_order_alone():
    """Alone, after others, as a row of a batch's tensor, and from a copy."""
    batch = torch.stack([random_logits(300, n) for n in range(16)])
    orders = [
        Draw(replace(PLAIN, seed=n, top_p=0.95, logprobs=3), TokenIndex(n)) for n in range(16)
    ]
    together = [draw(row, order) for row, order in zip(batch, orders, strict=True)]
    alone = [draw(batch[n].clone(), orders[n]) for n in reversed(range(16))]
    assert together == alone[::-1]


def test_logits_are_left_as_they_are():
    logits = random_logits(300, 1)
    before = logits.clone()
    drawn(logits, replace(PLAIN, top_k=5, top_p=0.5, temperature=0.3, logprobs=4))
    assert torch.equal(logits, before)


# ---- log probabilities --------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 0.3, 2.0])
def test_logprobs_are_those_of_the_raw_logits(temperature):
    logits = random_logits(500, 2, 4.0)
    truth = torch.log_softmax(logits.double(), -1)
    found = drawn(logits, replace(PLAIN, temperature=temperature, top_k=3, top_p=0.5, logprobs=6))
    assert found.logprob == pytest.approx(float(truth[found.token]), abs=1e-5)
    ranked = sorted(range(500), key=lambda i: -float(logits[i]))[:6]
    assert [token for token, _ in found.top] == ranked
    assert [value for _, value in found.top] == pytest.approx(
        [float(truth[i]) for i in ranked], abs=1e-5
    )


def test_how_many_logprobs():
    logits = random_logits(20, 4)
    none, only, all_ = (drawn(logits, replace(PLAIN, logprobs=n)) for n in (None, 0, 20))
    assert (none.logprob, none.top) == (None, ())
    assert only.logprob is not None
    assert only.top == ()
    assert len(all_.top) == 20
    assert math.fsum(math.exp(v) for _, v in all_.top) == pytest.approx(1)
    assert none.token == only.token == all_.token


def test_what_one_row_raises_is_that_rows_alone():
    """An id beyond the vocabulary that is barred: the gateway refuses it, and a worker must not die
    of it."""
    logits = torch.tensor([[0.0, 3.0, 1.0], [5.0, 3.0, 1.0], [0.0, 3.0, 4.0]])
    greedy = replace(PLAIN, temperature=0.0)
    bad = Draw(greedy, TokenIndex(4), Past((), (), (TokenId(3),)))
    first, failed, last = draw_rows(
        logits, [Draw(greedy, TokenIndex(0)), bad, Draw(greedy, TokenIndex(0))]
    )
    assert [first.token, last.token] == [1, 2]
    assert isinstance(failed, RowFailure)
    assert failed.code is FailCode.COMPUTE_FAILED
    assert "token 4 cannot be drawn: IndexError" in failed.why
