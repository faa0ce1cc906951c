"""Finds what came after the end of a text when it occurred before: drafts without a model.

    t t [a b c] d e f t t t [a b c]  ──▶ d e f

Prompt lookup (Saxena 2023) takes what followed the last occurrence of a few tokens. Here it is the
longest end of the text that occurred before, and the longer it is, the more is drafted, as in
SuffixDecoding (Oliaro et al. 2024). Where the text itself has too little, answers of before are
looked at.

A lookup takes time in proportion to the length of what is looked at: 10 us for 4,000 tokens.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from baton.core.ids import TokenId
from baton.core.scheduler.lookup_rule import MOST_DRAFTS, LookupRule

KEPT = 16_384  # tokens of earlier answers
END = -1  # behind each of them; no token
Tokens = NDArray[np.int32]


class Answers:
    """Earlier answers, the latest ones."""

    def __init__(self) -> None:
        self._tokens: Tokens = np.empty(0, dtype=np.int32)

    def add(self, answer: Sequence[TokenId]) -> None:
        """An answer is complete."""
        more = np.array([*answer, END], dtype=np.int32)
        self._tokens = np.concatenate((self._tokens, more))[-KEPT:]

    @property
    def tokens(self) -> Tokens:
        """All of them, each followed by END."""
        return self._tokens


class SuffixLookup:
    """One text, which grows."""

    def __init__(self, rule: LookupRule, answers: Answers | None = None) -> None:
        self._rule, self._answers = rule, answers
        self._tokens: Tokens = np.empty(256, dtype=np.int32)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, tokens: Sequence[TokenId]) -> None:
        """The text goes on."""
        past = self._count + len(tokens)
        if past > len(self._tokens):
            grown = np.empty(max(past, 2 * len(self._tokens)), dtype=np.int32)
            grown[: self._count] = self._tokens[: self._count]
            self._tokens = grown
        self._tokens[self._count : past] = tokens
        self._count = past

    def draft(self, most: int) -> tuple[TokenId, ...]:
        """Return the tokens that are expected next, at most `most`. Where the text repeats itself,
        they go on doing so."""
        if self._count == 0:
            return ()
        text = self._tokens[: self._count]
        after, length = _longest(text, text, self._rule)
        following = np.resize(text[after:], MOST_DRAFTS)
        if self._answers is not None and length < self._rule.longest:
            others = self._answers.tokens
            at, there = _longest(others, text, self._rule)
            if there > length:
                following, length = _answer(others[at : at + MOST_DRAFTS]), there
        if length < self._rule.shortest:
            return ()
        count = min(most, self._rule.drafts, int(length * self._rule.factor))
        return tuple(TokenId(int(token)) for token in following[: max(0, count)])


def _longest(where: Tokens, text: Tokens, rule: LookupRule) -> tuple[int, int]:
    """Return the position after the last of the longest occurrences of the end of a text that go
    on, and how many tokens are the same there; 0 tokens if there is none."""
    # where an occurrence ends
    ends = np.flatnonzero((where[:-1] == text[-1]) & (where[1:] != END))
    length = 1
    while ends.size and length < min(rule.longest, len(text)):
        longer = ends[ends >= length]
        longer = longer[where[longer - length] == text[-1 - length]]
        if not longer.size:
            break
        ends, length = longer, length + 1
    return (int(ends[-1]) + 1, length) if ends.size else (0, 0)


def _answer(tokens: Tokens) -> Tokens:
    """Return the tokens before the next END."""
    ends = np.flatnonzero(tokens == END)
    return tokens[: ends[0]] if ends.size else tokens
