"""Logprobs in the two formats of chat and completions, and those of prompts, in vLLM's."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from baton.core.ids import TokenId
from baton.core.messages import Drawn
from baton.core.prompt_scores import PromptScores
from baton.gateway.stream import Scored
from baton.gateway.tokenizer import Spelling

LOWEST = -9999.0  # JSON has no infinities


class Speller(Protocol):
    """What knows how a token is shown; a Tokenizer is one."""

    def spell(self, token: int) -> Spelling:
        """Return one token as logprobs show it."""
        ...


class IdSpeller:
    """Shows tokens by their ids, for `return_tokens_as_token_ids`."""

    def __init__(self, speller: Speller) -> None:
        self._speller = speller

    def spell(self, token: int) -> Spelling:
        """Return "token_id:5" for token 5, with the bytes of its text."""
        return Spelling(f"token_id:{token}", self._speller.spell(token).raw)


class TopLogprob(msgspec.Struct, frozen=True):
    """One likely token."""

    token: str
    logprob: float
    bytes: tuple[int, ...]


class ChatLogprob(msgspec.Struct, frozen=True):
    """One sampled token and the most likely tokens at its position."""

    token: str
    logprob: float
    bytes: tuple[int, ...]
    top_logprobs: tuple[TopLogprob, ...]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """Chat style: one entry per token."""

    content: tuple[ChatLogprob, ...]


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Completions style: parallel lists. `text_offset` counts characters from the start of the
    choice's text."""

    tokens: tuple[str, ...]
    token_logprobs: tuple[float | None, ...]  # null: the first token of a prompt
    top_logprobs: tuple[dict[str, float] | None, ...]
    text_offset: tuple[int, ...]


def _finite(logprob: float | None) -> float:
    return LOWEST if logprob is None else max(logprob, LOWEST)


def _top(token: TokenId, logprob: float, speller: Speller) -> TopLogprob:
    spelling = speller.spell(token)
    return TopLogprob(spelling.text, _finite(logprob), tuple(spelling.raw))


def chat_logprobs(scored: Sequence[Scored], speller: Speller) -> ChatLogprobs:
    """Chat style."""
    entries = []
    for drawn in (s.drawn for s in scored):
        spelling = speller.spell(drawn.token)
        top = tuple(_top(token, logprob, speller) for token, logprob in drawn.top)
        entries.append(ChatLogprob(spelling.text, _finite(drawn.logprob), tuple(spelling.raw), top))
    return ChatLogprobs(tuple(entries))


def completion_logprobs(scored: Sequence[Scored], speller: Speller) -> CompletionLogprobs:
    """Completions style; `top_logprobs` includes the sampled token."""
    drawn = [s.drawn for s in scored]
    return CompletionLogprobs(
        tokens=tuple(speller.spell(d.token).text for d in drawn),
        token_logprobs=tuple(None if d.logprob is None else _finite(d.logprob) for d in drawn),
        top_logprobs=tuple(
            None
            if d.logprob is None
            else {speller.spell(t).text: _finite(p) for t, p in ((d.token, d.logprob), *d.top)}
            for d in drawn
        ),
        text_offset=tuple(s.offset for s in scored),
    )


def echoed(
    prompt: Sequence[TokenId], scores: PromptScores, offsets: Sequence[int], wanted: int
) -> tuple[Scored, ...]:
    """Return the prompt's tokens as if they had been generated, with `wanted` likely ones each."""
    drawn = [Drawn(prompt[0], None, ())]
    for token, score in zip(prompt[1:], scores.tokens(), strict=True):
        drawn.append(Drawn(token, score.logprob, score.top[:wanted]))
    return tuple(map(Scored, drawn, offsets))


class PromptLogprob(msgspec.Struct, frozen=True, gc=False):
    """One token in its place in a prompt. The most likely one has rank 1."""

    logprob: float
    rank: int
    decoded_token: str


# by token id; the first token of a prompt has none
PromptLogprobs = tuple[Mapping[int, PromptLogprob] | None, ...]


def prompt_logprobs(
    prompt: Sequence[TokenId], scores: PromptScores, wanted: int, speller: Speller
) -> PromptLogprobs:
    """For each token of the prompt, itself first, and the `wanted` most likely ones."""
    found: list[Mapping[int, PromptLogprob] | None] = [None]
    for token, score in zip(prompt[1:], scores.tokens(), strict=True):
        ranked = [(t, logprob, n) for n, (t, logprob) in enumerate(score.top[:wanted], start=1)]
        found.append(
            {
                t: PromptLogprob(_finite(logprob), rank, speller.spell(t).text)
                for t, logprob, rank in ((token, score.logprob, score.rank), *ranked)
            }
        )
    return tuple(found)
