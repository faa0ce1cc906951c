"""A peer of the version before: what it says is understood, and what it is told it understands.

`golden/` has what its own code wrote: a schema of each of its messages, and one of each as bytes.
"""

import functools
import json
import math
from base64 import b64decode
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.wire.make_golden import MESSAGES, Examples
from tests.wire.test_codec import strategy

from baton.core.agreement import Report, StepPlan
from baton.core.frames import AnyFrame, Data, Said
from baton.core.memory.state import Group
from baton.core.messages import Hello, Introduce, Register
from baton.core.protocol import OLDEST, PROTOCOL
from baton.core.session.older import NEW, NEW_FIELDS, as_known
from baton.wire.codec import decode, encode

GOLDEN = Path(__file__).parent / "golden"
# fields of what is inside of messages that came later; it does not say them
NEW_INSIDE: dict[type, set[str]] = {Group: {"optional"}}


@functools.cache
def golden() -> Any:
    """What the oldest protocol that we speak is."""
    return json.loads((GOLDEN / f"protocol-{OLDEST}.json").read_text())


@functools.cache
def validator(name: str) -> Any:
    """The schema of one of its messages; None if it has none of that name."""
    schema = golden()["schemas"].get(name)
    return schema and jsonschema_rs.validator_for({**schema, "$defs": golden()["components"]})


def frames() -> list[bytes]:
    """One of each of its frames and messages."""
    return [b64decode(raw) for raw in golden()["frames"]]


def with_defaults(value: Any) -> Any:
    """A value as plain objects, with the fields that are not sent."""
    if isinstance(value, msgspec.Struct):
        plain = {
            f: with_defaults(getattr(value, f))
            for f in value.__struct_fields__
            if f not in NEW_INSIDE.get(type(value), ())
        }
        tag = value.__struct_config__.tag
        return plain if tag is None else {"type": tag, **plain}
    if isinstance(value, dict):
        return {key: with_defaults(v) for key, v in value.items()}
    if isinstance(value, tuple | list):
        return [with_defaults(v) for v in value]
    return msgspec.to_builtins(value, builtin_types=(bytes,))


def without_new(plain: Any, kind: type, old: Any) -> Any:
    """Without the fields that the older protocol does not have; each has its default."""
    defaults = {f.name: f.default for f in msgspec.structs.fields(kind)}
    for name in plain.keys() - old.keys():
        assert plain[name] == with_defaults(defaults[name]), name
    return {name: value for name, value in plain.items() if name in old}


@pytest.mark.parametrize("raw", frames(), ids=range(len(frames())))
def test_what_it_says_is_understood(raw: bytes) -> None:
    old, frame = msgspec.msgpack.decode(raw), decode(raw)
    if isinstance(frame, Data):
        [message], [old] = frame.messages, old["messages"]
        assert without_new(with_defaults(message), type(message), old) == old
    else:
        assert with_defaults(frame) == old


@pytest.mark.parametrize("raw", frames(), ids=range(len(frames())))
def test_it_is_told_the_same_in_the_same_bytes(raw: bytes) -> None:
    old = msgspec.msgpack.decode(raw)
    for message in old.get("messages", ()):
        if "manifest" in message:
            message["manifest"]["protocol"] = OLDEST  # as every worker of it states
    assert msgspec.msgpack.decode(encode(told(decode(raw)))) == old


def told(frame: AnyFrame) -> AnyFrame:
    """A frame as a session with such a peer sends it."""
    if not isinstance(frame, Data):
        return frame
    known = (as_known(message, OLDEST) for message in frame.messages)
    return msgspec.structs.replace(frame, messages=tuple(m for m in known if m is not None))


def names() -> set[str]:
    return set(golden()["schemas"])


def test_messages_that_it_has_are_ours_too_and_others_are_known_to_be_new() -> None:
    assert names() <= {kind.__name__ for kind in MESSAGES}
    assert {kind for kind in MESSAGES if kind.__name__ not in names()} == {
        kind for kind, since in NEW.items() if since > OLDEST
    }


def understands(message: Said) -> bool:
    """Whether its decoder, which takes no unknown field, takes a message."""
    checker = validator(type(message).__name__)
    plain = finite(msgspec.to_builtins(message, str_keys=True))
    return checker is not None and bool(checker.is_valid(plain))


def finite(plain: Any) -> Any:
    """A message as JSON, which has no infinity."""
    if isinstance(plain, dict):
        return {key: finite(value) for key, value in plain.items()}
    if isinstance(plain, list | tuple):
        return [finite(value) for value in plain]
    return math.copysign(1e300, plain) if plain in (math.inf, -math.inf) else plain


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_it_understands_what_it_is_told(kind: type[Said], data: st.DataObject) -> None:
    message = data.draw(strategy(kind))
    said = as_known(message, OLDEST)
    assert (said is None) == (kind.__name__ not in names())
    assert said is None or understands(said)


@pytest.mark.parametrize("kind", [*NEW, *NEW_FIELDS], ids=lambda kind: kind.__name__)
def test_it_would_not_understand_what_is_new(kind: type[Said]) -> None:
    """Otherwise the rows of the tables, and this file, would say nothing."""
    message = Examples().of(kind)
    assert not understands(message)
    for name in NEW_FIELDS.get(kind, ()):
        alone = msgspec.structs.replace(as_known(message, OLDEST), **{name: getattr(message, name)})
        assert not understands(alone), f"{name} is not new"


@pytest.mark.parametrize("kind", [Register, Introduce, Hello], ids=lambda kind: kind.__name__)
def test_a_manifest_states_the_protocol_of_its_reader(kind: type[Said]) -> None:
    """A worker refuses a manifest of a protocol that it does not speak."""
    message = Examples().of(kind)
    for states, knows, told in ((PROTOCOL, OLDEST, OLDEST), (OLDEST, PROTOCOL, OLDEST)):
        manifest = msgspec.structs.replace(message.manifest, protocol=states)
        said = as_known(msgspec.structs.replace(message, manifest=manifest), knows)
        assert isinstance(said, Register | Introduce | Hello)
        assert said.manifest.protocol == told


def test_messages_with_new_fields_leave_them_out() -> None:
    assert all(kind.__struct_config__.omit_defaults for kind in NEW_FIELDS)


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_a_peer_of_our_version_is_told_everything(kind: type[Said]) -> None:
    message = Examples().of(kind)
    if hasattr(message, "manifest"):
        manifest = msgspec.structs.replace(message.manifest, protocol=PROTOCOL)
        message = msgspec.structs.replace(message, manifest=manifest)
    assert as_known(message, PROTOCOL) == message


def test_what_ranks_say_is_left_as_it_is() -> None:
    """Ranks of one worker run one version; a leader refuses others by name."""
    for kind in (StepPlan, Report):
        message = Examples().of(kind)
        assert as_known(message, OLDEST) is message


@pytest.mark.parametrize("kind", [Register, Introduce, Hello], ids=lambda kind: kind.__name__)
def test_a_group_that_is_optional_is_told_as_any_other(kind: type[Said]) -> None:
    message = Examples().of(kind)
    table = message.manifest.table
    groups = tuple(msgspec.structs.replace(group, optional=True) for group in table.groups)
    table = msgspec.structs.replace(table, groups=groups)
    manifest = msgspec.structs.replace(message.manifest, table=table, protocol=PROTOCOL)
    message = msgspec.structs.replace(message, manifest=manifest)
    assert not understands(message)
    said = as_known(message, OLDEST)
    assert said is not None
    assert understands(said)
    assert as_known(message, PROTOCOL) == message
