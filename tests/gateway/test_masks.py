"""Requests that exclude tokens: the first token can be drawn, or the request is refused."""

import asyncio
from contextlib import nullcontext
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from baton.core.messages import Limits
from baton.gateway.ask import NO_SHAPING
from baton.gateway.faults import HttpFault
from baton.gateway.masks import bad_words, require_some_left

IDS = st.lists(st.integers(0, 3), max_size=4)


@given(
    allowed=IDS,
    words=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=2), max_size=5),
    stops=IDS,
    min_tokens=st.integers(0, 1),
)
def test_what_leaves_no_token_is_refused_and_nothing_else(allowed, words, stops, min_tokens):
    shaping = replace(
        NO_SHAPING, allowed_token_ids=tuple(allowed), bad_words=tuple(map(tuple, words))
    )
    limits = Limits(4, tuple(stops), (), 1000, min_tokens)
    left = [
        t
        for t in range(4)
        if (t in allowed or not allowed) and [t] not in words and not (min_tokens and t in stops)
    ]
    expected = nullcontext() if left else pytest.raises(HttpFault)
    with expected as raised:
        require_some_left(shaping, limits, vocab_size=4)
    if not left:
        assert raised.value.fault.param == ("allowed_token_ids" if allowed else "bad_words")


@pytest.mark.parametrize("inline_chars", [0, 100])
def test_a_word_beyond_the_models_vocabulary_is_refused(inline_chars):
    """A tokenizer may have tokens that the model does not."""

    def tokens(words):
        last = partial(bad_words, encode=lambda text: (ord(text[-1]),), vocab_size=98)
        return asyncio.run(last(words, inline_chars=inline_chars))

    assert tokens(["a"]) == ((97,),)
    with pytest.raises(HttpFault, match=r"bad_words\[1\]"):
        tokens(["a", "b"])


@pytest.mark.parametrize(
    ("spaced", "barred"),
    [((3, 2), ((1, 2), (3, 2))), ((1, 3), ((1, 2),)), ((3, 1, 2), ((1, 2),)), ((1, 2), ((1, 2),))],
)
def test_a_word_after_a_space_counts_if_it_has_as_many_tokens_and_begins_differently(
    spaced, barred
):
    encode = {"ab": (1, 2), " ab": spaced}.__getitem__
    words = bad_words(["  ab"], encode=encode, vocab_size=9, inline_chars=100)
    assert asyncio.run(words) == barred
