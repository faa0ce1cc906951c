"""Errors of the Messages API, in Anthropic's schema."""

import asyncio

import anthropic
import pytest
import uvloop

from baton.core.messages import FailCode
from baton.gateway.tokenizer import Tokenizer

from .fake_door import FakeDoor
from .messages_client import ASKED, MESSAGES, asked, ids, writing
from .rig import request, served
from .templates import talker


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    return talker(tmp_path_factory.mktemp("talker"))


def refusal(door: FakeDoor, tokenizer: Tokenizer, **body) -> anthropic.APIStatusError:
    with pytest.raises(anthropic.APIStatusError) as caught:
        asked(door, tokenizer, **body)
    return caught.value


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        (FailCode.OVERLOADED, 529, "overloaded_error"),
        (FailCode.QUEUE_TIMEOUT, 529, "overloaded_error"),
        (FailCode.DEADLINE_EXCEEDED, 504, "timeout_error"),
        (FailCode.WORKER_LOST, 503, "api_error"),
        (FailCode.HANDOFF_FAILED, 502, "api_error"),
        (FailCode.COMPUTE_FAILED, 500, "api_error"),
        (FailCode.UNSATISFIABLE, 422, "invalid_request_error"),
        (FailCode.POISON, 422, "invalid_request_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_before_the_first_token_has_a_status(tokenizer, code, status, kind, stream):
    door = writing("")
    door.script = [code]
    found = refusal(door, tokenizer, stream=stream)
    assert (found.status_code, found.type, found.api_message) == (status, kind, "as told")
    waits = code in (FailCode.OVERLOADED, FailCode.QUEUE_TIMEOUT, FailCode.WORKER_LOST)
    assert ("retry-after" in found.response.headers) == waits


def test_a_failure_in_the_middle_of_a_stream_is_an_error_event(tokenizer):
    """Over a connection: in memory, all of an answer is there at once."""
    door = writing("")
    door.script = [ids("ho")]

    async def go():
        async with (
            served(door, tokenizer=tokenizer) as (url, *_),
            anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as http,
        ):
            stream = await http.messages.create(**ASKED, stream=True)
            seen = [(await anext(stream)).type for _ in range(3)]
            (request,) = door.hearers
            door.fail(request, FailCode.WORKER_LOST)
            with pytest.raises(anthropic.APIStatusError) as caught:
                await anext(stream)
            return seen, caught.value

    seen, fault = uvloop.run(asyncio.wait_for(go(), 30))
    assert seen == ["message_start", "content_block_start", "content_block_delta"]
    assert (fault.type, fault.api_message) == ("api_error", "as told")


def test_a_full_service_says_so(tokenizer):
    door = writing("")
    door.room = 0
    found = refusal(door, tokenizer)
    assert (found.status_code, found.type) == (529, "overloaded_error")
    assert found.response.headers["retry-after"] == "7"


def test_a_service_without_workers_says_so(tokenizer):
    door = writing("")
    door.limits = None
    found = refusal(door, tokenizer)
    assert (found.status_code, found.type) == (503, "api_error")
    assert "not ready" in found.api_message


def test_another_model_is_not_found(tokenizer):
    found = refusal(writing(""), tokenizer, model="claude-opus-4")
    assert (found.status_code, found.type) == (404, "not_found_error")
    assert '"tiny"' in found.api_message or "'tiny'" in found.api_message


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("POST", "/v1/messages/batches", 404, "not_found_error"),
        ("GET", "/v1/messages", 405, "invalid_request_error"),
        ("POST", "/v1/messages/count_tokens", 400, "invalid_request_error"),
        ("POST", "/v1/messages", 400, "invalid_request_error"),
        ("POST", "/v1/messagesx", 404, None),
        ("POST", "/v1/chat/completions", 400, None),
    ],
)
def test_the_schema_of_an_error_is_that_of_its_path(method, path, status, kind):
    answer = request(FakeDoor(), method, path, content=b"{")
    assert answer.status_code == status
    found = answer.json()
    if kind is None:
        assert found.keys() == {"error"}
        assert found["error"]["type"] == "invalid_request_error"
        assert "code" in found["error"]
    else:
        assert found.keys() == {"type", "error"}
        assert found["type"] == "error"
        assert found["error"].keys() == {"type", "message"}
        assert found["error"]["type"] == kind


def test_a_bug_has_the_schema_too(monkeypatch):
    def broken(self):
        raise ZeroDivisionError

    monkeypatch.setattr(FakeDoor, "capacity", broken)
    answer = request(FakeDoor(), "POST", MESSAGES, json=ASKED)
    assert answer.status_code == 500
    assert answer.json() == {
        "type": "error",
        "error": {"type": "api_error", "message": "internal error"},
    }


def test_a_body_that_is_too_large():
    answer = request(FakeDoor(), "POST", MESSAGES, json=ASKED, settings={"max_body_bytes": 20})
    assert answer.status_code == 413
    assert answer.json()["error"]["type"] == "request_too_large"
