"""Chats with tools and reasoning as prompts: equal to those of transformers."""

import asyncio
import json

import pytest
from transformers import PreTrainedTokenizerFast

from baton.gateway.faults import HttpFault
from baton.gateway.prompts import ChatPrompt, Prompter
from baton.gateway.schema import ChatBody

from .templates import BRACKETS, CHATML, HEADERS, talker, vocabulary_with_marks
from .written_answers import TOOLS

HI = {"role": "user", "content": "Weather in <Genève>?"}
ARGUMENTS = '{"city": "Genève", "days": 3}'


def call(id: str, arguments: object, name: str = "get_weather") -> dict:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def turns(arguments: object, content: object) -> list[dict]:
    """The same chat as a client writes it, and as transformers takes it."""
    return [
        {"role": "system", "content": "Be brief."},
        HI,
        {
            "role": "assistant",
            "content": content,
            "reasoning_content": "I look.",
            "tool_calls": [call("abcdefghi", arguments)],
        },
        {"role": "tool", "tool_call_id": "abcdefghi", "content": '{"degrees": 21}'},
        HI,
    ]


def prompt_of(tmp_path, template: str, *, tools=None, **body) -> ChatPrompt:
    prompter = Prompter(talker(tmp_path, template), inline_chars=10_000, max_prompts=1)
    parsed = ChatBody.model_validate_json(json.dumps(body))
    return asyncio.run(prompter.chat(parsed.messages, parsed, tools=tools, parsed=True))


def theirs(template: str, messages: list[dict], **arguments) -> list[int]:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=vocabulary_with_marks(),
        chat_template=template,
        bos_token="<s>",
        eos_token="<|im_end|>",
    )
    arguments = {"add_generation_prompt": True} | arguments
    return tokenizer.apply_chat_template(messages, return_dict=False, **arguments)


@pytest.mark.parametrize("template", [CHATML, HEADERS, BRACKETS], ids=["chatml", "headers", "[]"])
@pytest.mark.parametrize("tools", [TOOLS, None], ids=["tools", "no tools"])
def test_prompts_with_tools_equal_those_of_transformers(tmp_path, template, tools):
    ours = prompt_of(tmp_path, template, messages=turns(ARGUMENTS, None), tools=tools)
    plain = turns(json.loads(ARGUMENTS), "")
    assert list(ours.tokens) == theirs(template, plain, tools=tools)
    assert "Genève" in ours.text


def test_further_variables_reach_the_template(tmp_path):
    for body, begun in (
        ({}, "<|im_start|>assistant\n"),
        ({"reasoning_effort": "none"}, "<|im_start|>assistant\n<think>\n\n</think>\n\n"),
        ({"reasoning_effort": "low"}, "<|im_start|>assistant\n"),
        (
            {"chat_template_kwargs": {"enable_thinking": False}},
            "<|im_start|>assistant\n<think>\n\n</think>\n\n",
        ),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
            "<|im_start|>assistant\n",
        ),
    ):
        prompt = prompt_of(tmp_path, CHATML, messages=[HI], **body)
        assert prompt.begun == begun
        kwargs = body.get("chat_template_kwargs", {})
        if "reasoning_effort" not in body:
            assert list(prompt.tokens) == theirs(CHATML, [HI], **kwargs)
    shown = prompt_of(tmp_path, "{{ reasoning_effort }}", messages=[HI], reasoning_effort="low")
    assert shown.text == "low"


@pytest.mark.parametrize("template", [CHATML, HEADERS, BRACKETS], ids=["chatml", "headers", "[]"])
@pytest.mark.parametrize("content", ["It is", "It is ", "It is  \n"])
def test_the_last_message_is_continued_as_transformers_does(tmp_path, template, content):
    messages = [HI, {"role": "assistant", "content": content}]
    prompt = prompt_of(tmp_path, template, messages=messages, continue_final_message=True)
    expected = theirs(template, messages, add_generation_prompt=False, continue_final_message=True)
    assert list(prompt.tokens) == expected
    assert prompt.begun == content


def test_a_prompt_without_the_beginning_of_an_answer(tmp_path):
    prompt = prompt_of(tmp_path, CHATML, messages=[HI], add_generation_prompt=False)
    assert list(prompt.tokens) == theirs(CHATML, [HI], add_generation_prompt=False)
    assert prompt.begun == ""


def test_a_template_that_drops_the_message_cannot_continue_it(tmp_path):
    messages = [HI, {"role": "assistant", "content": "It"}]
    with pytest.raises(HttpFault, match="leaves out"):
        prompt_of(
            tmp_path, "{{ messages[0].content }}", messages=messages, continue_final_message=True
        )


def test_arguments_without_text_are_an_empty_object(tmp_path):
    messages = [HI, {"role": "assistant", "tool_calls": [call("1", "", "now")]}]
    assert '"arguments": {}}' in prompt_of(tmp_path, CHATML, messages=messages).text


def test_reasoning_is_passed_on_under_every_name(tmp_path):
    template = "{{ messages[0].thinking }}{{ messages[0].reasoning }}"
    for field in ("reasoning", "reasoning_content"):
        message = {"role": "assistant", "content": "x", field: "Ah"}
        assert prompt_of(tmp_path, template, messages=[message]).text == "AhAh"
