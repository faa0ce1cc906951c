"""Where llguidance's reading of a JSON schema differs from JSON Schema's, one case for each."""

import contextlib
import json
import re
from itertools import product
from typing import Any

import pytest
from tests.grammar.walk import grammar, vocabulary

from baton.core.ids import TokenId
from baton.core.matchers import GrammarError
from baton.grammar import request as make
from baton.grammar.check import check
from baton.grammar.matcher import LlguidanceMatcher
from baton.grammar.patterns import of_schema


def takes(schema: Any, answer: str) -> bool:
    """Whether a schema's grammar takes this text as a complete answer."""
    matcher = LlguidanceMatcher(grammar(make.json_schema(schema)), vocabulary())
    try:
        matcher.accept([TokenId(b) for b in answer.encode()])
        return bool(matcher.allowed()[257])
    except GrammarError:
        return False


def refused(schema: Any) -> str:
    with pytest.raises(GrammarError) as e:
        check(grammar(make.json_schema(schema)), vocabulary())
    return str(e.value)


CLASSES = (
    '[^"]', r"[^\\]", r'[^"\\]', "[^,]", r"[^\n]", r"[\x01-!#-~]", r"[^\W\d]", r"[\w.-]", r"[ -~]",
    r"[+--]", "[a&&b]", "[~~]", r"[^[]", r"[\]\[]", r"[a-c\-]", ".", r"\S", r"\W", r"\d", "[-a]",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of classes in a class, in re
@pytest.mark.parametrize("kind", CLASSES)
def test_a_class_of_a_pattern_takes_the_characters_that_it_takes_in_ecma(kind):
    pattern = f"^(?:{kind}x?)+$"
    for answer in ('"', "\\", '\\"', "a", "[", "]", "-", "&", "~", "+", ",", "\n", "\t", "_", "é"):
        if kind == r"\W" and answer == "é":
            continue  # a letter for Python only
        allowed = takes({"type": "string", "pattern": pattern}, json.dumps(answer))
        assert not allowed or re.search(pattern, answer), answer
        if answer not in "é\n\t":  # which may be written in one way only
            assert allowed == bool(re.search(pattern, answer)), answer


def test_empty_classes_are_those_of_ecma():
    assert of_schema("a[^]b[]") == r"a(?s:.)b[^\s\S]"
    assert re.fullmatch(of_schema(r"\[^]"), "[^]") is None
    assert of_schema(r"\p{L}+") == r"[\p{L}&&[^\x00]]+"


def test_a_named_property_cannot_come_as_an_additional_one_by_an_escape():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert takes(schema, '{"b": "x"}')
    assert not takes(schema, '{"\\u0061": "x"}')
    assert not takes({"patternProperties": {"^a": {"type": "integer"}}}, '{"\\u0061": "x"}')


def test_numbers_that_are_no_floats():
    assert "no 64-bit float" in refused({"const": 2**53 + 1})
    assert "no 64-bit float" in refused({"enum": [1, [2**60 + 1]]})
    assert takes({"enum": [2**60]}, str(2**60))
    most = {"type": "number", "exclusiveMaximum": 2**62}
    assert not any(takes(most, f"{2**62}{more}") for more in ("", ".5", "0"))
    assert takes(most, str(2**53 - 2))
    int64 = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
    assert not takes(int64, str(2**63))
    assert not takes(int64, str(-(2**63) - 1))
    assert takes(int64, "-7")
    assert "up to 9007199254740991" in refused({"minimum": float("inf")})
    assert "up to 9007199254740991" in refused({"minimum": 10**400})
    assert "from -9007199254740991" in refused({"maximum": -(2**60)})
    assert "beyond" in refused({"const": 1e17})


@pytest.mark.parametrize("year", [1, 4, 100, 400, 1900, 2000, 2023, 2024, 2100, 9999])
def test_29_february_is_a_date_in_leap_years_only(year):
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    date = f"{year:04}-02-29"
    assert takes({"type": "string", "format": "date"}, f'"{date}"') == leap
    assert takes({"type": "string", "format": "date-time"}, f'"{date}T01:02:03Z"') == leap


def test_other_days_and_times():
    date, time = {"type": "string", "format": "date"}, {"type": "string", "format": "time"}
    for month, day in product(range(14), (0, 1, 28, 30, 31, 32)):
        most = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
        right = 1 <= month <= 12 and 1 <= day <= most[month - 1]
        assert takes(date, f'"2023-{month:02}-{day:02}"') == right
    assert not takes(date, '"0000-01-01"')
    assert takes(time, '"23:59:59Z"')
    assert not takes(time, '"12:30:60Z"')
    assert not takes({"type": "string", "format": "email"}, f'"{"a" * 65}@b.c"')
    both = {"type": "string", "format": "date", "allOf": [{"pattern": "^19"}]}
    assert takes(both, '"1999-02-28"')
    assert not takes(both, '"2000-02-28"')


def test_properties_are_counted_only_where_none_is_counted_twice():
    assert "minProperties = 2" in refused({"type": "object", "minProperties": 2})
    one = {"type": "object", "minProperties": 2, "required": ["a"]}
    assert takes(one, '{"a": 1, "b": 2}')
    assert not takes(one, '{"a": 1}')


def test_one_of_looks_through_references():
    kinds = {
        name: {
            "type": "object",
            "properties": {"kind": {"const": name}, "more": {"$ref": "#/$defs/any"}},
            "required": ["kind"],
            "additionalProperties": False,
        }
        for name in ("a/b", "c")
    }
    any_of_them = {"oneOf": [{"$ref": "#/$defs/a~1b"}, {"$ref": "#/$defs/c"}]}
    schema = {"$ref": "#/$defs/any", "$defs": {"any": any_of_them, **kinds}}
    assert takes(schema, '{"kind": "a/b", "more": {"kind": "c"}}')
    assert not takes(schema, '{"kind": "d"}')
    assert "exclude each other" in refused({"oneOf": [{"type": "string"}, {"maxLength": 3}]})


def test_a_reference_of_a_document_inside_keeps_its_meaning():
    inner = {
        "$id": "http://example.com/inner",
        "oneOf": [{"$ref": "#/$defs/x"}, {"type": "null"}],
        "$defs": {"x": {"const": "inner"}},
    }
    schema = {"properties": {"a": inner}, "$defs": {"x": {"const": "outer"}}, "type": "object"}
    with contextlib.suppress(GrammarError):  # refused is right, too
        assert not takes(schema, '{"a": "outer"}')


def test_neutral_values_say_nothing():
    assert takes({"type": "object", "default": {"minProperties": 5, "pattern": "(("}}, "{}")
    assert takes({"type": "array", "uniqueItems": False}, "[1, 1]")
    assert "uniqueItems" in refused({"type": "array", "uniqueItems": True})


@pytest.mark.parametrize("name", ["pattern", "enum", "format", "minimum", "properties", "oneOf"])
def test_a_property_may_have_the_name_of_a_keyword(name):
    schema = {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}
    assert takes(schema, json.dumps({name: "[^x]"}))
    assert takes({"enum": [{name: "[^x]"}]}, json.dumps({name: "[^x]"}))


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"x-guidance": {"coerce_one_of": True}}, "whitespace_pattern"),
        ({"type": "integer", "multipleOf": 10_000_019}, "multipleOf"),
        ({"type": "string", "pattern": "^(a{1000}){1000}$"}, "1000002 characters"),
        ({"patternProperties": {f"^{i}": {} for i in range(65)}}, "65 patternProperties"),
        ({"const": "\0"}, "cannot be written"),
        ({"const": "\ud800"}, "cannot be written"),
        ({"title": "\ud800", "type": "null"}, "as JSON"),
        ({"maximum": "é" * 100}, "cannot read it"),
        ({"$ref": "http://example.com/x"}, "another document"),
        ({"type": "string", "format": "phone"}, "format phone"),
    ],
)
def test_what_is_refused_says_why(schema, why):
    assert why in refused(schema)


def test_a_schema_inside_of_a_grammar_is_read_as_one_alone():
    def judged(text: str) -> None:
        check(grammar(make.context_free(text)), vocabulary())

    judged('start: "x" %json {"type": "integer"} "y"')
    for text, why in (
        ('start: %json {"not": {}, "x-guidance": {"lenient": true}}', "x-guidance"),
        ('start: %json {"multipleOf": 10000019}', "multipleOf"),
        ('start: /a/ // %json {"multipleOf": 10000019}', "comment"),
        ("start: %json {", "not followed by JSON"),
        ("start: /a{1000000}/", "1000002 characters"),
    ):
        with pytest.raises(GrammarError, match=re.escape(why)):
            judged(text)
