"""A JSON schema, said so that llguidance means by it what JSON Schema means.

llguidance takes most of JSON Schema at its word and refuses by name what it does not implement.
What is left is corrected here, always so that fewer answers are allowed, never more:

- patterns are in another dialect: patterns.py;
- numbers become 64-bit floats, so a limit beyond 2**53 moves to there, and a constant that no float
  equals is refused;
- a `date` may be 29 February of any year, a `time` any leap second, an `email` of any length;
- two additional properties may have the same name, so minProperties would count one of them twice;
- the options of `oneOf` are not compared through `$ref`.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from baton.core.matchers import GrammarError
from baton.grammar import patterns
from baton.grammar.limits import (
    COUNTED,
    MULTIPLES,
    NAMES,
    PATTERN_PROPERTIES,
    PATTERNS,
    TEXT_CHARS,
)
from baton.grammar.references import nodes

Node = dict[str, Any]
SAFE = 2**53 - 1  # up to here each whole number is a 64-bit float (RFC 8259, section 6)
# Escapes that llguidance may write; others of these characters could not be in an answer.
WRITABLE = "\b\f\n\r\t"
LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29"
OTHER_DAY = "[0-9]{4}-(?:(?:0[13-9]|1[0-2])-[0-9]{2}|02-(?:[01][0-9]|2[0-8]))"
YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"  # there is no year 0
DAYS = (f"^(?:{OTHER_DAY}|{LEAP})", f"^{YEAR}")
SECONDS = "[0-9]{2}:[0-9]{2}:[0-5]"  # a leap second is one at a few moments only
# By format: patterns that make it exact.
EXACT: Mapping[str, tuple[str, ...]] = {
    "date": DAYS,
    "date-time": (*DAYS, f"^.{{11}}{SECONDS}"),
    "time": (f"^{SECONDS}",),
    "email": ("^[^@]{1,64}@",),
}
NAMED = ("properties", "$defs", "definitions", "dependentSchemas")  # schemas by name
DATA = ("default", "examples", "example", "required", "type")  # no schemas
ANNOTATIONS = ("title", "description", "$comment", "examples", "deprecated")


def adapted(schema: Mapping[str, Any]) -> Node:
    """Return a schema whose grammar allows only what the given one allows.

    Raises:
        GrammarError: something cannot be said, or makes too much work; the text names it
    """
    if "x-guidance" in schema:
        raise GrammarError(
            "x-guidance would change what the schema means; say whitespace_pattern or "
            "disable_any_whitespace in structured_outputs instead"
        )
    _check_counts(schema)
    return _with_options_in_place(_adapt(dict(schema)))


def _check_counts(schema: Mapping[str, Any]) -> None:
    """Check what one object of a schema cannot tell, as llguidance may combine any two of them."""
    found = list(nodes(schema))
    named = sum(_size(node.get("properties")) for node in found)
    counted = any("minProperties" in node or "maxProperties" in node for node in found)
    patterned = sum(_size(node.get("patternProperties")) for node in found)
    matched = sum("pattern" in node for node in found)
    names = len({name for node in found for name in _names(node)})
    multiple = math.lcm(*(_digits(node.get("multipleOf")) for node in found))
    for count, what, most in (
        (named if counted else 0, "properties beside minProperties or maxProperties", COUNTED),
        (patterned, "patternProperties", PATTERN_PROPERTIES),
        (matched, "patterns", PATTERNS),
        (names, "different names of properties", NAMES),
    ):
        if count > most:
            raise GrammarError(f"the schema has {count} {what}; at most {most} are served")
    if multiple > MULTIPLES:
        raise GrammarError(
            f"a multiple of all multipleOf of the schema is {str(multiple)[:40]}, without decimal "
            f"point; at most {MULTIPLES} is served"
        )


def _names(node: Mapping[str, Any]) -> Iterator[str]:
    """The names of properties that one object says, as a schema or within a constant."""
    for said in (node.get("properties"), node.get("required")):
        if isinstance(said, (Mapping, list)):
            yield from (name for name in said if isinstance(name, str))
    for constant in nodes([node.get("const"), node.get("enum")]):
        yield from constant


def _digits(value: object) -> int:
    """A number without its decimal point; 1 if it is none, or one that llguidance refuses."""
    if not isinstance(value, (int, float)) or not -SAFE < value < SAFE:
        return 1
    _, digits, exponent = Decimal(repr(float(value))).normalize().as_tuple()
    assert isinstance(exponent, int), "finite"
    return int("".join(map(str, digits))) * 10 ** max(exponent, 0) or 1


def _size(value: object) -> int:
    return len(value) if isinstance(value, Mapping) else 0


def _adapt(value: Any) -> Any:
    """Any part of a schema. References may point anywhere, so all objects but data are schemas."""
    if isinstance(value, list):
        return [_adapt(v) for v in value]
    if not isinstance(value, dict):
        return value
    if value.get("uniqueItems") is False:  # says nothing, and llguidance refuses the name
        value = {key: v for key, v in value.items() if key != "uniqueItems"}
    _check_properties(value)
    found = {key: KEYWORDS.get(key, _other)(key, v) for key, v in value.items()}
    more = EXACT.get(value["format"], ()) if isinstance(value.get("format"), str) else ()
    if more and isinstance(found.get("allOf", []), list):
        found["allOf"] = [*found.get("allOf", []), *({"pattern": p} for p in more)]
    return found


def _other(key: str, value: Any) -> Any:
    if key in NAMED and isinstance(value, dict):
        _check_texts(key, list(value))
        return {name: _adapt(v) for name, v in value.items()}
    return value if key in DATA else _adapt(value)


def _check_properties(node: Node) -> None:
    least, required = node.get("minProperties"), node.get("required", [])
    if not isinstance(least, int) or not isinstance(required, list):
        return
    if least > 1 and least > 1 + len({r for r in required if isinstance(r, str)}):
        raise GrammarError(
            f"minProperties = {least} is served only if all of them but one are required, because "
            "the names of additional properties may be equal"
        )


def _pattern(key: str, value: Any) -> Any:
    return patterns.of_schema(value) if isinstance(value, str) else value


def _pattern_properties(key: str, value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {patterns.of_schema(name): _adapt(v) for name, v in value.items()}


def _data(key: str, value: Any) -> Any:
    """`const` and `enum`."""
    for v in _leaves(value):
        if isinstance(v, str):
            _check_texts(key, [v])
        elif isinstance(v, float) and not -SAFE <= v <= SAFE:
            raise GrammarError(f"{key}: {v} is beyond {SAFE}")
        elif _is_number(v) and (abs(v) >= 2**63 or float(v) != v):
            raise GrammarError(f"{key}: no 64-bit float equals {str(v)[:40]}")
    return value


def _leaves(value: Any) -> Iterator[Any]:
    left = [value]
    while left:
        found = left.pop()
        if isinstance(found, dict):
            left.extend([*found, *found.values()])
        elif isinstance(found, list):
            left.extend(found)
        else:
            yield found


def _check_texts(key: str, texts: list[Any]) -> None:
    for text in texts:
        if not isinstance(text, str):
            continue
        for c in text:
            if (c < " " and c not in WRITABLE) or c == "\x7f" or "\ud800" <= c <= "\udfff":
                raise GrammarError(f"{key}: the character {c!r} cannot be written")


def _required(key: str, value: Any) -> Any:
    if isinstance(value, list):
        _check_texts(key, value)
    return value


def _least(key: str, value: Any) -> Any:
    """A lower limit, and where numbers are no longer exact, one above it."""
    if not _is_number(value):
        return value
    if not -math.inf < value <= SAFE:
        raise GrammarError(f"{key} = {str(value)[:40]}; it must be a number up to {SAFE}")
    return max(value, -SAFE)


def _most(key: str, value: Any) -> Any:
    """An upper limit, and where numbers are no longer exact, one below it."""
    if not _is_number(value):
        return value
    if not -SAFE <= value < math.inf:
        raise GrammarError(f"{key} = {str(value)[:40]}; it must be a number from {-SAFE}")
    return min(value, SAFE)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


KEYWORDS: Mapping[str, Callable[[str, Any], Any]] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "const": _data,
    "enum": _data,
    "required": _required,
    "minimum": _least,
    "exclusiveMinimum": _least,
    "maximum": _most,
    "exclusiveMaximum": _most,
}


def _with_options_in_place(schema: Node) -> Node:
    """Return the schema with the definitions that options of `oneOf` refer to in their places, so
    that llguidance can see that the options exclude each other. Definitions keep their own
    references: they may be recursive."""
    below = [node for node in nodes(schema) if node is not schema]
    if any(isinstance(node.get(key), str) for node in below for key in ("$id", "id")):
        return schema  # the same reference has several meanings
    room = TEXT_CHARS
    sites = [node for node in nodes(schema) if isinstance(node.get("oneOf"), list)]
    placed = []
    for node in sites:
        options = [_target(schema, option) for option in node["oneOf"]]
        room -= len(json.dumps(options))
        if room < 0:
            break
        placed.append((node, options))
    for node, options in placed:
        assert isinstance(node, dict)
        node["oneOf"] = [json.loads(json.dumps(option)) for option in options]
    return schema


def _target(schema: Node, option: Any) -> Any:
    """What an option that only refers to a place of this document refers to."""
    if not isinstance(option, dict) or any(k != "$ref" and k not in ANNOTATIONS for k in option):
        return option
    reference = option.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#/") or "%" in reference:
        return option
    found: Any = schema
    for name in reference[2:].split("/"):
        if not isinstance(found, dict):
            return option
        found = found.get(name.replace("~1", "/").replace("~0", "~"))
    return found if isinstance(found, dict) else option
