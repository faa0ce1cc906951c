"""Anthropic's Messages API over HTTP, as Anthropic's own client reads it."""

import asyncio
import itertools
import json

import pydantic
import pytest

from baton.core.messages import FinishReason
from baton.gateway.tokenizer import Tokenizer

from .messages_client import (
    ANSWER,
    ASKED,
    HI,
    MESSAGES,
    NOW,
    TOOLS,
    VOCABULARY,
    ScriptedModel,
    accumulated,
    asked,
    client,
    ids,
    writing,
)
from .rig import make_app, post
from .templates import talker


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    return talker(tmp_path_factory.mktemp("talker"))


def test_an_answer_with_calls_and_thinking_whole(tokenizer):
    door = writing(ANSWER)
    door.cached = [4]
    answer = asked(door, tokenizer, tools=TOOLS)
    thinking, text, *calls = answer.content
    assert (thinking.type, thinking.thinking, thinking.signature) == ("thinking", "Ah, é", "")
    assert (text.type, text.text) == ("text", "I look.")
    assert [(c.type, c.name, c.input) for c in calls] == [
        ("tool_use", "get_weather", {"city": "Genève", "days": 3}),
        ("tool_use", "now", {}),
    ]
    assert len({c.id for c in calls}) == 2
    assert all(c.id.startswith("toolu_") for c in calls)
    assert answer.id.startswith("msg_")
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", "tiny")
    assert (answer.stop_reason, answer.stop_sequence) == ("tool_use", None)
    (submit,) = door.submitted
    usage = answer.usage
    assert usage.input_tokens == len(submit.prompt) - 4
    assert (usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (4, 0)
    assert usage.output_tokens == len(ids(ANSWER)) + 1


@pytest.mark.parametrize("each", [1, 3, 1000])
def test_the_clients_accumulator_makes_the_same_of_a_stream(tokenizer, each):
    def comparable(message) -> dict:
        found = message.to_dict() | {"id": ""}
        for block in found["content"]:
            block.pop("id", None)
            block.pop("parsed_output", None)
        found.pop("stop_details", None)
        return found

    whole = asked(writing(ANSWER), tokenizer, tools=TOOLS)
    streamed = accumulated(writing(ANSWER, each=each), tokenizer, tools=TOOLS)
    assert comparable(streamed) == comparable(whole)


def test_the_events_of_a_stream(tokenizer):
    door = writing("<think>Ah</think>ho" + NOW, each=1000)
    door.cached = [4]
    found = asked(door, tokenizer, tools=TOOLS, stream=True)
    assert [e.type for e in found] == [
        "message_start",
        *("content_block_start", "content_block_delta", "content_block_delta"),
        "content_block_stop",
        *("content_block_start", "content_block_delta", "content_block_stop") * 2,
        "message_delta",
        "message_stop",
    ]
    head = found[0].message
    assert (head.content, head.stop_reason, head.role) == ([], None, "assistant")
    assert head.usage.input_tokens == len(door.submitted[0].prompt) - 4
    assert [e.delta.type for e in found if e.type == "content_block_delta"] == [
        "thinking_delta",
        "signature_delta",
        "text_delta",
        "input_json_delta",
    ]
    begun = [e.content_block for e in found if e.type == "content_block_start"]
    assert [b.type for b in begun] == ["thinking", "text", "tool_use"]
    assert (begun[0].thinking, begun[1].text, begun[2].input) == ("", "", {})
    assert [e.index for e in found if e.type == "content_block_stop"] == [0, 1, 2]
    end = found[-2]
    assert (end.delta.stop_reason, end.delta.stop_sequence) == ("tool_use", None)
    assert end.usage.output_tokens == len(ids("<think>Ah</think>ho" + NOW)) + 1
    assert (end.usage.input_tokens, end.usage.cache_read_input_tokens) == (
        head.usage.input_tokens,
        4,
    )


def test_each_event_has_its_name_and_nothing_follows_the_last_one(tokenizer):
    response = post(writing("ho"), MESSAGES, ASKED | {"stream": True}, tokenizer=tokenizer)
    assert response.headers["content-type"].startswith("text/event-stream")
    *found, rest = response.text.split("\n\n")
    assert rest == ""
    for event in found:
        name, data = event.split("\n")
        assert name == "event: " + json.loads(data.removeprefix("data: "))["type"]
    assert json.loads(found[-1].split("data: ")[1]) == {"type": "message_stop"}


def test_a_request_says_that_thinking_is_not_shown(tokenizer):
    thinking = {"type": "adaptive", "display": "omitted"}
    answer = asked(writing("<think>a</think>b"), tokenizer, thinking=thinking)
    assert [b.to_dict() for b in answer.content] == [{"type": "text", "text": "b"}]


# ---- why an answer ends -------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "how", "asks", "reason", "sequence"),
    [
        ("ho", FinishReason.STOP, {}, "end_turn", None),
        ("ho", FinishReason.LENGTH, {}, "max_tokens", None),
        (NOW, FinishReason.LENGTH, {}, "max_tokens", None),
        (NOW, FinishReason.STOP, {}, "tool_use", None),
        (NOW, FinishReason.STOP, {"tool_choice": {"type": "auto"}}, "tool_use", None),
        ("ho END", FinishReason.STOP, {"stop_sequences": ["X", "END"]}, "stop_sequence", "END"),
        (NOW + "END", FinishReason.STOP, {"stop_sequences": ["END"]}, "tool_use", None),
    ],
)
def test_why_it_ends(tokenizer, stream, text, how, asks, reason, sequence):
    ask = accumulated if stream else asked
    found = ask(writing(text, reason=how), tokenizer, tools=TOOLS, **asks)
    assert (found.stop_reason, found.stop_sequence) == (reason, sequence)


def test_one_named_tool_ends_with_tool_use(tokenizer):
    """A chat says `stop` there."""
    found = asked(writing(NOW), tokenizer, tools=TOOLS, tool_choice={"type": "tool", "name": "now"})
    assert found.stop_reason == "tool_use"


# ---- an agent -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_of_three_turns_with_two_tools(tokenizer, stream):
    door = ScriptedModel(
        ANSWER,
        '<think>\nRain.\n</think>\n\n<tool_call>\n{"name": "get_weather", "arguments": '
        '{"city": "Bern"}}\n</tool_call>',
        "Take an umbrella.",
    )
    work = {"get_weather": lambda city, days=1: f"rain in {city}", "now": lambda: "noon"}
    messages: list[dict] = [HI]

    async def go():
        async with client(make_app(door, tokenizer=tokenizer)) as http:
            while True:
                asks = ASKED | {"messages": messages, "tools": TOOLS, "system": "Help."}
                if stream:
                    async with http.messages.stream(**asks) as events:
                        answer = await events.get_final_message()
                else:
                    answer = await http.messages.create(**asks)
                messages.append({"role": "assistant", "content": answer.content})
                if answer.stop_reason != "tool_use":
                    return answer
                results = [
                    {
                        "type": "tool_result",
                        "tool_use_id": block.id,
                        "content": work[block.name](**block.input),
                    }
                    for block in answer.content
                    if block.type == "tool_use"
                ]
                messages.append({"role": "user", "content": results})

    answer = asyncio.run(go())
    assert [b.text for b in answer.content] == ["Take an umbrella."]
    assert answer.stop_reason == "end_turn"
    prompts = [VOCABULARY.decode(list(s.prompt)) for s in door.submitted]
    assert len(prompts) == 3
    assert all(b.startswith(a) for a, b in itertools.pairwise(prompts)), "prefixes are served again"
    last = prompts[-1]
    for said in ("Help.", "I look.", '"city": "Genève"', "rain in Genève", "noon", "rain in Bern"):
        assert said in last


def test_the_clients_parser_gives_the_schema_and_reads_the_answer(tokenizer):
    class Weather(pydantic.BaseModel):
        city: str

    door = writing('{"city": "Bern"}')

    async def go():
        async with client(make_app(door, tokenizer=tokenizer)) as http:
            return await http.messages.parse(**ASKED, output_format=Weather)

    answer = asyncio.run(go())
    assert answer.parsed_output == Weather(city="Bern")
    (submit,) = door.submitted
    assert "city" in submit.grammar.text


def test_the_client_counts_tokens(tokenizer):
    async def go():
        async with client(make_app(writing(""), tokenizer=tokenizer)) as http:
            return await http.messages.count_tokens(model="tiny", messages=[HI], tools=TOOLS)

    prompt = asyncio.run(go()).input_tokens
    door = writing("")
    asked(door, tokenizer, tools=TOOLS)
    assert prompt == len(door.submitted[0].prompt)


def test_versions_and_betas_are_ignored(tokenizer):
    headers = {"anthropic-version": "1999-01-01", "anthropic-beta": "x,y"}
    answer = asked(writing("ho"), tokenizer, extra_headers=headers, extra_query={"beta": "true"})
    assert answer.content[0].text == "ho"
