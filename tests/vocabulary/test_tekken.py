"""Mistral's tekken.json: the same ids as mistral_common gives, built by tiktoken."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings

from baton.core.errors import ConfigError
from baton.gateway.tokenizer import Tokenizer
from baton.vocabulary.load import vocabulary_of

from .files import BYTES, TEKKEN_SPECIAL, published_tekken, rank_tables, several_texts, write_tekken

NAMES = (*TEKKEN_SPECIAL, *(f"<SPECIAL_{i}>" for i in range(5, 30)))


def load(tokens=BYTES, **settings):
    with tempfile.TemporaryDirectory() as directory:
        return Tokenizer.load(write_tekken(Path(directory), tokens, **settings))


def expected(published, text):
    """Special tokens are ids below 30; mistral_common encodes the texts between them."""
    for i, name in enumerate(NAMES):
        before, found, after = text.partition(name)
        if found:
            return [*expected(published, before), i, *expected(published, after)]
    return [30 + i for i in published.encode(text, disallowed_special=())]


@given(rank_tables(), several_texts)
@settings(max_examples=25, deadline=None)
def test_ids_are_those_of_the_published_tokenizer(tokens, texts):
    tokenizer, published = load(tokens), published_tekken(tokens)
    for text in texts:
        assert list(tokenizer.encode_chat(text)) == expected(published, text)
        assert list(tokenizer.encode(text)) == [1, *expected(published, text)]


def test_tokens_beyond_the_stated_size_are_not_used():
    tokens = (*BYTES, b"ab", b"cd")
    tokenizer = load(tokens, spare=1)
    assert tokenizer.vocab_size == 30 + 257
    assert tokenizer.encode_chat("abcd") == (30 + 256, 30 + ord("c"), 30 + ord("d"))


def test_special_tokens_end_an_answer_and_are_not_shown():
    tokenizer = load()
    assert tokenizer.eos_ids == (2,)
    detokenizer = tokenizer.detokenizer(())
    assert [detokenizer.push(i) for i in (3, 30 + ord("a"), 20)] == ["", "a", ""]
    assert tokenizer.spell(20).text == "<SPECIAL_20>"


def test_files_up_to_version_7_do_not_name_their_special_tokens():
    tokenizer = load(special=None, version="v7")
    assert tokenizer.encode_chat("[TOOL_CONTENT]<SPECIAL_20>") == (19, 20)


DAMAGE = {
    "special tokens missing": ({"special": None, "version": "v13"}, "special_tokens is missing"),
    "a special token twice": ({"special": ("<s>", "<s>")}, "30 different ones"),
    "more special tokens than ids": ({"count": 3}, "3 different ones"),
    "no beginning token": ({"special": ("<unk>",)}, "<s>"),
    "a byte missing": ({"tokens": BYTES[:-1]}, "0xff"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_file_is_refused_with_its_name(tmp_path, case):
    changes, words = DAMAGE[case]
    with pytest.raises(ConfigError, match=rf"tekken\.json is damaged.*{words}.*fetch it again"):
        vocabulary_of(write_tekken(tmp_path, **changes))


@pytest.mark.parametrize("text", ["{", "[]", '{"config": {}, "vocab": []}'])
def test_a_file_of_another_kind_is_refused(tmp_path, text):
    (tmp_path / "tekken.json").write_text(text)
    with pytest.raises(ConfigError, match="damaged or not a tekken file"):
        vocabulary_of(tmp_path)
