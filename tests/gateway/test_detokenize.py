"""The sum of the pieces is the text that decoding all at once gives, and no piece ends inside a
character."""

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Vocabulary
from tokenizers import models

from baton.gateway.detokenize import HOLD_TOKENS, Detokenizer, OwnTexts, UnspacedDetokenizer

from .models import BOS, END, byte_vocabulary, fallback_vocabulary

BYTES = byte_vocabulary()
FALLBACK = fallback_vocabulary()
SPECIAL = frozenset({BOS, END})


def new(vocabulary=BYTES, special=SPECIAL, prompt=(), own=True):
    """own: whether tokens may have a text of their own, where the vocabulary is such that they
    can."""
    return Detokenizer(
        vocabulary,
        OwnTexts(vocabulary, special, byte_level=own and vocabulary is BYTES),
        prompt,
    )


def pieces_of(tokens, vocabulary=BYTES, special=SPECIAL, prompt=(), own=True):
    detokenizer = new(vocabulary, special, prompt, own)
    pieces = [detokenizer.push(t) for t in tokens]
    return pieces, detokenizer.flush()


@given(st.text(max_size=40))
def test_unicode_comes_out_whole_and_never_in_parts(text):
    pieces, tail = pieces_of(BYTES.encode(text, add_special_tokens=False).ids)
    assert "".join(pieces) + tail == text
    if "\ufffd" not in text:
        assert tail == ""
        assert not any("\ufffd" in p for p in pieces)


@given(st.lists(st.integers(0, BYTES.get_vocab_size() - 1), max_size=60), st.booleans())
def test_any_tokens_equal_the_full_decode(tokens, own):
    pieces, tail = pieces_of(tokens, own=own)
    assert "".join(pieces) + tail == BYTES.decode(tokens, skip_special_tokens=True)


@given(st.text(max_size=10), st.text(max_size=20))
def test_text_after_a_prompt_is_what_the_prompt_was_continued_by(prompt, text):
    before = BYTES.encode(prompt).ids
    after = list(text.encode())
    pieces, tail = pieces_of(after, prompt=before)
    assert "".join(pieces) + tail == text


def test_characters_over_several_tokens_are_held_back():
    pieces, tail = pieces_of(list("é🎉".encode()))
    assert pieces == ["", "é", "", "", "", "🎉"]
    assert tail == ""


def test_an_unfinished_character_shows_at_the_end_only():
    pieces, tail = pieces_of([*b"ab", 0xF0, 0x9F])
    assert "".join(pieces) == "ab"
    assert tail == "\ufffd"


def test_a_prompt_that_ends_inside_a_character():
    pieces, tail = pieces_of([0xA9, ord("x")], prompt=[ord("a"), 0xC3])
    assert "".join(pieces) + tail == "\ufffdx"


def test_special_tokens_are_no_text_and_cost_nothing():
    detokenizer = new()
    assert [detokenizer.push(END) for _ in range(1000)] == [""] * 1000
    assert detokenizer._held == []


def test_endless_broken_bytes_are_shown_in_bounded_lots():
    detokenizer = new()
    shown = "".join(detokenizer.push(0x80) for _ in range(5 * HOLD_TOKENS))
    assert shown == "\ufffd" * 5 * HOLD_TOKENS


def test_a_token_has_a_text_of_its_own_only_if_no_neighbour_can_change_it():
    own = OwnTexts(BYTES, SPECIAL, byte_level=True)
    whole = {"a", "hello", "é", " w"}
    found = {own[token] for token in range(BYTES.get_vocab_size())}
    assert whole | {""} <= found
    assert own[0xC3] is own[BYTES.token_to_id("ðŁ")] is None, "parts of characters"
    assert not any("\ufffd" in (text or "") for text in found)
    assert own[END] == "", "said, and not shown"
    assert OwnTexts(FALLBACK, frozenset({0}), byte_level=False)[258] is None, (
        "its space is shown in the middle only"
    )


def test_a_leading_space_survives_after_a_prompt():
    pieces, tail = pieces_of([258, 258], FALLBACK, frozenset({0}), prompt=[259])
    assert "".join(pieces) + tail == " x x"


def test_a_broken_byte_behind_a_complete_character_does_not_stop_the_stream():
    tokens = [0xC3 + 1, 0xA9 + 1, 0x80 + 1, 259, 258]
    pieces, tail = pieces_of(tokens, FALLBACK, frozenset({0}))
    assert "".join(pieces) + tail == "é\ufffdy x"


@given(st.lists(st.integers(1, 260), max_size=40))
def test_no_tokens_of_a_byte_fallback_vocabulary_fail(tokens):
    pieces_of(tokens, FALLBACK, frozenset({0}))


@given(st.text(max_size=30))
def test_byte_fallback_text_comes_out_whole(text):
    tokens = [b + 1 for b in text.encode()]
    pieces, tail = pieces_of(tokens, FALLBACK, frozenset({0}), prompt=[259])
    assert "".join(pieces) + tail == text


@given(st.lists(st.integers(0, BYTES.get_vocab_size() - 1), max_size=60), st.booleans())
def test_with_special_tokens_any_tokens_equal_the_full_decode(tokens, own):
    pieces, tail = pieces_of(tokens, special=frozenset(), own=own)
    assert "".join(pieces) + tail == BYTES.decode(tokens, skip_special_tokens=False)


def spaced_vocabulary() -> Vocabulary:
    """Words with spaces between them, and two added tokens."""
    vocabulary = Vocabulary(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    vocabulary.add_special_tokens(["<x>", "<y>"])
    return vocabulary


def test_spaces_between_special_tokens():
    vocabulary, none = spaced_vocabulary(), frozenset[int]()
    tokens = [0, 2, 3, 2, 1, 3]
    own = OwnTexts(vocabulary, none, byte_level=False)
    with_spaces = Detokenizer(vocabulary, own, ())
    assert "".join(map(with_spaces.push, tokens)) == "a <x> <y> <x> b <y>"
    without = UnspacedDetokenizer(vocabulary, own, (), added={2: "<x>", 3: "<y>"})
    assert "".join(map(without.push, tokens)) == "a <x><y><x> b <y>"
