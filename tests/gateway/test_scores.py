"""Logprobs are numbers JSON can write."""

from baton.core.ids import TokenId
from baton.core.messages import Drawn
from baton.gateway.scores import LOWEST, chat_logprobs, completion_logprobs
from baton.gateway.stream import Scored

from .rig import make_tokenizer


def test_infinite_logprobs_are_written_as_a_very_low_number():
    tokenizer = make_tokenizer()
    scored = [Scored(Drawn(TokenId(65), float("-inf"), ((TokenId(66), float("-inf")),)), 0)]
    chat, plain = (
        chat_logprobs(scored, tokenizer).content[0],
        completion_logprobs(scored, tokenizer),
    )
    assert (chat.logprob, chat.top_logprobs[0].logprob) == (LOWEST, LOWEST)
    assert plain.token_logprobs == (LOWEST,)
    assert plain.top_logprobs == ({"A": LOWEST, "B": LOWEST},)
