import pytest

from baton.gateway.json_types import json_types, may_be_text

ROOT = {
    "$defs": {
        "at": {"type": "object"},
        "mode": {"enum": ["a", "b"]},
        "a/b": {"type": "integer"},
        "loop": {"$ref": "#/$defs/loop"},
        "fork": {"anyOf": [{"$ref": "#/$defs/fork"}, {"$ref": "#/$defs/fork"}]},
    }
}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, ("string",)),
        ({"type": ["integer", "null"]}, ("integer", "null")),
        ({"type": "integer", "nullable": True}, ("integer", "null")),
        ({"enum": [1, None, "x"]}, ("integer", "null", "string")),
        ({"const": True}, ("boolean",)),
        ({"$ref": "#/$defs/at"}, ("object",)),
        ({"$ref": "#/$defs/mode"}, ("string",)),
        ({"$ref": "#/$defs/a~1b"}, ("integer",)),
        ({"anyOf": [{"$ref": "#/$defs/at"}, {"type": "null"}]}, ("object", "null")),
        ({"allOf": [{"$ref": "#/$defs/at"}]}, ("object",)),
        ({}, ()),
        (True, ()),
        ({"type": 5}, ()),
        ({"$ref": "#/$defs/missing"}, ()),
        ({"$ref": "https://example.org/x"}, ()),
        ({"$ref": "#/$defs/loop"}, ()),
        ({"$ref": "#/$defs/fork"}, ()),
    ],
)
def test_types(schema, types):
    assert json_types(schema, ROOT) == types
    assert may_be_text(schema, ROOT) is (not types or "string" in types)
