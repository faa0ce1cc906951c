"""The protocol's number and what it stands for: nobody changes a message without a look at the
number."""

import hashlib
import json
from typing import Any

import msgspec
import pytest

from baton.core.frames import AnyFrame
from baton.core.protocol import PROTOCOL

# the number, and the digest of all frames' schemas when somebody last looked
LOOKED_AT = (2, "d18e1acd00a764a8")
LOOK = """A frame or a message has another schema than the one that protocol {number} was last looked at with.
Has a version of Baton been released that says protocol {number}? Then, with the code of that version, run
    python -m tests.wire.make_golden > tests/wire/golden/protocol-{number}.json
and PROTOCOL (core/protocol.py) becomes {next}; what is new gets rows in core/session/older.py.
Either way this test gets
LOOKED_AT = ({number_or_next}, "{found}")"""


def bare(schema: Any) -> Any:
    """Without what no peer can see: docstrings, and the order of fields, which travel by name."""
    if isinstance(schema, dict):
        return {key: bare(value) for key, value in schema.items() if key != "description"}
    if isinstance(schema, list | tuple):
        return sorted(
            (bare(value) for value in schema), key=lambda value: json.dumps(value, sort_keys=True)
        )
    return schema


def digest(root: Any) -> str:
    """Of everything that can stand in a value of this type, all the way down."""
    found = bare(msgspec.json.schema_components([root]))
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:16]


def test_nobody_changes_a_message_without_a_look_at_the_number() -> None:
    found = digest(AnyFrame)
    if (PROTOCOL, found) != LOOKED_AT:
        pytest.fail(
            LOOK.format(
                number=PROTOCOL,
                next=PROTOCOL + 1,
                number_or_next=f"{PROTOCOL} or {PROTOCOL + 1}",
                found=found,
            )
        )


class Plain(msgspec.Struct, tag="a"):
    """As it was."""

    x: int
    y: tuple[str, ...] = ()


CHANGES: dict[str, list[tuple[str, Any] | tuple[str, Any, Any]]] = {
    "one more field": [("x", int), ("y", tuple[str, ...], ()), ("z", int, 0)],
    "another type": [("x", int), ("y", tuple[int, ...], ())],
    "another name": [("x", int), ("w", tuple[str, ...], ())],
    "no default": [("x", int), ("y", tuple[str, ...])],
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_digest_sees_every_change_that_a_peer_would(change: str) -> None:
    changed = msgspec.defstruct("Plain", CHANGES[change], tag="a")
    assert digest(changed) != digest(Plain)


def test_the_digest_sees_another_tag_and_no_words() -> None:
    same = msgspec.defstruct(
        "Plain",
        [("x", int), ("y", tuple[str, ...], ())],
        tag="a",
        namespace={"__doc__": "Other words."},
    )
    assert digest(same) == digest(Plain)
    assert digest(
        msgspec.defstruct("Plain", [("x", int), ("y", tuple[str, ...], ())], tag="b")
    ) != digest(Plain)
