"""What is done to logits before a draw, against plain Python and against transformers where it
defines the same."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.engine.draws import draw_rows
from transformers import LogitsProcessorList
from transformers.generation.logits_process import (
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from baton.core.ids import TokenId, TokenIndex
from baton.core.matchers import GrammarError
from baton.core.messages import Drawn, FailCode, RowFailure, Sampling, Shaping
from baton.core.past import Past
from baton.core.work import Draw
from baton.engine.sampler import draw, shape

VOCAB = 40
NEUTRAL = Shaping(
    repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0, logit_bias=()
)
GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, seed=3, logprobs=None)
TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=12)


def random_logits(seed: int, rows: int = 1, vocab: int = VOCAB) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


def past(prompt=(), answer=(), barred=(), bad=()) -> Past:
    return Past(tuple(sorted(set(prompt))), tuple(answer), tuple(barred), bad=tuple(bad))


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 1000),
    TOKENS,
    TOKENS,
    st.sampled_from([1.0, 0.5, 1.3]),
    st.sampled_from([0.0, -1.5, 2.0]),
    st.sampled_from([0.0, -0.7, 1.1]),
    st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-100.0, 0.5, 3.0]), max_size=4),
    st.lists(st.integers(0, VOCAB - 1), max_size=3),
    st.lists(st.integers(0, VOCAB - 1), max_size=6),
    st.lists(st.integers(0, VOCAB - 1), max_size=2),
)
def test_every_logit_is_as_the_plain_formulas_say(
    seed, prompt, answer, repetition, presence, frequency, bias, barred, allowed, bad
):
    logits = random_logits(seed)[0].numpy()
    before = logits.copy()
    expected = [float(x) for x in logits]
    may = set(allowed or range(VOCAB)) - set(bad)
    for i in range(VOCAB):
        masked = i not in (may - set(barred) or may)  # the end comes where nothing else may
        expected[i] = (float("-inf") if masked else expected[i]) + bias.get(i, 0.0)
        if repetition != 1 and (i in prompt or i in answer):
            expected[i] = expected[i] / repetition if expected[i] > 0 else expected[i] * repetition
        expected[i] -= frequency * answer.count(i) + presence * (i in answer)
    shaping = Shaping(
        repetition,
        presence,
        frequency,
        tuple((TokenId(t), b) for t, b in bias.items()),
        allowed_token_ids=tuple(map(TokenId, allowed)),
    )
    told = past(prompt if repetition != 1 else (), answer, barred, bad)
    found = shape(logits, shaping, told)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert np.array_equal(logits, before), "logprobs are of the logits as the model gave them"


@settings(max_examples=50, deadline=None)
@given(
    st.integers(0, 1000),
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=8),
    TOKENS,
    st.sampled_from([0.6, 1.7]),
)
def test_repetition_penalty_is_that_of_transformers(seed, prompt, answer, penalty):
    logits = random_logits(seed)
    theirs = RepetitionPenaltyLogitsProcessor(penalty)(
        torch.tensor([prompt + answer]), logits.clone()
    )
    ours = shape(
        logits[0].numpy(), replace(NEUTRAL, repetition_penalty=penalty), past(prompt, answer)
    )
    np.testing.assert_allclose(ours, theirs[0].numpy(), rtol=1e-6)


def test_bias_and_barred_ends_are_those_of_transformers():
    logits = random_logits(5)
    theirs = LogitsProcessorList(
        [
            MinNewTokensLengthLogitsProcessor(2, 4, [7, 9], device="cpu"),
            SequenceBiasLogitsProcessor([[[3], 2.5], [[11], -4.0]]),
        ]
    )(torch.tensor([[1, 2, 3]]), logits.clone())
    bias = ((TokenId(3), 2.5), (TokenId(11), -4.0))
    ours = shape(logits[0].numpy(), replace(NEUTRAL, logit_bias=bias), past(barred=(7, 9)))
    np.testing.assert_allclose(ours, theirs[0].numpy(), rtol=1e-6)


def test_only_allowed_tokens_are_drawn_however_unlikely():
    """Cold and hot, with every filter: all of those that are allowed are drawn sometimes."""
    logits = random_logits(3)[0]
    few = tuple(TokenId(int(t)) for t in logits.argsort()[:3])
    shaping = replace(NEUTRAL, allowed_token_ids=few)
    hot = replace(GREEDY, temperature=5.0, top_k=8, top_p=0.999, min_p=0.001, shaping=shaping)
    assert {draw(logits, Draw(hot, TokenIndex(i))).token for i in range(300)} == set(few)
    likeliest = max(few, key=lambda t: float(logits[t]))
    assert draw(logits, Draw(replace(hot, temperature=0.0), TokenIndex(0))).token == likeliest


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_mask_that_leaves_no_token_fails_its_row_alone(temperature):
    allowed = replace(NEUTRAL, allowed_token_ids=(TokenId(3), TokenId(4)))
    plain = replace(GREEDY, temperature=temperature)
    none_left = Draw(replace(plain, shaping=allowed), TokenIndex(5), past(bad=(3, 4)))
    fine = Draw(plain, TokenIndex(5))
    before, failed, after = draw_rows(random_logits(4, rows=3), [fine, none_left, fine])
    assert isinstance(failed, RowFailure)
    assert failed.code is FailCode.UNSATISFIABLE
    assert "leave no token" in failed.why
    assert isinstance(before, Drawn)
    assert isinstance(after, Drawn)


@pytest.mark.parametrize(
    ("min_p", "top_k", "top_p"),
    [(0.1, 0, 1.0), (0.02, 5, 1.0), (0.05, 0, 0.8), (0.0, 6, 0.7), (0.05, 8, 0.9)],
)
def test_what_may_be_drawn_is_what_transformers_leaves(min_p, top_k, top_p):
    """Their warpers in vLLM's order: exactly the tokens they leave are drawn, when drawn often."""
    logits = random_logits(17)
    warpers = LogitsProcessorList([TemperatureLogitsWarper(0.8)])
    if min_p:
        warpers.append(MinPLogitsWarper(min_p))
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))
    left = set(
        torch.isfinite(warpers(torch.tensor([[0]]), logits.clone())[0]).nonzero().flatten().tolist()
    )
    sampling = Sampling(
        temperature=0.8, top_p=top_p, top_k=top_k, seed=1, logprobs=None, min_p=min_p
    )
    found = {int(draw(logits[0], Draw(sampling, TokenIndex(i))).token) for i in range(3000)}
    assert found == left
    assert len(left) > 1


def test_a_row_draws_the_same_alone_and_in_company():
    """Rows of every kind in one batch, as the greedy ones are taken in one pass."""
    logits = random_logits(9, rows=12, vocab=5000)
    kinds = [
        (GREEDY, None),
        (replace(GREEDY, temperature=0.9), None),
        (replace(GREEDY, shaping=replace(NEUTRAL, presence_penalty=2.0)), past(answer=(1, 2, 2))),
        (replace(GREEDY, logprobs=3), None),
        (replace(GREEDY, temperature=1.1, min_p=0.1, logprobs=2), past(barred=(4,))),
        (GREEDY, past(barred=(int(logits[5].argmax()),))),
    ]
    orders = [Draw(*kinds[n % 6][:1], TokenIndex(n), kinds[n % 6][1]) for n in range(12)]
    together = draw_rows(logits, orders)
    assert together == [draw(logits[n], orders[n]) for n in range(12)]
    assert together[0].token == int(logits[0].argmax())
    assert together[5].token != int(logits[5].argmax())
    assert [d.logprob is not None for d in together] == [
        o.sampling.logprobs is not None for o in orders
    ]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 500),
    st.sets(st.integers(0, VOCAB - 1), min_size=1),
    st.sets(st.integers(0, VOCAB - 1), max_size=4),
    st.sampled_from(
        [GREEDY, replace(GREEDY, temperature=1.5), replace(GREEDY, temperature=0.7, top_p=0.8)]
    ),
    st.sets(st.integers(0, VOCAB - 1), max_size=4),
    st.sets(st.integers(0, VOCAB - 1), max_size=20),
)
def test_only_what_grammar_and_masks_allow_is_drawn_and_barred_tokens_only_if_nothing_else_is(
    seed, allowed, barred, sampling, bad, asked
):
    mask = np.zeros(VOCAB, dtype=bool)
    mask[list(allowed)] = True
    logits = random_logits(seed)
    shaping = replace(NEUTRAL, allowed_token_ids=tuple(map(TokenId, asked)))
    sampling = replace(sampling, shaping=shaping)
    order = Draw(sampling, TokenIndex(seed), past(barred=barred, bad=bad))
    (found,) = draw_rows(logits, [order], [lambda: mask])
    left = (allowed & asked if asked else allowed) - bad
    if not left:
        assert isinstance(found, RowFailure)
        return
    assert found.token in (left - barred or left)
    if len(allowed) == VOCAB:
        assert found == draw(logits[0], order), "a grammar that allows everything changes nothing"


def test_a_grammar_that_fails_ends_its_own_row_alone():
    def broken():
        raise GrammarError("too much work")

    logits = random_logits(3, rows=3)
    orders = [Draw(GREEDY, TokenIndex(0), past()) for _ in range(3)]
    free = draw_rows(logits, orders)
    first, second, third = draw_rows(
        logits, orders, [lambda: None, broken, lambda: np.ones(VOCAB, dtype=bool)]
    )
    assert (first, third) == (free[0], free[2])
    assert (second.code, "too much work" in second.why) == (FailCode.UNSATISFIABLE, True)
