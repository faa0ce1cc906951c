"""Logprobs in the two formats of chat and completions."""

from collections.abc import Sequence

import msgspec

from baton.core.ids import TokenId
from baton.gateway.stream import Scored
from baton.gateway.tokenizer import Tokenizer

LOWEST = -9999.0  # JSON has no infinities


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
    token_logprobs: tuple[float, ...]
    top_logprobs: tuple[dict[str, float], ...]
    text_offset: tuple[int, ...]


def _finite(logprob: float | None) -> float:
    return LOWEST if logprob is None else max(logprob, LOWEST)


def _top(token: TokenId, logprob: float, tokenizer: Tokenizer) -> TopLogprob:
    spelling = tokenizer.spell(token)
    return TopLogprob(spelling.text, _finite(logprob), tuple(spelling.raw))


def chat_logprobs(scored: Sequence[Scored], tokenizer: Tokenizer) -> ChatLogprobs:
    """Chat style."""
    entries = []
    for drawn in (s.drawn for s in scored):
        spelling = tokenizer.spell(drawn.token)
        top = tuple(_top(token, logprob, tokenizer) for token, logprob in drawn.top)
        entries.append(ChatLogprob(spelling.text, _finite(drawn.logprob), tuple(spelling.raw), top))
    return ChatLogprobs(tuple(entries))


def completion_logprobs(scored: Sequence[Scored], tokenizer: Tokenizer) -> CompletionLogprobs:
    """Completions style; `top_logprobs` includes the sampled token."""
    drawn = [s.drawn for s in scored]
    return CompletionLogprobs(
        tokens=tuple(tokenizer.spell(d.token).text for d in drawn),
        token_logprobs=tuple(_finite(d.logprob) for d in drawn),
        top_logprobs=tuple(
            {tokenizer.spell(t).text: _finite(p) for t, p in ((d.token, d.logprob), *d.top)}
            for d in drawn
        ),
        text_offset=tuple(s.offset for s in scored),
    )
