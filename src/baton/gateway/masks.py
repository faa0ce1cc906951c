"""Tokens that a request excludes from its answer: `allowed_token_ids` and `bad_words`.

Bad words follow vLLM's rule: a word is barred as it stands at the beginning of a text, and as it
stands after a space if that gives other tokens of the same number. A word of several tokens is
barred by its last one, when the others have just been generated (core/past.py).
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence

from baton.core.ids import TokenId
from baton.core.messages import Limits, Shaping
from baton.gateway.faults import refuse
from baton.gateway.neutral import brief

Encode = Callable[[str], tuple[TokenId, ...]]
Word = tuple[TokenId, ...]


def allowed_token_ids(ids: Sequence[int] | None, *, vocab_size: int) -> tuple[TokenId, ...]:
    """Return the ids that may be drawn, each once; empty = all.

    Raises:
        HttpFault: 400, one is not in the vocabulary
    """
    if ids is None:
        return ()
    top = max(ids)
    if top >= vocab_size:
        raise refuse(
            f"allowed_token_ids holds {top}; this model's vocabulary ends at {vocab_size - 1}",
            param="allowed_token_ids",
        )
    return tuple(map(TokenId, dict.fromkeys(ids)))


async def bad_words(
    words: Sequence[str] | None, *, encode: Encode, vocab_size: int, inline_chars: int
) -> tuple[Word, ...]:
    """Return the token sequences that the answer must not contain.

    Args:
        encode: encodes a text without special tokens
        inline_chars: words of more characters together are encoded on a thread

    Raises:
        HttpFault: 400, a word has no tokens or some that the model cannot draw
    """
    if sum(map(len, words or ())) <= inline_chars:
        return _tokens_of(words or (), encode, vocab_size)
    return await asyncio.to_thread(_tokens_of, words or (), encode, vocab_size)


def _tokens_of(words: Sequence[str], encode: Encode, vocab_size: int) -> tuple[Word, ...]:
    found: dict[Word, None] = {}
    for index, word in enumerate(words):
        for tokens in _spellings(word, encode):
            if not tokens or max(tokens) >= vocab_size:
                raise refuse(
                    f"bad_words[{index}] = {brief(word)} has no tokens that this model draws; "
                    "leave it out",
                    param="bad_words",
                )
            found[tokens] = None
    return tuple(found)


def _spellings(word: str, encode: Encode) -> Iterator[Word]:
    bare = encode(word.lstrip())
    yield bare
    spaced = encode(f" {word.lstrip()}")
    if len(spaced) == len(bare) and spaced[:1] != bare[:1]:
        yield spaced


def require_some_left(shaping: Shaping, limits: Limits, *, vocab_size: int) -> None:
    """Check that the first token can be drawn.

    Later ones may still fail: bad words of several tokens can bar what is left.

    Raises:
        HttpFault: 400, masks, bad words and end tokens before `min_tokens` exclude every token
    """
    barred = {word[0] for word in shaping.bad_words if len(word) == 1}
    if limits.min_tokens:
        barred |= {*limits.eos_token_ids, *limits.stop_token_ids}
    left = (
        set(shaping.allowed_token_ids) - barred
        if shaping.allowed_token_ids
        else len(barred) < vocab_size
    )
    if not left:
        field = "allowed_token_ids" if shaping.allowed_token_ids else "bad_words"
        raise refuse(
            f"{field} leaves no token to generate: bad_words, and end tokens before min_tokens, "
            "bar all of them",
            param=field,
        )
