"""What a draw is told of its request: the same whoever draws it, and nothing where nothing
counts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from baton.core.ids import TokenId
from baton.core.messages import Drawn, Grammar, Shaping
from baton.core.past import Past, past_of

from .build import GREEDY, ticket

OFF = Shaping(repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0, logit_bias=())


def make(shaping=None, *, said=(), min_tokens=0):
    made = replace(ticket(), prompt=tuple(map(TokenId, (9, 4, 9, 5))))
    limits = replace(made.limits, min_tokens=min_tokens, eos_token_ids=(2,), stop_token_ids=(8,))
    return replace(made, sampling=replace(GREEDY, shaping=shaping), limits=limits, said=tuple(said))


def drawn(*tokens):
    return [Drawn(TokenId(t), None, ()) for t in tokens]


@pytest.mark.parametrize("shaping", [None, OFF, replace(OFF, logit_bias=((TokenId(1), 3.0),))])
def test_plain_requests_ship_no_history(shaping):
    assert past_of(make(shaping), drawn(1, 2, 3)) is None


@pytest.mark.parametrize(
    ("change", "prompt"),
    [
        ({"repetition_penalty": 1.1}, (4, 5, 9)),
        ({"presence_penalty": 0.1}, ()),
        ({"frequency_penalty": -0.1}, ()),
    ],
)
def test_penalties_ship_what_they_count(change, prompt):
    assert past_of(make(replace(OFF, **change)), drawn(9, 1, 9)) == Past(prompt, (9, 1, 9), ())


def test_a_new_epoch_sees_what_the_old_one_would_have_seen():
    """Wherever the answer is cut, the tokens said and those of the epoch count together, for
    penalties and min_tokens."""
    shaping = replace(OFF, repetition_penalty=1.5, frequency_penalty=0.5)
    answer = (3, 1, 3, 7, 7)
    for done in range(len(answer) + 1):
        views = {
            past_of(make(shaping, said=answer[:cut], min_tokens=3), drawn(*answer[cut:done]))
            for cut in range(done + 1)
        }
        assert views == {Past((4, 5, 9), answer[:done], (2, 8) if done < 3 else ())}


WORDS = st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=4), min_size=1, max_size=4)


@settings(max_examples=200, deadline=None)
@given(WORDS, st.lists(st.integers(1, 3), max_size=6), st.integers(0, 6))
def test_a_token_is_barred_if_it_would_complete_a_bad_word(words, answer, cut):
    """Every next token is tried: the answer with it must end with no word. The prompt does not
    count, though it has the same tokens."""
    shaping = replace(OFF, bad_words=tuple(tuple(map(TokenId, w)) for w in words))
    made = replace(make(shaping, said=answer[:cut]), prompt=tuple(map(TokenId, (1, 2, 3))))
    found = past_of(made, drawn(*answer[cut:]))
    bad = {t for t in (1, 2, 3) if any([*answer, t][-len(w) :] == w for w in words)}
    assert (set() if found is None else set(found.bad)) == bad
    assert found is None or (found.prompt, found.answer) == ((), ()), "no rank needs the history"


def test_bad_words_and_early_ends_are_told_apart():
    shaping = replace(OFF, bad_words=((TokenId(5), TokenId(6)),), presence_penalty=1.0)
    assert past_of(make(shaping, min_tokens=3), drawn(5)) == Past((), (5,), (2, 8), bad=(6,))


@pytest.mark.parametrize("least", [0, 2])
@pytest.mark.parametrize(
    ("answer", "begun"),
    [((), False), ((6, 5), False), ((5, 6), True), ((1, 5, 6, 3), True), ((5, 5, 6, 5), True)],
)
def test_an_answer_does_not_end_before_its_grammar_has_begun(least, answer, begun):
    """Behind 5 6 it may, also in another epoch. The client's own stop token, 8, may end it before;
    `min_tokens` bars both."""
    made = replace(make(min_tokens=least), grammar=Grammar("g", (TokenId(5), TokenId(6)), ()))
    ends = (2, 8) if len(answer) < least else () if begun else (2,)
    for cut in range(len(answer) + 1):
        found = past_of(replace(made, said=answer[:cut]), drawn(*answer[cut:]))
        assert found == Past((), answer, ends, constrained=True)


def test_an_answer_whose_grammar_begins_at_once_may_end_when_the_grammar_says_so():
    made = replace(make(), grammar=Grammar("g", (), ()))
    assert past_of(made, drawn(4)) == Past((), (4,), (), constrained=True)
