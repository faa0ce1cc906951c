"""How likely the tokens of a prompt are: what a chunk is asked to compute of this, and the result.

The first token of a prompt has no score, as nothing comes before it.
"""

import struct
from collections.abc import Iterator, Sequence

import msgspec

from baton.core.ids import TokenId

ITEM_BYTES = 4


class Score(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to compute beside a chunk of a prompt: the scores of the tokens that follow its
    positions, and the `top` most likely tokens at each."""

    top: int
    next: TokenId | None  # the token after the chunk's last one; None = the prompt ends there


class PromptScores(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The scores of n adjacent tokens, as little-endian arrays. Logprobs are natural logarithms,
    and the most likely token has rank 1."""

    top: int
    logprobs: bytes = b""  # float32 [n]
    ranks: bytes = b""  # uint32 [n]
    top_ids: bytes = b""  # uint32 [n, top], most likely first
    top_logprobs: bytes = b""  # float32 [n, top]

    @property
    def count(self) -> int:
        """The number of tokens that have a score."""
        return len(self.logprobs) // ITEM_BYTES

    def fits(self, prompt_tokens: int) -> bool:
        """Whether these are the scores of a whole prompt of that length."""
        n = prompt_tokens - 1
        sizes = [len(raw) for raw in (self.logprobs, self.ranks, self.top_ids, self.top_logprobs)]
        return sizes == [items * ITEM_BYTES for items in (n, n, n * self.top, n * self.top)]

    def tokens(self) -> Iterator["TokenScore"]:
        """Yield what is known of each token."""
        n, k = self.count, self.top
        logprobs, ranks = _floats(self.logprobs), _ints(self.ranks)
        ids, tops = _ints(self.top_ids), _floats(self.top_logprobs)
        for i in range(n):
            at = slice(i * k, (i + 1) * k)
            pairs = zip(map(TokenId, ids[at]), tops[at], strict=True)
            yield TokenScore(logprobs[i], ranks[i], tuple(pairs))


class TokenScore(msgspec.Struct, frozen=True, gc=False):
    """The score of one token. `top` holds the (token, logprob) of the likeliest in its place."""

    logprob: float
    rank: int
    top: tuple[tuple[TokenId, float], ...]


def pack_scores(top: int, tokens: Sequence[TokenScore]) -> PromptScores:
    """Return scores as messages carry them."""
    pairs = [pair for token in tokens for pair in token.top]
    return PromptScores(
        top,
        _pack("f", [token.logprob for token in tokens]),
        _pack("I", [token.rank for token in tokens]),
        _pack("I", [token for token, _ in pairs]),
        _pack("f", [logprob for _, logprob in pairs]),
    )


def joined(first: PromptScores, then: PromptScores) -> PromptScores:
    """Return the scores of a chunk's tokens and of those of the next one."""
    assert first.top == then.top, "both were asked for by one request"
    return PromptScores(
        first.top,
        first.logprobs + then.logprobs,
        first.ranks + then.ranks,
        first.top_ids + then.top_ids,
        first.top_logprobs + then.top_logprobs,
    )


def _pack(kind: str, values: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(values)}{kind}", *values)


def _floats(raw: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(raw) // ITEM_BYTES}f", raw)


def _ints(raw: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(raw) // ITEM_BYTES}I", raw)
