"""GET /debug/requests: what a gateway tells of requests that have ended."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from tests.gateway.fake_door import FakeDoor
from tests.gateway.rig import request
from tests.gateway.test_counts import counts
from tests.gateway.test_timelines import ROOM, Watched, ordinary

from baton.gateway.counts import Siblings
from baton.gateway.tally import RequestTally
from baton.gateway.timeline import EndedRequests, Timeline

ELSEWHERE = ("10.0.0.9", 5)


@pytest.fixture
def watched() -> Watched:
    watched = Watched()
    ordinary(watched)
    return watched


def test_the_last_ones_are_listed(watched: Watched) -> None:
    answer = request(FakeDoor(), "GET", "/debug/requests", timelines=watched.timelines)
    assert answer.status_code == 200
    (found,) = msgspec.json.decode(answer.content, type=EndedRequests).requests
    assert (found.id, found.room, found.first_us, found.total_us, found.end) == (
        *("cmpl-1", ROOM, 8_000, 19_000),
        "length",
    )


@pytest.mark.parametrize("name", [ROOM, ROOM[:8], "cmpl-1"])
def test_one_is_found_by_its_room_or_the_id_of_its_answer(watched: Watched, name: str) -> None:
    answer = request(FakeDoor(), "GET", f"/debug/requests/{name}", timelines=watched.timelines)
    assert msgspec.json.decode(answer.content, type=Timeline) == watched.found


def test_what_is_not_known_is_named_with_the_limit(watched: Watched) -> None:
    answer = request(FakeDoor(), "GET", "/debug/requests/cmpl-7", timelines=watched.timelines)
    assert answer.status_code == 404
    assert "'cmpl-7' among the last 1024" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/debug/requests", "/debug/requests/cmpl-1"])
def test_clients_on_other_machines_are_told_nothing(watched: Watched, path: str) -> None:
    answer = request(FakeDoor(), "GET", path, timelines=watched.timelines, client=ELSEWHERE)
    assert answer.status_code == 403


def test_its_three_parts_are_counted() -> None:
    watched, tally = Watched(), RequestTally()
    watched.timelines.on_end.append(tally.ended)
    ordinary(watched)
    parts = (tally.queue, tally.prefill, tally.decode, tally.inference)
    assert [part.total for part in parts] == pytest.approx([0.0035, 0.0045, 0.011, 0.0155])
    assert [sum(part.counts) for part in parts] == [1, 1, 1, 1]


def test_a_request_of_another_gateway_is_found(watched: Watched, tmp_path: Path) -> None:
    """Each of several gateways behind a port may be the one that is asked."""

    async def scenario() -> tuple[Timeline | None, Timeline | None]:
        own, other = Siblings(tmp_path, "gateway-0"), Siblings(tmp_path, "gateway-1")
        await other.open(lambda: counts("gateway-1"), watched.timelines.find)
        (tmp_path / "gateway-2").touch()  # it was killed
        try:
            return await own.timeline("cmpl-1"), await own.timeline("cmpl-7")
        finally:
            other.close()

    assert asyncio.run(scenario()) == (watched.found, None)
