"""What a choice says never depends on how many tokens came at once, nor on whether anybody wants
their scores."""

import functools
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from baton.core.door import Emit, RequestId
from baton.core.ids import TokenId, TokenIndex
from baton.core.messages import FinishReason
from baton.gateway.stream import Ending, TextStream

from .fake_door import drawn
from .models import ids
from .rig import make_tokenizer

QUIET = TokenId(ids("z")[0])  # as an end token: counted, and no text
tokens_of = st.text(alphabet="abzé🎉", max_size=14).map(ids)
Said = tuple[str, int, Ending | None]


@functools.cache
def tokenizer():
    return make_tokenizer()


def said(
    tokens: list[int],
    cuts: list[int],
    *,
    stops: list[str],
    min_tokens: int,
    scored: bool,
    short: bool = False,
) -> Said:
    """All text, the count and the ending of a choice whose tokens come in these lots. short: by
    `fast_text` where it can be."""
    stream = TextStream(
        index=0,
        choice=0,
        prompt=(TokenId(ids("a")[0]),),
        detokenizer=tokenizer().detokenizer((TokenId(ids("a")[0]),)),
        stops=stops,
        include_stop=False,
        min_tokens=min_tokens,
        stop_token_ids=frozenset({QUIET}),
        quiet=frozenset({QUIET}),
        scored=scored,
    )
    text = ""
    for a, b in pairwise(cuts):
        lot = tuple(drawn(t, logprobs=1 if scored else None) for t in tokens[a:b])
        emit = Emit(RequestId(1), TokenIndex(a), lot)
        bare = stream.fast_text(emit) if short else None
        text += bare if bare is not None else stream.feed(emit).text
        if stream.ending is not None:
            return text, stream.count, stream.ending
    return text + stream.finish(FinishReason.LENGTH).text, stream.count, stream.ending


@given(
    tokens_of,
    st.lists(st.text(alphabet="abé", min_size=1, max_size=3), max_size=2),
    st.integers(0, 4),
    st.data(),
)
@settings(max_examples=300, deadline=None)
def test_lots_and_scores_change_nothing(
    tokens: list[int], stops: list[str], min_tokens: int, data: st.DataObject
) -> None:
    n = len(tokens)
    some = sorted({0, n, *data.draw(st.lists(st.integers(0, n), max_size=4))})
    same = {"stops": stops, "min_tokens": min_tokens}
    one_by_one = said(tokens, list(range(n + 1)), scored=False, **same)
    assert said(tokens, list(range(n + 1)), scored=True, **same) == one_by_one
    assert said(tokens, some, scored=False, **same) == one_by_one
    assert said(tokens, list(range(n + 1)), scored=False, short=True, **same) == one_by_one
    assert said(tokens, some, scored=False, short=True, **same) == one_by_one
    assert said(tokens, [0, n] if n else [0], scored=True, **same) == one_by_one
