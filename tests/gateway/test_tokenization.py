"""/tokenize and /detokenize."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.core.messages import FinishReason

from .fake_door import FakeDoor
from .models import BOS, ids
from .rig import post, request

HI = [{"role": "user", "content": "hi"}]
HELLO = 261  # a merge


def tokenized(body: dict, **settings) -> dict:
    answer = post(FakeDoor(), "/tokenize", body, **settings)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"prompt": "hello"}, [BOS, HELLO]),
        ({"prompt": "hello", "add_special_tokens": True}, [BOS, HELLO]),
        ({"prompt": "hello", "add_special_tokens": False, "model": "tiny"}, [HELLO]),
        ({"prompt": "", "add_special_tokens": False}, []),
        ({"prompt": "x" * 5000, "add_special_tokens": False}, ids("x") * 5000),
    ],
)
def test_the_tokens_of_a_prompt(body, tokens):
    expected = {"count": len(tokens), "max_model_len": 128, "tokens": tokens, "token_strs": None}
    assert tokenized(body) == expected


def test_tokens_as_the_vocabulary_writes_them():
    found = tokenized({"prompt": "hello w", "return_token_strs": True})
    assert found["token_strs"] == ["<s>", "hello", "Ġw"]


def test_messages_have_the_tokens_that_a_chat_has():
    door = FakeDoor()
    door.script = [ids("x"), FinishReason.STOP]
    assert post(door, "/v1/chat/completions", {"messages": HI}).status_code == 200
    assert tokenized({"messages": HI})["tokens"] == list(door.submitted[0].prompt)


def test_nothing_is_asked_of_workers_and_none_is_needed():
    door = FakeDoor()
    door.limits = None
    answer = post(door, "/tokenize", {"prompt": "hello"})
    assert (answer.status_code, answer.json()["max_model_len"]) == (200, None)
    assert post(door, "/detokenize", {"tokens": [HELLO]}).json() == {"prompt": "hello"}
    assert door.submitted == []


@given(st.text(max_size=20))
@settings(max_examples=20, deadline=None)
def test_detokenize_undoes_tokenize(text):
    tokens = tokenized({"prompt": text})["tokens"]
    answer = post(FakeDoor(), "/detokenize", {"tokens": tokens, "model": "tiny"})
    assert answer.json() == {"prompt": f"<s>{text}"}


def test_many_tokens_are_decoded_beside_the_loop():
    answer = post(FakeDoor(), "/detokenize", {"tokens": ids("ab") * 3}, inline_chars=5)
    assert answer.json() == {"prompt": "ababab"}


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": HI}, 400, "prompt"),
        ("/tokenize", {"prompt": [1, 2]}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404, "model"),
        ("/tokenize", {"messages": []}, 400, "messages"),
        ("/tokenize", {"messages": HI, "add_special_tokens": True}, 400, "add_special_tokens"),
        ("/tokenize", {"messages": HI, "chat_template": "x"}, 400, "chat_template"),
        ("/tokenize", {"messages": [{"role": "tool", "content": "x"}]}, 400, "messages"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": [5, 300]}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens"),
        ("/detokenize", {"tokens": "a"}, 400, "tokens"),
        ("/detokenize", {"tokens": [5], "model": "other"}, 404, "model"),
    ],
)
def test_what_is_refused(path, body, status, param):
    answer = post(FakeDoor(), path, body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_keys_and_limits_are_those_of_the_other_endpoints(path):
    body = {"prompt": "a"} if path == "/tokenize" else {"tokens": [5]}
    answers = [
        request(
            FakeDoor(), "POST", path, json=body, headers=headers, settings={"api_keys": ("k",)}
        ).status_code
        for headers in ({}, {"authorization": "Bearer k"})
    ]
    assert answers == [401, 200]
    assert post(FakeDoor(), path, body | {"x": "y" * 100}, max_body_bytes=50).status_code == 413
