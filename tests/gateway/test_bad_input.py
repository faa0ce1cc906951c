"""Every refusal names the field and what is supported, in OpenAI's error schema, and reaches no
worker."""

import asyncio
import json

import httpx
import pytest

from baton.core.messages import FinishReason
from baton.gateway.door import Capacity

from .bad_requests import bad_requests
from .fake_door import FakeDoor
from .models import ids
from .rig import MODEL, make_app, request

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


class Gateway:
    """One application that serves good requests at once, so that a bad one which is served by
    mistake does not hang."""

    def __init__(self, **settings) -> None:
        self.door = FakeDoor()
        self.door.script = [ids("hey"), FinishReason.STOP]
        self.app = make_app(self.door, **settings)

    def send(self, method: str, path: str, **arguments) -> httpx.Response:
        async def go() -> httpx.Response:
            transport = httpx.ASGITransport(
                self.app, raise_app_exceptions=False, client=("127.0.0.1", 5)
            )
            async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
                return await http.request(method, path, **arguments)

        return asyncio.run(asyncio.wait_for(go(), 20))

    def refused(self, path: str, raw: bytes) -> tuple[int, dict]:
        """Status and error of a bad request that reached no worker; the good one after it was
        served."""
        self.door.submitted.clear()
        response = self.send(
            "POST", path, content=raw, headers={"content-type": "application/json"}
        )
        assert response.status_code >= 400, response.text
        assert self.door.submitted == []
        assert self.door.hearers == {}
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert len(error["message"]) < 1000
        good = self.send("POST", CHAT, json={"messages": MESSAGES})
        assert good.json()["choices"][0]["message"]["content"] == "hey"
        return response.status_code, error


@pytest.fixture(scope="module")
def gateway() -> Gateway:
    return Gateway()


BOTH = [
    ({"temperature": -0.1}, "temperature", "greater than or equal to 0"),
    ({"temperature": "1"}, "temperature", "number"),
    ({"temperature": True}, "temperature", "number"),
    ({"top_p": 0}, "top_p", "greater than 0"),
    ({"top_p": 1.01}, "top_p", "less than or equal to 1"),
    ({"top_k": -2}, "top_k", "-1"),
    ({"top_k": 1.5}, "top_k", "integer"),
    ({"seed": 1 << 64}, "seed", "less"),
    ({"seed": 10**5000}, None, None),
    ({"max_tokens": 0}, "max_tokens", "1"),
    ({"max_tokens": -1}, "max_tokens", "1"),
    ({"max_tokens": True}, "max_tokens", "integer"),
    ({"max_tokens": 1000}, "max_tokens", "128"),
    ({"max_completion_tokens": 1000}, "max_completion_tokens", "max_completion_tokens = 1000"),
    ({"n": 0}, "n", "greater than or equal to 1"),
    ({"n": 129}, "n", "128"),
    ({"n": True}, "n", "integer"),
    ({"best_of": 2}, "best_of", "supported: its absence or 1"),
    ({"suffix": "s"}, "suffix", "suffix"),
    ({"response_format": {"type": "jsonl"}}, "response_format", "json_schema"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "is missing"),
    ({"response_format": {"type": "structural_tag"}}, "response_format", "`structures`"),
    ({"guided_json": {"not": {}}}, "guided_json", "not"),
    ({"guided_json": "{"}, "guided_json", "is not JSON"),
    ({"guided_json": "[]"}, "guided_json", "must be an object"),
    ({"guided_json": {"const": (1 << 64) + 1}}, "guided_json", "18446744073709551617"),
    ({"guided_regex": "(("}, "guided_regex", "regex"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "give one of them"),
    ({"guided_choice": []}, "guided_choice", "0 choices"),
    ({"guided_choice": ["a"] * 4097}, "guided_choice", "4096"),
    ({"guided_grammar": "x" * (128 * 1024 + 1)}, "guided_grammar", "131072"),
    ({"guided_something_new": "x"}, "guided_something_new", "guided"),
    ({"structured_outputs": {}}, "structured_outputs", "says nothing"),
    ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs", "give one"),
    ({"logit_bias": {"300": 1}}, "logit_bias", "299"),
    ({"logit_bias": {"-1": 1}}, "logit_bias", "from 0 to 299"),
    ({"logit_bias": {"05": 1}}, "logit_bias", "05"),
    ({"logit_bias": {"hi": 1}}, "logit_bias", "hi"),
    ({"logit_bias": {"9" * 5000: 1}}, "logit_bias", "299"),
    ({"logit_bias": {"5": 100.5}}, "logit_bias", "100"),
    ({"logit_bias": {"5": "1"}}, "logit_bias", "logit_bias[5]"),
    ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", "1024"),
    ({"logit_bias": [[5, 1]]}, "logit_bias", None),
    ({"presence_penalty": 2.1}, "presence_penalty", "less than or equal to 2"),
    ({"frequency_penalty": -2.1}, "frequency_penalty", "greater than or equal to -2"),
    ({"repetition_penalty": 0}, "repetition_penalty", "0.01"),
    ({"repetition_penalty": 101}, "repetition_penalty", "100"),
    ({"min_p": 1.1}, "min_p", "less than or equal to 1"),
    ({"min_p": False}, "min_p", "number"),
    ({"min_tokens": -1}, "min_tokens", "0"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens", "min_tokens = 9 is more than the 8 tokens"),
    ({"min_tokens": 1, "stop_token_ids": list(range(300))}, "min_tokens", "every token"),
    ({"priority": 1.5}, "priority", "integer"),
    ({"cache_salt": ""}, "cache_salt", "at least 1"),
    ({"cache_salt": "x" * 513}, "cache_salt", "at most 512"),
    ({"lora_path": "x"}, "lora_path", "not supported"),
    ({"regex": "(?=x)"}, "regex", "look-around"),
    ({"ebnf": "nothing like it"}, "ebnf", "rammar"),
    ({"grammar": "root ::= x"}, "grammar", "not supported"),
    ({"typical_p": 0.5}, "typical_p", "0.5"),
    ({"repeat_penalty": 1.1}, "repeat_penalty", "1.1"),
    ({"prompt_logprobs": -1}, "prompt_logprobs", "0"),
    ({"stop": ""}, "stop", "at least 1"),
    ({"stop": ["a", ""]}, "stop", "at least 1"),
    ({"stop": "x" * 513}, "stop", "512"),
    ({"stop": ["x"] * 65}, "stop", "64"),
    ({"stop": [1]}, "stop", "string"),
    ({"stop_token_ids": [300]}, "stop_token_ids", "299"),
    ({"stop_token_ids": [-1]}, "stop_token_ids", "0"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "stream"),
    ({"stream": "yes"}, "stream", "bool"),
]

F = {"type": "function", "function": {"name": "f"}}


def calling(arguments: str) -> dict:
    function = {"name": "f", "arguments": arguments}
    calls = [{"id": "1", "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


CHAT_ONLY = [
    ({"messages": []}, "messages", "at least 1"),
    ({"messages": "hi"}, "messages", "array"),
    ({"messages": [{"role": "poet", "content": "x"}]}, "messages", '"poet"'),
    ({"messages": [{"role": "tool"}]}, "messages", "content is missing"),
    ({"messages": [{"role": "user"}]}, "messages", "content is missing"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages",
        "image_url",
    ),
    (
        {"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]},
        "messages",
        "tool_calls[0].function is missing",
    ),
    (
        {"messages": [calling("{")]},
        "messages",
        'tool_calls[0].function.arguments = "{" is not JSON',
    ),
    ({"messages": [calling("5")]}, "messages", 'arguments = "5" is not a JSON object'),
    ({"messages": [calling("{}") | {"role": "user"}]}, "messages", "for the role assistant"),
    ({"tools": [{"type": "function"}]}, "tools", "tools[0].function is missing"),
    ({"tools": [{"type": "web_search", "function": {"name": "f"}}]}, "tools", "web_search"),
    ({"tools": [F | {"function": {"name": "a b"}}]}, "tools", '"a b"'),
    ({"tools": [F]}, "tools", "--tool-call-parser"),
    ({"tool_choice": "required"}, "tool_choice", '"required" needs tools'),
    ({"tool_choice": F}, "tool_choice", "needs tools"),
    ({"tool_choice": "any"}, "tool_choice", '"any"'),
    ({"tool_choice": {"type": "function"}}, "tool_choice", "tool_choice.function is missing"),
    ({"chat_template_kwargs": {"tools": 1}}, "chat_template_kwargs", "tools"),
    ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs", "self"),
    ({"chat_template_kwargs": 1}, "chat_template_kwargs", "1"),
    ({"chat_template": "x"}, "chat_template", "not supported"),
    ({"reasoning_effort": "very"}, "reasoning_effort", '"very"'),
    ({"continue_final_message": True}, "continue_final_message", '"user"'),
    (
        {"continue_final_message": True, "add_generation_prompt": True},
        "continue_final_message",
        "exclude",
    ),
    ({"messages": [{"content": "x"}]}, "messages", "role"),
    ({"messages": [{"role": "user", "content": "x" * 200}]}, "messages", "128"),
    ({"top_logprobs": 2}, "top_logprobs", "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
    ({"logprobs": 3}, "logprobs", "bool"),
]

COMPLETIONS_ONLY = [
    ({"tools": [F]}, "tools", "not supported"),
    ({"tool_choice": "required"}, "tool_choice", "not supported"),
    ({"reasoning_effort": "low"}, "reasoning_effort", "not supported"),
    ({"prompt": []}, "prompt", "empty"),
    ({"prompt": [[]]}, "prompt", "empty"),
    ({"prompt": None}, "prompt", None),
    ({"prompt": [1, "a"]}, "prompt", None),
    ({"prompt": [300]}, "prompt", "299"),
    ({"prompt": [-1]}, "prompt", "0"),
    ({"prompt": [True]}, "prompt", None),
    ({"prompt": ["a"] * 65}, "prompt", "64"),
    ({"prompt": [5] * 128}, "prompt", "leaves none"),
    ({"prompt": ["a"] * 3, "n": 50}, "n", "at most 128 choices"),
    ({"prompt": [5] * 100, "max_tokens": 29}, "max_tokens", "129 together"),
    ({"logprobs": 21}, "logprobs", "20"),
    ({"logprobs": True}, "logprobs", "integer"),
]

CASES = [
    *[(CHAT, {"messages": MESSAGES} | f, p, t) for f, p, t in [*BOTH, *CHAT_ONLY]],
    *[(COMPLETIONS, {"prompt": "hi"} | f, p, t) for f, p, t in [*BOTH, *COMPLETIONS_ONLY]],
]


def big_json(body: dict) -> bytes:
    huge = body.get("seed")
    if isinstance(huge, int) and huge.bit_length() > 1000:
        return (
            json.dumps(body | {"seed": 0}).replace('"seed": 0', '"seed": 1' + "0" * 5000).encode()
        )
    return json.dumps(body).encode()


@pytest.mark.parametrize(("path", "body", "param", "part"), CASES)
def test_refused_naming_the_field(gateway, path, body, param, part):
    status, error = gateway.refused(path, big_json(body))
    assert (status, error["type"]) == (400, "invalid_request_error")
    if param is not None:
        assert error["param"] == param
        assert param in error["message"]
    if part is not None:
        assert part in error["message"]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": [{"role": "user", "content": "hi"}], "stop": "\\udfff"}',
        b'{"messages": [{"role": "user", "content": "hi"}], "temperature": NaN}',
        b'{"messages": [{"role": "user", "content": "hi"}], "temperature": 1e999}',
        b'{"messages": [{"role": "user", "content": "hi"}], "x": ' + b"[" * 100_000,
        b'{"messages": [{"role": "user", "content": "hi"}], "tools": '
        + b"[" * 150
        + b"]" * 150
        + b"}",
    ],
)
def test_malformed_bodies(gateway, raw):
    assert gateway.refused(CHAT, raw)[0] == 400


def test_a_prompt_and_its_limit_over_the_context_are_both_named(gateway):
    _, error = gateway.refused(
        COMPLETIONS, json.dumps({"prompt": [5] * 100, "max_tokens": 29}).encode()
    )
    assert "100 tokens" in error["message"]
    assert "max_tokens = 29" in error["message"]
    assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", CHAT, 405), ("GET", "/nowhere", 404), ("PUT", "/health", 405)],
)
def test_unknown_paths_and_methods(method, path, status):
    response = request(FakeDoor(), method, path)
    assert response.status_code == status
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert ("allow" in response.headers) == (status == 405)


def test_a_large_body_is_refused_by_its_stated_length():
    status, error, read = large_body({"content-length": "100000"})
    assert (status, error["code"]) == (413, "body_too_large")
    assert read == 0


def test_a_large_body_without_a_length_is_refused_before_it_is_read():
    status, error, read = large_body({})
    assert (status, error["code"]) == (413, "body_too_large")
    assert read <= 12


def large_body(headers: dict[str, str]):
    read = []

    async def endless():
        for _ in range(1000):
            read.append(1)
            yield b"x" * 100

    response = request(
        FakeDoor(),
        "POST",
        CHAT,
        content=endless(),
        headers=headers,
        settings={"max_body_bytes": 1000},
    )
    assert response.headers["connection"] == "close"
    return response.status_code, response.json()["error"], len(read)


BOUNDS = {  # tokens that fit, what bounds them, as the service says it
    "context": (Capacity(max_model_len=128, pool_tokens=1024), 128, "the model's context"),
    "pool": (Capacity(max_model_len=128, pool_tokens=96), 96, "the smallest worker's memory"),
}
TABLE = [
    pytest.param(capacity, row, id=f"{bound}: {name}")
    for bound, (capacity, room, what) in BOUNDS.items()
    for name, row in bad_requests(model=MODEL, vocabulary=300, room=room, what=what).items()
    if bound == "context" or what in row.words
]


@pytest.mark.parametrize(("capacity", "row"), TABLE)
def test_the_answer_names_field_value_and_limit(gateway, capacity, row):
    gateway.door.limits = capacity
    status, error = gateway.refused(row.path, row.body)
    assert (status, error["param"]) == (row.status, row.param)
    assert [word for word in row.words if word not in error["message"]] == [], error["message"]
    if row.param is not None:
        assert row.param in error["message"]


def test_a_bad_request_that_is_served_by_mistake_fails_the_test_and_does_not_hang(gateway):
    with pytest.raises(AssertionError, match="hey"):
        gateway.refused(CHAT, json.dumps({"messages": MESSAGES}).encode())
