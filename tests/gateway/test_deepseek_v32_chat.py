"""The chat format of DeepSeek-V3.2. Expected texts are written by hand from the published format
(encoding/encoding_dsv32.py); PREAMBLE's digest is that of the published text."""

import json
from hashlib import sha256

import pytest

from baton.gateway.deepseek_v32_chat import PREAMBLE, DeepseekV32Chat
from baton.gateway.template import TemplateRefused

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
SYSTEM = {"role": "system", "content": "Be brief."}
HI = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"é": {}}}}
TOOLS = f'\n\n{PREAMBLE}{{"name": "add", "parameters": {{"é": {{}}}}}}\n</functions>\n'


def render(*messages, **settings):
    return DeepseekV32Chat().render(messages, **settings)


def said(content, **more):
    return {"role": "assistant", "content": content} | more


def call(name, arguments):
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}


def result(content):
    return {"role": "tool", "tool_call_id": "1", "content": content}


def test_the_text_about_tools_is_the_published_one():
    assert PREAMBLE.startswith("## Tools\n\nYou have access")
    assert sha256(PREAMBLE.encode()).hexdigest() == (
        "963a72ee9be43f07d21bec2348ed2d7e45185e4b502f2a4da35a540299dc2b03"
    )


@pytest.mark.parametrize("settings", [{}, {"thinking": False}, {"enable_thinking": False}])
def test_without_thinking_an_answer_begins_after_the_thought(settings):
    assert render(SYSTEM, HI, **settings) == (f"{BOS}Be brief.<｜User｜>hi<｜Assistant｜></think>")


@pytest.mark.parametrize("name", ["thinking", "enable_thinking"])
def test_with_thinking_the_last_answer_begins_with_a_thought(name):
    first = said("ho", reasoning_content="greet")
    assert render(HI, first, HI, **{name: True}) == (
        f"{BOS}<｜User｜>hi<｜Assistant｜></think>ho{EOS}<｜User｜>hi<｜Assistant｜><think>"
    )


def test_a_developer_message_is_a_question_too():
    messages = HI, said("ho", reasoning="greet"), {"role": "developer", "content": "d"}
    assert render(*messages, thinking=True) == (
        f"{BOS}<｜User｜>hi<｜Assistant｜></think>ho{EOS}"
        "<｜User｜>\n\n# The user's message is: d<｜Assistant｜><think>"
    )


def test_whether_to_think_is_a_boolean():
    with pytest.raises(TemplateRefused, match="thinking"):
        render(HI, thinking="false")


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_what_was_thought_since_the_last_question_is_shown(field):
    calling = said(None, tool_calls=[call("add", '{"a": 1, "b": "x"}')], **{field: "sum"})
    assert render(HI, calling, result("2"), thinking=True) == (
        f"{BOS}<｜User｜>hi<｜Assistant｜><think>sum</think>\n\n"
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="add">\n'
        '<｜DSML｜parameter name="a" string="false">1</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="b" string="true">x</｜DSML｜parameter>\n'
        f"</｜DSML｜invoke>\n</｜DSML｜function_calls>{EOS}"
        "\n\n<function_results>\n<result>2</result>\n</function_results>\n\n<think>"
    )


def test_without_thinking_no_thought_is_shown_and_none_begins_after_results():
    calling = said("ok", reasoning="sum", tool_calls=[call("add", {"é": [1, "ü"]})])
    assert render(HI, calling, result("2")) == (
        f"{BOS}<｜User｜>hi<｜Assistant｜></think>ok\n\n"
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="add">\n'
        '<｜DSML｜parameter name="é" string="false">[1, "ü"]</｜DSML｜parameter>\n'
        f"</｜DSML｜invoke>\n</｜DSML｜function_calls>{EOS}"
        "\n\n<function_results>\n<result>2</result>\n</function_results>\n\n</think>"
    )


def test_results_of_several_calls_are_one_block():
    calling = said("", tool_calls=[call("add", "{}"), call("add", "{}")])
    text = render(HI, calling, result("2"), result("3"), HI)
    empty = '<｜DSML｜invoke name="add">\n\n</｜DSML｜invoke>\n'
    assert text == (
        f"{BOS}<｜User｜>hi<｜Assistant｜></think>\n\n<｜DSML｜function_calls>\n{empty}{empty}"
        f"</｜DSML｜function_calls>{EOS}\n\n<function_results>\n<result>2</result>\n"
        "<result>3</result>\n</function_results>\n\n</think><｜User｜>hi<｜Assistant｜></think>"
    )


@pytest.mark.parametrize(
    ("messages", "before"),
    [
        ((SYSTEM, HI), f"Be brief.{TOOLS}<｜User｜>hi"),
        ((HI,), f"{TOOLS}<｜User｜>hi"),
        (
            ({"role": "developer", "content": "hi"},),
            f"<｜User｜>{TOOLS}\n\n# The user's message is: hi",
        ),
    ],
)
def test_tools_belong_to_the_first_message_of_the_system_or_come_before_all(messages, before):
    assert render(*messages, tools=[TOOL]) == f"{BOS}{before}<｜Assistant｜></think>"


def test_tools_of_the_request_replace_those_of_a_message():
    text = render({**SYSTEM, "tools": [TOOL, TOOL]}, HI, tools=[TOOL])
    assert text == f"{BOS}Be brief.{TOOLS}<｜User｜>hi<｜Assistant｜></think>"


def test_a_message_may_ask_for_a_schema():
    wanted = {"role": "system", "content": "", "tools": [TOOL], "response_format": {"type": "é"}}
    assert render(wanted, HI).startswith(
        f"{BOS}{TOOLS}\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema "
        'to reply:\n{"type": "é"}<｜User｜>'
    )


@pytest.mark.parametrize(
    ("messages", "end"),
    [
        ((HI,), "<｜User｜>hi"),
        (({"role": "user", "content": "a\n\n"},), "<｜User｜>a\n\n"),
        (
            (said("", tool_calls=[call("add", "{}")]), result("2")),
            "<result>2</result>\n</function_results>",
        ),
        ((HI, said("ho")), f"ho{EOS}"),
    ],
)
def test_the_beginning_of_the_answer_can_be_left_out(messages, end):
    assert render(*messages, add_generation_prompt=False).endswith(end)


def test_an_answer_can_be_continued():
    assert render(HI, said("ho"), continue_final_message=True) == (
        f"{BOS}<｜User｜>hi<｜Assistant｜></think>ho"
    )
    with pytest.raises(TemplateRefused, match="last message"):
        render(HI, continue_final_message=True)


REFUSED = {
    "a role that the format has not": (({"role": "cat", "content": ""},), "'cat'"),
    "an empty developer message": (({"role": "developer", "content": ""},), r"messages\[0\]"),
    "a list as content": (({"role": "user", "content": []},), r"messages\[0\].content"),
    "a result of nothing": ((HI, result("1")), "0 tool_calls"),
    "a result too many": (
        (said("", tool_calls=[call("f", "{}")]), result("1"), result("2")),
        "result 2 of tools",
    ),
    "a result too few": (
        (said("", tool_calls=[call("f", "{}")] * 2), result("1"), HI),
        "only 1 results",
    ),
    "no result at the end": (
        (said("", tool_calls=[call("f", "{}")] * 2), result("1")),
        "only 1 results",
    ),
    "arguments that are no JSON": ((said("", tool_calls=[call("f", "{")]),), "not JSON"),
    "arguments that are no object": ((said("", tool_calls=[call("f", "[]")]),), "not a JSON obj"),
    "a call of nothing": ((said("", tool_calls=[{}]),), "no function"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_place_in_the_format_is_refused(case):
    messages, words = REFUSED[case]
    with pytest.raises(TemplateRefused, match=words):
        render(*messages)


def test_with_thinking_an_answer_without_a_thought_is_refused():
    with pytest.raises(TemplateRefused, match="reasoning_content or tool_calls"):
        render(HI, said("ho"), thinking=True)


def test_messages_are_left_as_they_are():
    messages = [SYSTEM, HI]
    before = json.dumps(messages)
    render(*messages, tools=[TOOL])
    assert json.dumps(messages) == before
