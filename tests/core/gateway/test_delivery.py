"""Tokens on their way to a client: the fast way and the plain one are one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.build import drawn
from tests.core.gateway.test_front import Bench, D, P

from baton.core.gateway.delivery import Delivery
from baton.core.ids import TokenIndex
from baton.core.messages import Admitted, FinishReason, FirstToken, Tokens

MESSAGES = st.lists(
    st.tuples(
        st.integers(0, 6),  # start
        st.lists(st.integers(40, 42), min_size=1, max_size=3),
        st.sampled_from([None, None, None, FinishReason.STOP]),
        st.integers(0, 2),  # cached
    ),
    max_size=12,
)


def told(messages):
    """What a client hears of these messages."""
    bench = Bench()
    bench.pair()
    key = bench.start()
    said = [bench.say(P, FirstToken(key, TokenIndex(0), drawn(40), None, 0))]
    said.append(bench.say(D, Admitted(key)))
    for start, tokens, finish, cached in messages:
        lot = tuple(drawn(token) for token in tokens)
        said.append(bench.say(D, Tokens(key, TokenIndex(start), lot, finish, cached)))
    return said


@given(MESSAGES)
@settings(deadline=None)
def test_the_fast_way_of_a_token_is_the_plain_one(messages):
    fast = told(messages)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Delivery, "_fast_take", lambda self, request, message: False)
        assert told(messages) == fast
