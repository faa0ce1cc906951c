"""The table of open requests: who is in it, and how everybody leaves."""

import asyncio
import json

import pytest
from structlog.testing import capture_logs

from baton.core.errors import Bug
from baton.core.ids import Epoch, Key, Room
from baton.core.messages import FailCode

from .fake_door import FakeDoor
from .models import ids
from .rig import make_app, until
from .test_streaming import run


async def post(app, body: dict) -> tuple[int, bytes]:
    """A POST to /v1/completions; status and body. The client stays."""
    sent, gone = [], asyncio.Event()
    parts = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

    async def receive():
        if parts:
            return parts.pop()
        await gone.wait()

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
    }
    await app(
        scope
        | {
            "path": "/v1/completions",
            "query_string": b"",
            "headers": [],
            "client": ("127.0.0.1", 1),
        },
        receive,
        send,
    )
    return sent[0]["status"], b"".join(m.get("body", b"") for m in sent)


def test_a_task_that_is_cancelled_leaves_nothing_open():
    async def scenario():
        door = FakeDoor()
        app = make_app(door)
        asking = asyncio.ensure_future(post(app, {"prompt": ["a", "b"]}))
        await until(lambda: len(door.submitted) == 2)
        asking.cancel()
        await asyncio.wait([asking])
        assert app.state.dispatcher.open_requests == 0
        assert len(door.cancelled) == 2

    run(scenario)


def test_a_line_for_each_choice_says_its_room_its_epoch_and_how_it_ended():
    async def scenario():
        door = FakeDoor()
        asking = asyncio.ensure_future(post(make_app(door), {"prompt": ["a", "b"]}))
        await until(lambda: len(door.submitted) == 2)
        one, two = (s.request for s in door.submitted)
        door.say(one, ids("xy"))
        door.finish(one, key=Key(Room(f"{one:032x}"), Epoch(3)))  # it was begun again meanwhile
        door.fail(two, FailCode.WORKER_LOST, "decode-0 was lost")
        await asking

    with capture_logs() as lines:
        run(scenario)
    ended = [line for line in lines if line["event"] == "request.ended"]
    assert [(line["room"][-1], line["epoch"], line["choice"]) for line in ended] == [
        ("1", 3, 0),
        ("2", 1, 1),
    ]
    assert {line["outcome"] for line in ended} == {"worker_lost"}
    assert all(
        "decode-0 was lost" in line["why"] and line["id"].startswith("cmpl-") for line in ended
    )
    assert [(line["prompt_tokens"], line["generated_tokens"]) for line in ended] == [
        (2, 2),
        (2, 0),
    ], "a mark begins each prompt"


def test_the_line_of_a_client_that_left_has_its_room_too():
    async def scenario():
        door = FakeDoor()
        asking = asyncio.ensure_future(post(make_app(door), {"prompt": "a"}))
        await until(lambda: door.submitted)
        door.epoch = Epoch(2)  # begun again meanwhile
        asking.cancel()
        await asyncio.wait([asking])

    with capture_logs() as lines:
        run(scenario)
    assert [
        (line["room"][-1], line["epoch"]) for line in lines if line["event"] == "request.ended"
    ] == [("1", 2)]


def test_one_failing_prompt_cancels_the_others():
    async def scenario():
        door = FakeDoor()
        app = make_app(door)
        asking = asyncio.ensure_future(post(app, {"prompt": ["a", "b"], "stream": True}))
        await until(lambda: len(door.submitted) == 2)
        door.say(door.submitted[0].request, ids("x"))
        door.fail(door.submitted[1].request, FailCode.WORKER_LOST)
        status, _ = await asking
        assert status == 503  # nothing had been written yet
        assert [c.request for c in door.cancelled] == [door.submitted[0].request]

    run(scenario)


def test_one_prompt_stopped_by_a_stop_string_lets_the_other_go_on():
    async def scenario():
        door = FakeDoor()
        app = make_app(door)
        asking = asyncio.ensure_future(post(app, {"prompt": ["a", "b"], "stop": "."}))
        await until(lambda: len(door.submitted) == 2)
        first, second = (s.request for s in door.submitted)
        door.say(first, ids("x."))
        assert [c.request for c in door.cancelled] == [first]
        door.say(second, ids("y"))
        door.finish(second)
        status, body = await asking
        assert status == 200
        assert b'"text":"x"' in body
        assert b'"text":"y"' in body
        assert len(door.cancelled) == 1

    run(scenario)


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("stream", [True, False])
def test_a_gap_in_the_tokens_is_our_bug(stream, before):
    async def scenario():
        door = FakeDoor()
        app = make_app(door)
        asking = asyncio.ensure_future(post(app, {"prompt": "a", "stream": stream}))
        await until(lambda: door.submitted)
        request = door.submitted[0].request
        for letter in "xy"[:before]:
            door.say(request, ids(letter))
            await asyncio.sleep(0)
        door.said[request] = before + 1
        with pytest.raises(Bug, match=f"index {before + 1}"):
            door.say(request, ids("b"))
        asking.cancel()
        await asyncio.wait([asking])

    run(scenario)


def test_a_gateway_that_shuts_down_takes_no_more_requests():
    async def scenario():
        door = FakeDoor()
        app = make_app(door)
        app.state.dispatcher.shut()
        status, body = await post(app, {"prompt": "a"})
        assert status == 503
        assert b"shutting_down" in body
        assert door.submitted == []

    run(scenario)
