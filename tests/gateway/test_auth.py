"""Who may use the HTTP side."""

import pytest

from baton.core.messages import FinishReason

from .fake_door import FakeDoor
from .models import ids
from .rig import request

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
