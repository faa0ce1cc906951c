"""What a client may choose to see of prompt and answer: echo, special tokens, stops, ids for
tokens, and how much of a long prompt is used."""

import pytest

from baton.core.messages import FinishReason
from baton.gateway.door import Capacity

from .fake_door import FakeDoor
from .models import BOS, END, ids
from .rig import events, post

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI = {"messages": [{"role": "user", "content": "hi"}]}


def answer(
    body: dict, *script, path: str = COMPLETIONS, room: int = 128
) -> tuple[list[dict], list]:
    """The choices of an undivided answer, and what the core was asked. The same text streamed."""
    asked = []
    texts = []
    for stream in (False, True):
        door = FakeDoor()
        door.limits = Capacity(max_model_len=room, pool_tokens=1024)
        door.script = list(script) or [ids("ok"), FinishReason.STOP]
        response = post(door, path, body | {"stream": stream})
        assert response.status_code == 200, response.text
        asked.append([s.prompt for s in door.submitted])
        chunks = events(response)[:-1] if stream else [response.json()]
        found: dict[int, str] = {}
        for choice in (c for chunk in chunks for c in chunk["choices"]):
            piece = choice.get("text") or (choice.get("delta") or choice.get("message") or {}).get(
                "content", ""
            )
            found[choice["index"]] = found.get(choice["index"], "") + piece
        texts.append(found)
        if not stream:
            choices = chunks[0]["choices"]
    assert texts[0] == texts[1], "streamed or not, the text is the same"
    assert asked[0] == asked[1]
    return choices, asked[0]


# ---- echo ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("hello ", "hello "),
        ("a</s>", "a</s>"),  # as it was sent, though its tokens include a special one
        (ids("hello "), "hello "),
        ([BOS, *ids("x ")], "x "),
    ],
)
def test_echo_puts_the_prompt_before_the_answer(prompt, text):
    (choice,), _ = answer({"prompt": prompt, "echo": True})
    assert choice["text"] == f"{text}ok"


def test_each_choice_echoes_its_own_prompt():
    choices, _ = answer({"prompt": ["a", "b"], "n": 2, "echo": True})
    assert [c["text"] for c in choices] == ["aok", "aok", "bok", "bok"]


def test_what_was_cut_off_is_not_echoed():
    (choice,), _ = answer({"prompt": "xyz", "echo": True, "truncate_prompt_tokens": 2})
    assert choice["text"] == "yzok"
    (choice,), asked = answer({"prompt": ids("abc"), "echo": True, "truncate_prompt_tokens": 2})
    assert (choice["text"], asked) == ("bcok", [tuple(ids("bc"))])


def test_an_echo_comes_once_with_ids_too_and_is_not_counted():
    body = {"prompt": ids("ab"), "echo": True, "return_token_ids": True}
    (choice,), _ = answer(body)
    assert (choice["text"], choice["token_ids"]) == ("abok", ids("ok"))
    door = FakeDoor()
    door.script = [ids("o"), ids("k"), FinishReason.STOP]
    first, *_ = events(post(door, COMPLETIONS, body | {"stream": True}))
    assert first["choices"][0]["text"] == "ab"
    assert first["choices"][0]["prompt_token_ids"] == ids("ab")
    assert first["choices"][0]["token_ids"] == []


def test_a_stop_string_in_the_prompt_does_not_end_the_answer():
    (choice,), _ = answer({"prompt": "stop", "echo": True, "stop": ["stop", "k"]})
    assert choice["text"] == "stopo"


# ---- special tokens -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "ab"),
        ({"skip_special_tokens": True}, "ab"),
        ({"skip_special_tokens": False}, "a<s>b"),
        ({"skip_special_tokens": False, "spaces_between_special_tokens": False}, "a<s>b"),
        ({"skip_special_tokens": False, "include_stop_str_in_output": True}, "a<s>b</s>"),
        ({"include_stop_str_in_output": True}, "ab"),
    ],
)
@pytest.mark.parametrize(("path", "body"), [(CHAT, HI), (COMPLETIONS, {"prompt": "zz"})])
def test_special_tokens_are_shown_if_wanted_and_the_end_token_if_stops_are_too(
    path, body, fields, text
):
    script = [*ids("a"), BOS, *ids("b"), END], FinishReason.STOP
    (choice,), _ = answer(body | fields, *script, path=path)
    assert (choice.get("text") or choice["message"]["content"]) == text


def test_an_echo_of_ids_shows_special_tokens_if_the_answer_does():
    body = {"prompt": [BOS, *ids("x")], "echo": True, "skip_special_tokens": False}
    (choice,), _ = answer(body)
    assert choice["text"] == "<s>xok"


# ---- stops --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("include", "text"), [(False, "he"), (True, "hell")])
def test_a_stop_string_is_shown_if_wanted(include, text):
    body = {"prompt": "zz", "stop": ["ll"], "include_stop_str_in_output": include}
    (choice,), _ = answer(body, ids("hel"), ids("lo"), FinishReason.LENGTH)
    assert (choice["text"], choice["stop_reason"]) == (text, "ll")


def test_a_stop_token_is_shown_if_stops_are():
    body = {"prompt": "zz", "stop_token_ids": ids("!"), "include_stop_str_in_output": True}
    (choice,), _ = answer(body, ids("a!"), FinishReason.STOP)
    assert (choice["text"], choice["stop_reason"]) == ("a!", ord("!"))


# ---- ids instead of tokens ----------------------------------------------------------------------


def test_logprobs_of_a_completion_name_tokens_by_their_ids():
    body = {"prompt": "zz", "logprobs": 2, "return_tokens_as_token_ids": True}
    (choice,), _ = answer(body, ids("a"), FinishReason.STOP)
    found = choice["logprobs"]
    assert found["tokens"] == ["token_id:97"]
    assert set(found["top_logprobs"][0]) == {"token_id:97", "token_id:98"}


def test_logprobs_of_a_chat_name_tokens_by_their_ids_and_keep_their_bytes():
    body = HI | {"logprobs": True, "top_logprobs": 2, "return_tokens_as_token_ids": True}
    (choice,), _ = answer(body, ids("a"), FinishReason.STOP, path=CHAT)
    (entry,) = choice["logprobs"]["content"]
    assert (entry["token"], entry["bytes"]) == ("token_id:97", [97])
    assert [t["token"] for t in entry["top_logprobs"]] == ["token_id:97", "token_id:98"]


# ---- the prompt ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("added", "before"), [(None, (BOS,)), (True, (BOS,)), (False, ())])
def test_special_tokens_are_added_to_a_text_unless_the_client_says_no(added, before):
    _, (prompt,) = answer({"prompt": "zz", "add_special_tokens": added})
    assert prompt == (*before, *ids("zz"))


@pytest.mark.parametrize(
    ("kept", "max_tokens", "left"),
    [
        (None, 4, 20),
        (3, 4, 3),
        (20, 4, 20),
        (90, 4, 20),
        (-1, 4, 20),
        (-1, 20, 12),  # of 32
        (-1, 31, 1),
    ],
)
def test_the_last_tokens_of_a_long_prompt_are_used(kept, max_tokens, left):
    tokens = list(range(20))
    body = {"prompt": [tokens, [5]], "truncate_prompt_tokens": kept, "max_tokens": max_tokens}
    _, (long, short) = answer(body, room=32)
    assert long == tuple(tokens[-left:])
    assert short == (5,)


def test_a_chat_is_truncated_too_and_keeps_room_for_one_token():
    _, (whole,) = answer(HI, path=CHAT)
    _, (prompt,) = answer(HI | {"truncate_prompt_tokens": -1}, path=CHAT, room=len(whole))
    assert prompt == whole[1:]


@pytest.mark.parametrize("fields", [{"best_of": 2, "n": 2}, {"best_of": 1}, {"best_of": None}])
def test_best_of_is_n(fields):
    choices, _ = answer({"prompt": "zz"} | fields)
    assert len(choices) == fields.get("n", 1)
