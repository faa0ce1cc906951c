"""Kimi's tokenizer: the same ids as the published one, built by tiktoken from the same files."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings

from baton.core.errors import ConfigError
from baton.gateway.tokenizer import Tokenizer
from baton.vocabulary.load import vocabulary_of
from baton.vocabulary.tiktoken_file import KIMI

from .files import BYTES, KIMI_PATTERN, Kimi, rank_tables, several_texts, texts, write_kimi

WORDS = (*BYTES, b"ab", b"abc", "中".encode()[:2], "中".encode(), "中中".encode(), b"  ", b"   ")


def load(tokens=BYTES, **settings):
    with tempfile.TemporaryDirectory() as directory:
        return Tokenizer.load(write_kimi(Path(directory), tokens, **settings))


@given(rank_tables(), several_texts)
@settings(max_examples=40, deadline=None)
@example(WORDS, ["ab abc中中中中  x   <|im_end|>中<|im_end"])
def test_ids_are_those_of_the_published_tokenizer(tokens, texts):
    published, ours = Kimi(tokens), load(tokens)
    for text in texts:
        ids = published.encode(text)
        assert list(ours.encode(text)) == ids, "a plain prompt: nothing is put before it"
        assert list(ours.encode_chat(text)) == ids
        assert b"".join(ours.spell(i).raw for i in ids) == text.encode()


@given(rank_tables(), texts, several_texts)
@settings(max_examples=25, deadline=None)
def test_text_comes_back_token_by_token_without_special_tokens(tokens, prompt, answers):
    tokenizer, published = load(tokens), Kimi(tokens)
    for answer in answers:
        ids = tokenizer.encode(answer)
        detokenizer = tokenizer.detokenizer(tokenizer.encode(prompt))
        shown = "".join(map(detokenizer.push, ids)) + detokenizer.flush()
        assert shown == published.decode([i for i in ids if tokenizer.spell(i).text not in HIDDEN])


HIDDEN = {"[BOS]", "[EOT]", "<|im_end|>", "<|im_user|>"}


# The "a" makes the number of characters before a cut odd, so that a cut divides a pair of them.
LONG = {
    "a run without spaces": "a" + "中" * 60_001,
    "runs of spaces": "x" + " " * 25_001 + "\n" + "ab",
    "exactly the longest run": "a" + "中" * 24_999 + " " * 25_000,
    "runs side by side": "a" + "中" * 25_003 + " " * 25_003 + "a" + "中" * 25_003,
    "a run after others": "ab " * 9_000 + "a" + "中" * 25_001,
    "spaces that are none elsewhere": "a" + "中" * 12_499 + "\x1c" + "中" * 13_001,
    "several chunks": "a" + ("abc " * 20_000 + "中" * 20_001) * 4 + "ab",
}


@pytest.mark.parametrize("case", LONG)
def test_long_texts_are_cut_where_the_published_tokenizer_cuts_them(case):
    published, vocabulary = Kimi(WORDS), load(WORDS)
    assert list(vocabulary.encode(LONG[case])) == published.encode(LONG[case])


def test_the_pattern_is_the_published_one():
    assert KIMI.pattern == KIMI_PATTERN


def test_a_cut_counts_from_the_last_special_token():
    long = "a" + "中" * 25_001
    assert list(load(WORDS).encode_chat(f"<|im_user|>{long}")) == [
        len(WORDS) + 3,
        *Kimi(WORDS).encode(long),
    ]


def test_reserved_ids_have_their_published_names():
    vocabulary = load()
    assert vocabulary.encode("<|reserved_token_266|>") == (266,)
    assert vocabulary.encode("<|reserved_token_513|>") == (513,)
    assert len(vocabulary.encode("<|reserved_token_514|>")) > 1
    assert vocabulary.vocab_size == 256 + 258


def test_tokens_that_the_model_has_no_row_for_are_left_out():
    """A grammar's mask has one bit for each row; and an id beyond them would be refused."""
    tokenizer = load(vocab_size=512)
    assert tokenizer.encode("<|reserved_token_511|>") == (511,)
    assert len(tokenizer.encode("<|reserved_token_512|>")) > 1


def test_the_model_speaks_through_its_template(tmp_path):
    tokenizer = Tokenizer.load(write_kimi(tmp_path))
    text = tokenizer.templates.choose(tools=False).render([{"role": "user", "content": "hi"}])
    assert list(tokenizer.encode_chat(text)) == [259, *b"user", 273, *b"hi", 258]
    assert tokenizer.eos_ids == (257,)


@pytest.mark.parametrize(
    "auto_map",
    [
        "tokenization_kimi.TikTokenTokenizer",
        ["tokenization_moonshot.TikTokenTokenizer", None],
        ["moonshotai/Kimi-K2-Instruct--tokenization_kimi.TikTokenTokenizer", None],
    ],
)
def test_the_class_is_found_by_its_name(tmp_path, auto_map):
    assert vocabulary_of(write_kimi(tmp_path, auto_map=auto_map)).get_vocab_size() == 256 + 258


@pytest.mark.parametrize("auto_map", [None, [], "tokenization_qwen.QWenTokenizer"])
def test_how_an_unknown_class_splits_is_not_guessed(tmp_path, auto_map):
    with pytest.raises(ConfigError, match=r"tokenization_kimi.*Put a tokenizer\.json"):
        vocabulary_of(write_kimi(tmp_path, auto_map=auto_map))


DAMAGE = {
    "not base64": ("!!!! 0\n", "base64"),
    "not text": ("\xff\xfe", "ascii"),
    "ranks with a hole": ("AA== 0\nAQ== 2\n", "line 2"),
    "a line without a rank": ("AA==\n", "line 1"),
    "a token twice": ("AA== 0\nAA== 1\n", "twice"),
    "cut short": ("AA== 0\nAQ== 1\n", "0x02"),
    "empty": ("", "0x00"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_file_is_refused_with_its_name(tmp_path, case):
    text, words = DAMAGE[case]
    (write_kimi(tmp_path) / "tiktoken.model").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=rf"tiktoken\.model is damaged.*{words}.*fetch it again"):
        vocabulary_of(tmp_path)


def test_a_grammar_takes_the_same_vocabulary(tmp_path):
    """llguidance reads it with another engine for regular expressions."""
    llguidance = pytest.importorskip("llguidance")
    vocabulary = vocabulary_of(write_kimi(tmp_path, WORDS))
    theirs = llguidance.LLTokenizer(vocabulary.to_str(), n_vocab=vocabulary.get_vocab_size())
    assert theirs.tokenize_str("abc 中中") == Kimi(WORDS).encode("abc 中中")
