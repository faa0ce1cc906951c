"""Grammars of JSON in a dialect: keys are bare, and texts stand between marks of the model's own.

    {city:<|"|>Bern<|"|>,days:3,at:{x:1}}       as Gemma 4 writes it

llguidance writes plain JSON only, so objects, arrays and texts have rules here; numbers, booleans
and null are left to it.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from baton.core.matchers import GrammarError

Schema = Mapping[str, Any]
BARE = re.compile(r"\w+")
ANY_KEY = "/[A-Za-z_][A-Za-z0-9_]{0,63}/"
PLAIN = r"[^\x01\x02]"  # the two characters that transformers' parser takes for itself
SCALARS = ("number", "integer", "boolean", "null")
ANY_TYPE = ("string", "number", "boolean", "null", "array", "object")
# What a grammar here does not follow. `pattern` and `format` are not among them: as between tags,
# texts are free.
REFUSED = (
    "allOf",
    "not",
    "if",
    "patternProperties",
    "propertyNames",
    "dependentSchemas",
    "dependentRequired",
    "contains",
    "prefixItems",
    "uniqueItems",
    "minProperties",
    "maxProperties",
)


class Rules(Protocol):
    """The rules of a Lark grammar (tool_grammar.py)."""

    def fresh(self, kind: str, body: str, *, options: str = "") -> str:
        """Add a rule under a new name, which is returned."""
        ...

    def literal(self, text: str) -> str:
        """Return the expression of a text; may be empty."""
        ...

    def until(self, end: str, *, text: str = ...) -> str:
        """Return the expression of any text that ends with the first `end`."""
        ...

    def promise(self, kind: str) -> tuple[str, Callable[[str], None]]:
        """Return a new name and what gives it its rule."""
        ...


def bare(name: str) -> str:
    """Return a name that can stand without quotation marks. Raises GrammarError."""
    if BARE.fullmatch(name):
        return name
    raise GrammarError(
        f"the name {name[:80]!r} has a character that this model's format has no way to write; "
        "use letters, digits and _"
    )


def sequence(rules: Rules, parts: Sequence[tuple[str, bool]], separator: str) -> str:
    """Return the expression of parts in their order, with a separator between two.

    Args:
        parts: expressions, and whether each must be there
    """
    later = ""  # the parts behind, each with the separator before it
    first: list[str] = []  # the sequences that begin with each part, up to a required one
    for expression, required in reversed(parts):
        first = [f"{expression} {later}"] + ([] if required else first)
        more = f"({separator} {expression})" + ("" if required else "?")
        later = rules.fresh("later", f"{more} {later}")
    if not first:
        return ""
    some = rules.fresh("parts", " | ".join(first))
    return some if any(required for _, required in parts) else f"{some}?"


class Dialect:
    """The values of one tool's arguments.

    Args:
        quote: the mark before and after a text
        root: the schema that `$ref` refers to
        scalar: returns the expression of a number, a boolean or null, from its schema
    """

    def __init__(
        self, rules: Rules, *, quote: str, root: Schema, scalar: Callable[[Schema], str]
    ) -> None:
        self._rules, self._quote, self._root, self._scalar = rules, quote, root, scalar
        self._references: dict[str, str] = {}  # names of their rules
        self._any: str | None = None

    def value(self, schema: object) -> str:
        """Return the expression of what a schema allows.

        Raises:
            GrammarError: the schema says something that no grammar here follows
        """
        if schema is True or schema == {}:
            return self._anything()
        if not isinstance(schema, Mapping):
            raise GrammarError(f"the schema {str(schema)[:80]} allows nothing, or is none")
        for word in REFUSED:
            if schema.get(word):
                raise GrammarError(f"{word} is not supported in this model's format of calls")
        if "$ref" in schema:
            return self._reference(str(schema["$ref"]))
        if "const" in schema or "enum" in schema:
            values = schema["enum"] if "enum" in schema else [schema["const"]]
            return self._one_of(self._rules.literal(self._written(v)) for v in values)
        for word in ("anyOf", "oneOf"):
            if word in schema:
                rest = {k: v for k, v in schema.items() if k != word}
                return self._one_of(self.value({**rest, **each}) for each in schema[word])
        types = schema.get("type", _types(schema))
        each = [types] if isinstance(types, str) else types
        return self._one_of(self._typed(kind, schema) for kind in each)

    def _typed(self, kind: str, schema: Schema) -> str:
        match kind:
            case "string":
                return f"{self._rules.literal(self._quote)} {self._text(schema)}"
            case "array":
                return self._array(schema)
            case "object":
                return self._object(schema)
            case _ if kind in SCALARS:
                return self._scalar({**schema, "type": kind})
            case _:
                raise GrammarError(f"there is no type {kind[:80]!r}")

    def _array(self, schema: Schema) -> str:
        item = self.value(schema.get("items", True))
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if most == 0:
            return '"[]"'
        more = f"{{{max(0, least - 1)},{'' if most is None else most - 1}}}"
        items = f'({item} ("," {item}){more})' + ("" if least else "?")
        return self._rules.fresh("array", f'"[" {items} "]"')

    def _object(self, schema: Schema) -> str:
        properties, required = schema.get("properties") or {}, schema.get("required") or ()
        if not properties and not required:
            more = schema.get("additionalProperties", True)
            if more is False:
                return '"{}"'
            pair = f'{ANY_KEY} ":" {self.value(more)}'
            return self._rules.fresh("object", f'"{{" ({pair} ("," {pair})*)? "}}"')
        named = {**properties, **{name: True for name in required if name not in properties}}
        pairs = [
            (f'"{bare(name)}:" {self.value(about)}', name in required)
            for name, about in named.items()
        ]
        return self._rules.fresh("object", f'"{{" {sequence(self._rules, pairs, COMMA)} "}}"')

    def _reference(self, target: str) -> str:
        """Return the rule of a `$ref`, which may refer to itself."""
        if target not in self._references:
            name, keep = self._rules.promise("ref")
            self._references[target] = name
            keep(self.value(self._found(target)))
        return self._references[target]

    def _found(self, target: str) -> object:
        found: object = self._root if target.startswith("#") else None
        for part in target.removeprefix("#").split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, Mapping) else None
        if found is None:
            raise GrammarError(f"$ref {target[:80]!r}: there is no such schema")
        return found

    def _anything(self) -> str:
        if self._any is None:
            self._any, keep = self._rules.promise("any")
            keep(self._one_of(self._typed(kind, {}) for kind in ANY_TYPE))
        return self._any

    def _one_of(self, expressions: Iterable[str]) -> str:
        found = list(dict.fromkeys(expressions))
        if not found:
            raise GrammarError("the schema allows nothing")
        return found[0] if len(found) == 1 else self._rules.fresh("value", " | ".join(found))

    def _text(self, schema: Schema) -> str:
        """Return the expression of a text with the mark behind it."""
        least, most = schema.get("minLength", 0), schema.get("maxLength", "")
        return self._rules.until(self._quote, text=f"/{PLAIN}{{{least},{most}}}/")

    def _written(self, value: object) -> str:
        match value:
            case str():
                if self._quote in value or not value.isprintable():
                    raise GrammarError(f"the text {value[:80]!r} cannot be written in this format")
                return f"{self._quote}{value}{self._quote}"
            case list():
                return f"[{','.join(map(self._written, value))}]"
            case dict():
                pairs = (f"{bare(k)}:{self._written(v)}" for k, v in value.items())
                return f"{{{','.join(pairs)}}}"
            case _:
                return json.dumps(value, allow_nan=False)


COMMA = '","'


def _types(schema: Schema) -> tuple[str, ...]:
    """Return the types of a schema that says none."""
    if "properties" in schema or "required" in schema:
        return ("object",)
    return ("array",) if "items" in schema else ANY_TYPE
