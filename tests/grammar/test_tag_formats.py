"""Structural tags as trees of formats: what a random walk through the grammar writes, as `re` says."""

import re

import pytest
from tests.grammar.test_grammars import takes
from tests.grammar.walk import drawn, grammar, vocabulary

from baton.core.matchers import GrammarError
from baton.grammar.check import check
from baton.grammar.tag_formats import KINDS, tagged

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
ANY_TEXT = {"type": "any_text"}
JSON = {"type": "json_schema", "json_schema": SCHEMA}


def const(value: str) -> dict:
    return {"type": "const_string", "value": value}


def tag(begin: str, content: dict, end: object) -> dict:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def both(*elements: dict, kind: str = "sequence") -> dict:
    return {"type": kind, "elements": list(elements)}


def triggered(*tags: dict, **more: object) -> dict:
    return {"type": "triggered_tags", "triggers": ["<f"], "tags": list(tags), **more}


CALLS = (tag("<f=a>", JSON, "</f>"), tag("<f=b>", {"type": "regex", "pattern": "[0-9]+/"}, "</f>"))
THINK = tag("[", ANY_TEXT, "]")  # the walk writes a bracket soon
OBJECT = r'\s*\{\s*"a"\s*:\s*-?[0-9]+\s*\}\s*'
CALL = rf"<f=(a>{OBJECT}|b>[0-9]+/)</f>"
FREE = r"((?!<f)[\s\S])*"
# by name: a format, what matches all its answers, answers that it takes, and answers that it does not
FORMATS = {
    "const_string": (const('say "x"\n'), r'say "x"\n', ['say "x"\n'], ["say", ""]),
    "json_schema": (JSON, OBJECT, ['{"a": 1}'], ["{}", "a"]),
    "regex": ({"type": "regex", "pattern": "a/b|c{2}"}, r"a/b|c{2}", ["a/b", "cc"], ["c", ""]),
    "grammar": (
        {"type": "grammar", "grammar": 'root ::= "(" root ")" | "x"'},
        r"\(*x\)*",
        ["((x))"],
        ["((x)"],
    ),
    "any_text": (ANY_TEXT, r"[\s\S]*", ["", "anything </f>\n"], []),
    "tag": (
        tag("<r>", JSON, "</r>"),
        rf"<r>{OBJECT}</r>",
        ['<r>{"a": 1}</r>'],
        ['<r>{"a": 1}', "<r></r>"],
    ),
    "tag with two ends": (
        tag("<", ANY_TEXT, [">", "!"]),
        r"<[^>!]*[>!]",
        ["<a>", "<!"],
        ["<a>b>", "<"],
    ),
    "tag without an end": (tag("x: ", ANY_TEXT, ""), r"x: [\s\S]*", ["x: y"], ["y"]),
    "sequence": (both(const("a"), JSON, const("b")), rf"a{OBJECT}b", ['a{"a": 1}b'], ['a{"a": 1}']),
    "sequence of text": (
        both(ANY_TEXT, const("."), ANY_TEXT),
        r"[\s\S]*\.[\s\S]*",
        ["a.b.c", "."],
        ["a"],
    ),
    "reasoning first": (
        both(THINK, JSON),
        rf"\[[^\]]*\]{OBJECT}",
        ['[so]{"a": 1}'],
        ["[so", '{"a": 1}'],
    ),
    "text before a tag": (
        both(ANY_TEXT, THINK),
        r"[^\[]*\[[^\]]*\]",
        ["a[b]"],
        ["a"],
    ),
    "or": (
        both(const("yes"), tag("<", JSON, ">"), kind="or"),
        rf"yes|<{OBJECT}>",
        ["yes", '<{"a": 1}>'],
        ["no", ""],
    ),
    "triggered_tags": (
        triggered(*CALLS),
        rf"({FREE}{CALL})*{FREE}",
        ["no call", 'so <f=a>{"a": 1}</f> and <f=b>12/</f>'],
        ["<f=c>", "<f=b>a</f>"],
    ),
    "at_least_one": (
        triggered(*CALLS, at_least_one=True),
        rf"{CALL}({FREE}{CALL})*{FREE}",
        ["<f=b>1/</f> done", "<f=b>1/</f>x<f=b>2/</f>"],
        ["", "so <f=b>1/</f>"],
    ),
    "stop_after_first": (
        triggered(*CALLS, stop_after_first=True),
        rf"{FREE}({CALL})?",
        ["so <f=b>1/</f>", "text"],
        ["<f=b>1/</f> x"],
    ),
    "exactly one": (
        triggered(*CALLS, at_least_one=True, stop_after_first=True),
        CALL,
        ["<f=b>1/</f>"],
        ["", "<f=b>1/</f>x"],
    ),
    "calls within a tag": (
        tag("[", triggered(*CALLS), "]"),
        rf"\[({FREE}{CALL})*{FREE}\]",
        ["[a<f=b>1/</f>b]", "[]"],
        ["[a", "[a]b"],
    ),
    "reasoning, then calls": (
        both(THINK, triggered(*CALLS)),
        rf"\[[^\]]*\]({FREE}{CALL})*{FREE}",
        ["[a]b<f=b>1/</f>"],
        ["b"],
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_answers_have_their_format(name):
    said, pattern, right, wrong = FORMATS[name]
    text = tagged(said)
    check(grammar(text), vocabulary())
    assert [answer for answer in right if not takes(text, answer)] == []
    assert [answer for answer in wrong if takes(text, answer)] == []
    answers = [answer for seed in range(12) if (answer := drawn(text, seed)) is not None]
    assert len(answers) >= 3
    assert [a for a in answers if re.fullmatch(pattern, a) is None] == []


def test_every_kind_is_tried():
    tried = {said["type"] for said, *_ in FORMATS.values()}
    assert tried == set(KINDS)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"type": "tags_with_separator", "tags": [], "separator": ","}, "'tags_with_separator' is not served"),
        ({"type": "token", "token": 5}, "'token' is not served"),
        ({"type": "qwen_xml_parameter", "json_schema": {}}, "'qwen_xml_parameter'"),
        (5, "'None' is not served"),
        ({"type": ["tag"]}, "is not served"),
        ({**JSON, "style": "qwen_xml"}, "json_schema: the field 'style'"),
        ({**JSON, "any_order": True}, "'any_order'"),
        ({**ANY_TEXT, "max_tokens": 5}, "any_text: the field 'max_tokens'"),
        ({**ANY_TEXT, "excludes": ["x"]}, "any_text: the field 'excludes'"),
        (tag("a", const("b"), {"type": "token", "token": 1}), "tag: `end` must be of the type text or list"),
        (tag("a", const("b"), ["", "c"]), "`end`"),
        (tag("a", const("b"), []), "`end`"),
        (both(ANY_TEXT, JSON), "any_text"),
        (both(kind="or"), "no elements"),
        (triggered(), "at least one"),
        (triggered(const("x")), "list of tags"),
        (triggered(tag("g", JSON, "x")), "none of the triggers"),
        (tag("a", {"type": "json_schema", "json_schema": {"not": {}}}, "b"), "not implemented: \"not\""),
        ({"type": "regex", "pattern": "(("}, "unclosed"),
    ],
)  # fmt: skip
def test_what_is_not_served_is_refused_by_name(said, why):
    with pytest.raises(GrammarError, match=re.escape(why)):
        check(grammar(tagged(said)), vocabulary())
