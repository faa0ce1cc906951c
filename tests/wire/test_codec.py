"""Frames to bytes and back; and bytes that are no frame."""

import functools
import typing
from collections.abc import Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from baton.core import frames, messages
from baton.core.errors import Bug, PeerError
from baton.core.frames import SMALL, AnyFrame, Beat, Data, Open
from baton.core.ids import BlockIndex, Boot, GroupName, Page, Seal, TokenIndex
from baton.core.messages import (
    Abort,
    AnyMessage,
    BlockRun,
    Close,
    FinishReason,
    FirstToken,
    LegSums,
    Offer,
    Tokens,
)
from baton.core.session.stream import SessionLimits
from baton.wire import codec
from baton.wire.codec import MAX_FRAME_BYTES, decode, encode

MESSAGES = typing.get_args(AnyMessage)
FRAMES = typing.get_args(AnyFrame)
FEW = 3  # entries of a drawn collection


@functools.cache
def strategy(type_: Any) -> st.SearchStrategy[Any]:
    """Values of a type, built from its annotations: a field added to a message is tested without a
    line here."""
    origin, arguments = typing.get_origin(type_), typing.get_args(type_)
    if isinstance(type_, typing.NewType):
        return strategy(type_.__supertype__)
    if origin is Annotated:
        bounded = {bytes: strategy(bytes), float: st.floats(0, 1e12)}
        return bounded.get(arguments[0], st.integers(0, 2**53))
    if origin in (typing.Union, UnionType):
        return st.one_of([strategy(a) for a in arguments])
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(strategy(arguments[0]), max_size=FEW).map(tuple)
    if origin is tuple:
        return st.tuples(*[strategy(a) for a in arguments])
    if origin in (dict, Mapping):
        return st.dictionaries(strategy(arguments[0]), strategy(arguments[1]), max_size=FEW)
    if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
        hints = typing.get_type_hints(type_, include_extras=True)
        return st.builds(
            lambda **fields: type_(**fields),
            **{n: strategy(hints[n]) for n in type_.__struct_fields__},
        )
    return PLAIN[type_] if type_ in PLAIN else st.sampled_from(list(type_))


PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**64 - 1),
    float: st.floats(allow_nan=False),
    str: st.text(max_size=8),
    bytes: st.binary(max_size=8),
    bool: st.booleans(),
    NoneType: st.none(),
}


@pytest.mark.parametrize("kind", [*MESSAGES], ids=lambda k: k.__name__)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_every_message_comes_back_as_it_was(kind: type, data: st.DataObject) -> None:
    found = tuple(data.draw(st.lists(strategy(kind), min_size=1, max_size=FEW)))
    frame = Data(Boot(1), Boot(2**64 - 1), 3, 4, 5, found)
    back = decode(encode(frame))
    assert back == frame
    assert isinstance(back, Data)
    assert [type(message) for message in back.messages] == [kind] * len(found)


@pytest.mark.parametrize("kind", [k for k in FRAMES if k is not Data], ids=lambda k: k.__name__)
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_every_frame_comes_back_as_it_was(kind: type, data: st.DataObject) -> None:
    frame = data.draw(strategy(kind))
    assert decode(encode(frame)) == frame
    assert type(decode(encode(frame))) is kind


def test_unions_are_complete() -> None:
    """A message or frame left out of its union cannot be decoded, and nothing else would say so
    before it is sent."""
    for module, base, union in (
        (messages, messages.Message, MESSAGES),
        (frames, frames.Frame, FRAMES),
    ):
        made = {
            v
            for v in vars(module).values()
            if isinstance(v, type) and issubclass(v, base) and v is not base
        }
        assert made == set(union)


def test_an_offer_of_a_long_prompt() -> None:
    blocks = 131_072 // 16
    group = GroupName("full")
    pages = tuple(Page(2 * i) for i in range(blocks))
    indexes = tuple(BlockIndex(i) for i in range(blocks))
    seals = tuple(Seal(2**64 - 1 - i) for i in range(blocks))
    sums = tuple(LegSums(leg, group, indexes, seals) for leg in range(8))
    key = messages.Key(messages.Room("0" * 32), messages.Epoch(1))
    offer = Offer(key, 1, {group: BlockRun(BlockIndex(0), BlockIndex(blocks), pages)}, sums, None)
    frame = Data(Boot(1), Boot(2), 1, 1, 0, (offer,))
    raw = encode(frame)
    assert len(raw) < MAX_FRAME_BYTES // 32
    assert decode(raw) == frame


def test_as_many_small_messages_as_share_a_frame_fit_with_the_largest_answers() -> None:
    key = messages.Key(messages.Room("f" * 32), messages.Epoch(2**32))
    top = tuple((messages.TokenId(2**31 + i), -1.0 - i) for i in range(20))
    drawn = (messages.Drawn(messages.TokenId(2**31), -1.0, top),) * 16
    largest = {
        Abort: Abort(key, "x" * 4000),
        Close: Close(key.room),
        FirstToken: FirstToken(key, TokenIndex(2**31), drawn[0], FinishReason.LENGTH),
        Tokens: Tokens(key, TokenIndex(2**31), drawn, FinishReason.LENGTH),
    }
    for kind in SMALL:
        message = largest.get(kind) or kind(key)
        assert (
            len(encode(Data(Boot(2**64 - 1), Boot(1), 1, 1, 0, (message,) * SessionLimits().pack)))
            < MAX_FRAME_BYTES // 8
        )


def test_a_frame_without_messages_is_none() -> None:
    raw = msgspec.msgpack.encode(Data(Boot(1), Boot(2), 1, 1, 0, ()))
    assert "messages" in refused(raw)


# ---- what is no frame ----------------------------------------------------------------------------


def refused(raw: bytes) -> str:
    with pytest.raises(PeerError) as caught:
        decode(raw)
    return str(caught.value)


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_a_peer_error(raw: bytes) -> None:
    refused(raw)


@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_damaged_frame_is_a_frame_or_a_peer_error(data: st.DataObject) -> None:
    raw = bytearray(
        encode(
            Data(
                Boot(1), Boot(2), 1, 1, 0, (data.draw(st.one_of([strategy(k) for k in MESSAGES])),)
            )
        )
    )
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        if data.draw(st.booleans()):
            raw[at] = data.draw(st.integers(0, 255))
        else:
            raw[at : at + 1] = data.draw(st.binary(max_size=3))
    try:
        frame = decode(bytes(raw))
    except PeerError:
        return
    # bytes: a NaN may have been made, which equals nothing
    assert encode(decode(encode(frame))) == encode(frame)


def plain(frame: AnyFrame) -> Any:
    return msgspec.msgpack.decode(encode(frame))


TOKENS = Data(
    Boot(1),
    Boot(2),
    1,
    1,
    0,
    (
        Tokens(
            messages.Key(messages.Room("0" * 32), messages.Epoch(1)),
            0,
            (messages.Drawn(5, None, ()),),
            None,
        ),
        messages.Close(messages.Room("1" * 32)),
    ),
)


def paths(tree: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where the mappings lie."""
    if isinstance(tree, dict):
        return [here, *(p for k, v in tree.items() for p in paths(v, (*here, k)))]
    return (
        [p for i, v in enumerate(tree) for p in paths(v, (*here, i))]
        if isinstance(tree, list)
        else []
    )


@pytest.mark.parametrize("path", paths(plain(TOKENS)), ids=str)
def test_unknown_and_missing_fields_are_refused_at_every_level(path: tuple[Any, ...]) -> None:
    tree = plain(TOKENS)
    assert decode(msgspec.msgpack.encode(tree)) == TOKENS
    level = tree
    for step in path:
        level = level[step]
    level["more"] = 1
    assert "more" in refused(msgspec.msgpack.encode(tree))
    del level["more"]
    level.pop(next(name for name in level if name != "type"))
    refused(msgspec.msgpack.encode(tree))


def structs(type_: Any) -> set[type[msgspec.Struct]]:
    """Every struct that a value of the type may hold."""
    if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
        return {type_}.union(*[structs(t) for t in typing.get_type_hints(type_).values()])
    if isinstance(type_, typing.NewType):
        return set()
    return set().union(*[structs(t) for t in typing.get_args(type_)])


def test_no_struct_on_the_wire_takes_unknown_fields() -> None:
    on_the_wire = structs(AnyFrame)
    assert len(on_the_wire) > len(FRAMES) + len(MESSAGES)
    assert [s.__name__ for s in on_the_wire if not s.__struct_config__.forbid_unknown_fields] == []
    assert [s.__name__ for s in on_the_wire if not s.__struct_config__.frozen] == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("src", "1"),
        ("src", 1.0),
        ("src", None),
        ("src", True),
        ("session", -1),
        ("session", 2**53 + 1),
        ("ack", 2**64 - 1),
    ],
)
def test_types_are_not_stretched_and_numbers_stay_small(field: str, value: object) -> None:
    tree = plain(Beat(Boot(1), Boot(2), 1, 0, 0)) | {field: value}
    refused(msgspec.msgpack.encode(tree))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        encode(TOKENS)[:-1],
        encode(TOKENS) + b"\0",
        b"\x91" * 100_000,  # depth
        # depth in an unknown field before the tag
        b"\x82\xa1z" + b"\x91" * 100_000 + b"\xa4type\xa4beat",
        b"\xdd\xff\xff\xff\xff",  # four billion entries
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x81\xa4type\xa4none",
        b"\x81\xa4type\xa3\xff\xff\xff",  # no UTF-8
    ],
)
def test_hostile_bytes_are_a_peer_error(raw: bytes) -> None:
    refused(raw)


def test_size_is_bounded_on_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = Open(1, Boot(1), None, 0)
    size = len(encode(frame))
    monkeypatch.setattr(codec, "MAX_FRAME_BYTES", size)
    assert decode(encode(frame)) == frame
    monkeypatch.setattr(codec, "MAX_FRAME_BYTES", size - 1)
    assert str(size - 1) in refused(msgspec.msgpack.encode(frame))
    with pytest.raises(Bug, match=f"Open frame of {size} bytes"):
        encode(frame)


def test_the_frames_that_tell_versions_apart_keep_their_bytes() -> None:
    """Another version reads these two, whatever else has changed."""
    assert plain(Open(7, Boot(1), None, 3)) == {
        "type": "open",
        "protocol": 7,
        "src": 1,
        "expect": None,
        "session": 3,
    }
    assert plain(frames.WrongProtocol(7, 8)) == {"type": "wrong_protocol", "ours": 7, "theirs": 8}


def test_nothing_here_can_run_code() -> None:
    assert codec.__file__ is not None
    source = Path(codec.__file__).read_text(encoding="utf-8")
    assert not any(word in source for word in ("pickle", "eval(", "ext_hook", "strict=False"))
