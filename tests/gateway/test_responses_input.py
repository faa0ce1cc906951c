"""How items become messages, and what is refused."""

import json

import pytest

from baton.gateway.body import parse_body
from baton.gateway.conversation import plain_messages
from baton.gateway.faults import HttpFault
from baton.gateway.responses_input import chat_of
from baton.gateway.responses_schema import ResponsesBody

from .fake_door import FakeDoor
from .models import ids
from .rig import post
from .test_bad_input import Gateway

PATH = "/v1/responses"


def chat(**body):
    return chat_of(parse_body(ResponsesBody, json.dumps({"input": "hi"} | body).encode()))


def messages(*items: dict, **body) -> list[dict]:
    """As a template gets them."""
    return plain_messages(chat(input=list(items), **body).messages)


def said(role: str, text: str, **fields) -> dict:
    return {"role": role, "content": text} | fields


def call(name: str, number: int) -> dict:
    return {"type": "function_call", "call_id": f"c{number}", "name": name, "arguments": "{}"}


def output(number: int, text="done") -> dict:
    return {"type": "function_call_output", "call_id": f"c{number}", "output": text}


def thought(text: str) -> dict:
    content = [{"type": "reasoning_text", "text": text}]
    return {"type": "reasoning", "id": "rs_1", "summary": [], "content": content}


def called(name: str, number: int) -> dict:
    return {
        "id": f"c{number}",
        "type": "function",
        "function": {"name": name, "arguments": {}},
    }


def reasoned(text: str) -> dict:
    return dict.fromkeys(("reasoning_content", "reasoning", "thinking"), text)


def test_text_is_a_message_of_the_user():
    assert plain_messages(chat(input="a").messages) == [said("user", "a")]
    assert plain_messages(chat(input="a", instructions="b").messages) == [
        said("system", "b"),
        said("user", "a"),
    ]


def test_messages_of_all_roles_and_parts():
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    answer = [
        {"type": "output_text", "text": "c", "annotations": []},
        {"type": "refusal", "refusal": "d"},
    ]
    assert messages(
        said("developer", "x"),
        {"type": "message"} | said("user", parts),
        said("assistant", answer, id="msg_1", status="completed"),
        said("system", "y"),
    ) == [
        said("system", "x"),
        said("user", "a\nb"),
        said("assistant", "cd"),
        said("system", "y"),
    ]


def test_what_the_assistant_did_at_once_is_one_message():
    found = messages(
        said("user", "q"),
        thought("t"),
        said("assistant", "a"),
        call("f", 1),
        call("g", 2),
        output(1),
        output(2, [{"type": "input_text", "text": "x"}]),
        said("assistant", "end"),
    )
    assert found == [
        said("user", "q"),
        said("assistant", "a", tool_calls=[called("f", 1), called("g", 2)]) | reasoned("t"),
        said("tool", "done", name="f", tool_call_id="c1"),
        said("tool", "x", name="g", tool_call_id="c2"),
        said("assistant", "end"),
    ]


def test_behind_a_call_all_belongs_to_its_message():
    found = messages(said("assistant", "a"), call("f", 1), said("assistant", "b"), thought("t"))
    assert found == [said("assistant", "ab", tool_calls=[called("f", 1)]) | reasoned("t")]


def test_two_messages_of_the_assistant_stay_two():
    assert messages(said("assistant", "a"), said("assistant", "b")) == [
        said("assistant", "a"),
        said("assistant", "b"),
    ]
    assert messages(thought("t"), said("assistant", "a"), thought("u"), said("assistant", "b")) == [
        said("assistant", "a") | reasoned("t"),
        said("assistant", "b") | reasoned("u"),
    ]


def test_reasoning_may_be_a_summary_or_nothing():
    summary = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]}
    assert messages(summary, said("assistant", "a")) == [said("assistant", "a") | reasoned("s")]
    nothing = {"type": "reasoning", "summary": []}
    assert messages(nothing, said("assistant", "a")) == [said("assistant", "a")]
    assert messages(thought("t") | {"encrypted_content": "x"}, said("assistant", "a")) == [
        said("assistant", "a") | reasoned("t")
    ]


@pytest.mark.parametrize("status", [None, "completed", "incomplete", "in_progress"])
def test_an_incomplete_last_message_of_the_assistant_is_continued(status):
    last = said("assistant", "a", status=status)
    assert chat(input=[said("user", "q"), last]).continue_final_message is (
        status in ("incomplete", "in_progress")
    )
    assert not chat(input=[last, said("user", "q", status=status)]).continue_final_message


def test_more_calls_than_a_chat_takes_in_one_message():
    """The bound of a request is that of its items."""
    (message,) = messages(*(call("f", i) for i in range(600)))
    assert len(message["tool_calls"]) == 600


def test_tools_are_nested_as_in_chats():
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
    (found,) = chat(tools=[tool], tool_choice={"type": "function", "name": "f"}).tools
    function = {k: v for k, v in tool.items() if k != "type"}
    assert found.model_dump(exclude_unset=True) == {"type": "function", "function": function}


def test_include_of_what_never_occurs_has_no_influence():
    assert chat(include=["reasoning.encrypted_content", "file_search_call.results"])
    assert chat(include=None, top_logprobs=0).logprobs is False


# ---- refused ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gateway() -> Gateway:
    return Gateway()


F = {"type": "function", "name": "f"}
LAST = said("user", "x" * 200)
REFUSED = [
    ({"input": None}, "input", "input"),
    ({"input": []}, "input", "at least 1"),
    ({"input": 5}, "input", "= 5"),
    ({"input": ["x"]}, "input", "input[0]"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input", "function_call_output"),
    ({"input": [{"type": "web_search_call", "id": "x"}]}, "input", "web_search_call"),
    ({"input": [{"role": "poet", "content": "x"}]}, "input", 'input[0].role = "poet"'),
    ({"input": [{"role": "user"}]}, "input", "input[0].content is missing"),
    (
        {"input": [{"type": "function_call", "call_id": "1", "name": "f"}]},
        "input",
        "input[0].arguments is missing",
    ),
    ({"input": [call("f", 1) | {"arguments": "{"}]}, "input", "input[0].arguments"),
    ({"input": [call("f", 1) | {"arguments": "[]"}]}, "input", "not a JSON object"),
    ({"input": [output(7)]}, "input", 'input[0].call_id = "c7"'),
    ({"input": [output(1), call("f", 1)]}, "input", "before it"),
    (
        {"input": [said("user", [{"type": "input_image", "image_url": "x"}])]},
        "input",
        '"input_image"',
    ),
    ({"input": [call("f", 1), output(1, [{"type": "input_file"}])]}, "input", "input[1].output"),
    ({"input": [{"type": "reasoning", "encrypted_content": "x"}]}, "input", "encrypted_content"),
    ({"input": [LAST]}, "input", "leaves none"),
    ({"input": "\ud800"}, "input", "surrogate"),
    ({"max_output_tokens": 0}, "max_output_tokens", "1"),
    ({"max_output_tokens": 1000}, "max_output_tokens", "max_output_tokens = 1000"),
    ({"previous_response_id": "resp_1"}, "previous_response_id", "whole history"),
    ({"conversation": "conv_1"}, "conversation", "whole history"),
    ({"background": True}, "background", "no answer is kept"),
    ({"store": True}, "store", "whole history"),
    ({"prompt": {"id": "x"}}, "prompt", "instructions"),
    ({"max_tokens": 5}, "max_tokens", "max_output_tokens"),
    ({"max_completion_tokens": 5}, "max_completion_tokens", "max_output_tokens"),
    ({"messages": []}, "messages", "input"),
    ({"response_format": {"type": "text"}}, "response_format", "text.format"),
    ({"n": 2}, "n", "one answer"),
    ({"regex": "a"}, "regex", "structured_outputs"),
    ({"structured_outputs": {"regex": "(("}}, "structured_outputs", "regular"),
    ({"allowed_token_ids": [300]}, "allowed_token_ids", "299"),
    ({"truncation": "middle"}, "truncation", "'disabled'"),
    ({"tools": [{"type": "web_search"}]}, "tools", '"web_search"'),
    ({"tools": [{"type": "function"}]}, "tools", "tools[0].name is missing"),
    ({"tools": [F | {"name": "a b"}]}, "tools", '"a b"'),
    ({"tools": [F]}, "tools", "--tool-call-parser"),
    ({"tool_choice": "required"}, "tool_choice", "needs tools"),
    ({"tool_choice": F}, "tool_choice", "needs tools"),
    ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice", '"allowed_tools"'),
    ({"text": {"format": {"type": "yaml"}}}, "text", '"yaml"'),
    ({"text": {"format": {"type": "json_schema"}}}, "text.format", "schema is missing"),
    (
        {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"not": {}}}}},
        "text.format",
        "not",
    ),
    ({"text": {"verbosity": "low"}}, "text", "'medium'"),
    ({"reasoning": {"effort": "very"}}, "reasoning", '"very"'),
    ({"include": ["everything"]}, "include", "everything"),
    ({"top_logprobs": 2}, "top_logprobs", "message.output_text.logprobs"),
    (
        {"include": ["message.output_text.logprobs"], "top_logprobs": 21},
        "top_logprobs",
        "at most 20",
    ),
    ({"stream_options": {"include_obfuscation": False}}, "stream_options", "stream = true"),
    (
        {"stream": True, "stream_options": {"include_obfuscation": True}},
        "stream_options",
        "include_obfuscation",
    ),
    ({"metadata": {"a": 5}}, "metadata", "5"),
    ({"metadata": {str(i): "" for i in range(17)}}, "metadata", "16"),
    ({"metadata": {"a": "x" * 513}}, "metadata", "512"),
    ({"service_tier": "gold"}, "service_tier", '"gold"'),
    ({"temperature": -1}, "temperature", "0"),
    ({"top_p": 2}, "top_p", "1"),
    ({"seed": 1 << 64}, "seed", "less"),
    ({"guided_json": {}}, "guided_json", "not supported"),
    ({"functions": [{}]}, "functions", "not supported"),
    ({"chat_template_kwargs": {"tools": 1}}, "chat_template_kwargs", "tools"),
]


@pytest.mark.parametrize(("body", "param", "part"), REFUSED)
def test_refused_naming_the_field(gateway, body, param, part):
    raw = json.dumps({"input": "hi"} | body).encode()
    status, error = gateway.refused(PATH, raw)
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert part in error["message"]
    assert "messages" not in error["message"] or param != "input" or "prompt" in error["message"]


def test_neutral_values_of_refused_fields_are_accepted():
    neutral = {
        "background": False,
        "conversation": None,
        "n": 1,
        "previous_response_id": None,
        "store": False,
        "context_management": [],
    }
    assert chat(**neutral)
    with pytest.raises(HttpFault, match="n = true"):
        chat(n=True)


def test_unknown_models_are_not_found():
    door = FakeDoor()
    assert post(door, PATH, {"input": "hi", "model": "gpt-9"}).status_code == 404
    assert ids("hi")
