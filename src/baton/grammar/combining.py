"""How much llguidance copies when it combines schemas, counted before it does.

`allOf`, and `anyOf`, `oneOf`, `enum`, `const` or `$ref` beside other keywords, become one schema,
in which an object's properties are combined one by one and every option with every other one. What
llguidance copies for that is bounded by nothing but the text: a schema of 100 KiB can take
gigabytes. So its way is gone here first, with the sizes of schemas in the place of schemas.

The count is an upper bound. A reference that may mean several schemas counts as all of them.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Any

from baton.core.matchers import GrammarError
from baton.grammar.limits import COPIED, STEPS
from baton.grammar.references import References

TYPES = ("null", "boolean", "number", "string", "array", "object")
IN_PLACE = ("const", "enum", "allOf", "anyOf", "oneOf", "$ref")
# Keywords that say something about a value, beside those in place.
SAYING = {
    *("type", "required", "format", "pattern", "minLength", "maxLength", "multipleOf"),
    *("items", "additionalItems", "prefixItems", "minItems", "maxItems", "patternProperties"),
    *("properties", "additionalProperties", "minProperties", "maxProperties"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
}
LEVELS = 128  # at which llguidance gives up
CHARS = 32  # of a text that are copied as fast as a schema
PAIRS = 8  # options that are compared as fast as a schema is copied
# Schemas that are copied as fast as two patterns of names are compared: patterns that begin with
# different letters, and any others.
APART, OVERLAPPING = 40, 500
# Of an object: so many names are compared with each other as fast as a schema is copied, if they
# are not only a few.
NAME_PAIRS, FEW = 8, 100
BEGINNING = re.compile(r"\^([\w-]*)(?![\w?*{-])[^|]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Plain:
    """Anything, nothing, or a value without parts."""

    kind: str
    size: int = 1


ANY, NOTHING = Plain("any"), Plain("nothing")


@dataclass(frozen=True, slots=True)
class Reference:
    """A definition, which is not copied before it is combined."""

    name: str
    size: int = 1


@dataclass(frozen=True, slots=True)
class Object:
    """Properties by name, by pattern and all others."""

    named: Mapping[str, "Shape"]
    patterned: Mapping[str, "Shape"]
    others: "Shape"
    required: int
    size: int


@dataclass(frozen=True, slots=True)
class Array:
    """The first items, and all others."""

    first: Sequence["Shape"]
    others: "Shape"
    size: int


@dataclass(frozen=True, slots=True)
class Options:
    """One of some schemas; none of them has options itself."""

    options: Sequence["Shape"]
    size: int


Shape = Plain | Reference | Object | Array | Options


def check_combinations(schemas: Iterable[Any]) -> None:
    """Check that the schemas of one grammar do not make too much work together.

    Raises:
        GrammarError: they do
    """
    spent = _Spent()
    try:
        for schema in schemas:
            _Walk(schema, spent).all_definitions()
    except RecursionError as e:
        raise GrammarError(
            "the schema combines references that lead to references too deeply; name fewer "
            "definitions one after another"
        ) from e


@dataclass(slots=True)
class _Spent:
    """What the schemas of one grammar have made llguidance do."""

    steps: int = 0
    copied: int = 0

    def step(self) -> None:
        self.steps += 1
        if self.steps > STEPS:
            raise GrammarError(
                f"it makes too much work: more than {STEPS} schemas are built or combined"
            )

    def copy(self, size: int) -> None:
        self.copied += size
        if self.copied > COPIED:
            raise GrammarError(
                f"it makes too much work: more than {COPIED} copies and comparisons of schemas; "
                "combine fewer or smaller ones by allOf, or by anyOf, oneOf, enum or $ref beside "
                "other keywords, and have fewer properties in one object"
            )


def _object(
    named: Mapping[str, Shape], patterned: Mapping[str, Shape], others: Shape, required: int
) -> Object:
    parts = (*named.values(), *patterned.values(), others)
    return Object(named, patterned, others, required, 1 + required + sum(p.size for p in parts))


def _comparisons(patterns: Iterable[str]) -> int:
    """How long patterns of names are compared with each other, in copies of a schema."""
    begin = [BEGINNING.fullmatch(p) for p in patterns]
    texts = sorted(b[1] if b else "" for b in begin)
    apart = not any(b.startswith(a) for a, b in pairwise(texts))
    return len(texts) * (len(texts) - 1) // 2 * (APART if apart else OVERLAPPING)


def _array(first: Sequence[Shape], others: Shape) -> Array:
    return Array(first, others, 1 + others.size + sum(s.size for s in first))


def _places(shape: Object, name: str) -> Sequence[Shape]:
    """What a property of this name may be."""
    if name in shape.named:
        return [shape.named[name]]
    return [shape.others, *shape.patterned.values()]


def _text(value: object) -> int:
    return 1 + len(value) // CHARS if isinstance(value, str) else 1


def _constant(value: Any) -> Shape:
    match value:
        case dict():
            return _object({k: _constant(v) for k, v in value.items()}, {}, NOTHING, len(value))
        case list():
            return _array([_constant(v) for v in value], NOTHING)
        case str():
            return Plain("string", _text(value))
        case bool():
            return Plain("boolean")
        case None:
            return Plain("null")
        case _:
            return Plain("number")


class _Walk:
    """The way through one schema, which is the root of its references."""

    def __init__(self, root: Any, spent: _Spent) -> None:
        self._root, self._references = root, References(root)
        self._step, self._copy = spent.step, spent.copy
        self._known: dict[str, Shape] = {}
        self._wanted: list[str] = []  # definitions that may not be known yet

    def all_definitions(self) -> None:
        """Go through the schema and all that it refers to."""
        self._shape(self._root)
        while self._wanted:
            self._definition(self._wanted.pop())

    def _shape(self, node: Any) -> Shape:
        if node is False:
            return NOTHING
        if not isinstance(node, Mapping):
            return ANY
        self._step()
        found: Shape = ANY
        said: dict[str, Any] = {}
        for key, value in node.items():
            if key in SAYING:
                said[key] = value
            elif key in IN_PLACE:
                found = self._with(found, said, node)
                said = {}
                found = self._applied(found, key, value)
        return self._with(found, said, node)

    def _with(self, found: Shape, said: dict[str, Any], node: Mapping[str, Any]) -> Shape:
        """Combine with what keywords say that are not in place."""
        if not said:
            return found
        types = node.get("type", TYPES)
        kinds = types if isinstance(types, (list, tuple)) else [types]
        options = [self._typed(kind, said) for kind in kinds]
        return self._combined(found, self._options(options))

    def _typed(self, kind: object, said: Mapping[str, Any]) -> Shape:
        self._step()
        match kind:
            case "object":
                return self._object_of(said)
            case "array":
                items = said.get("items")
                first = items if isinstance(items, list) else said.get("prefixItems")
                others = said.get("additionalItems") if isinstance(items, list) else items
                shapes = [self._shape(v) for v in first] if isinstance(first, list) else []
                return _array(shapes, self._shape(others))
            case "string":
                return Plain("string", _text(said.get("pattern")))
            case "integer":
                return Plain("number")
            case _:
                return Plain(str(kind))

    def _object_of(self, said: Mapping[str, Any]) -> Shape:
        named, patterned = (
            {name: self._shape(v) for name, v in value.items()} if isinstance(value, dict) else {}
            for value in (said.get("properties"), said.get("patternProperties"))
        )
        if patterned:  # what a property is, if its name matches one of them
            named = {name: self._largest(shape, patterned) for name, shape in named.items()}
        required = said.get("required")
        count = len(required) if isinstance(required, list) else 0
        others = self._shape(said.get("additionalProperties"))
        return self._counted(_object(named, patterned, others, count))

    def _counted(self, made: Object) -> Object:
        """Count what is compared within an object."""
        self._copy(_comparisons(made.patterned))
        if (names := max(len(made.named), made.required)) > FEW:
            self._copy(names * names // NAME_PAIRS)
        return made

    def _largest(self, shape: Shape, others: Mapping[str, Shape]) -> Shape:
        """Combine with one of the others, of which it is not known here."""
        self._copy(max(other.size for other in others.values()))
        return max((self._combined(shape, o) for o in others.values()), key=lambda s: s.size)

    def _applied(self, found: Shape, key: str, value: Any) -> Shape:
        """Combine with what a keyword in place says."""
        values = value if isinstance(value, list) else []
        match key:
            case "const":
                return self._combined(found, _constant(value))
            case "enum":
                return self._combined(found, self._options([_constant(v) for v in values]))
            case "allOf":
                for one in values:
                    found = self._combined(found, self._shape(one))
                return found
            case "anyOf":
                return self._combined(found, self._options([self._shape(v) for v in values]))
            case "oneOf":
                options = self._options([self._shape(v) for v in values])
                self._compare(options)
                return self._combined(found, options)
            case _:
                name = str(value)
                self._wanted.append(name)
                return self._combined(found, Reference(name))

    def _compare(self, options: Shape) -> None:
        """Count the comparisons of each option of a `oneOf` with each."""
        if isinstance(options, Options):
            required = sum(o.required for o in options.options if isinstance(o, Object))
            count = len(options.options)
            self._copy(count * (count + 2 * required) // PAIRS)

    def _options(self, options: Sequence[Shape]) -> Shape:
        flat: list[Shape] = []
        for option in options:
            flat.extend(option.options if isinstance(option, Options) else [option])
        flat = [o for o in flat if o is not NOTHING]
        if len(flat) == 1:
            return flat[0]
        return Options(flat, 1 + sum(o.size for o in flat)) if flat else NOTHING

    def _combined(self, one: Shape, other: Shape, level: int = 0) -> Shape:
        self._step()
        if level > LEVELS:
            return NOTHING
        level += 1
        match one, other:
            case (Plain(kind="any"), shape) | (shape, Plain(kind="any")):
                return shape
            case (Plain(kind="nothing"), _) | (_, Plain(kind="nothing")):
                return NOTHING
            case (Reference(name), shape) | (shape, Reference(name)):
                target = self._definition(name)
                self._copy(target.size)
                return self._combined(target, shape, level + 1)
            case Options(options), _:
                self._copy(len(options) * other.size)
                return self._options([self._combined(o, other, level) for o in options])
            case _, Options(options):
                self._copy(len(options) * one.size)
                return self._options([self._combined(one, o, level) for o in options])
            case Object(), Object():
                return self._objects(one, other, level)
            case Array(), Array():
                return self._arrays(one, other, level)
            case Plain(), Plain() if one.kind == other.kind:
                return Plain(one.kind, one.size + other.size)
        return NOTHING

    def _objects(self, one: Object, other: Object, level: int) -> Shape:
        named = {
            name: self._pair(_places(one, name), _places(other, name), level)
            for name in {**one.named, **other.named}
        }
        patterned = {
            pattern: self._pair(
                [one.patterned.get(pattern, one.others)],
                [other.patterned.get(pattern, other.others)],
                level,
            )
            for pattern in {**one.patterned, **other.patterned}
        }
        others = self._combined(one.others, other.others, level)
        required = max(one.required, other.required)
        return self._counted(_object(named, patterned, others, required))

    def _pair(self, ones: Sequence[Shape], others: Sequence[Shape], level: int) -> Shape:
        """Combine one of these with one of those, of which it is not known here."""
        found = []
        for one in ones:
            for other in others:
                self._copy(one.size + other.size)
                found.append(self._combined(one, other, level))
        return max(found, key=lambda s: s.size)

    def _arrays(self, one: Array, other: Array, level: int) -> Shape:
        pairs = zip_longest(one.first, other.first)
        first = [self._pair([a or one.others], [b or other.others], level) for a, b in pairs]
        return _array(first, self._combined(one.others, other.others, level))

    def _definition(self, name: str) -> Shape:
        """Return what a reference means; anything while that is being found out, and nothing if it
        is not of this document. llguidance refuses both."""
        if name not in self._known:
            self._known[name] = ANY
            targets = self._references.targets(name)
            self._known[name] = self._options([self._shape(target) for target in targets])
        return self._known[name]
