"""What the live page is told: of which size, by how many computations, and to whom."""

import asyncio
import json
from collections import Counter
from hashlib import sha256

import httpx
import msgspec
import pytest

from baton.core.door import PairView, RequestView
from baton.core.ids import Epoch, GroupName, Room
from baton.core.messages import Credits, LedgerView, RankView, RoomView
from baton.core.scheduler.room import RoomState
from baton.core.statistics import CacheTally, Counters
from baton.gateway.api_keys import ApiKey
from baton.gateway.counts import GatewayCounts, Siblings
from baton.gateway.door import LedgerReport
from baton.gateway.live import MOST_LANES, MOST_PAIRS
from baton.gateway.live_feed import MOST_WATCHERS
from baton.gateway.live_times import FIRST_WITHIN_S, LiveTimes, Quantiles, quantiles
from baton.gateway.phases import RequestPhase, phase_of
from baton.gateway.tally import RequestTally

from .fake_door import FakeDoor
from .models import ids
from .rig import make_app, request, served, until
from .test_timelines import Watched, ordinary
from .watching import Watcher

COMPLETIONS = "/v1/completions"


def worker(name: str, role: str, *rooms: RoomView, **more) -> LedgerView:
    return LedgerView(
        question=1,
        name=name,
        role=role,
        ranks=(RankView(0, 4242, (1 << 64) - 1),),
        pages={GroupName("full"): {"free": 10, "cached": 2, "total": 16}},
        pins=0,
        reads=0,
        rooms=rooms,
        clean=not rooms,
        **more,
    )


def room(number: int, state: str, pages: int = 2, epoch: int = 1) -> RoomView:
    return RoomView(Room(f"{number:032x}"), Epoch(epoch), state, 12, {GroupName("full"): pages})


async def open_requests(app, door: FakeDoor, count: int) -> list[asyncio.Task]:
    """Requests that stay open, each of which its gateway has given to p and d."""
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")
    asked = [
        asyncio.ensure_future(http.post(COMPLETIONS, json={"prompt": [1, 2, 3]}))
        for _ in range(count)
    ]
    await until(lambda: len(door.hearers) == count)
    for number in door.hearers:
        view = RequestView(Room(f"{number:032x}"), Epoch(1), "streaming", 100 * number, "p", "d")
        door.seen[number] = view
    return asked


async def end(door: FakeDoor, asked: list[asyncio.Task]) -> None:
    for number in list(door.hearers):
        door.finish(number)
    await asyncio.gather(*asked)


def test_a_lane_joins_what_gateway_and_workers_say_of_a_request():
    async def scenario():
        door = FakeDoor()
        door.cached = [3]
        app = make_app(door)
        asked = await open_requests(app, door, 1)
        door.say(1, ids("xyz"))
        door.report = LedgerReport(
            (
                worker("p", "prefill", room(1, "offered", 5), room(1, "computing", 7, epoch=9)),
                worker("d", "decode", room(1, "fetching", 4)),
            ),
            ("gone",),
            1,
            credits={"p": Credits(1, 3, {}, {}, 0, 0, draining=True)},
        )
        watcher = Watcher(app)
        await until(lambda: watcher.snapshots)
        await watcher.leave()
        await end(door, asked)
        return watcher, asked[0].result().json()["id"]

    watcher, answer_id = asyncio.run(scenario())
    assert (watcher.status, watcher.headers["content-type"]) == (
        200,
        "text/event-stream; charset=utf-8",
    )
    live = watcher.snapshots[0]
    (lane,) = live["lanes"]
    assert lane == {
        "id": answer_id,
        "choice": 0,
        "room": "00000000",
        "phase": "fetching",
        "state": "streaming",
        "prefill": "p",
        "decode": "d",
        "age_ms": 100,
        "prompt_tokens": 3,
        "cached_tokens": 3,
        "generated_tokens": 3,
        "pages": {"p": {"full": 5}, "d": {"full": 4}},
    }
    d, gone, p = live["workers"]
    assert (gone["name"], gone["answers"]) == ("gone", False)
    assert (p["draining"], d["draining"], d["rooms"]) == (True, False, {"fetching": 1})
    assert d["ranks"] == [{"rank": 0, "boot": "f" * 16}]
    assert live["first"]["count"] == 1
    assert (live["model"], live["demo"], live["number"]) == ("tiny", False, 1)


def test_the_snapshot_of_a_thousand_requests_is_bounded_and_says_so():
    async def scenario():
        door = FakeDoor()
        app = make_app(door)
        asked = await open_requests(app, door, 1_000)
        rooms = [room(n, "running") for n in door.hearers]
        door.report = LedgerReport((worker("d", "decode", *rooms),), (), 2_000)
        door.pairs = [PairView(f"p{i}", "d", why="dtype differs") for i in range(900)]
        watcher = Watcher(app)
        await until(lambda: watcher.snapshots)
        await watcher.leave()
        await end(door, asked)
        return watcher

    watcher = asyncio.run(scenario())
    live = watcher.snapshots[0]
    assert (len(live["lanes"]), live["lanes_left_out"]) == (MOST_LANES, 1_000 - MOST_LANES)
    ages = [lane["age_ms"] // 100 for lane in live["lanes"]]
    assert ages == [*range(1, 101), *range(901, 1001)], "the oldest and the newest"
    assert (len(live["pairs"]), live["pairs_left_out"]) == (MOST_PAIRS, 900 - MOST_PAIRS)
    assert live["workers"][0]["rooms"] == {"running": 1_000}
    assert len(watcher.body) < 100_000


def test_prompts_and_answers_are_not_shown():
    async def scenario():
        door = FakeDoor()
        app = make_app(door)
        http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")
        body = {"messages": [{"role": "user", "content": "my secret"}], "user": "somebody"}
        asked = asyncio.ensure_future(http.post("/v1/chat/completions", json=body))
        await until(lambda: door.hearers)
        door.seen[1] = RequestView(Room(f"{1:032x}"), Epoch(1), "streaming", 1, "p", "d")
        door.say(1, ids("another"))
        watcher = Watcher(app)
        await until(lambda: watcher.snapshots)
        await watcher.leave()
        await end(door, [asked])
        return watcher.body

    body = asyncio.run(scenario())
    assert b"secret" not in body
    assert b"another" not in body
    assert b"somebody" not in body


def test_watchers_share_one_computation_and_nothing_is_computed_for_nobody():
    async def scenario():
        door = FakeDoor()
        app = make_app(door)
        await asyncio.sleep(0.6)
        assert door.views == 0, "nobody watches yet"
        watchers = [Watcher(app) for _ in range(5)]
        await until(lambda: all(len(w.snapshots) == 3 for w in watchers))
        assert door.views == 3
        assert len({json.dumps(w.snapshots) for w in watchers}) == 1
        await watchers.pop().leave()
        await until(lambda: all(len(w.snapshots) == 4 for w in watchers))
        for watcher in watchers:
            await watcher.leave()
        seen = door.views
        await asyncio.sleep(0.7)
        assert (door.views, app.state.feed.watchers) == (seen, 0)
        again = Watcher(app)
        await until(lambda: again.snapshots)
        assert again.snapshots[0]["number"] == seen + 1
        await again.leave()

    asyncio.run(scenario())


def test_there_are_two_snapshots_a_second():
    async def scenario():
        watcher = Watcher(make_app(FakeDoor()))
        await until(lambda: len(watcher.snapshots) == 4)
        await watcher.leave()
        return [s["at_ms"] for s in watcher.snapshots]

    at = asyncio.run(scenario())
    assert 1_400 < at[3] - at[0] < 2_500


def test_too_many_watchers_are_refused():
    async def scenario():
        app = make_app(FakeDoor())
        watchers = [Watcher(app) for _ in range(MOST_WATCHERS)]
        await until(lambda: app.state.feed.watchers == MOST_WATCHERS)
        late = Watcher(app)
        await asyncio.wait_for(late.served, 5)
        for watcher in watchers:
            await watcher.leave()
        return late

    late = asyncio.run(scenario())
    assert late.status == 503
    assert json.loads(late.body)["error"]["code"] == "too_many_watchers"


def test_a_bug_in_a_look_ends_the_streams_and_the_next_watcher_begins_anew():
    async def scenario():
        door = FakeDoor()
        app = make_app(door)
        ledger, broken = door.ledger, True

        async def look(*, audit=True):
            if broken:
                raise ValueError("planted")
            return await ledger(audit=audit)

        door.ledger = look
        watcher = Watcher(app)
        with pytest.raises(ValueError, match="planted"):
            await asyncio.wait_for(watcher.served, 5)
        broken = False
        again = Watcher(app)
        await until(lambda: again.snapshots)
        await again.leave()

    asyncio.run(scenario())


def test_a_gateway_that_shuts_down_does_not_wait_for_watchers():
    async def scenario():
        async with served(FakeDoor(), grace_s=30) as (url, app, stop, serving):
            async with httpx.AsyncClient() as http, http.stream("GET", f"{url}/debug/live") as told:
                lines = told.aiter_lines()
                assert (await anext(lines)).startswith('data: {"number":1')
                began = asyncio.get_running_loop().time()
                stop.set()
                async for _ in lines:
                    pass
                await asyncio.wait_for(serving, 10)
                assert asyncio.get_running_loop().time() - began < 5
            assert app.state.feed.watchers == 0

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("keys", "client", "headers", "status"),
    [
        ((), "127.0.0.1", {}, 200),
        ((), "10.0.0.7", {}, 200),
        (("k3y",), "127.0.0.1", {}, 200),
        (("k3y",), "::1", {}, 200),
        (("k3y",), "10.0.0.7", {}, 401),
        (("k3y",), "10.0.0.7", {"authorization": "Bearer nope"}, 401),
        (("k3y",), "10.0.0.7", {"authorization": "Bearer k3y"}, 200),
        (("k3y",), "127.0.0.1", {"x-forwarded-for": "127.0.0.1"}, 401),
    ],
)
def test_who_may_watch(keys, client, headers, status):
    async def scenario():
        watcher = Watcher(make_app(FakeDoor(), api_keys=keys), client=(client, 5), headers=headers)
        await until(lambda: watcher.status is not None)
        await watcher.leave()
        return watcher.status

    assert asyncio.run(scenario()) == status


def test_watching_takes_none_of_a_keys_requests():
    key = ApiKey(digest=sha256(b"k3y").digest(), max_concurrent=1)

    async def scenario():
        app = make_app(FakeDoor(), api_keys=(key,))
        headers = {"x-api-key": "k3y"}
        watchers = [Watcher(app, client=("10.0.0.7", 5), headers=headers) for _ in range(3)]
        await until(lambda: all(w.status is not None for w in watchers))
        for watcher in watchers:
            await watcher.leave()
        return Counter(w.status for w in watchers)

    assert asyncio.run(scenario()) == {200: 3}


def test_other_gateways_are_named_and_their_requests_get_lanes(tmp_path):
    async def scenario():
        other, own = Siblings(tmp_path, "gateway-1"), Siblings(tmp_path, "gateway-0")
        tally = RequestTally(generated_tokens=7, failed={"timeout": 2})
        counts = GatewayCounts("gateway-1", tally, LedgerReport((), (), 4), under_way=2)
        await other.open(lambda: counts, lambda name: None)
        door = FakeDoor()
        rooms = [room(90, "running"), room(91, "ending")]
        cache = Counters(cache=CacheTally(queries=40, hits=10))
        door.report = LedgerReport((worker("d", "decode", *rooms, counters=cache),), (), 0)
        watcher = Watcher(make_app(door, siblings=own, name="gateway-0"))
        await until(lambda: watcher.snapshots)
        await watcher.leave()
        other.close()
        return watcher.snapshots[0]

    live = asyncio.run(scenario())
    first, second = live["gateways"]
    assert (first["name"], first["asked"], second["name"], second["asked"]) == (
        "gateway-0",
        True,
        "gateway-1",
        False,
    )
    assert (second["under_way"], second["generated_tokens"], second["failed"]) == (2, 7, 2)
    (lane,) = live["lanes"]
    assert (lane["id"], lane["phase"], lane["decode"]) == ("", "running", "d")
    assert live["lanes_left_out"] == 1
    assert live["workers"][0]["cache_hits"] == 10


def test_the_ledger_stays_for_this_machine():
    assert request(FakeDoor(), "GET", "/debug/ledger", client=("10.0.0.7", 5)).status_code == 403


# ---- phases -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gateway", "prefill", "decode", "phase"),
    [
        ("waiting", None, None, "waiting"),
        ("waiting", "offered", "running", "waiting"),
        ("held", None, None, "held"),
        ("given", None, None, "queued"),
        ("given", "queued", "queued", "queued"),
        ("given", "computing", "queued", "computing"),
        ("admitted", "computing", "fetching", "computing"),
        ("given", "awaits_turn", "queued", "queued"),
        ("admitted", "awaits_turn", "fetching", "queued"),
        ("admitted", None, "awaits_turn", "queued"),
        ("given", "borrowing", "queued", "borrowing"),
        ("answered", "offered", "queued", "offered"),
        ("admitted", "offered", "fetching", "fetching"),
        ("admitted", "offered", "committing", "committing"),
        ("streaming", None, "running", "running"),
        ("streaming", "ending", "running", "running"),
        ("streaming", None, None, "running"),
        ("streaming", None, "offloaded", "preempted"),
        ("admitted", None, "computing", "computing"),
        ("", None, "queued", "queued"),
        ("", "ending", "ending", "ending"),
    ],
)
def test_one_word_says_what_a_request_does(gateway, prefill, decode, phase):
    assert phase_of(gateway, prefill, decode) == phase


def test_every_state_of_a_room_has_a_phase():
    told = {phase_of("", None, state.value) for state in RoomState} | {
        phase_of("", state.value, None) for state in RoomState
    }
    assert told == set(RequestPhase) - {RequestPhase.WAITING, RequestPhase.HELD}


# ---- times ------------------------------------------------------------------------------------


def test_quantiles_are_of_what_was_there():
    assert quantiles([]) == Quantiles(0)
    assert quantiles([0.002]) == Quantiles(1, 2.0, 2.0, 2.0)
    assert quantiles([i / 1000 for i in range(101)]) == Quantiles(101, 50.0, 90.0, 99.0)


def test_times_between_tokens_are_kept_only_while_somebody_watches():
    async def scenario():
        door = FakeDoor()
        app = make_app(door)
        asked = await open_requests(app, door, 1)
        for text in "xyz":
            door.say(1, ids(text))
        watcher = Watcher(app)
        await until(lambda: watcher.snapshots)
        before = watcher.snapshots[-1]["between"]["count"]
        for text in "xyz":
            door.say(1, ids(text))
        await until(lambda: len(watcher.snapshots) > 1)
        after = watcher.snapshots[1]["between"]["count"]
        await watcher.leave()
        await end(door, asked)
        return before, after

    assert asyncio.run(scenario()) == (0, 3)


def test_times_to_the_first_token_count_for_some_seconds():
    times = LiveTimes()
    times.first.extend([(100.0, 0.5), (105.0, 0.7)])
    assert times.take(105.0)[0].count == 2
    assert times.take(100.0 + FIRST_WITHIN_S + 1)[0] == Quantiles(1, 700.0, 700.0, 700.0)
    assert msgspec.to_builtins(times.take(1e6)[0])["p50_ms"] is None


def test_it_says_why_requests_were_slow_that_have_ended_lately():
    async def scenario():
        watched = Watched()
        ordinary(watched)
        watched.wall += 4
        watcher = Watcher(make_app(FakeDoor(), timelines=watched.timelines))
        await until(lambda: watcher.snapshots)
        await watcher.leave()
        return watcher.snapshots[0]

    (slow,) = asyncio.run(scenario())["slow"]
    assert (slow["id"], slow["room"]) == ("cmpl-1", "abababab")
    assert slow["ended_s"] == pytest.approx(4 - 0.019)
    verdict = slow["verdict"]
    assert verdict["says"].startswith("19 ms: 9.0 ms (47%) generating 3 tokens on decode-0.")
    assert (verdict["phase"], verdict["title"]) == ("running", "Generating")
