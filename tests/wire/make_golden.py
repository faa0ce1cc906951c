"""Writes down what the code that runs this says to its peers: a schema of every message, and one of
each as bytes. Run with the last code of a protocol, before the number is raised:

    PYTHONPATH=src python -m tests.wire.make_golden > tests/wire/golden/protocol-N.json
"""

import json
import sys
import typing
from base64 import b64encode
from collections.abc import Iterator, Mapping
from enum import Enum
from itertools import count
from types import NoneType, UnionType
from typing import Annotated, Any

import msgspec

from baton.core.frames import AnyFrame, Data
from baton.core.ids import Boot
from baton.core.messages import AnyMessage
from baton.wire.codec import encode

MESSAGES, FRAMES = typing.get_args(AnyMessage), typing.get_args(AnyFrame)


class Examples:
    """Makes a value of any type; no field of it has its default."""

    def __init__(self) -> None:
        self._numbers: Iterator[int] = count(2)

    def of(self, type_: Any, default: Any = msgspec.NODEFAULT) -> Any:
        """Make a value."""
        origin, arguments = typing.get_origin(type_), typing.get_args(type_)
        if isinstance(type_, typing.NewType):
            return self.of(type_.__supertype__, default)
        if origin is Annotated:
            return self.of(arguments[0], default)
        if origin in (typing.Union, UnionType):
            return self.of(next(a for a in arguments if a is not NoneType), default)
        if origin is tuple and arguments[-1] is Ellipsis:
            return (self.of(arguments[0]),)
        if origin is tuple:
            return tuple(self.of(a) for a in arguments)
        if origin in (dict, Mapping):
            return {self.of(arguments[0]): self.of(arguments[1])}
        if issubclass(type_, msgspec.Struct):
            hints = typing.get_type_hints(type_, include_extras=True)
            fields = {f.name: f.default for f in msgspec.structs.fields(type_)}
            return type_(**{name: self.of(hints[name], d) for name, d in fields.items()})
        if issubclass(type_, Enum):
            return list(type_)[-1]
        if type_ is bool:
            return default is not True
        number = next(self._numbers)
        return {int: number, float: number + 0.5, str: str(number), bytes: b"%08d" % number}[type_]


def bare(schema: Any) -> Any:
    """Without what no peer can see: docstrings."""
    if isinstance(schema, dict):
        return {key: bare(value) for key, value in schema.items() if key != "description"}
    return [bare(value) for value in schema] if isinstance(schema, list | tuple) else schema


def main() -> None:
    """Write it to standard output."""
    frames = [Examples().of(kind) for kind in FRAMES if kind is not Data]
    frames += [Data(Boot(2), Boot(3), 4, 5, 6, (Examples().of(kind),)) for kind in MESSAGES]
    roots, components = msgspec.json.schema_components(MESSAGES)
    schemas = {kind.__name__: bare(root) for kind, root in zip(MESSAGES, roots, strict=True)}
    found = {
        "schemas": schemas,
        "components": bare(components),
        "frames": [b64encode(encode(frame)).decode() for frame in frames],
    }
    json.dump(found, sys.stdout, sort_keys=True, separators=(",", ":"))


if __name__ == "__main__":
    main()
