"""Scores of a prompt, packed and joined."""

import pytest
from tests.core.world import scores

from baton.core.prompt_scores import PromptScores, TokenScore, joined, pack_scores

SCORES = [
    TokenScore(-0.5, 1, ((7, -0.5), (9, -2.25))),
    TokenScore(float("-inf"), 150_000, ((0, -0.125), (149_999, -3.0))),
]


def test_what_is_packed_is_read_back() -> None:
    assert list(pack_scores(2, SCORES).tokens()) == SCORES


def test_the_bytes_do_not_depend_on_the_machine() -> None:
    packed = pack_scores(2, SCORES[:1])
    assert (packed.logprobs, packed.ranks) == (bytes.fromhex("000000bf"), bytes.fromhex("01000000"))
    assert packed.top_ids == bytes.fromhex("0700000009000000")


@pytest.mark.parametrize("top", [0, 1, 3])
def test_chunks_are_joined_to_the_whole(top: int) -> None:
    prompt = tuple(range(40, 53))
    cuts = [prompt[0:5], prompt[4:6], prompt[5:13]]  # each with the token after it
    found = PromptScores(top)
    for cut in cuts:
        found = joined(found, scores(cut, top))
    assert found == scores(prompt, top)
    assert found.fits(len(prompt))
    assert not found.fits(len(prompt) + 1)


def test_scores_that_lack_something_fit_no_prompt() -> None:
    whole = pack_scores(2, SCORES)
    assert whole.fits(3)
    broken = [
        PromptScores(2, whole.logprobs, whole.ranks, whole.top_ids, whole.top_logprobs[4:]),
        PromptScores(2, whole.logprobs, whole.ranks[4:], whole.top_ids, whole.top_logprobs),
        PromptScores(1, whole.logprobs, whole.ranks, whole.top_ids, whole.top_logprobs),
    ]
    assert not any(scores.fits(3) for scores in broken)
