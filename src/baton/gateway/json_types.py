"""Which JSON types a schema lets a value have, as far as its first level says so.

Arguments that a model writes as tags are texts; the types say which of them are JSON.
"""

from collections.abc import Mapping, Sequence
from typing import Any

Schema = Mapping[str, Any]
KINDS: Mapping[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}
PARTS = 64  # of one schema that are looked at, as references may go round in circles
STRING = "string"


def json_types(schema: object, root: Schema) -> tuple[str, ...]:
    """Return the types, in the schema's order; empty = any.

    Args:
        schema: of the value
        root: the schema that `$ref` refers to
    """
    found: dict[str, None] = {}
    waiting = [schema]
    for _ in range(PARTS):
        if not waiting:
            break
        types, more = _look(waiting.pop(0), root)
        found |= dict.fromkeys(types)
        waiting[:0] = more
    return tuple(found)


def may_be_text(schema: object, root: Schema) -> bool:
    """Whether a value may be a string, which models write between tags as it is."""
    types = json_types(schema, root)
    return not types or STRING in types


def _look(schema: object, root: Schema) -> tuple[Sequence[str], Sequence[object]]:
    """Return the types that a schema names itself, and the schemas that name more."""
    if not isinstance(schema, Mapping):
        return (), ()
    if (said := schema.get("type")) is not None:
        found = [said] if isinstance(said, str) else _listed(said)
        types = [t for t in found if isinstance(t, str)]
        return [*types, "null"] if schema.get("nullable") else types, ()
    if "enum" in schema or "const" in schema:
        values = _listed(schema.get("enum")) or [schema.get("const")]
        return [KINDS[type(v)] for v in values if type(v) in KINDS], ()
    if "$ref" in schema:
        return (), [_target(schema["$ref"], root)]
    return (), [s for key in ("anyOf", "oneOf", "allOf") for s in _listed(schema.get(key))]


def _target(reference: object, root: Schema) -> object:
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found: object = root
    for part in reference.removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _listed(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else ()
