"""Who may use the HTTP side."""

import asyncio
from hashlib import sha256

import httpx
import pytest
from structlog.testing import capture_logs

from baton.core.messages import FinishReason
from baton.gateway.api_keys import ApiKey
from baton.gateway.faults import HttpFault
from baton.gateway.key_limits import KeyUse

from .fake_door import FakeDoor
from .models import ids
from .rig import make_app, request, until

KEYS = {"api_keys": ("k3y", "another")}
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def door():
    found = FakeDoor()
    found.script = [ids("x"), FinishReason.STOP]
    return found


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 401),
        ("Bearer nope", 401),
        ("Bearer ", 401),
        ("Bearer k3", 401),
        ("Bearer k3yk3y", 401),
        ("Basic k3y", 401),
        ("k3y", 401),
        ("Bearer k3y", 200),
        ("bearer another", 200),
    ],
)
def test_v1_is_for_holders_of_one_of_the_keys(header, status):
    headers = {} if header is None else {"authorization": header}
    answer = request(
        door(), "POST", "/v1/chat/completions", json=CHAT, headers=headers, settings=KEYS
    )
    assert answer.status_code == status
    if status == 401:
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("path", ["/health", "/ready", "/version"])
def test_probes_need_no_key(path):
    assert request(door(), "GET", path, settings=KEYS).status_code == 200


def test_without_keys_everybody_is_served():
    assert request(door(), "POST", "/v1/chat/completions", json=CHAT).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"x-api-key": "nope"}, 401),
        ({"x-api-key": ""}, 401),
        ({"x-api-key": "Bearer k3y"}, 401),
        ({"x-api-key": "k3y"}, 200),
        ({"X-Api-Key": " another "}, 200),
        ({"authorization": "Bearer k3y"}, 200),
        ({"authorization": "Bearer nope", "x-api-key": "k3y"}, 200),
        ({"authorization": "Bearer k3y", "x-api-key": "nope"}, 200),
        ({"authorization": "Basic k3y", "x-api-key": "nope"}, 401),
    ],
)
def test_a_key_is_taken_from_either_header(headers, status):
    body = CHAT | {"max_tokens": 3}
    answer = request(door(), "POST", "/v1/messages", json=body, headers=headers, settings=KEYS)
    assert answer.status_code == status
    if status == 401:
        assert answer.json()["error"]["type"] == "authentication_error"
        assert "x-api-key" in answer.json()["error"]["message"]


def limited(**limits) -> tuple[ApiKey, ...]:
    return (ApiKey(digest=sha256(b"k3y").digest(), name="alice", **limits),)


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/v1/chat/completions", CHAT, "requests"),
        ("/v1/messages", CHAT | {"max_tokens": 3}, "rate_limit_error"),
    ],
)
def test_a_key_has_so_many_requests_open_and_no_more(path, body, kind):
    async def go():
        quiet = FakeDoor()  # requests stay open until it says something
        quiet.script = []
        app = make_app(quiet, api_keys=(*limited(max_concurrent=1), "another"))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:

            def ask(key):
                return http.post(path, json=body, headers={"x-api-key": key})

            first = asyncio.ensure_future(ask("k3y"))
            await until(lambda: quiet.submitted)
            with capture_logs() as lines:
                refused = await ask("k3y")
            other = asyncio.ensure_future(ask("another"))
            await until(lambda: len(quiet.submitted) == 2)
            for request_id in list(quiet.hearers):
                quiet.finish(request_id)
            served = [(await first).status_code, (await other).status_code]
            quiet.script = [ids("x"), FinishReason.STOP]
            return refused, lines, served, (await ask("k3y")).status_code

    refused, lines, served, afterwards = asyncio.run(go())
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert refused.json()["error"]["type"] == kind
    assert "alice has 1 requests open" in refused.json()["error"]["message"]
    assert [(line["client"], line["status"]) for line in lines] == [("alice", 429)]
    assert (served, afterwards) == ([200, 200], 200)


def test_a_minute_has_so_many_requests_and_says_when_there_is_room_again():
    at = 1000.0
    use = KeyUse(limited(requests_per_minute=2)[0], lambda: at)
    for now in (1000.0, 1010.0):
        at = now
        use.begin()
        use.end()
    at = 1059.5
    with pytest.raises(HttpFault, match="2 requests accepted") as refused:
        use.begin()
    assert (refused.value.status, refused.value.headers["retry-after"]) == (429, "1")
    at = 1060.0
    use.begin()
    with pytest.raises(HttpFault) as refused:
        use.begin()
    assert refused.value.headers["retry-after"] == "10"


def test_what_is_refused_costs_nothing():
    use = KeyUse(limited(max_concurrent=1, requests_per_minute=2)[0], lambda: 0.0)
    use.begin()
    for _ in range(5):
        with pytest.raises(HttpFault, match="open at this gateway"):
            use.begin()
    use.end()
    use.begin()


def test_the_log_names_the_holder_and_shows_no_key():
    with capture_logs() as lines:
        answer = request(
            door(),
            "POST",
            "/v1/chat/completions",
            json=CHAT,
            headers={"x-api-key": "k3y"},
            settings={"api_keys": limited()},
        )
    assert answer.status_code == 200
    ended = next(line for line in lines if line["event"] == "request.ended")
    assert ended["client"] == "alice"
    assert "k3y" not in str(lines)
    assert limited()[0].digest.hex() not in str(lines)
