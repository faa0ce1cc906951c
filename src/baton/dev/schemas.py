"""JSON schemas drawn at random, in the families of JSONSchemaBench.

The benchmark (arXiv 2501.10868) has 9,558 schemas in ten families, from function calls to the
configuration files of JSON Schema Store. Each family here has the depth, the width and the share of
keywords of its model, and the same seed gives the same schema. Texts, lists and numbers are
bounded more often than there, so that a small model's answers end.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Schema = dict[str, Any]
DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"


@dataclass(frozen=True)
class SchemaFamily:
    """What the schemas of one source have in common. Shares are from 0 to 1."""

    name: str
    depth: int  # of objects and lists in each other
    width: tuple[int, int]  # properties of an object, at the top
    closed: float  # objects with additionalProperties: false
    required: float  # of the properties
    draft: str = ""
    described: float = 0.5
    rates: Mapping[str, float] = field(default_factory=dict)  # by feature


FAMILIES: tuple[SchemaFamily, ...] = (
    SchemaFamily("glaive", 2, (1, 5), 0.1, 0.7, described=1, rates={"enum": 0.1, "format": 0.1}),
    SchemaFamily(
        "github-trivial",
        1,
        (0, 2),
        0.3,
        0.4,
        DRAFT_4,
        rates={"enum": 0.25, "bounds": 0.3}
        | {"pattern": 0.1, "oneOf": 0.15, "ref": 0.1, "default": 0.1},
    ),
    SchemaFamily(
        "github-easy",
        2,
        (1, 5),
        0.45,
        0.5,
        DRAFT_4,
        rates={"enum": 0.15, "bounds": 0.3}
        | {"pattern": 0.1, "format": 0.08, "ref": 0.15, "default": 0.1, "types": 0.06},
    ),
    SchemaFamily(
        "github-medium",
        3,
        (3, 8),
        0.45,
        0.5,
        DRAFT_4,
        rates={"enum": 0.2, "bounds": 0.4}
        | {"pattern": 0.15, "format": 0.1, "ref": 0.25, "default": 0.2, "oneOf": 0.05}
        | {"types": 0.08, "named": 0.06, "not": 0.004},
    ),
    SchemaFamily(
        "github-hard",
        4,
        (4, 10),
        0.6,
        0.5,
        rates={"enum": 0.2, "bounds": 0.5, "pattern": 0.2}
        | {"format": 0.12, "ref": 0.35, "oneOf": 0.06, "anyOf": 0.08, "allOf": 0.05, "types": 0.1}
        | {"named": 0.1, "counted": 0.05, "tuple": 0.05, "not": 0.004, "recursive": 0.3},
    ),
    SchemaFamily(
        "github-ultra",
        5,
        (8, 16),
        0.7,
        0.5,
        rates={"enum": 0.2, "bounds": 0.6, "pattern": 0.2}
        | {"format": 0.1, "ref": 0.4, "oneOf": 0.08, "anyOf": 0.1, "allOf": 0.08, "types": 0.15}
        | {"named": 0.1, "counted": 0.08, "tuple": 0.05, "not": 0.004, "recursive": 0.3},
    ),
    SchemaFamily(
        "kubernetes",
        4,
        (3, 7),
        0.0,
        0.2,
        described=0.9,
        rates={"types": 0.6, "ref": 0.5}
        | {"enum": 0.1, "map": 0.2, "fixed": 0.15, "fixed format": 0.1},
    ),
    SchemaFamily(
        "snowplow",
        2,
        (2, 7),
        1.0,
        0.3,
        rates={"types": 0.5, "bounds": 0.8, "enum": 0.15}
        | {"format": 0.1, "pattern": 0.08, "counted": 0.03},
    ),
    SchemaFamily(
        "washington-post",
        3,
        (2, 7),
        0.6,
        0.4,
        DRAFT_4,
        rates={"ref": 0.5, "recursive": 0.4}
        | {"enum": 0.2, "pattern": 0.2, "allOf": 0.2, "anyOf": 0.15, "named": 0.15}
        | {"bounds": 0.5, "dependent": 0.05, "default": 0.2},
    ),
    SchemaFamily(
        "schema-store",
        4,
        (3, 9),
        0.7,
        0.2,
        DRAFT_7,
        rates={"ref": 0.4, "recursive": 0.3}
        | {"enum": 0.2, "const": 0.1, "anyOf": 0.15, "oneOf": 0.12, "allOf": 0.08, "types": 0.1}
        | {"pattern": 0.15, "format": 0.1, "named": 0.1, "bounds": 0.4, "unique": 0.03}
        | {"not": 0.01, "counted": 0.05, "default": 0.3, "multiple": 0.1, "tuple": 0.03},
    ),
)

WORDS = (
    "id", "name", "title", "status", "email", "address", "city", "count", "price", "amount",
    "date", "start", "end", "items", "tags", "owner", "parent", "key", "value", "type", "kind",
    "version", "label", "note", "author", "code", "unit", "color", "size", "width", "height",
    "path", "url", "level", "limit", "mode", "source", "target", "region", "role", "team",
    "member", "score", "rank", "total", "enabled", "active",
)  # fmt: skip
PATTERNS = (
    "^[a-z]{1,8}$", "^[A-Z]{2}-[0-9]{3}$", r"^\d{4}$", "^(yes|no|maybe)$", "^#[0-9a-f]{6}$", "^v",
    r"^[\w.-]+@[\w.-]+$", '^[^"]{1,6}$', r"^[^\\/]{1,5}$", "[0-9]$", "^$|^[a-z]$", r"^\S{1,4}$",
    r"^\+?[0-9]{3,9}$", "^[^a-z]{2,4}$", r"^(\d{1,3}\.){3}\d{1,3}$", "^[A-Za-z_][A-Za-z0-9_]{0,6}$",
)  # fmt: skip
FORMATS = ("date", "date-time", "time", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
OTHER_FORMATS = ("int32", "phone", "byte")  # of texts: not implemented


def schema(seed: int) -> tuple[str, Schema]:
    """Return the family and the schema of a seed; families take turns."""
    family = FAMILIES[seed % len(FAMILIES)]
    return family.name, _Author(family, random.Random(f"{family.name} {seed}")).whole()


class _Author:
    """Writes one schema."""

    def __init__(self, family: SchemaFamily, rng: random.Random) -> None:
        self._family, self._rng = family, rng
        self._kept: dict[str, Schema] = {}  # definitions

    def whole(self) -> Schema:
        """The schema with its definitions."""
        defs = "definitions" if self._family.draft else "$defs"
        for name in self._some_names((2, 4)) if self._has("ref", always=3) else []:
            self._kept[name] = self._object(1, {}) if self._rng.random() < 0.6 else self._scalar()
        if self._has("recursive"):
            self._kept["node"] = self._node(defs)
        bare = self._family.name == "github-trivial" and self._rng.random() < 0.4
        body = self._scalar() if bare else self._object(self._family.depth, self._kept)
        head: Schema = {"$schema": self._family.draft} if self._family.draft else {}
        if self._rng.random() < self._family.described:
            head["title"] = self._words(3)
        found = head | body | ({defs: self._kept} if self._kept else {})
        renamed: Schema = self._renamed(found, defs)
        return renamed

    def _has(self, feature: str, *, always: float = 1.0) -> bool:
        return self._rng.random() < always * self._family.rates.get(feature, 0)

    def _words(self, most: int) -> str:
        return " ".join(self._rng.choices(WORDS, k=self._rng.randint(1, most)))

    def _some_names(self, many: tuple[int, int]) -> list[str]:
        return self._rng.sample(WORDS, self._rng.randint(*many))

    def _renamed(self, value: Any, defs: str) -> Any:
        """References to the definitions, under the name that the draft has for them."""
        if isinstance(value, list):
            return [self._renamed(v, defs) for v in value]
        if not isinstance(value, dict):
            return value
        return {
            k: f"#/{defs}/{v[1:]}" if k == "$ref" and v[:1] == "@" else self._renamed(v, defs)
            for k, v in value.items()
        }

    def _node(self, defs: str) -> Schema:
        """A tree, or a list of one by one."""
        again: Schema = {"$ref": "@node"}
        children = {"type": "array", "items": again, "maxItems": 2}
        more = self._rng.choice([children, {"anyOf": [again, {"type": "null"}]}])
        return {
            "type": "object",
            "properties": {"value": self._scalar(), "more": more},
            "required": ["value"],
            "additionalProperties": False,
        }

    def _any(self, depth: int, kept: Mapping[str, Schema]) -> Schema:
        for feature, write in COMBINED.items():
            if self._has(feature):
                return write(self, depth, kept)
        if depth > 0 and self._rng.random() < 0.45:
            return self._rng.choice([self._object, self._list])(depth - 1, kept)
        return self._scalar()

    # values without parts

    def _scalar(self) -> Schema:
        write = self._rng.choice([_Author._text, _Author._text, _Author._number, _Author._flag])
        found = self._enumerated() if self._has("enum") else write(self)
        if self._has("types") and "type" in found:
            found["type"] = [found["type"], "null"]
            if "enum" in found:
                found["enum"] = [*found["enum"], None]
        if self._has("default"):
            found["default"] = None
        return found

    def _enumerated(self) -> Schema:
        names = self._some_names((1, 6))
        return self._rng.choice(
            [{"type": "string", "enum": names}, {"enum": [*names, 1, 2.5, None]}, {"enum": [1, 2]}]
        )

    def _text(self) -> Schema:
        found: Schema = {"type": "string"}
        if self._has("pattern"):
            return found | {"pattern": self._rng.choice(PATTERNS)}
        if self._has("format"):
            return found | {"format": self._rng.choice(FORMATS)}
        if self._has("fixed format", always=0.3):
            return found | {"format": self._rng.choice(OTHER_FORMATS)}
        if self._rng.random() < 0.6:
            found["maxLength"] = self._rng.randint(1, 24)
        if self._has("bounds"):
            found["minLength"] = min(self._rng.randint(0, 3), found.get("maxLength", 3))
        return found

    def _number(self) -> Schema:
        kind = self._rng.choice(["integer", "integer", "number"])
        found: Schema = {"type": kind}
        if self._has("fixed format"):
            found["format"] = "int32" if kind == "integer" else "double"
        if self._has("bounds"):
            low = self._rng.choice([-100, -1, 0, 0, 1, 0.5])
            found["minimum"] = low
            if self._rng.random() < 0.7:
                found["maximum"] = low + self._rng.choice([0, 1, 9, 100, 2**31 - 1, 2**63 - 1])
        if self._has("multiple"):
            found["multipleOf"] = self._rng.choice([1, 2, 5, 0.5, 0.01])
        return found

    def _flag(self) -> Schema:
        return {"type": self._rng.choice(["boolean", "boolean", "boolean", "null"])}

    # values with parts

    def _object(self, depth: int, kept: Mapping[str, Schema]) -> Schema:
        low, high = self._family.width
        names = self._some_names((min(low, 2), 4) if depth < self._family.depth else (low, high))
        properties = {name: self._any(depth, kept) for name in names}
        for value in properties.values():
            if self._rng.random() < self._family.described and "$ref" not in value:
                value["description"] = self._words(6)
        found: Schema = {"type": "object", "properties": properties}
        required = [n for n in names if self._rng.random() < self._family.required]
        if required:
            found["required"] = required
        for feature, write in OF_OBJECTS.items():
            if self._has(feature):
                write(self, found, names)
        if self._rng.random() < self._family.closed:
            found.setdefault("additionalProperties", False)
        return found

    def _counted(self, found: Schema, names: list[str]) -> None:
        if self._rng.random() < 0.5:
            found |= {"required": names, "maxProperties": len(names) + 1}
        else:
            found |= {"minProperties": 1, "additionalProperties": False}

    def _dependent(self, found: Schema, names: list[str]) -> None:
        found["dependencies"] = {names[0]: names[-1:]} if names else {}

    def _named(self, found: Schema, names: list[str]) -> None:
        found["patternProperties"] = {f"^{self._rng.choice(['x-', '_', '[A-Z]'])}": self._scalar()}

    def _list(self, depth: int, kept: Mapping[str, Schema]) -> Schema:
        found: Schema = {"type": "array", "items": self._any(depth, kept)}
        if self._has("tuple"):
            found = {"type": "array", "prefixItems": [self._scalar(), self._scalar()]}
            found |= {"items": False, "minItems": self._rng.randint(0, 2)}
            if self._family.draft:
                found = {"type": "array", "items": found["prefixItems"], "additionalItems": False}
            return found
        if self._rng.random() < 0.8:
            found["maxItems"] = self._rng.randint(1, 4)
        if self._has("bounds"):
            found["minItems"] = self._rng.randint(0, found.get("maxItems", 2))
        if self._has("unique"):
            found["uniqueItems"] = True
        return found

    def _map(self, depth: int, kept: Mapping[str, Schema]) -> Schema:
        return {"type": "object", "additionalProperties": self._scalar(), "maxProperties": 3}

    # schemas made of schemas

    def _reference(self, depth: int, kept: Mapping[str, Schema]) -> Schema:
        return {"$ref": f"@{self._rng.choice(sorted(kept))}"} if kept else self._scalar()

    def _any_of(self, depth: int, kept: Mapping[str, Schema]) -> Schema:
        return {"anyOf": [self._any(max(depth - 1, 0), kept) for _ in range(2)]}

    def _one_of(self, depth: int, kept: Mapping[str, Schema]) -> Schema:
        """Options that exclude each other by their type or their kind, or do not."""
        if self._rng.random() < 0.3:
            return {"oneOf": [self._scalar(), self._scalar()]}
        if self._rng.random() < 0.5:
            return {"oneOf": [{"type": "null"}, self._text(), self._object(0, {})]}
        options = []
        for kind in self._some_names((2, 3)):
            option = self._object(0, {})
            option["properties"] = {"kind": {"enum": [kind]}, **option["properties"]}
            option["required"] = ["kind", *(r for r in option.get("required", ()) if r != "kind")]
            option["properties"]["kind"] = {"enum": [kind]}
            options.append(option)
        return {"oneOf": options}

    def _all_of(self, depth: int, kept: Mapping[str, Schema]) -> Schema:
        """An object, perhaps a definition, and more properties."""
        objects = [n for n, v in sorted(kept.items()) if v.get("type") == "object" and n != "node"]
        base = kept[self._rng.choice(objects)] if objects else self._object(0, {})
        more = self._object(0, {})
        for name in base["properties"]:
            more["properties"].pop(name, None)
        more["required"] = list(more["properties"])[:1]
        more.pop("additionalProperties", None)
        if base.get("additionalProperties") is False:
            return base
        name = next((n for n in objects if kept[n] is base), None)
        return {"allOf": [{"$ref": f"@{name}"} if name else base, more]}

    def _constant(self, depth: int, kept: Mapping[str, Schema]) -> Schema:
        return {"const": self._rng.choice([self._words(2), 3, True, None, [1, "a"], {"a": 1}])}

    def _not(self, depth: int, kept: Mapping[str, Schema]) -> Schema:
        return {"not": {"type": "null"}}


COMBINED: Mapping[str, Callable[[_Author, int, Mapping[str, Schema]], Schema]] = {
    "ref": _Author._reference,
    "anyOf": _Author._any_of,
    "oneOf": _Author._one_of,
    "allOf": _Author._all_of,
    "const": _Author._constant,
    "fixed": _Author._constant,
    "map": _Author._map,
    "not": _Author._not,
}
OF_OBJECTS: Mapping[str, Callable[[_Author, Schema, list[str]], None]] = {
    "counted": _Author._counted,
    "dependent": _Author._dependent,
    "named": _Author._named,
}
