"""Whole journals, good ones and such as nobody wrote: findings, or one type of error."""

import random
from typing import Any
from zlib import crc32

import msgspec
import pytest
from tests.trace.rig import read
from tests.trace.scenarios import journals

from baton.core.gateway.assignment import Assignment
from baton.trace.coding import FRAME, Damaged
from baton.trace.examine import Findings, examine


def examined(data: bytes, *, until: int | None = None) -> Findings:
    return examine([data], until=until, watch=lambda at, record: None)


def test_until_stops_between_two_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    data = journals("one token", monkeypatch)["0.gateway"]
    whole = examined(data)
    for until in range(1, whole.steps + 3):
        assert examined(data, until=until).steps == min(until, whole.steps)


def test_the_checks_go_on_after_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    data = journals("one token", monkeypatch)["0.gateway"]
    monkeypatch.setattr(Assignment, "start", lambda self, request, now: None)
    found = examined(data)
    assert found.difference is not None
    assert found.same == found.difference.number - 1
    assert found.steps == len(list(read(data))) - 2
    assert found.violations == []


def bodies(data: bytes) -> list[Any]:
    """What a file holds, as plain values."""
    found, at = [], 0
    while at < len(data):
        size, _ = FRAME.unpack_from(data, at)
        found.append(msgspec.msgpack.decode(data[at + FRAME.size : at + FRAME.size + size]))
        at += FRAME.size + size
    return found


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where numbers, texts and bytes stand, and every list and table."""
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [path, *(p for k, v in inner for p in leaves(v, (*path, k)))]


def mutate(value: Any, rng: random.Random) -> Any:
    """Another value, often of the same kind."""
    match value:
        case bool():
            return not value
        case int():
            return rng.choice([value + 1, 0, -1, 2**63 - 1, 2**64 - 1, value // 2])
        case str():
            return rng.choice(["", value + "x", "applied", "leader", "zz"])
        case bytes():
            return rng.choice([b"", value[:-1], bytes(len(value))])
        case list():
            return rng.choice([[], value[:-1], value + value[-1:], value[::-1]])
        case _:
            return rng.choice([None, 0, {}, []])


def broken(data: bytes, rng: random.Random) -> bytes:
    """The same file with a value changed, its checksums right."""
    held = bodies(data)
    path = rng.choice(leaves(held)[1:])
    place = held
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = mutate(place[path[-1]], rng)
    raw = [msgspec.msgpack.encode(body) for body in held]
    return b"".join(FRAME.pack(len(r), crc32(r)) + r for r in raw)


@pytest.mark.parametrize("process", ["0.gateway", "0.prefill-2.0", "0.decode-3.1"])
def test_a_file_made_up_by_somebody_gives_findings_or_one_type_of_error(
    process: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = journals("doubt", monkeypatch)[process]
    rng = random.Random(7)
    seen = {"same": 0, "different": 0, "violated": 0, "damaged": 0}
    for _ in range(150):
        try:
            found = examined(broken(data, rng))
        except Damaged:
            seen["damaged"] += 1
            continue
        seen["damaged"] += found.damage is not None
        seen["different"] += found.difference is not None
        seen["violated"] += bool(found.violations)
        seen["same"] += not (found.damage or found.difference or found.violations)
    assert seen["different"] > 20
    assert seen["damaged"] > 20
    assert seen["violated"] > 0
