"""Undivided and streamed answers over a scripted door."""

import re

import msgspec
import pytest

from baton.core.door import QueueView
from baton.core.ids import Boot, TokenId
from baton.core.messages import Credits, FailCode, FinishReason
from baton.core.mixing import mix64
from baton.gateway.door import Capacity, LedgerReport, Readiness

from .fake_door import FakeDoor, view
from .models import BOS, END, ids
from .rig import MODEL, events, post, request

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI = {"messages": [{"role": "user", "content": "hi"}]}
PROMPT = {"prompt": "zz"}


def scripted(*steps) -> FakeDoor:
    door = FakeDoor()
    door.script = list(steps)
    return door


def test_chat():
    door = scripted(ids("he"), ids("y"), [END], FinishReason.STOP)
    answer = post(door, CHAT, HI | {"model": MODEL}).json()
    choice = answer["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "hey"}
    assert (choice["finish_reason"], choice["stop_reason"], choice["logprobs"]) == (
        "stop",
        None,
        None,
    )
    prompt = len(door.submitted[0].prompt)
    assert answer["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 4,
        "total_tokens": prompt + 4,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert (answer["object"], answer["model"]) == ("chat.completion", MODEL)
    assert "token_ids" not in choice
    assert "prompt_token_ids" not in answer
    assert door.cancelled == []


def test_chat_streamed():
    door = scripted(ids("he"), ids("y"), FinishReason.LENGTH)
    response = post(door, CHAT, HI | {"stream": True, "stream_options": {"include_usage": True}})
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, done = events(response)
    assert done == "[DONE]"
    assert [c["choices"][0]["delta"] for c in chunks[:-1]] == [
        {"role": "assistant", "content": ""},
        {"content": "he"},
        {"content": "y"},
        {},
    ]
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]] == [None, None, None, "length"]
    assert all(c["usage"] is None and c["object"] == "chat.completion.chunk" for c in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 3
    assert len({c["id"] for c in chunks}) == 1


def test_completion_streamed_without_usage():
    *chunks, done = events(
        post(scripted(ids("ab"), FinishReason.STOP), COMPLETIONS, PROMPT | {"stream": True})
    )
    assert done == "[DONE]"
    assert [c["choices"][0]["text"] for c in chunks] == ["ab", ""]
    assert all("usage" not in c for c in chunks)


def test_what_the_core_is_asked_by_default():
    door = scripted(ids("x"), FinishReason.STOP)
    post(door, COMPLETIONS, {"prompt": [5, 6, 7]})
    submit = door.submitted[0]
    assert submit.prompt == (5, 6, 7)
    assert (submit.sampling.temperature, submit.sampling.top_p, submit.sampling.top_k) == (
        1.0,
        1.0,
        0,
    )
    assert submit.sampling.logprobs is None
    assert submit.sampling.seed > 1000  # drawn by the door
    assert submit.limits.max_tokens == 16
    assert submit.limits.eos_token_ids == (END,)
    assert submit.limits.stop_token_ids == ()


def test_what_the_core_is_asked_with_everything_given():
    door = scripted(ids("x"), FinishReason.STOP)
    given = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "seed": -1,
        "stop_token_ids": [9, 8],
        "ignore_eos": True,
    }
    post(door, COMPLETIONS, {"prompt": "zz", "max_tokens": 4, "logprobs": 0} | given)
    submit = door.submitted[0]
    assert submit.prompt == (BOS, *ids("zz"))
    assert (submit.sampling.temperature, submit.sampling.top_p, submit.sampling.top_k) == (
        0.5,
        0.9,
        40,
    )
    assert (submit.sampling.seed, submit.sampling.logprobs) == (mix64((1 << 64) - 1, 0), 0)
    assert (
        submit.limits.max_tokens,
        submit.limits.stop_token_ids,
        submit.limits.eos_token_ids,
    ) == (4, (9, 8), ())


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_both_names_of_the_token_limit(field):
    door = scripted(ids("x"), FinishReason.STOP)
    post(door, CHAT, HI | {field: 3})
    assert door.submitted[0].limits.max_tokens == 3


def test_the_smallest_pool_bounds_the_default_limit():
    door = scripted(ids("x"), FinishReason.STOP)
    door.limits = Capacity(max_model_len=128, pool_tokens=32)
    post(door, COMPLETIONS, {"prompt": [1, 2], "max_tokens": None})
    assert door.submitted[0].limits.max_tokens == 30


def test_a_request_that_just_fits():
    door = scripted(ids("x"), FinishReason.STOP)
    assert post(door, COMPLETIONS, {"prompt": [5] * 100, "max_tokens": 28}).status_code == 200
    assert post(door, COMPLETIONS, {"prompt": [5] * 127}).status_code == 200


def test_temperatures_near_zero_are_greedy():
    door = scripted(ids("x"), FinishReason.STOP)
    post(door, COMPLETIONS, PROMPT | {"temperature": 1e-9, "top_k": -1})
    assert (door.submitted[0].sampling.temperature, door.submitted[0].sampling.top_k) == (0.0, 0)


def test_developer_messages_and_text_parts():
    door = scripted(ids("x"), FinishReason.STOP)
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    post(
        door,
        CHAT,
        {"messages": [{"role": "developer", "content": "be"}, {"role": "user", "content": parts}]},
    )
    assert bytes(t for t in door.submitted[0].prompt if t < 256) == b"system:beuser:a\nbassistant:"


def test_fields_without_influence_are_accepted():
    neutral = {
        "user": "me",
        "metadata": {"a": "b"},
        "tools": [],
        "response_format": {"type": "text"},
        "presence_penalty": 0.0,
    }
    nulls = {
        "n": 1,
        "best_of": 1,
        "echo": False,
        "min_p": 0,
        "logit_bias": None,
        "stop": None,
        "seed": None,
        "made_up": 3,
    }
    assert (
        post(
            scripted(ids("x"), FinishReason.STOP), COMPLETIONS, PROMPT | neutral | nulls
        ).status_code
        == 200
    )


# ---- stop strings and end tokens ----------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_over_two_tokens_ends_the_request_everywhere(stream):
    door = scripted(ids("one E"), ids("ND two"), ids("three"), FinishReason.LENGTH)
    response = post(
        door, COMPLETIONS, PROMPT | {"stop": ["END"], "stream": stream, "return_token_ids": True}
    )
    assert [c.reason for c in door.cancelled] == ["stop string"]
    if not stream:
        choice = response.json()["choices"][0]
        assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (
            "one ",
            "stop",
            "END",
        )
        assert choice["token_ids"] == ids("one END")
        assert response.json()["usage"]["completion_tokens"] == 7
    else:
        *chunks, done = events(response)
        assert done == "[DONE]"
        assert "".join(c["choices"][0]["text"] for c in chunks) == "one "
        assert [t for c in chunks for t in c["choices"][0]["token_ids"]] == ids("one END")
        assert [c["choices"][0]["finish_reason"] for c in chunks][-2:] == [None, "stop"]


def test_a_held_back_beginning_of_a_stop_string_is_shown_at_the_end():
    door = scripted(ids("one EN"), FinishReason.LENGTH)
    *chunks, _ = events(post(door, COMPLETIONS, PROMPT | {"stop": "END", "stream": True}))
    assert [c["choices"][0]["text"] for c in chunks] == ["one ", "EN"]


def test_a_stop_token_is_no_text():
    door = scripted(ids("ab."), FinishReason.STOP)
    choice = post(door, COMPLETIONS, PROMPT | {"stop_token_ids": [ord(".")]}).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (
        "ab",
        "stop",
        ord("."),
    )


def test_a_split_character_waits_for_its_end():
    e = list("é".encode())
    *chunks, _ = events(
        post(scripted([e[0]], [e[1]], FinishReason.STOP), COMPLETIONS, PROMPT | {"stream": True})
    )
    assert [c["choices"][0]["text"] for c in chunks] == ["é", ""]


@pytest.mark.parametrize("stream", [False, True])
def test_a_character_that_never_ends_is_shown_at_the_end(stream):
    response = post(
        scripted([ord("a"), 0xC3], FinishReason.LENGTH), COMPLETIONS, PROMPT | {"stream": stream}
    )
    answers = events(response)[:-1] if stream else [response.json()]
    assert "".join(a["choices"][0]["text"] for a in answers) == "a\ufffd"


# ---- logprobs and token ids ---------------------------------------------------------------------


def test_chat_logprobs():
    door = scripted(ids("ab"), FinishReason.STOP)
    answer = post(door, CHAT, HI | {"logprobs": True, "top_logprobs": 2}).json()
    assert door.submitted[0].sampling.logprobs == 2
    content = answer["choices"][0]["logprobs"]["content"]
    assert [c["token"] for c in content] == ["a", "b"]
    assert content[0] == {
        "token": "a",
        "logprob": -0.5,
        "bytes": [97],
        "top_logprobs": [
            {"token": "a", "logprob": -0.5, "bytes": [97]},
            {"token": "b", "logprob": -1.5, "bytes": [98]},
        ],
    }


def test_completion_logprobs():
    e = list("é".encode())
    door = scripted([ord("a"), *e, ord("b")], FinishReason.STOP)
    logprobs = post(door, COMPLETIONS, PROMPT | {"logprobs": 1}).json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["a", "bytes:\\xc3", "bytes:\\xa9", "b"]
    assert logprobs["token_logprobs"] == [-0.5] * 4
    assert logprobs["top_logprobs"][0] == {"a": -0.5}
    assert logprobs["text_offset"] == [0, 1, 1, 2]


def test_streamed_logprobs_come_with_their_tokens():
    *chunks, _ = events(
        post(
            scripted(ids("a"), ids("b"), FinishReason.STOP),
            CHAT,
            HI | {"logprobs": True, "stream": True},
        )
    )
    scored = [c["choices"][0]["logprobs"] for c in chunks]
    assert [s and [t["token"] for t in s["content"]] for s in scored] == [None, ["a"], ["b"], None]


def test_token_ids_in_both_styles():
    door = scripted(ids("ab"), [END], FinishReason.STOP)
    answer = post(door, CHAT, HI | {"return_token_ids": True}).json()
    assert answer["prompt_token_ids"] == list(door.submitted[0].prompt)
    assert answer["choices"][0]["token_ids"] == [*ids("ab"), END]
    *chunks, _ = events(post(door, CHAT, HI | {"return_token_ids": True, "stream": True}))
    assert chunks[0]["prompt_token_ids"] == list(door.submitted[0].prompt)
    assert [t for c in chunks for t in c["choices"][0].get("token_ids", ())] == [*ids("ab"), END]
    answer = post(door, COMPLETIONS, PROMPT | {"return_token_ids": True}).json()
    assert (
        answer["prompt_token_ids"] == answer["choices"][0]["prompt_token_ids"] == [BOS, *ids("zz")]
    )


# ---- several prompts ----------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", [["aa", "b"], [[97, 97], [98]]])
def test_several_prompts_are_several_choices(prompt):
    door = scripted(ids("x"), FinishReason.STOP)
    answer = post(door, COMPLETIONS, {"prompt": prompt}).json()
    assert [(c["index"], c["text"]) for c in answer["choices"]] == [(0, "x"), (1, "x")]
    assert answer["usage"]["completion_tokens"] == 2
    *chunks, done = events(post(door, COMPLETIONS, {"prompt": prompt, "stream": True}))
    assert done == "[DONE]"
    assert [c["choices"][0]["index"] for c in chunks] == [0, 0, 1, 1]


@pytest.mark.parametrize("stream", [False, True])
def test_if_the_second_prompt_finds_no_room_the_first_is_cancelled(stream):
    door = FakeDoor()
    door.room = 1
    response = post(door, COMPLETIONS, {"prompt": ["aa", "b"], "stream": stream})
    assert (response.status_code, response.json()["error"]["code"]) == (429, "overloaded")
    assert [c.request for c in door.cancelled] == [door.submitted[0].request]


def test_after_a_prompt_that_failed_at_once_the_others_are_not_begun():
    door = scripted(FailCode.WORKER_LOST)
    assert post(door, COMPLETIONS, {"prompt": ["aa", "b", "c"]}).status_code == 503
    assert len(door.submitted) == 1


# ---- failures -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("code", "status"),
    [
        (FailCode.HANDOFF_FAILED, 502),
        (FailCode.WORKER_LOST, 503),
        (FailCode.DEADLINE_EXCEEDED, 504),
        (FailCode.OVERLOADED, 429),
        (FailCode.QUEUE_TIMEOUT, 503),
    ],
)
def test_failures_before_the_first_token_have_a_status(code, status, stream):
    response = post(scripted(code), CHAT, HI | {"stream": stream})
    assert response.status_code == status
    assert response.json()["error"]["code"] == code.value
    assert response.json()["error"]["message"] == "as told"
    assert ("retry-after" in response.headers) == (status in (429, 503))


def test_every_fail_code_has_a_status():
    for code in FailCode:
        assert post(scripted(code), CHAT, HI).status_code >= 422


def test_a_request_that_kills_workers_is_not_one_that_clients_try_again_by_themselves():
    """OpenAI's own client repeats 408, 409, 429 and every 5xx."""
    response = post(scripted(FailCode.POISON), CHAT, HI)
    assert (response.status_code, response.json()["error"]["code"]) == (422, "poison_request")
    assert "retry-after" not in response.headers


def test_a_failure_after_tokens_spoils_an_undivided_answer_as_a_whole():
    response = post(scripted(ids("a"), FailCode.WORKER_LOST), CHAT, HI)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "worker_lost")


def test_a_full_queue():
    door = FakeDoor()
    door.room = 0
    response = post(door, CHAT, HI)
    assert (response.status_code, response.headers["retry-after"]) == (429, "7"), (
        "as long as the queue says"
    )
    error = response.json()["error"]
    assert (error["code"], error["message"]) == ("overloaded", "2 of 2 places taken")


def test_before_any_worker_has_registered():
    door = FakeDoor()
    door.limits, door.readiness = None, Readiness(False, "no decode worker")
    response = post(door, CHAT, HI)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "not_ready")
    assert "no decode worker" in response.json()["error"]["message"]


# ---- the other endpoints ------------------------------------------------------------------------


def test_models():
    door = FakeDoor()
    card = request(door, "GET", "/v1/models").json()["data"][0]
    assert (card["id"], card["object"], card["owned_by"], card["max_model_len"]) == (
        MODEL,
        "model",
        "baton",
        128,
    )
    assert request(door, "GET", f"/v1/models/{MODEL}").json()["id"] == MODEL
    assert request(door, "GET", "/v1/models/other").status_code == 404
    door.limits = None
    assert request(door, "GET", "/v1/models").json()["data"][0]["max_model_len"] is None


def test_the_schema_document_stands_by_itself():
    document = request(FakeDoor(), "GET", "/openapi.json")
    assert "#/$defs" not in document.text
    whole = document.json()
    body = whole["paths"][CHAT]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/ChatBody"}
    named = set(re.findall(r'"#/components/schemas/([^"]+)"', document.text))
    assert named <= set(whole["components"]["schemas"])
    assert "messages" in whole["components"]["schemas"]["ChatBody"]["properties"]


def test_health_ready_version():
    door = FakeDoor()
    assert request(door, "GET", "/health").status_code == 200
    assert request(door, "GET", "/ready").json() == {"ready": True, "why": "1 pair"}
    door.readiness = Readiness(False, "no decode worker")
    response = request(door, "GET", "/ready")
    assert (response.status_code, response.json()["why"]) == (503, "no decode worker")
    assert request(door, "GET", "/version").json()["version"]


def test_the_ledger_is_clean_if_all_workers_answered_and_are():
    door = FakeDoor()
    door.report = LedgerReport((view("p", clean=True), view("d", clean=True)), (), 0)
    credits = Credits(
        4, Boot(3), {"full": 5}, {"full": 6}, 1, 2, free_rooms=3, ahead_pages={"full": 3}
    )
    door.report = msgspec.structs.replace(
        door.report, credits={"d": credits}, queue=QueueView(5, 1_250, {"slow": 2})
    )
    books = request(door, "GET", "/debug/ledger").json()
    assert books["clean"] is True
    assert books["credits"]["d"]["free_pages"] == {"full": 5}
    assert (books["queue"]["length"], books["queue"]["oldest_ms"], books["queue"]["refused"]) == (
        5,
        1_250,
        {"slow": 2},
    )
    assert books["workers"][0]["ranks"] == [{"rank": 0, "pid": 4242, "boot": "ffffffffffffffff"}]
    assert books["workers"][0]["pages"] == {"full": {"free": 10, "cached": 2}}
    door.report = LedgerReport((view("p", clean=True), view("d", clean=False)), (), 0)
    books = request(door, "GET", "/debug/ledger").json()
    assert books["clean"] is False
    assert books["workers"][1]["rooms"][0]["age_ms"] == 12
    door.report = LedgerReport((view("p", clean=True),), ("d",), 0)
    books = request(door, "GET", "/debug/ledger").json()
    assert (books["clean"], books["missing"]) == (False, ["d"])


def test_the_ledger_is_not_clean_while_the_gateway_holds_a_room():
    door = FakeDoor()
    door.report = LedgerReport((view("p", clean=True), view("d", clean=True)), (), 1)
    books = request(door, "GET", "/debug/ledger").json()
    assert (books["clean"], books["open_requests"]) == (False, 1)


def test_the_ledger_is_for_this_machine_only():
    door = FakeDoor()
    assert request(door, "GET", "/debug/ledger", client=("10.0.0.7", 5)).status_code == 403
    assert request(door, "GET", "/debug/ledger", client=("::1", 5)).status_code == 200
    forwarded = {"x-forwarded-for": "127.0.0.1"}
    assert request(door, "GET", "/debug/ledger", headers=forwarded).status_code == 403


def test_long_prompts_give_the_same_ids_as_short_ones():
    door = scripted(ids("x"), FinishReason.STOP)
    door.limits = Capacity(max_model_len=100_000, pool_tokens=100_000)
    post(door, COMPLETIONS, {"prompt": "z" * 5000})
    post(door, COMPLETIONS, {"prompt": "z" * 5000}, inline_chars=10_000)
    assert (
        door.submitted[0].prompt == door.submitted[1].prompt == (BOS, *[TokenId(ord("z"))] * 5000)
    )
