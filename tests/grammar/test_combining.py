"""Schemas that are combined: what is refused before llguidance copies it, and what is not."""

import json

import pytest
from tests.grammar.hostile import obj
from tests.grammar.walk import grammar, vocabulary

from baton.core.matchers import GrammarError
from baton.grammar.check import check
from baton.grammar.combining import check_combinations
from baton.grammar.embedded import schemas
from baton.grammar.limits import COPIED, STEPS

NULLS = obj({f"k{i}": {"type": "null"} for i in range(600)})
SMALL = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}
CHAIN = {
    "$ref": "#/$defs/0",
    "$defs": {
        **{
            f"{i}": {"allOf": [{"$ref": f"#/$defs/{i + 1}"}, obj({f"k{i}": {}})]} for i in range(40)
        },
        "40": SMALL,
    },
}
LIST = {
    "$ref": "#/$defs/list",
    "$defs": {
        "list": obj({"head": {}, "tail": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/list"}]}})
    },
}
SERVED = {
    "nothing to combine": {"type": "object", "properties": {"z": NULLS}},
    "a hundred small ones": {"allOf": [obj({f"k{i}": {"type": "string"}}) for i in range(100)]},
    "a hundred uses of one": {
        **obj({f"k{i}": {"allOf": [{"$ref": "#/$defs/s"}, {"title": "x"}]} for i in range(100)}),
        "$defs": {"s": SMALL},
    },
    "definitions one upon the other": CHAIN,
    "recursion": LIST,
    "recursion, combined": {"allOf": [LIST, {"type": "object"}], "$defs": LIST["$defs"]},
    "300 options told apart": {
        "oneOf": [obj({"t": {"const": f"{i}"}, "v": {}}, required=["t"]) for i in range(300)]
    },
}


@pytest.mark.parametrize("name", SERVED)
def test_what_people_combine_is_served(name):
    check_combinations([SERVED[name]])


def copies(count: int) -> dict:
    """Names that each get a copy of about 600 schemas."""
    names = obj({f"x{i}": {} for i in range(count)})
    return {"allOf": [{"type": "object", "additionalProperties": NULLS}, names]}


def test_copies_are_counted():
    check_combinations([copies(10)])
    with pytest.raises(GrammarError, match=f"more than {COPIED} copies"):
        check_combinations([copies(1000)])


def test_all_schemas_of_a_grammar_count_together():
    one = steps(STEPS // 4)
    text = "start: " + " | ".join([f"%json {json.dumps(one)}"] * 2)
    with pytest.raises(GrammarError, match=f"more than {STEPS} schemas"):
        check(grammar(text), vocabulary())
    side = json.dumps(
        {"grammars": [{"lark_grammar": "start: @a"}, {"name": "a", "json_schema": one}]}
    )
    assert list(schemas(side)) == [one]
    assert list(schemas('start: "%json {" /%json/ %json {"type": "null"} // %json')) == [
        {"type": "null"}
    ]


def steps(count: int) -> dict:
    return {"type": "array", "prefixItems": [{"type": "null"}] * count}


def test_steps_are_counted():
    check_combinations([steps(STEPS // 4)])
    with pytest.raises(GrammarError, match=f"more than {STEPS} schemas"):
        check_combinations([steps(STEPS)])


def used(reference: str, **more: object) -> dict:
    parts = {
        name: {"allOf": [{"$ref": reference}, {"type": "object"}]} for name in map(str, range(400))
    }
    return obj(parts, **more)


@pytest.mark.parametrize(
    ("reference", "more"),
    [
        ("#/$defs/b", {"$defs": {"b": NULLS}}),
        ("#/%24defs/b%20", {"$defs": {"b ": NULLS}}),
        ("#/$defs/~1~0", {"$defs": {"/~": NULLS}}),
        ("#/anyOf/1", {"anyOf": [{}, NULLS]}),
        ("#b", {"$defs": {"b": {**NULLS, "$anchor": "b"}}}),
        ("#b", {"definitions": {"b": {**NULLS, "$id": "#b"}}}),
        ("b.json", {"$id": "http://x/a.json", "$defs": {"b": {**NULLS, "$id": "b.json"}}}),
        ("b.json#/$defs/c", {"$defs": {"b": {"$id": "b.json", "$defs": {"c": NULLS}}}}),
        ("http://x/y/../b", {"$defs": {"b": {**NULLS, "$id": "http://x/b"}}}),
        ("http://x/b", {"$defs": {"b": {**NULLS, "$id": "http://x/c/../b"}}}),
    ],
)
def test_copies_behind_any_kind_of_reference_are_counted(reference, more):
    with pytest.raises(GrammarError, match="too much work"):
        check_combinations([used(reference, **more)])


def test_references_to_other_documents_are_left_to_llguidance():
    more = {"$id": "https://x/this.json", "$defs": {"b": {**NULLS, "$id": "https://x/b"}}}
    check_combinations([used("https://x/other.json", **more)])


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": 5, "properties": []},
        {"type": [1, None, "object"], "properties": {"a": 5}, "required": "a"},
        {"allOf": "a", "anyOf": {"a": 1}, "oneOf": None, "enum": 5},
        {"$ref": 5, "$defs": []},
        {"items": "x", "prefixItems": {"a": 1}, "patternProperties": 1, "pattern": 3},
        {"$ref": "#", "type": "object"},
    ],
)
def test_schemas_that_are_wrong_are_left_to_llguidance(wrong):
    check_combinations([wrong])
