"""The table of matchers: what it allows is what a matcher made from nothing allows."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.core.ids import Epoch, Key, Room, TokenId
from baton.core.matchers import GrammarError, Matchers, NoMatcher, begins, common
from baton.core.messages import Grammar

TOKENS = st.lists(st.integers(0, 3).map(TokenId), max_size=6).map(tuple)


class Remembers:
    """Allows exactly its grammar and what it has accepted, and counts what is asked of it."""

    made = 0

    def __init__(self, grammar: Grammar) -> None:
        self.grammar, self.accepted, self.asked = grammar, (), 0
        type(self).made += 1

    def accept(self, tokens: Sequence[TokenId]) -> None:
        assert tokens, "nobody accepts nothing"
        if 9 in tokens:
            raise GrammarError("9 is not allowed")
        self.accepted += tuple(tokens)
        self.asked += len(tokens)

    def go_back(self, count: int) -> None:
        assert 0 < count <= len(self.accepted)
        self.accepted = self.accepted[:-count]

    def allowed(self) -> tuple[Grammar, tuple[TokenId, ...]]:
        return self.grammar, self.accepted


def key(n: int, epoch: int = 1) -> Key:
    return Key(Room(f"{n:032x}"), Epoch(epoch))


def constrain(
    found: Matchers, room: Key, its: Grammar, build: Callable[[Grammar], Any] = Remembers
) -> None:
    """As an engine does."""
    if not found.reuse(room, its):
        found.add(room, its, build(its))


def grammar(text: str = "g", after: tuple[int, ...] = ()) -> Grammar:
    return Grammar(text, tuple(map(TokenId, after)), (TokenId(7),))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["ask", "end"]), st.integers(0, 1), TOKENS),
        max_size=25,
    )
)
def test_whatever_came_before_a_room_is_allowed_what_its_own_answer_implies(steps):
    """A matcher that is not taken back, is taken from another grammar, or misses a token is found:
    answers jump back and forth here, and rooms come and go."""
    found, rooms = Matchers(spares=2), {}
    for n, what, text, answer in steps:
        if what == "end":
            if rooms.pop(n, None) is not None:
                found.release(key(n))
            continue
        if n not in rooms:
            rooms[n] = grammar(str(text), (1,) if n == 2 else ())
            constrain(found, key(n), rooms[n])
        begin = begins(answer, rooms[n].after)
        expected = None if begin is None else (rooms[n], answer[begin:])
        assert found.allowed(key(n), answer) == expected
        assert len(found) == len(rooms)


def test_an_answer_that_goes_on_costs_what_is_new_and_a_spare_matcher_nothing():
    Remembers.made = 0
    found = Matchers(spares=1)
    constrain(found, key(1), grammar())
    for n in range(20):
        found.allowed(key(1), (TokenId(1),) * n)
    matcher = found._rooms[key(1)].matcher
    assert matcher.asked == 19
    found.release(key(1))
    constrain(found, key(1, 2), grammar())
    assert found.allowed(key(1, 2), ()) == (grammar(), ())
    assert found._rooms[key(1, 2)].matcher is matcher
    for n in (2, 3, 4):
        constrain(found, key(n), grammar(str(n)))
        found.release(key(n))
    assert Remembers.made == 4
    assert len(found._spares) == 1, "spares are bounded"


def test_a_matcher_that_has_failed_serves_nobody_else():
    class Fails(Remembers):
        def go_back(self, count: int) -> None:
            raise GrammarError("stuck")

    found = Matchers(spares=4)
    constrain(found, key(1), grammar(), Fails)
    found.allowed(key(1), (TokenId(1),))
    found.release(key(1))
    assert not found._spares
    assert not len(found)
    constrain(found, key(2), grammar(), Fails)
    with pytest.raises(GrammarError, match="9 is not allowed"):
        found.allowed(key(2), (TokenId(1), TokenId(9)))


def test_a_grammar_that_cannot_be_followed_says_why_each_time():
    found = Matchers(spares=4)
    found.add(key(1), grammar(), NoMatcher("no vocabulary"))
    for answer in ((), (TokenId(1),)):
        with pytest.raises(GrammarError, match="no vocabulary"):
            found.allowed(key(1), answer)
    found.release(key(1))


@given(TOKENS, st.lists(st.integers(0, 3).map(TokenId), max_size=3).map(tuple))
def test_where_a_grammar_begins(answer, after):
    ends = [i + len(after) for i in range(len(answer) + 1) if answer[i : i + len(after)] == after]
    assert begins(answer, after) == (min(ends) if ends else None)


@given(TOKENS, TOKENS)
def test_what_two_answers_have_in_common(one, other):
    n = common(one, other)
    assert one[:n] == other[:n]
    assert n == min(len(one), len(other)) or one[n] != other[n]
