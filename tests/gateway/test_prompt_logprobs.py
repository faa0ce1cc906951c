"""What an answer says of its prompt: `prompt_logprobs`, and `max_tokens` 0, which wants nothing
else."""

import pytest

from baton.core.messages import FinishReason
from baton.gateway.logprobs import PROMPT_ENTRIES

from .fake_door import FakeDoor
from .models import END, ids
from .rig import events, make_tokenizer, post

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI = {"messages": [{"role": "user", "content": "hi"}]}


def answer(body: dict, *script, path: str = COMPLETIONS, **settings) -> tuple[dict, FakeDoor]:
    door = FakeDoor()
    door.script = list(script) or [ids("ok"), FinishReason.LENGTH]
    response = post(door, path, body, **settings)
    assert response.status_code == 200, response.text
    return response.json(), door


def refused(body: dict, path: str = COMPLETIONS, **settings) -> tuple[str, str]:
    door = FakeDoor()
    response = post(door, path, body, **settings)
    assert response.status_code == 400, response.text
    assert door.submitted == []
    error = response.json()["error"]
    return error["param"], error["message"]


def said(logprob: float, rank: int, text: str) -> dict:
    return {"logprob": logprob, "rank": rank, "decoded_token": text}


# ---- prompt_logprobs ----------------------------------------------------------------------------


def test_each_token_of_a_prompt_has_its_logprob_and_the_likeliest_in_its_place() -> None:
    found, door = answer({"prompt": ids("abc"), "prompt_logprobs": 2})
    assert [s.sampling.prompt_logprobs for s in door.submitted] == [2]
    (choice,) = found["choices"]
    assert choice["prompt_logprobs"] == [
        None,
        {
            "98": said(-12.25, 98, "b"),
            "99": said(-0.5, 1, "c"),
            "100": said(-1.5, 2, "d"),
        },
        {
            "99": said(-12.375, 99, "c"),
            "100": said(-0.5, 1, "d"),
            "101": said(-1.5, 2, "e"),
        },
    ]
    assert choice["logprobs"] is None
    assert "prompt_logprobs" not in found


def test_none_of_the_likeliest_leaves_the_tokens_themselves() -> None:
    found, _ = answer({"prompt": ids("ab"), "prompt_logprobs": 0})
    assert found["choices"][0]["prompt_logprobs"] == [None, {"98": said(-12.25, 98, "b")}]


def test_a_chat_has_them_beside_its_choices() -> None:
    found, door = answer(HI | {"prompt_logprobs": 1, "n": 2}, path=CHAT)
    prompt = door.submitted[0].prompt
    assert len(found["prompt_logprobs"]) == len(prompt)
    assert found["prompt_logprobs"][0] is None
    assert list(found["prompt_logprobs"][1]) == [str(prompt[1]), str(prompt[1] + 1)]
    assert all("prompt_logprobs" not in choice for choice in found["choices"])


def test_each_prompt_and_choice_has_its_own() -> None:
    found, _ = answer({"prompt": ["ab", "xyz"], "n": 2, "prompt_logprobs": 0})
    texts = [
        [next(iter(e.values()))["decoded_token"] for e in c["prompt_logprobs"][1:]]
        for c in found["choices"]
    ]
    assert texts == [["a", "b"]] * 2 + [["x", "y", "z"]] * 2, "behind the beginning-of-text token"


def test_a_prompt_of_one_token_has_one_entry() -> None:
    found, _ = answer({"prompt": [5], "prompt_logprobs": 3})
    assert found["choices"][0]["prompt_logprobs"] == [None]


@pytest.mark.parametrize(("path", "body"), [(CHAT, HI), (COMPLETIONS, {"prompt": "zz"})])
def test_who_does_not_want_them_hears_nothing_of_them(path: str, body: dict) -> None:
    for fields in ({}, {"prompt_logprobs": None}):
        found, door = answer(body | fields, path=path)
        assert "prompt_logprobs" not in str(found)
        assert door.submitted[0].sampling.prompt_logprobs is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt_logprobs": 21}, ("= 21", "at most 20")),
        ({"prompt_logprobs": -1}, ("= -1", "greater than or equal to 0")),
        ({"prompt_logprobs": True}, ("true", "integer")),
        ({"prompt_logprobs": 1, "stream": True}, ("= 1", "stream = true", "leave one")),
    ],
)
@pytest.mark.parametrize(("path", "body"), [(CHAT, HI), (COMPLETIONS, {"prompt": "zz"})])
def test_what_cannot_be_is_refused_by_name(
    path: str, body: dict, fields: dict, words: tuple[str, ...]
) -> None:
    param, message = refused(body | fields, path)
    assert param == "prompt_logprobs"
    assert all(word in message for word in words), message


def test_the_vocabulary_bounds_them_too() -> None:
    entries = make_tokenizer().vocab_size
    body = {"prompt": "zz", "prompt_logprobs": entries + 1}
    _, message = refused(body, max_logprobs=10_000)
    assert f"= {entries + 1}; at most {entries} are served" in message


def test_all_prompts_and_choices_together_are_bounded() -> None:
    body = {"n": 2, "prompt": [[5] * 64] * 64, "max_tokens": 1}
    tokens = 2 * 64 * 64
    most = PROMPT_ENTRIES // tokens - 1
    found, _ = answer(body | {"prompt_logprobs": most})
    assert len(found["choices"]) == 128
    param, message = refused(body | {"prompt_logprobs": most + 1})
    assert param == "prompt_logprobs"
    for word in ("= 8", "8192 prompt tokens", "73728 logprobs", "at most 65536", "fewer"):
        assert word in message


# ---- max_tokens = 0 -----------------------------------------------------------------------------


@pytest.mark.parametrize("last", [FinishReason.LENGTH, FinishReason.STOP])
@pytest.mark.parametrize("token", [ids("k"), [END]])
def test_nothing_generated_is_shown_or_counted(token: list[int], last: FinishReason) -> None:
    body = {"prompt": "ab", "max_tokens": 0, "prompt_logprobs": 0, "logprobs": 1}
    found, door = answer(body | {"return_token_ids": True, "stop": "k"}, token, last)
    assert door.submitted[0].limits.max_tokens == 1, "the core generates one"
    (choice,) = found["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("", "length", None)
    assert (choice["token_ids"], choice["logprobs"]) == ([], None)
    assert len(choice["prompt_logprobs"]) == 3
    usage = found["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (3, 0, 3)


def test_an_echo_alone_is_the_prompt() -> None:
    body = {"prompt": "ab", "max_tokens": 0, "echo": True}
    found, _ = answer(body, ids("k"), FinishReason.LENGTH)
    assert found["choices"][0]["text"] == "ab"
    door = FakeDoor()
    door.script = [ids("k"), FinishReason.LENGTH]
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last, end = events(post(door, COMPLETIONS, body | options))
    assert [c["choices"][0]["text"] for c in chunks] == ["ab", ""]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert (last["usage"]["completion_tokens"], end) == (0, "[DONE]")


def test_zero_tokens_of_nothing_are_refused() -> None:
    param, message = refused({"prompt": "ab", "max_tokens": 0})
    assert param == "max_tokens"
    assert all(word in message for word in ("= 0", "echo", "prompt_logprobs", "1 or more"))
    param, message = refused(HI | {"max_tokens": 0, "prompt_logprobs": 1}, CHAT)
    assert param == "max_tokens"
    assert "1" in message


def test_no_fewer_than_none_can_be_generated() -> None:
    body = {"prompt": "ab", "max_tokens": 0, "echo": True, "min_tokens": 1}
    param, message = refused(body)
    assert param == "min_tokens"
    assert "more than the 0 tokens" in message


def test_the_other_name_of_max_tokens_wins() -> None:
    body = {"prompt": "ab", "max_tokens": 0, "max_completion_tokens": 2}
    found, door = answer(body)
    assert door.submitted[0].limits.max_tokens == 2
    assert found["choices"][0]["text"] == "ok"


# ---- echo with logprobs -------------------------------------------------------------------------

DUE = {
    "tokens": ["a", "b", "c", "o", "k"],
    "token_logprobs": [None, -12.25, -12.375, -0.5, -0.5],
    "top_logprobs": [
        None,
        {"b": -12.25, "c": -0.5},
        {"c": -12.375, "d": -0.5},
        {"o": -0.5},
        {"k": -0.5},
    ],
    "text_offset": [0, 1, 2, 3, 4],
}


def test_an_echo_with_logprobs_begins_with_those_of_the_prompt() -> None:
    found, door = answer({"prompt": ids("abc"), "echo": True, "logprobs": 1})
    assert door.submitted[0].sampling.prompt_logprobs == 1
    (choice,) = found["choices"]
    assert (choice["text"], choice["logprobs"]) == ("abcok", DUE)
    assert "prompt_logprobs" not in choice


def test_a_stream_begins_with_them_too() -> None:
    door = FakeDoor()
    door.script = [ids("o"), ids("k"), FinishReason.STOP]
    body = {"prompt": ids("abc"), "echo": True, "logprobs": 1, "stream": True}
    *chunks, end = events(post(door, COMPLETIONS, body))
    assert end == "[DONE]"
    choices = [c["choices"][0] for c in chunks]
    assert [c["text"] for c in choices] == ["abc", "o", "k", ""]
    joined = {
        name: [x for c in choices if c["logprobs"] for x in c["logprobs"][name]] for name in DUE
    }
    assert joined == DUE


@pytest.mark.parametrize("stream", [False, True])
def test_without_an_answer_they_are_those_of_the_prompt_alone(stream: bool) -> None:
    door = FakeDoor()
    door.script = [ids("k"), FinishReason.LENGTH]
    body = {"prompt": "ab", "echo": True, "logprobs": 0, "max_tokens": 0, "stream": stream}
    response = post(door, COMPLETIONS, body)
    first, *others = events(response)[:-1] if stream else [response.json()]
    choice = first["choices"][0]
    assert choice["text"] == "ab"
    assert choice["logprobs"] == {
        "tokens": ["<s>", "a", "b"],
        "token_logprobs": [None, -12.125, -12.25],
        "top_logprobs": [None, {"a": -12.125}, {"b": -12.25}],
        "text_offset": [0, 0, 1],
    }
    last = others[-1]["choices"][0] if stream else choice
    assert len(others) == stream
    assert last["finish_reason"] == "length"
    assert not stream or (last["text"], last["logprobs"]) == ("", None)


def test_each_field_has_as_many_likely_tokens_as_it_asks_for() -> None:
    body = {"prompt": ids("ab"), "echo": True}
    for logprobs, of_prompt in ((1, 3), (3, 1)):
        found, door = answer(body | {"logprobs": logprobs, "prompt_logprobs": of_prompt})
        assert door.submitted[0].sampling.prompt_logprobs == 3
        (choice,) = found["choices"]
        assert len(choice["logprobs"]["top_logprobs"][1]) == 1 + logprobs
        assert len(choice["prompt_logprobs"][1]) == 1 + of_prompt


def test_an_echo_without_logprobs_needs_none_of_the_prompt() -> None:
    _, door = answer({"prompt": "ab", "echo": True})
    assert door.submitted[0].sampling.prompt_logprobs is None


def test_ids_stand_for_tokens_of_the_prompt_too() -> None:
    body = {"prompt": ids("ab"), "echo": True, "logprobs": 0, "return_tokens_as_token_ids": True}
    found, _ = answer(body)
    assert found["choices"][0]["logprobs"]["tokens"][:2] == ["token_id:97", "token_id:98"]


def test_the_bound_names_the_field_of_an_echo() -> None:
    body = {"prompt": [[5] * 64] * 64, "n": 2, "echo": True, "logprobs": 8, "max_tokens": 1}
    param, message = refused(body)
    assert param == "logprobs"
    assert "logprobs = 8" in message


def test_a_long_beginning_of_a_stream_is_no_slowness_of_the_client() -> None:
    door = FakeDoor()
    door.script = [ids("k"), FinishReason.LENGTH]
    body = {"prompt": [ids("abc")] * 20, "echo": True, "logprobs": 5, "stream": True}
    *chunks, end = events(post(door, COMPLETIONS, body, max_pending_bytes=2_000))
    assert end == "[DONE]"
    assert sum(bool(c["choices"][0]["finish_reason"]) for c in chunks) == 20
