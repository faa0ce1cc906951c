"""Grammars made to break or to stall whoever compiles them, by name: how each one is asked for.

What is wrong with one is in its name. Most are small texts whose grammar is large.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from baton.grammar import request as make

Made = Callable[[], str]


def schema(value: Any) -> Made:
    return lambda: make.json_schema(value)


def text_schema(text: str) -> Made:
    """A schema that is not what Python's json would write."""
    return lambda: make.json_schema(json.loads(text))


def regex(pattern: str) -> Made:
    return lambda: make.regex(pattern)


def lark(text: str) -> Made:
    return lambda: make.context_free(text)


def choice(texts: list[str]) -> Made:
    return lambda: make.choice(texts)


def tags(tags: list[dict[str, Any]], triggers: list[str]) -> Made:
    return lambda: make.structural_tag(tags, triggers)


def obj(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **more}


def nest(levels: int, inner: Any, wrap: Callable[[Any], Any]) -> Any:
    for _ in range(levels):
        inner = wrap(inner)
    return inner


def chain(count: int) -> dict[str, Any]:
    """Definitions of which each one uses the next one twice: 2 ** count leaves."""
    found: dict[str, Any] = {f"d{count}": {"type": "integer"}}
    for i in range(count):
        found[f"d{i}"] = obj(
            {"a": {"$ref": f"#/$defs/d{i + 1}"}, "b": {"$ref": f"#/$defs/d{i + 1}"}}
        )
    return {"$ref": "#/$defs/d0", "$defs": found}


LONG = "x" * 50_000
HUGE = 10**9
ANY = {"type": "object"}

NESTED: dict[str, Made] = {
    "arrays 60 deep": schema(nest(60, {"type": "null"}, lambda s: {"items": s})),
    "arrays 65 deep": schema(nest(65, {"type": "null"}, lambda s: {"items": s})),
    "arrays 3,000 deep": schema(nest(3000, {"type": "null"}, lambda s: {"items": s})),
    "objects 31 deep": schema(nest(31, {"type": "null"}, lambda s: obj({"a": s}, required=["a"]))),
    "lists that must be 30 deep": schema(
        nest(30, {"const": 1}, lambda s: {"type": "array", "items": s, "minItems": 1})
    ),
    "anyOf 31 deep": schema(nest(31, {"type": "null"}, lambda s: {"anyOf": [s]})),
    "anyOf of two 30 deep": schema(nest(30, {"const": 1}, lambda s: {"anyOf": [s, {"const": 2}]})),
    "allOf 31 deep": schema(nest(31, {"type": "null"}, lambda s: {"allOf": [s]})),
    "oneOf 31 deep": schema(nest(31, {"type": "null"}, lambda s: {"oneOf": [s]})),
    "constant 60 deep": schema({"const": nest(60, 1, lambda v: [v])}),
    "constant 5,000 deep": schema({"const": nest(5000, 1, lambda v: [v])}),
    "default 5,000 deep": schema({"type": "null", "default": nest(5000, 1, lambda v: [v])}),
    "references one after another": schema(
        {
            "$ref": "#/$defs/r0",
            "$defs": {f"r{i}": {"$ref": f"#/$defs/r{i + 1}"} for i in range(2000)}
            | {"r2000": {"type": "null"}},
        }
    ),
    "references with siblings one after another": schema(
        {
            "$ref": "#/$defs/r0",
            "$defs": {f"r{i}": {"$ref": f"#/$defs/r{i + 1}", "type": "object"} for i in range(2000)}
            | {"r2000": ANY},
        }
    ),
    "definitions that double 20 times": schema(chain(20)),
    "definitions that double 500 times": schema(chain(500)),
    "additionalProperties 31 deep": schema(
        nest(31, {"type": "null"}, lambda s: {"type": "object", "additionalProperties": s})
    ),
    "patternProperties 20 deep": schema(
        nest(20, {"type": "null"}, lambda s: {"type": "object", "patternProperties": {"^a": s}})
    ),
    "prefixItems that double 10 times": schema(
        nest(10, {"type": "null"}, lambda s: {"type": "array", "prefixItems": [s, s]})
    ),
}

WIDE: dict[str, Made] = {
    "enum of 4,000 texts": schema({"enum": [f"value {i}" for i in range(4000)]}),
    "enum of 9,000 numbers": schema({"enum": list(range(9000))}),
    "enum of 2,000 fractions": schema({"enum": [i / 7 for i in range(2000)]}),
    "enum of 800 objects": schema({"enum": [{"a": i, "b": [i]} for i in range(800)]}),
    "enum of 3,000 lists": schema({"enum": [[i, i + 1] for i in range(3000)]}),
    "enum of long texts": schema({"enum": [LONG, LONG + "y"]}),
    "enum of texts with one beginning": schema({"enum": ["a" * i for i in range(1, 400)]}),
    "constant of 100,000 characters": schema({"const": "ab" * 50_000}),
    "constant of escapes": schema({"const": '\\"\n' * 10_000}),
    "constant of 2,000 keys": schema({"const": {f"k{i}": i for i in range(2000)}}),
    "constant of 20,000 items": schema({"const": [1] * 20_000}),
    "anyOf of 1,000 objects": schema(
        {"anyOf": [obj({f"k{i}": {"type": "integer"}}, required=[f"k{i}"]) for i in range(1000)]}
    ),
    "anyOf of 3,000 patterns": schema(
        {"anyOf": [{"pattern": f"^{i}[a-z]*$"} for i in range(3000)]}
    ),
    "anyOf of 300 unbounded patterns": schema(
        {"anyOf": [{"type": "string", "pattern": f"{i}.*z"} for i in range(300)]}
    ),
    "oneOf of 1,000 constants": schema({"oneOf": [{"const": f"v{i}"} for i in range(1000)]}),
    "oneOf of 300 objects": schema(
        {"oneOf": [obj({"t": {"const": i}, "v": {}}, required=["t"]) for i in range(300)]}
    ),
    "oneOf of all types twice": schema({"oneOf": [{"type": "string"}, {"type": "string"}]}),
    "500 optional properties": schema(obj({f"k{i}": {"type": "integer"} for i in range(500)})),
    "500 optional properties, at least one": schema(
        obj(
            {f"k{i}": {"type": "integer"} for i in range(500)},
            minProperties=1,
            additionalProperties=False,
        )
    ),
    "100 optional properties, at least one": schema(
        obj(
            {f"k{i}": {"type": "integer"} for i in range(100)},
            minProperties=1,
            additionalProperties=False,
        )
    ),
    "9,000 optional properties, at least one": schema(
        obj({f"{i}": {} for i in range(9000)}, minProperties=1, additionalProperties=False)
    ),
    "6,000 patterns of names": schema(
        {"type": "object", "patternProperties": {f"^{i}": {} for i in range(6000)}}
    ),
    "500 optional properties, at most one": schema(
        obj({f"k{i}": {} for i in range(500)}, maxProperties=1, additionalProperties=False)
    ),
    "3,000 required names": schema({"type": "object", "required": [f"k{i}" for i in range(3000)]}),
    "4,000 optional names behind a required one": schema(
        obj({f"{i}": {} for i in range(4000)}, required=["0"])
    ),
    "1,990 names in four objects": schema(
        {"anyOf": [obj({f"{i}": {} for i in range(1990)}, required=["0"])] * 4}
    ),
    "2,900 objects of different names": schema(
        {"anyOf": [obj({f"k{i}": {}}) for i in range(2900)]}
    ),
    "400 required objects": schema(
        obj({f"k{i}": ANY for i in range(400)}, required=[f"k{i}" for i in range(400)])
    ),
    "200 patterns of names": schema(
        {"type": "object", "patternProperties": {f"^a{i}_": {"type": "null"} for i in range(200)}}
    ),
    "50 patterns of names that overlap": schema(
        {"type": "object", "patternProperties": {f"a{i}": {"type": "null"} for i in range(50)}}
    ),
    "combinations of 8 by 8": schema(
        {"allOf": [{"anyOf": [obj({f"x{i}{j}": {}}) for j in range(8)]} for i in range(8)]}
    ),
    "combinations of 20 by 2": schema(
        {"allOf": [{"anyOf": [obj({f"x{i}{j}": {}}) for j in range(2)]} for i in range(20)]}
    ),
    "combinations of 12 by 3 references": schema(
        {
            "allOf": [{"anyOf": [{"$ref": f"#/$defs/{j}"} for j in range(3)]} for _ in range(12)],
            "$defs": {f"{j}": obj({f"x{j}": {}}) for j in range(3)},
        }
    ),
    "2,000 definitions that nobody uses": schema(
        {"type": "null", "$defs": {f"d{i}": obj({"a": {}}) for i in range(2000)}}
    ),
    "800 definitions in a ring": schema(
        {
            "$ref": "#/$defs/0",
            "$defs": {
                f"{i}": obj({"next": {"$ref": f"#/$defs/{(i + 1) % 800}"}}) for i in range(800)
            },
        }
    ),
    "definitions that all name all": schema(
        {
            "$ref": "#/$defs/0",
            "$defs": {
                f"{i}": obj({f"k{j}": {"$ref": f"#/$defs/{j}"} for j in range(30)})
                for i in range(30)
            },
        }
    ),
    "type list with every type 50 times": schema(
        {"type": ["string", "null", "integer", "number", "object", "array", "boolean"] * 50}
    ),
    "name of 40,000 characters": schema(obj({"n" * 40_000: {"type": "null"}})),
    "names with one beginning": schema(obj({"n" * i: {"type": "null"} for i in range(1, 300)})),
    "prefixItems of 2,000": schema({"type": "array", "prefixItems": [{"type": "null"}] * 2000}),
    "description of 130,000 characters": schema({"type": "null", "description": "d" * 130_000}),
}

NULLS = obj({f"k{i}": {"type": "null"} for i in range(2000)})
NAMED = obj({f"x{i}": {} for i in range(4000)})
PATTERNED = {
    "type": "object",
    "patternProperties": {f"^a{i}_": {"type": "null"} for i in range(60)},
}

COMBINED: dict[str, Made] = {
    "4,000 names that get a copy of additionalProperties": schema(
        {"allOf": [{"type": "object", "additionalProperties": NULLS}, NAMED]}
    ),
    "8,000 items that get a copy of items": schema(
        {
            "allOf": [
                {"type": "array", "items": NULLS},
                {"type": "array", "prefixItems": [{}] * 8000},
            ]
        }
    ),
    "1,500 options that get a copy of an object": schema(
        {"allOf": [{"anyOf": [obj({f"a{i}": {}}) for i in range(1500)]}, obj({"z": NULLS})]}
    ),
    "3,000 constants that get a copy of an object": schema(
        obj({"z": NULLS}, enum=[{"a": i} for i in range(3000)])
    ),
    "60 patterns that get a copy of an object": schema(
        {"allOf": [PATTERNED, {"type": "object", "additionalProperties": NULLS}]}
    ),
    "60 patterns compared 100 times": schema({"allOf": [PATTERNED, *[ANY] * 100]}),
    "60 patterns that are hard to compare": schema(
        {
            "type": "object",
            "patternProperties": {f"^[ab]*a[ab]{{9}}c{{{i}}}$": {} for i in range(1, 61)},
        }
    ),
    "an object in 50 types of 50": schema(
        nest(3, {"type": "null"}, lambda s: {"type": ["object"] * 50, "properties": {"a": s}})
    ),
    "an object combined 3,000 times": schema({"allOf": [obj({"z": NULLS}), *[ANY] * 3000]}),
    "options combined 2,000 times": schema(
        {
            "allOf": [
                {"anyOf": [obj({"z": NULLS}), {"type": "null"}]},
                *[{"type": ["object", "null"]}] * 2000,
            ]
        }
    ),
    "1,500 references that are not combined": schema(
        obj(
            {f"p{i}": {"allOf": [{"$ref": "#/$defs/b"}, {}]} for i in range(1500)},
            **{"$defs": {"b": obj({"z": NULLS})}},
        )
    ),
    "500 copies of a definition": schema(
        obj(
            {f"p{i}": {"allOf": [{"$ref": "#/$defs/b"}, ANY]} for i in range(500)},
            **{"$defs": {"b": obj({"z": NULLS})}},
        )
    ),
    "500 copies of a definition with an id": schema(
        obj(
            {f"p{i}": {"allOf": [{"$ref": "b.json"}, ANY]} for i in range(500)},
            **{"$id": "http://x/a.json", "$defs": {"b": obj({"z": NULLS}, **{"$id": "b.json"})}},
        )
    ),
    "500 copies of an anchor": schema(
        obj(
            {f"p{i}": {"allOf": [{"$ref": "#b"}, ANY]} for i in range(500)},
            **{"$defs": {"b": obj({"z": NULLS}, **{"$anchor": "b"})}},
        )
    ),
    "two lists that are combined for ever": schema(
        {
            "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
            "$defs": {
                "a": obj({"n": {"$ref": "#/$defs/a"}, "m": {"$ref": "#/$defs/b"}}),
                "b": obj({"n": {"$ref": "#/$defs/b"}, "m": {"$ref": "#/$defs/a"}}),
            },
        }
    ),
    "1,000 options with 9 required properties": schema(
        {
            "oneOf": [
                obj({"t": {"const": f"{i}"}}, required=[*(f"k{j}" for j in range(8)), "t"])
                for i in range(1000)
            ]
        }
    ),
}

COUNTS: dict[str, Made] = {
    "a text of exactly 10,000": schema(
        {"type": "string", "minLength": 10_000, "maxLength": 10_000}
    ),
    "a text of at least a billion": schema({"type": "string", "minLength": HUGE}),
    "a text of at most a billion": schema({"type": "string", "maxLength": HUGE}),
    "a text of at most 4,294,967,295": schema({"type": "string", "maxLength": 2**32 - 1}),
    "a text of at most 2 ** 32": schema({"type": "string", "maxLength": 2**32}),
    "a text of at most 2 ** 63": schema({"type": "string", "maxLength": 2**63}),
    "a text of at most 2 ** 64": schema({"type": "string", "maxLength": 2**64}),
    "a list of at least a billion": schema({"type": "array", "minItems": HUGE}),
    "a list of at most a billion": schema({"type": "array", "maxItems": HUGE}),
    "a list of exactly 100,000": schema({"type": "array", "minItems": 10**5, "maxItems": 10**5}),
    "a list of at least 2 ** 63": schema({"type": "array", "minItems": 2**63}),
    "lists of lists of 10,000": schema(
        nest(4, {"const": 1}, lambda s: {"type": "array", "items": s, "minItems": 10_000})
    ),
    "at least a billion properties": schema({"type": "object", "minProperties": HUGE}),
    "at most a billion properties": schema({"type": "object", "maxProperties": HUGE}),
    "text and pattern of 5,000": schema(
        {"type": "string", "pattern": "^[a-z]{5000}$", "minLength": 5000}
    ),
    "pattern repeated a billion times": schema({"type": "string", "pattern": "^a{1000000000}$"}),
    "pattern 1,000 times 1,000": schema({"type": "string", "pattern": "^(a{1000}){1000}$"}),
    "pattern from 0 to 30,000": schema({"type": "string", "pattern": "^[ab]{0,30000}$"}),
    "unicode pattern 500 times": schema({"type": "string", "pattern": r"^\p{L}{500}$"}),
    "email of at least 3,000": schema({"type": "string", "format": "email", "minLength": 3000}),
    "uri with a pattern and a length": schema(
        {"type": "string", "format": "uri", "pattern": "a.*b.*c", "minLength": 50, "maxLength": 80}
    ),
    "uri and email and date at once": schema(
        {"allOf": [{"type": "string", "format": f} for f in ("uri", "email", "date")]}
    ),
    "whole number up to 10 ** 300": schema({"type": "integer", "maximum": 10**300}),
    "whole number up to 10 ** 400": schema({"type": "integer", "maximum": 10**400}),
    "number from -1e308 to 1e308": schema({"type": "number", "minimum": -1e308, "maximum": 1e308}),
    "number between denormals": schema({"type": "number", "minimum": 5e-324, "maximum": 1e-323}),
    "number between neighbours": schema(
        {"type": "number", "minimum": 0.1, "maximum": 0.10000000000000002}
    ),
    "number above infinity": text_schema('{"type": "number", "minimum": 1e999}'),
    "number that is not one": text_schema('{"type": "number", "minimum": NaN}'),
    "constant infinity": text_schema('{"const": Infinity}'),
    "constant of 1,000 digits": schema({"const": int("9" * 1000)}),
    "constant 2 ** 53 + 1": schema({"const": 2**53 + 1}),
    "constant 2 ** 64": schema({"const": 2**64}),
    "constant 1e-320": schema({"const": 1e-320}),
    "multiple of zero": schema({"type": "integer", "multipleOf": 0}),
    "multiple of 1e-300": schema({"type": "number", "multipleOf": 1e-300}),
    "multiple of 1e300": schema({"type": "number", "multipleOf": 1e300}),
    "multiple of 4,294,967,291": schema({"type": "integer", "multipleOf": 4294967291}),
    "multiple of 10,000,019": schema({"type": "integer", "multipleOf": 10_000_019}),
    "multiple of 1009 and of 1013": schema(
        {"type": "integer", "allOf": [{"multipleOf": 1009}, {"multipleOf": 1013}]}
    ),
    "multiple of 99,991": schema({"type": "integer", "multipleOf": 99991}),
    "multiples of eight primes": schema(
        {
            "type": "integer",
            "allOf": [{"multipleOf": p} for p in (97, 101, 103, 107, 109, 113, 127, 131)],
        }
    ),
    "multiple of 0.1 between bounds": schema(
        {"type": "number", "multipleOf": 0.1, "minimum": 0.05, "maximum": 99999.95}
    ),
    "multiple of 7 in a range without one": schema(
        {"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 6}
    ),
}

CONTRADICTIONS: dict[str, Made] = {
    "false": schema(False),
    "minimum above maximum": schema({"type": "integer", "minimum": 5, "maximum": 3}),
    "no whole number between": schema({"type": "integer", "minimum": 0.2, "maximum": 0.8}),
    "exclusive bounds that touch": schema(
        {"type": "number", "exclusiveMinimum": 1, "exclusiveMaximum": 1}
    ),
    "minLength above maxLength": schema({"type": "string", "minLength": 5, "maxLength": 3}),
    "minItems above maxItems": schema({"type": "array", "minItems": 5, "maxItems": 3}),
    "minProperties above maxProperties": schema(
        {"type": "object", "minProperties": 5, "maxProperties": 3}
    ),
    "more required than allowed": schema(
        {"type": "object", "required": ["a", "b"], "maxProperties": 1}
    ),
    "required and impossible": schema(obj({"a": False}, required=["a"])),
    "required and not allowed": schema(obj({"b": {}}, required=["a"], additionalProperties=False)),
    "items impossible and wanted": schema({"type": "array", "items": False, "minItems": 1}),
    "two types": schema({"allOf": [{"type": "string"}, {"type": "integer"}]}),
    "two constants": schema({"allOf": [{"const": 1}, {"const": 2}]}),
    "constant of another type": schema({"type": "string", "const": 5}),
    "enum of another type": schema({"type": "string", "enum": [1, 2]}),
    "empty enum": schema({"enum": []}),
    "empty anyOf": schema({"anyOf": []}),
    "empty oneOf": schema({"oneOf": []}),
    "empty allOf": schema({"allOf": []}),
    "empty type list": schema({"type": []}),
    "pattern against pattern": schema({"allOf": [{"pattern": "^a+$"}, {"pattern": "^b+$"}]}),
    "pattern against length": schema({"type": "string", "pattern": "^a{5}$", "maxLength": 3}),
    "pattern against format": schema({"type": "string", "pattern": "^x", "format": "date"}),
    "all of one enum against another": schema(
        {"allOf": [{"enum": list(range(900))}, {"enum": list(range(900, 1800))}]}
    ),
    "recursion without a base": schema({"$ref": "#"}),
    "recursion through a property": schema(
        {"$defs": {"n": obj({"n": {"$ref": "#/$defs/n"}}, required=["n"])}, "$ref": "#/$defs/n"}
    ),
    "recursion through items": schema(
        {
            "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}, "minItems": 1}},
            "$ref": "#/$defs/n",
        }
    ),
    "recursion of two": schema(
        {
            "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
            "$ref": "#/$defs/a",
        }
    ),
    "recursion through allOf": schema(
        {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, ANY]}}, "$ref": "#/$defs/a"}
    ),
    "recursion through anyOf": schema(
        {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}
    ),
    "recursion hidden in one property of many": schema(
        obj(
            {"ok": {"type": "null"}, "bad": {"$ref": "#/$defs/n"}},
            **{"$defs": {"n": obj({"n": {"$ref": "#/$defs/n"}}, required=["n"])}},
        )
    ),
    "an impossible branch of two": schema({"anyOf": [{"type": "null"}, False]}),
}

WRONG: dict[str, Made] = {
    "not": schema({"not": {}}),
    "if then else": schema({"if": {}, "then": {}, "else": {}}),
    "uniqueItems": schema({"type": "array", "uniqueItems": True}),
    "contains": schema({"type": "array", "contains": {"const": 1}}),
    "dependentRequired": schema({"dependentRequired": {"a": ["b"]}}),
    "dependentSchemas": schema({"dependentSchemas": {"a": {}}}),
    "propertyNames": schema({"propertyNames": {"pattern": "^a"}}),
    "unevaluatedProperties": schema({"type": "object", "unevaluatedProperties": False}),
    "unevaluatedItems": schema({"type": "array", "unevaluatedItems": False}),
    "$dynamicRef": schema({"$dynamicRef": "#x"}),
    "$recursiveRef": schema(
        {"$schema": "https://json-schema.org/draft/2019-09/schema"} | {"$recursiveRef": "#"}
    ),
    "unknown $schema": schema({"$schema": "http://example.com/none", "type": "null"}),
    "$schema that is a number": schema({"$schema": 5, "type": "null"}),
    "$id that is a number": schema({"$id": 5, "type": "null"}),
    "$id that is no address": schema({"$id": "http://[bad", "type": "null"}),
    "$anchor": schema({"$ref": "#x", "$defs": {"a": {"$anchor": "x", "type": "null"}}}),
    "undefined reference": schema({"$ref": "#/$defs/none"}),
    "remote reference": schema({"$ref": "http://example.com/schema.json"}),
    "reference to a file": schema({"$ref": "file:///etc/passwd"}),
    "reference to a data address": schema({"$ref": "data:application/json,{}"}),
    "reference to the metaschema": schema({"$ref": "https://json-schema.org/draft/2020-12/schema"}),
    "reference to draft 4": schema({"$ref": "http://json-schema.org/draft-04/schema#"}),
    "reference to a list": schema({"$ref": "#/enum", "enum": [1]}),
    "reference into a constant": schema({"$ref": "#/const", "const": {"type": "null"}}),
    "reference that is a number": schema({"$ref": 5}),
    "reference that is an object of é": schema({"$ref": {"é" * 60: "é" * 60}}),
    "reference with a bad escape": schema({"$ref": "#/$defs/%zz~9"}),
    "reference of 50,000 characters": schema({"$ref": "#/" + "a/" * 25_000}),
    "reference to an index of 2 ** 70": schema({"$ref": f"#/anyOf/{2**70}", "anyOf": [{}]}),
    "type that is a number": schema({"type": 5}),
    "type that is unknown": schema({"type": "text"}),
    "type list of numbers": schema({"type": [1, 2]}),
    "type null itself": schema({"type": None}),
    "properties that is a list": schema({"type": "object", "properties": []}),
    "property that is a text": schema(obj({"a": "string"})),
    "required that is a text": schema({"type": "object", "required": "a"}),
    "required of numbers": schema({"type": "object", "required": [1]}),
    "required true, as of draft 3": schema(obj({"a": {"type": "null", "required": True}})),
    "items that is a text": schema({"type": "array", "items": "x" + "é" * 100}),
    "enum that is an object": schema({"enum": {"a": 1}}),
    "anyOf that is an object": schema({"anyOf": {"a": 1}}),
    "allOf of texts": schema({"allOf": ["a"]}),
    "minimum that is a text": schema({"type": "integer", "minimum": "5"}),
    "minimum of 100 é": schema({"type": "integer", "minimum": "é" * 100}),
    "maximum of an emoji at byte 100": schema({"type": "integer", "maximum": "x" * 97 + "🙂" * 9}),
    "minLength below zero": schema({"type": "string", "minLength": -1}),
    "minLength of 1.0": schema({"type": "string", "minLength": 1.0}),
    "minLength of 1.5": schema({"type": "string", "minLength": 1.5}),
    "maxItems that is a list of é": schema({"type": "array", "maxItems": ["é" * 120]}),
    "pattern that is a number": schema({"type": "string", "pattern": 5}),
    "pattern that is a list of é": schema({"type": "string", "pattern": ["é" * 100]}),
    "format that is a list of é": schema({"type": "string", "format": ["é" * 100]}),
    "format unknown": schema({"type": "string", "format": "phone"}),
    "multipleOf that is a text": schema({"type": "integer", "multipleOf": "é" * 90}),
    "additionalProperties that is a text": schema({"type": "object", "additionalProperties": "no"}),
    "definitions that is a list": schema({"$defs": [], "type": "null"}),
    "x-guidance lenient": schema({"not": {}, "x-guidance": {"lenient": True}}),
    "x-guidance coerce_one_of": schema(
        {"oneOf": [{}, {"type": "null"}], "x-guidance": {"coerce_one_of": True}}
    ),
    "x-guidance separators": schema({**ANY, "x-guidance": {"item_separator": "(((" * 20}}),
    "x-guidance unknown": schema({**ANY, "x-guidance": {"none": 1}}),
    "x-guidance that is a number": schema({**ANY, "x-guidance": 5}),
    "white space that is no pattern": lambda: make.json_schema(ANY, white_space="(("),
    "white space without a bound": lambda: make.json_schema(ANY, white_space=r"\s*"),
    "white space of a billion": lambda: make.json_schema(ANY, white_space=r"\s{0,1000000000}"),
    "white space that takes everything": lambda: make.json_schema(ANY, white_space="(?s:.*)"),
}

UNICODE: dict[str, Made] = {
    "half of a surrogate pair": text_schema('{"const": "\\ud800"}'),
    "name with half of a pair": text_schema('{"type": "object", "required": ["\\udfff"]}'),
    "pattern with half of a pair": text_schema('{"type": "string", "pattern": "\\ud83d"}'),
    "pattern with escaped halves": schema({"type": "string", "pattern": r"^\ud83d\ude00$"}),
    "NUL": schema({"const": "\0"}),
    "name with NUL": schema(obj({"a\0b": {"type": "null"}}, required=["a\0b"])),
    "DEL and control characters": schema({"enum": ["\x7f", "\x01", "\x1f"]}),
    "right to left": schema({"enum": ["\u202eabc", "\u05d0\u05d1", "\u200f"]}),
    "combining marks": schema({"const": "e" + "\u0301" * 2000}),
    "names equal but for their form": schema(
        obj({"\u00e9": {"type": "null"}, "e\u0301": {"type": "null"}}, required=["\u00e9"])
    ),
    "beyond the basic plane": schema({"type": "string", "pattern": "^[\U0001f600-\U0001f64f]{3}$"}),
    "one text of 3 emoji": schema({"type": "string", "minLength": 3, "maxLength": 3}),
    "all letters 300 times": schema({"type": "string", "pattern": r"^[\p{L}\p{N}]{300}$"}),
    "ignoring case of everything": schema(
        {"type": "string", "pattern": r"(?i)^[\w\p{Greek}]{50}$"}
    ),
    "name that is a quote": schema(obj({'"': {"type": "null"}, "\\": {"type": "null"}})),
    "byte order mark": schema({"const": "\ufeff"}),
    "noncharacters": schema({"const": "\uffff\ufffe"}),
    "regex of NUL": regex("\0+"),
    "regex of bytes that are no text": regex(r"(?-u)\xff+"),
    "choice of control characters": choice(["\0", "\x1b[0m", "\u2028"]),
}

REGEXES: dict[str, Made] = {
    "empty regex": regex(""),
    "regex that never matches": regex(r"[^\s\S]"),
    "nested stars": regex("(((a*)*)*)*b"),
    "catastrophic for others": regex("(a|a)*(a|a)*(a|a)*c"),
    "catastrophic email": regex(r"^([a-zA-Z0-9])(([\-.]|[_]+)?([a-zA-Z0-9]+))*(@){1}[a-z0-9]+$"),
    "state explosion of 15": regex("(a|b)*a(a|b){15}"),
    "state explosion of 40": regex("(a|b)*a(a|b){40}"),
    "state explosion of 200 unicode": regex(r".*x.{200}"),
    "twenty dots": regex(".*a" * 20),
    "two hundred dots": regex(".*a.*b" * 100),
    "optional 300 times": regex("a?" * 300 + "a" * 300),
    "repeated a billion times": regex("a{1000000000}"),
    "1,000 of 1,000 of 1,000": regex("((a{1000}){1000}){1000}"),
    "star of 1,000": regex("(a{1000}b)*"),
    "brackets 200 deep": regex("(" * 200 + "a" + ")" * 200),
    "brackets 5,000 deep": regex("(" * 5_000 + "a" + ")" * 5_000),
    "brackets 60,000 deep": regex("(?:" * 30_000 + "a" + ")" * 30_000),
    "brackets that do not close": regex("(" * 60_000),
    "classes 300 deep": regex("[" * 300 + "a" + "]" * 300),
    "stars in a row": regex("a" + "*" * 1000),
    "alternation of 4,000": regex("|".join(f"w{i}x" for i in range(4000))),
    "alternation of empties": regex("|" * 20_000),
    "alternation of 1,000 unbounded": regex("|".join(f"{i}.*" for i in range(1000))),
    "look-ahead": regex("(?=a)b"),
    "look-behind": regex("(?<=a)b"),
    "back reference": regex(r"(a)\1"),
    "word boundary": regex(r"\bword\b"),
    "anchors in the middle": regex("a^b$c"),
    "class upside down": regex("[z-a]"),
    "repetition upside down": regex("a{5,2}"),
    "unknown escape": regex(r"\y\Q"),
    "unknown property": regex(r"\p{Klingon}"),
    "120,000 letters": regex("abc" * 40_000),
    "120,000 dots": regex("." * 120_000),
    "10,000 classes": regex("[a-z]" * 10_000),
    "all of unicode 1,000 times": regex(r"\P{L}{1000}"),
    "flags": regex("(?xims)a # comment"),
    "verbose without an end": regex("(?x)" + "#" * 1000),
}

CHOICES: dict[str, Made] = {
    "no choice": choice([]),
    "one empty choice": choice([""]),
    "empty among others": choice(["", "a"]),
    "4,096 choices": choice([f"{i:04x}" for i in range(4096)]),
    "4,097 choices": choice([f"{i:04x}" for i in range(4097)]),
    "4,096 choices of one": choice(["same"] * 4096),
    "choices with one beginning": choice(["a" * i for i in range(1, 450)]),
    "choice of 100,000 characters": choice(["ab" * 50_000]),
    "choices of quotes": choice(['"', '\\"', "\\\\", "\n", '"""']),
    "choices that look like a grammar": choice(["start: x", "%json {}", "/a/", "<|end|>"]),
}

LARKS: dict[str, Made] = {
    "empty text": lark(""),
    "only a comment": lark("// nothing"),
    "no start": lark("a: b\nb: /x/"),
    "unknown rule": lark("start: foo"),
    "rule twice": lark("start: a\na: /x/\na: /y/"),
    "left recursion": lark("start: start /a/ | /b/"),
    "right recursion": lark("start: /a/ start | /b/"),
    "left recursion without an end": lark("start: start /a/"),
    "right recursion without an end": lark("start: /a/ start"),
    "recursion over nothing": lark("start: start"),
    "recursion of two over nothing": lark("start: a\na: b\nb: a"),
    "recursion of empties": lark('start: start start | ""'),
    "ambiguous": lark("start: start start | /a/"),
    "ambiguous in three": lark("start: start start start | start start | /a/ | /a+/"),
    "ambiguous arithmetic": lark(
        'start: start "+" start | start "*" start | "(" start ")" | /[0-9]+/'
    ),
    "palindromes": lark('start: "a" start "a" | "b" start "b" | "a" | "b"'),
    "all terminals match": lark("start: (A | B | C)*\nA: /[a-z]+/\nB: /[a-y]+/\nC: /[b-z]+/"),
    "terminal that is recursive": lark("start: A\nA: /a/ A"),
    "terminal of nothing": lark("start: A\nA: /[^\\s\\S]/"),
    "terminals of one prefix": lark(
        "start: "
        + " | ".join(f"T{i}" for i in range(200))
        + "\n"
        + "\n".join(f"T{i}: /a{{{i}}}[b-z]*/" for i in range(200))
    ),
    "lexer explosion": lark("start: (A | B)+\nA: /(a|b)*a(a|b){12}/\nB: /(a|b)*b(a|b){13}/"),
    "lexer explosion of 20 terminals": lark(
        "start: ("
        + " | ".join(f"T{i}" for i in range(20))
        + ")+\n"
        + "\n".join(f"T{i}: /.*{chr(97 + i)}.{{{i + 5}}}/" for i in range(20))
    ),
    "1,500 rules": lark(
        "start: r0\n" + "\n".join(f"r{i}: r{i + 1} | /{i}x/" for i in range(1500)) + "\nr1500: /z/"
    ),
    "rules that double 30 times": lark(
        "start: r0\n" + "\n".join(f"r{i}: r{i + 1} r{i + 1}" for i in range(30)) + "\nr30: /z/"
    ),
    "rules of empties that double": lark(
        "start: r0\n" + "\n".join(f"r{i}: r{i + 1} r{i + 1}" for i in range(30)) + '\nr30: "" | /z/'
    ),
    "brackets 100 deep": lark("start: " + "(" * 100 + "/a/" + ")" * 100),
    "brackets 3,000 deep": lark("start: " + "(" * 3_000 + "/a/" + ")" * 3_000),
    "brackets 50,000 deep": lark("start: " + "(" * 50_000 + "/a/" + ")" * 50_000),
    "options 3,000 deep": lark("start: " + "[" * 3_000 + "/a/" + "]" * 3_000),
    "repetition of a billion": lark("start: /a/{1000000000}"),
    "repetition of 2 ** 70": lark(f"start: /a/{{{2**70}}}"),
    "repetition upside down": lark("start: /a/{5,2}"),
    "repetitions of repetitions": lark("start: a{100}\na: b{100}\nb: c{100}\nc: /x/{100}"),
    "repetitions of options": lark("start: a{0,500}\na: /x/? /y/? /z/?"),
    "max_tokens": lark("start: a\na[max_tokens=3]: /.*/"),
    "stop": lark('start: a\na[stop="x"]: /.*/'),
    "temperature": lark("start: a\na[temperature=9]: /.*/"),
    "capture": lark('start: a\na[capture="x"]: /.*/'),
    "suffix and stop at once": lark('start: a\na[suffix="x", stop="y"]: /.*/'),
    "attribute unknown": lark("start: a\na[none=5]: /.*/"),
    "lazy": lark('start: a "x"\na[lazy]: /.*x/'),
    "json inside": lark('start: %json {"type": "integer"}'),
    "json inside that is refused": lark('start: %json {"not": {}}'),
    "json inside that is lenient": lark(
        'start: %json {"not": {}, "x-guidance": {"lenient": true}}'
    ),
    "json inside that does not end": lark('start: %json {"type": '),
    "json inside 1,000 times": lark("start: " + " | ".join(['%json {"type": "object"}'] * 1000)),
    "json inside 5,000 deep": lark("start: %json " + '{"items":' * 5_000 + "{}" + "}" * 5_000),
    "json inside with é at 100": lark(
        'start: %json {"type": "integer", "minimum": "' + "é" * 99 + '"}'
    ),
    "json inside in a comment": lark('start: /a/ // %json {"not": {}}'),
    "json inside of a large multiple": lark('start: %json {"multipleOf": 10000019}'),
    "json inside of many patterns": lark(
        "start: %json "
        + json.dumps({"type": "object", "patternProperties": {f"^{i}": {} for i in range(2000)}})
    ),
    "repetition of a billion in a regex": lark("start: /a{1000000000}/"),
    "json inside of false": lark("start: %json false"),
    "lark inside": lark('start: %lark { start: "a" }'),
    "lark inside 200 deep": lark("start: " + "%lark { start: " * 200 + "/a/" + " }" * 200),
    "lark inside 4,000 deep": lark("start: " + "%lark { start: " * 4_000 + "/a/" + " }" * 4_000),
    "regex inside": lark('start: %regex {"substring_words": "a b c"}'),
    "substring of 20,000": lark('start: %regex {"substring_chars": "' + "ab" * 10_000 + '"}'),
    "another grammar": lark("start: @other"),
    "grammar 5": lark("start: @5"),
    "special token": lark("start: <|none|>"),
    "special token that ends": lark("start: </s>"),
    "token numbers": lark("start: <[300000000]>"),
    "all token numbers": lark("start: <[0-299]>"),
    "token numbers upside down": lark("start: <[5-2]>"),
    "import": lark("%import common.INT\nstart: INT"),
    "import of a file": lark("%import ../../etc/passwd\nstart: INT"),
    "ignore everything": lark("start: /a/\n%ignore /.*/"),
    "ignore nothing": lark('start: /a/\n%ignore ""'),
    "llguidance options": lark('%llguidance {"no_forcing": true}\nstart: /a/'),
    "llguidance options unknown": lark('%llguidance {"none": 1}\nstart: /a/'),
    "llguidance options endless": lark("%llguidance {\nstart: /a/"),
    "and of terminals": lark("start: A\nA: /a+/ & /b+/"),
    "not of a terminal": lark("start: A\nA: ~/(?s:.*)/"),
    "nots of nots": lark("start: A\nA: ~(~(~/a(a|b){20}/))"),
    "and of 50 explosions": lark(
        "start: A\nA: " + " & ".join(f"/.*{chr(97 + i % 26)}.{{{i}}}/" for i in range(50))
    ),
    "parametric": lark("start: r::0\nr::_: /a/ r::incr(_) %if lt(_, 9) | /b/"),
    "parametric permutations": lark(
        'start: p::0x0\np::_: "" %if is_ones([0:20])\n'
        + "".join(f'  | "w{i}" p::set_bit({i}) %if bit_clear({i})\n' for i in range(20))
    ),
    "text that does not end": lark('start: "abc'),
    "regex that does not end": lark("start: /abc"),
    "bad escape": lark(r'start: "\ud800 \xzz"'),
    "100,000 alternatives": lark("start: " + "|".join(['"a"'] * 25_000)),
    "9,900 texts": lark("start: " + " ".join(f'"a{i}"' for i in range(9_900))),
    "100,000 items": lark("start: " + '"a" ' * 25_000),
    "one line of 120,000 letters": lark("x" * 120_000),
    "gbnf": lark('root ::= "a" root | "b"'),
    "gbnf left recursion": lark('root ::= root "a" | "b"'),
    "gbnf without root": lark('other ::= "a"'),
    "gbnf brackets 2,000 deep": lark("root ::= " + "(" * 2_000 + '"a"' + ")" * 2_000),
    "gbnf brackets that do not close": lark("root ::= " + "(" * 60_000),
    "gbnf repetition of a billion": lark('root ::= "a"{1000000000}'),
    "gbnf class without an end": lark("root ::= [a-z"),
    "gbnf unknown rule": lark("root ::= nothing"),
    "gbnf 2,000 rules that lead to the last one": lark(
        "root ::= r0\n"
        + "\n".join(f'r{i} ::= "{i}" | r{i + 1}' for i in range(2000))
        + '\nr2000 ::= "z"'
    ),
    "gbnf 400 rules of 40 texts": lark(
        "root ::= r0\n"
        + "\n".join(f"r{i} ::= " + '"i" | ' * 20 + f"r{i + 1}" for i in range(400))
        + '\nr400 ::= "z"'
    ),
    "gbnf 60,000 comments": lark('root ::= "a"\n' + "#\n" * 60_000),
    "gbnf 1,000 rules": lark(
        "root ::= r0\n"
        + "\n".join(f'r{i} ::= r{i + 1} | "{i}"' for i in range(1000))
        + '\nr1000 ::= "z"'
    ),
}

TAGS: dict[str, Made] = {
    "no tags": tags([], ["<"]),
    "tag without a trigger": tags([{"begin": "<a>", "schema": ANY, "end": "</a>"}], ["<b"]),
    "tag with an empty trigger": tags([{"begin": "<a>", "schema": ANY, "end": "</a>"}], [""]),
    "tag with an empty end": tags([{"begin": "<a>", "schema": ANY, "end": ""}], ["<a"]),
    "tag that is refused": tags([{"begin": "<a>", "schema": {"not": {}}, "end": ""}], ["<a"]),
    "300 tags": tags(
        [{"begin": f"<f{i}>", "schema": ANY, "end": "</f>"} for i in range(300)], ["<f"]
    ),
    "trigger of the end": tags([{"begin": "</s>", "schema": ANY, "end": "</s>"}], ["</s>"]),
    "triggers that overlap": tags(
        [{"begin": b, "schema": ANY, "end": "]"} for b in ("a", "aa", "aaa")], ["a", "aa", "aaa"]
    ),
    "trigger of 20,000": tags([{"begin": "<" * 20_000, "schema": ANY, "end": "]"}], ["<" * 20_000]),
}

# by what is asked for and what is wrong with it
HOSTILE: Mapping[str, Made] = {
    f"{kind}: {name}": made
    for kind, table in {
        "nested": NESTED,
        "wide": WIDE,
        "combined": COMBINED,
        "counts": COUNTS,
        "contradiction": CONTRADICTIONS,
        "wrong": WRONG,
        "unicode": UNICODE,
        "regex": REGEXES,
        "choice": CHOICES,
        "grammar": LARKS,
        "tags": TAGS,
    }.items()
    for name, made in table.items()
}

# Those that take more than a fifth of a second.
SLOW = (
    "choice: choice of 100,000 characters",
    "grammar: gbnf 1,000 rules",
    "grammar: repetitions of options",
    "grammar: rules of empties that double",
    "tags: 300 tags",
    "wide: 100 optional properties, at least one",
    "wide: 3,000 required names",
    "wide: 800 definitions in a ring",
    "wide: anyOf of 1,000 objects",
    "wide: constant of 100,000 characters",
    "wide: constant of 2,000 keys",
    "wide: constant of 20,000 items",
    "wide: enum of 3,000 lists",
    "wide: enum of 800 objects",
    "wide: enum of long texts",
)
