"""Finds the first value that differs between the effects in a log and those of a replay."""

from collections.abc import Sequence
from typing import Any

import msgspec

from baton.core.events import AskWorkers, MessageReceived
from baton.core.ids import Micros
from baton.trace.coding import canonical
from baton.trace.log import AnyEffect, AnyEvent, CoreKind

LONGEST = 200  # characters of a value in a message
ABSENT = "nothing"


class Difference(msgspec.Struct, frozen=True):
    """The first step of a replay whose effects differ from the log."""

    number: int  # of the step, from 1
    at: Micros
    core: CoreKind
    event: str
    where: str
    expected: str
    came: str

    def __str__(self) -> str:
        return (
            f"step {self.number} at {self.at / 1e6:.6f} s ({self.core.value} {self.event}) "
            f"differs in {self.where}:"
            f" expected {self.expected}, came {self.came}"
        )


def name_of(value: object) -> str:
    """Return the tag of a struct, as it is in the file."""
    config = getattr(type(value), "__struct_config__", None)
    return (
        str(config.tag) if config is not None and config.tag is not None else type(value).__name__
    )


def describe(event: AnyEvent) -> str:
    """Name an event in a word or two."""
    match event:
        case MessageReceived(message=message) | AskWorkers(message=message):
            return f"{name_of(event)} {name_of(message)}"
        case _:
            return name_of(event)


def first_difference(
    expected: Sequence[AnyEffect], came: Sequence[AnyEffect]
) -> tuple[str, str, str] | None:
    """Return (where, expected, came) of the first effect that differs, or None."""
    for i, (a, b) in enumerate(zip(expected, came, strict=False)):
        raw_a, raw_b = canonical(a), canonical(b)
        if raw_a != raw_b:
            where, x, y = _walk(_plain(raw_a), _plain(raw_b), f"effect {i + 1}, {name_of(a)}")
            return where, _show(x), _show(y)
    if len(expected) == len(came):
        return None
    n = min(len(expected), len(came))
    x, y = ([_plain(canonical(o)) for o in outs[n : n + 1]] for outs in (expected, came))
    return f"effect {n + 1}", _show(x[0]) if x else ABSENT, _show(y[0]) if y else ABSENT


def _plain(raw: bytes) -> Any:
    return msgspec.msgpack.decode(raw, strict=False)


def _walk(a: Any, b: Any, path: str) -> tuple[str, Any, Any]:
    """Descend to the first place where two unequal values differ."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        for key in a:
            if a[key] != b[key]:
                return _walk(a[key], b[key], f"{path}.{key}")
    if isinstance(a, list) and isinstance(b, list):
        for i, (x, y) in enumerate(zip(a, b, strict=False)):
            if x != y:
                return _walk(x, y, f"{path}[{i}]")
        if len(a) != len(b):
            n = min(len(a), len(b))
            return f"{path}[{n}]", a[n] if n < len(a) else ABSENT, b[n] if n < len(b) else ABSENT
    return path, a, b


def _show(value: Any) -> str:
    text = value if value == ABSENT else repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
