"""Grammars that requests ask for, over a real vocabulary: what they allow, judged by `re`,
`jsonschema` and plain Python; and what is refused."""

import json
import re
from functools import cache

import jsonschema
import numpy as np
import pytest
from tests.gateway.models import byte_vocabulary

from baton.core.ids import TokenId
from baton.core.matchers import GrammarError
from baton.core.messages import Grammar
from baton.gateway.tokenizer import BYTE_ALPHABET
from baton.grammar import request as make
from baton.grammar.check import check
from baton.grammar.limits import CHOICES, NESTING, TEXT_CHARS
from baton.grammar.matcher import LlguidanceMatcher
from baton.grammar.vocabulary import Vocabulary

END = TokenId(257)
SIZE = 300  # more than the vocabulary has, as models are padded


@cache
def vocabulary() -> Vocabulary:
    return Vocabulary(byte_vocabulary().to_str, size=SIZE)


def matcher(text: str) -> LlguidanceMatcher:
    return LlguidanceMatcher(Grammar(text, (), (END,)), vocabulary())


def ids(text: str) -> list[TokenId]:
    return [TokenId(b) for b in text.encode()]


def takes(text: str, answer: str) -> bool:
    """Whether the grammar takes this answer as complete."""
    found = matcher(text)
    try:
        found.accept(ids(answer))
        return bool(found.allowed()[END])
    except GrammarError:
        return False


def drawn(text: str, seed: int, most: int = 400) -> str | None:
    """An answer drawn at random; None if it does not end."""
    found, rng, answer = matcher(text), np.random.default_rng(seed), []
    while len(answer) < most:
        allowed = np.flatnonzero(found.allowed())
        # ends as soon as it may: texts drawn from bytes would be long otherwise
        token = END if END in allowed else int(rng.choice(allowed))
        if token == END:
            return bytes(answer).decode()
        found.accept([TokenId(token)])
        answer += (BYTE_ALPHABET[c] for c in byte_vocabulary().id_to_token(token))
    return None


def test_tokens_beyond_the_vocabulary_are_never_allowed():
    allowed = matcher(make.regex(".*")).allowed()
    assert allowed.shape == (SIZE,)
    assert not allowed[byte_vocabulary().get_vocab_size() :].any()
    assert not allowed[256], "nor special tokens in text"


@pytest.mark.parametrize("pattern", ["(yes|no), [a-z]{2,4}", "[0-9]+(\\.[0-9]{2})?", "a|b|", "é+"])
def test_a_regular_expression_is_matched_from_beginning_to_end(pattern):
    for answer in ("yes, abc", "no, a", "12", "12.50", "12.5", "a", "", "éé", "yes, abcde", "x12"):
        assert takes(make.regex(pattern), answer) == bool(re.fullmatch(pattern, answer)), answer


def test_a_choice_is_one_of_its_texts():
    text = make.choice(["red", "dark red", 'with "quotes"\n', "é"])
    assert all(takes(text, c) for c in ("red", "dark red", 'with "quotes"\n', "é"))
    assert not any(takes(text, c) for c in ("re", "dark", "redred", "", "x"))
    assert takes(make.choice(["", "a"]), "")
    assert takes(make.choice([""]), "")
    check_text(make.choice([f"{i:04}" for i in range(CHOICES)]))


def test_context_free_grammars_in_both_notations():
    for text in ('root ::= "(" root ")" | "x"', 'start: "(" start ")" | "x"'):
        grammar = make.context_free(text)
        assert takes(grammar, "((x))")
        assert not takes(grammar, "((x)")


SCHEMAS = (
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    {"type": "array", "items": {"enum": [1, "two", None]}, "minItems": 1, "maxItems": 3},
    {"type": "integer", "minimum": 5, "maximum": 12},
    {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
    {
        "type": "object",
        "properties": {"k": {"$ref": "#/$defs/leaf"}, "t": {"const": "x"}},
        "required": ["k", "t"],
        "additionalProperties": False,
        "$defs": {"leaf": {"type": "string", "maxLength": 3}},
    },
    {"type": "string", "format": "date"},
    {"type": "string", "pattern": "^[a-c]{2,4}$"},
)


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda s: json.dumps(s)[:40])
def test_whatever_is_drawn_from_a_schema_is_valid(schema):
    text, ended = make.json_schema(schema), 0
    for seed in range(12):
        answer = drawn(text, seed)
        if answer is not None:
            jsonschema.validate(json.loads(answer), schema)
            ended += 1
    assert ended >= 3


def test_json_may_be_on_one_line_or_indented_and_white_space_is_bounded():
    text = make.json_schema({"type": "object", "properties": {"a": {"type": "array"}}})
    for indent in (None, 2, 4):
        assert takes(text, json.dumps({"a": [1, {"b": 2}]}, indent=indent))
    assert takes(text, '{"a":[]}')
    assert not takes(text, '{"a":' + " " * 40 + "[]}"), "a small model would go on for ever"
    compact = make.json_schema({"type": "object"}, white_space="")
    assert takes(compact, '{"a":1}')
    assert not takes(compact, '{"a": 1}')
    assert takes(make.json_object(), "{}")
    assert not takes(make.json_object(), "[]")


def test_a_schema_cannot_switch_its_own_checks_off():
    with pytest.raises(GrammarError, match="x-guidance"):
        make.json_schema({"not": {}, "x-guidance": {"lenient": True}})


def test_a_structural_tag_is_free_text_around_what_follows_a_trigger():
    tag = {"begin": "<f=go>", "schema": {"type": "object"}, "end": "</f>"}
    text = make.structural_tag([tag], ["<f"])
    assert takes(text, "no call")
    assert takes(text, 'so: <f=go>{"a": 1}</f> done')
    assert not takes(text, "so: <f=go>a</f>")
    assert not takes(text, "so: <f=no>{}</f>")
    with pytest.raises(GrammarError, match="begins with none"):
        make.structural_tag([tag], ["<g"])


def check_text(text: str, ends: tuple[TokenId, ...] = (END,)) -> None:
    check(Grammar(text, (), ends), vocabulary())


def nested(levels: int) -> dict:
    schema: dict = {"type": "null"}
    for _ in range(levels - 1):
        schema = {"items": schema}
    return schema


# by what is wrong: how it is made, and what the message says
HOSTILE = {
    "nested": (lambda: make.json_schema(nested(NESTING + 1)), f"{NESTING + 1} levels"),
    "recursion": (lambda: make.json_schema({"$ref": "#"}), "never ends"),
    "unsatisfiable": (lambda: make.json_schema(False), "nsatisfiable"),
    "unknown keyword": (lambda: make.json_schema({"not": {}}), "not"),
    "combinations": (
        lambda: make.json_schema(
            {
                "allOf": [
                    {"anyOf": [{"properties": {f"x{i}{j}": {}}} for j in range(8)]}
                    for i in range(8)
                ]
            }
        ),
        "too much work",
    ),
    "wide": (
        lambda: make.json_schema(
            {"properties": {f"k{i}": {"type": "string"} for i in range(3000)}, "type": "object"}
        ),
        "3000 different names",
    ),
    "bad regex": (lambda: make.regex("(("), "unclosed group"),
    "look around": (lambda: make.regex("(?=a)b"), "look-around"),
    "no choices": (lambda: make.choice([]), "0 choices"),
    "many choices": (lambda: make.choice(["x"] * (CHOICES + 1)), str(CHOICES)),
    "no grammar": (lambda: make.context_free("what is this"), "neither Lark nor GBNF|syntax|parse"),
    "unknown rule": (lambda: make.context_free("start: foo"), "foo"),
    "deep brackets": (lambda: make.context_free("root ::= " + "(" * 60_000), "rammar"),
    "long": (lambda: make.context_free("a" * (TEXT_CHARS + 1)), str(TEXT_CHARS)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_cannot_be_followed_is_refused_and_says_why(name):
    made, why = HOSTILE[name]
    with pytest.raises(GrammarError, match=why):
        check_text(made())


def test_a_model_without_an_end_token_follows_no_grammar():
    with pytest.raises(GrammarError, match="no end token"):
        check_text(make.regex("a"), ends=())


def test_a_matcher_goes_back_and_stays_broken_when_it_breaks():
    found = matcher(make.regex("abc"))
    found.accept(ids("ab"))
    found.go_back(1)
    assert np.flatnonzero(found.allowed()).tolist() == [ord("b")]
    assert found.forced()
    with pytest.raises(GrammarError, match="cannot be followed"):
        found.accept(ids("x"))
    with pytest.raises(GrammarError, match="cannot be followed"):
        found.allowed()


@pytest.mark.parametrize("more", [range(40), range(400)])
def test_a_tokenizer_may_have_more_tokens_than_the_model_has_logits(more):
    """Reserved ones, as Kimi's has: masks are those of the model's tokens."""
    longer = byte_vocabulary()
    longer.add_special_tokens([f"<reserved_{n}>" for n in more])
    assert longer.get_vocab_size() > SIZE - 2
    found = LlguidanceMatcher(
        Grammar(make.regex("[a-c]x?"), (), (END,)), Vocabulary(longer.to_str, size=SIZE - 2)
    )
    other = matcher(make.regex("[a-c]x?"))
    for text in ("", "b", "x"):
        found.accept(ids(text))
        other.accept(ids(text))
        assert found.allowed().tolist() == other.allowed().tolist()[: SIZE - 2]


def test_a_vocabulary_that_llguidance_cannot_take_is_refused():
    with pytest.raises(GrammarError, match="vocabulary cannot follow"):
        Vocabulary(lambda: "{}", size=SIZE).ending_with((END,))
