"""Records to bytes and back; and bytes that are no journal."""

import random
import typing
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.core.build import KV, manifest
from tests.core.build import settings as leader_settings
from tests.trace.rig import read
from tests.trace.scenarios import journals
from tests.wire.test_codec import PLAIN, strategy

from baton.core.errors import BatonError, Bug
from baton.core.events import TimerDue
from baton.core.gateway.request import FrontSettings
from baton.core.ids import Boot, Micros, Rank
from baton.core.parts import FrontParts, LeaderParts, RankParts
from baton.trace import coding
from baton.trace.coding import Damaged, canonical, decode, encode, records
from baton.trace.log import AnyEffect, AnyEvent, CoreKind, Header, Parts, Record, Step


def arrays(dtype: Any) -> st.SearchStrategy[Any]:
    """Small arrays of one and of two dimensions."""
    limits = np.iinfo(dtype)
    rows = st.lists(st.integers(int(limits.min), int(limits.max)), max_size=6)
    return rows.map(lambda r: np.array(r, dtype=dtype)) | rows.map(
        lambda r: np.array([r, r], dtype=dtype)
    )


PLAIN |= {NDArray[t]: arrays(t) for t in (np.uint64, np.int64, np.int32)}
CALM = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


def step(event: Any, *effects: Any) -> Step:
    return Step(Micros(1), CoreKind.LEADER, event, effects)


def through(record: Record) -> Record:
    """As it comes back."""
    ((at, back),) = records([encode(record)])
    assert at == len(encode(record))
    assert canonical(back) == canonical(record)
    assert type(back) is type(record)
    return back


@pytest.mark.parametrize("kind", typing.get_args(AnyEvent), ids=lambda k: k.__name__)
@CALM
@given(st.data())
def test_every_entry_comes_back_as_it_was(kind: type, data: st.DataObject) -> None:
    back = through(step(data.draw(strategy(kind))))
    assert isinstance(back, Step)
    assert type(back.event) is kind


@pytest.mark.parametrize("kind", typing.get_args(AnyEffect), ids=lambda k: k.__name__)
@CALM
@given(st.data())
def test_every_effect_comes_back_as_it_was(kind: type, data: st.DataObject) -> None:
    back = through(step(TimerDue(), data.draw(strategy(kind))))
    assert isinstance(back, Step)
    assert type(back.effects[0]) is kind


def test_parts_come_back_as_they_were() -> None:
    m = manifest("decode", 3)
    parts: list[Parts] = [
        LeaderParts(m, leader_settings(), {KV: 16}),
        RankParts(Rank(0), Boot(3), (m.placement(0),), True),
        FrontParts(Boot(2**64 - 1), FrontSettings(max_requests=3)),
    ]
    for record in (*parts, Header(1, 1, "0")):
        assert through(record) == record


def test_arrays_keep_type_shape_and_values(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("flipped bit", "doubt"):
        for data in journals(name, monkeypatch).values():
            for record in read(data):
                assert encode(record) in data


def test_a_record_too_large_to_be_read_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coding, "MAX_BODY_BYTES", 10)
    with pytest.raises(Bug, match="limit is 10"):
        encode(Header(1, 1, "a long version"))


# ---- bytes of unknown origin --------------------------------------------------------------------


def whole_records(data: bytes) -> tuple[int, str | None]:
    """(records before the damage, what the damage is)."""
    count = 0
    try:
        for _ in records([data]):
            count += 1
    except Damaged as error:
        return count, str(error)
    return count, None


@given(st.binary(max_size=200))
def test_garbage_raises_one_type_of_error(raw: bytes) -> None:
    assert whole_records(raw)[0] == 0
    with pytest.raises(Damaged):
        decode(raw)


@given(
    st.recursive(
        st.none() | st.integers(0, 2**64 - 1) | st.text() | st.binary(),
        lambda c: st.lists(c) | st.dictionaries(st.text(), c),
    )
)
def test_other_msgpack_raises_one_type_of_error(value: Any) -> None:
    with pytest.raises(Damaged):
        decode(msgspec.msgpack.encode(value))


@pytest.mark.parametrize(
    "array",
    [
        "bytes",
        [[2], b"1234567"],
        [[-1], b""],
        [[2**62, 4], b""],
        [["2"], b"0123456789abcdef"],
        [[True], b"12345678"],
        [b"", [0]],
        [[3, 0]],
    ],
)
def test_arrays_that_are_none_raise_one_type_of_error(array: Any) -> None:
    event = {"type": "digest_done", "job": 1, "sums": array}
    raw = {"type": "step", "at": 1, "core": "rank", "event": event, "effects": []}
    with pytest.raises(Damaged):
        decode(msgspec.msgpack.encode(raw))
    good = raw | {"event": event | {"sums": [[1, 1], b"12345678"]}}
    assert isinstance(decode(msgspec.msgpack.encode(good)), Step)


def test_a_file_that_ends_anywhere_gives_every_whole_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = journals("one token", monkeypatch)["0.gateway"]
    ends = [at for at, _ in records([data])]
    for size in [
        *range(0, len(data), 7),
        *ends,
        *(e - 1 for e in ends),
        *(e + 1 for e in ends[:-1]),
    ]:
        count, damage = whole_records(data[:size])
        assert count == sum(e <= size for e in ends)
        assert (damage is None) == (size == 0 or size in ends), size


def test_a_flipped_bit_is_found_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    data = journals("one token", monkeypatch)["0.gateway"]
    ends = [at for at, _ in records([data])]
    rng = random.Random(1)
    for _ in range(300):
        bit = rng.randrange(8 * len(data))
        bad = bytearray(data)
        bad[bit // 8] ^= 1 << bit % 8
        count, damage = whole_records(bytes(bad))
        assert count == sum(e <= bit // 8 for e in ends)
        assert damage is not None


@pytest.mark.parametrize("size", [1, 7, 8, 9, 1000])
def test_chunks_of_any_size_give_the_same_records(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = journals("one token", monkeypatch)["0.gateway"]
    assert [canonical(r) for r in read(data, size)] == [canonical(r) for r in read(data, len(data))]


def test_errors_are_of_our_own_tree() -> None:
    assert issubclass(Damaged, BatonError)
