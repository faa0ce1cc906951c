"""Tool calls and reasoning over HTTP, as OpenAI's client reads them."""

import asyncio
import json
from pathlib import Path

import httpx
import openai
import pytest
import uvloop

from baton.core.errors import ConfigError
from baton.core.messages import FinishReason
from baton.gateway.door import Capacity
from baton.gateway.tokenizer import Tokenizer

from .fake_door import FakeDoor
from .rig import events, make_app, post, served
from .templates import CHATML, talker, vocabulary_with_marks
from .written_answers import TOOLS

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
ANSWER = (
    '<think>\nAh, é\n</think>\n\nI look.\n<tool_call>\n{"name": "get_weather", "arguments": '
    '{"city": "Genève", "days": 3}}\n</tool_call>\n<tool_call>\n{"name": "now", "arguments": {}}\n'
    "</tool_call>"
)
ARGUMENTS = ['{"city": "Genève", "days": 3}', "{}"]
VOCABULARY = vocabulary_with_marks()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    return talker(tmp_path_factory.mktemp("talker"))


def ids(text: str) -> list[int]:
    return VOCABULARY.encode(text, add_special_tokens=False).ids


def writing(*texts: str, each: int = 1, reason: FinishReason = FinishReason.STOP) -> FakeDoor:
    """A door that writes these texts, so many tokens at a time; <|im_end|> is the end token."""
    door = FakeDoor()
    door.limits = Capacity(max_model_len=2048, pool_tokens=4096)
    tokens = ids("".join(texts) + "<|im_end|>")
    door.script = [tokens[i : i + each] for i in range(0, len(tokens), each)] + [reason]
    return door


def asked(door: FakeDoor, tokenizer: Tokenizer, settings: dict | None = None, **body):
    """One answer, read by the client of OpenAI, in memory."""

    async def go():
        app = make_app(door, tokenizer=tokenizer, **(settings or {}))
        web = httpx.AsyncClient(transport=httpx.ASGITransport(app))
        async with openai.AsyncOpenAI(
            base_url="http://gateway/v1", api_key="none", max_retries=0, http_client=web
        ) as http:
            answer = await http.chat.completions.create(model="tiny", messages=HI, **body)
            return [chunk async for chunk in answer] if body.get("stream") else answer

    return asyncio.run(go())


def joined(chunks: list) -> dict:
    """What a client makes of the chunks of one choice."""
    found = {"content": "", "reasoning": "", "reasoning_content": "", "calls": {}, "reason": None}
    for chunk in chunks:
        for choice in chunk.choices:
            found["reason"] = choice.finish_reason or found["reason"]
            delta = choice.delta.model_dump()
            for field in ("content", "reasoning", "reasoning_content"):
                found[field] += delta.get(field) or ""
            for call in delta["tool_calls"] or ():
                if call["index"] not in found["calls"]:
                    assert call["id"]
                    assert call["type"] == "function"
                    assert call["function"]["arguments"] == "", "the name comes first"
                    found["calls"][call["index"]] = call
                else:
                    assert call["id"] is call["type"] is call["function"]["name"] is None
                    known = found["calls"][call["index"]]
                    known["function"]["arguments"] += call["function"]["arguments"]
    return found


def test_an_answer_with_calls_and_reasoning_whole(tokenizer):
    door = writing(ANSWER)
    answer = asked(door, tokenizer, tools=TOOLS)
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I look."
    assert choice.message.reasoning == choice.message.reasoning_content == "Ah, é"
    calls = choice.message.tool_calls
    assert [c.function.name for c in calls] == ["get_weather", "now"]
    assert [c.function.arguments for c in calls] == ARGUMENTS
    assert all(c.type == "function" and c.id.startswith("call_") for c in calls)
    assert len({c.id for c in calls}) == 2
    assert answer.usage.completion_tokens == len(ids(ANSWER)) + 1
    (submit,) = door.submitted
    assert "get_weather" in tokenizer.decode(submit.prompt), "the template was given the tools"


@pytest.mark.parametrize("each", [1, 3, 1000])
def test_the_same_answer_streamed(tokenizer, each):
    chunks = asked(writing(ANSWER, each=each), tokenizer, tools=TOOLS, stream=True)
    found = joined(chunks)
    order = [d.index for c in chunks for d in c.choices[0].delta.tool_calls or ()]
    assert (order == sorted(order), set(order)) == (True, {0, 1}), "one call after the other"
    assert len(order) == sum(len(a) for a in ARGUMENTS) + 2 if each == 1 else len(order) > 3
    assert (found["content"], found["reason"]) == ("I look.", "tool_calls")
    assert found["reasoning"] == found["reasoning_content"] == "Ah, é"
    assert [c["function"]["arguments"] for c in found["calls"].values()] == ARGUMENTS
    assert [c["function"]["name"] for c in found["calls"].values()] == ["get_weather", "now"]


def test_reasoning_is_streamed_as_it_is_written(tokenizer):
    chunks = asked(writing(ANSWER), tokenizer, stream=True)
    pieces = [c.choices[0].delta.model_dump().get("reasoning") for c in chunks if c.choices]
    assert [p for p in pieces if p] == ["A", "h", ",", " ", "é"]


def test_the_clients_own_accumulator_reads_the_stream(tokenizer):
    async def go():
        async with (
            served(writing(ANSWER), tokenizer=tokenizer) as (url, *_),
            openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as http,
            http.chat.completions.stream(model="tiny", messages=HI, tools=TOOLS) as stream,
        ):
            return await stream.get_final_completion()

    (choice,) = uvloop.run(asyncio.wait_for(go(), 30)).choices
    assert [c.function.arguments for c in choice.message.tool_calls] == ARGUMENTS
    assert choice.finish_reason == "tool_calls"


def test_content_is_null_where_there_is_none(tokenizer):
    text = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    (choice,) = asked(writing(text), tokenizer, tools=TOOLS).choices
    assert choice.message.content is None
    assert "reasoning" not in choice.message.model_dump()
    (choice,) = asked(writing(""), tokenizer, tools=TOOLS).choices
    assert (choice.message.content, choice.finish_reason) == ("", "stop")
    assert choice.message.tool_calls is None


def test_a_malformed_call_is_content(tokenizer):
    text = "<tool_call>{</tool_call>"
    (choice,) = asked(writing(text), tokenizer, tools=TOOLS).choices
    assert (choice.message.content, choice.finish_reason) == (text, "stop")
    found = joined(asked(writing(text), tokenizer, tools=TOOLS, stream=True))
    assert (found["content"], found["reason"], found["calls"]) == (text, "stop", {})


def test_an_answer_cut_by_its_limit_ends_with_length(tokenizer):
    door = writing('<tool_call>{"name": "now", "arg', reason=FinishReason.LENGTH)
    (choice,) = asked(door, tokenizer, tools=TOOLS).choices
    assert choice.finish_reason == "length"
    assert choice.message.content == '<tool_call>{"name": "now", "arg'


def test_with_the_choice_none_calls_are_not_looked_for(tokenizer):
    """The prompt shows the tools nevertheless, as vLLM's does, unless a flag says otherwise."""
    text = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    for exclude in (False, True):
        door = writing(text)
        settings = {"exclude_tools_when_tool_choice_none": exclude}
        answer = asked(door, tokenizer, settings, tools=TOOLS, tool_choice="none")
        assert answer.choices[0].message.tool_calls is None
        assert answer.choices[0].finish_reason == "stop"
        assert ("get_weather" in tokenizer.decode(door.submitted[0].prompt)) is not exclude


def test_one_call_where_parallel_calls_are_not_wanted(tokenizer):
    for stream in (False, True):
        found = asked(
            writing(ANSWER), tokenizer, tools=TOOLS, parallel_tool_calls=False, stream=stream
        )
        if stream:
            assert len(joined(found)["calls"]) == 1
        else:
            assert len(found.choices[0].message.tool_calls) == 1


def test_each_of_several_choices_is_read_for_itself(tokenizer):
    answer = asked(writing(ANSWER), tokenizer, tools=TOOLS, n=3)
    assert [c.message.content for c in answer.choices] == ["I look."] * 3
    calls = [call for c in answer.choices for call in c.message.tool_calls]
    assert len({c.id for c in calls}) == len(calls) == 6


def test_logprobs_and_usage_count_every_token(tokenizer):
    count = len(ids(ANSWER)) + 1
    answer = asked(writing(ANSWER), tokenizer, tools=TOOLS, logprobs=True, top_logprobs=1)
    assert len(answer.choices[0].logprobs.content) == count
    chunks = asked(
        writing(ANSWER, each=5),
        tokenizer,
        tools=TOOLS,
        logprobs=True,
        stream=True,
        stream_options={"include_usage": True},
    )
    scored = [c.choices[0].logprobs for c in chunks if c.choices]
    assert sum(len(s.content) for s in scored if s) == count
    assert chunks[-1].usage.completion_tokens == count
    assert joined(chunks)["reason"] == "tool_calls"


def test_a_stop_string_after_a_call_leaves_the_call(tokenizer):
    """The mark that closes a call is a stop string of many clients."""
    for stop in ("</tool_call>\n<", '\n<tool_call>\n{"name": "now'):
        (choice,) = asked(writing(ANSWER), tokenizer, tools=TOOLS, stop=[stop]).choices
        assert choice.finish_reason == "tool_calls"
        assert choice.stop_reason == stop
        assert [c.function.name for c in choice.message.tool_calls] == ["get_weather"]


def test_reasoning_can_be_left_out(tokenizer):
    body = {"extra_body": {"include_reasoning": False}}
    (choice,) = asked(writing(ANSWER), tokenizer, **body).choices
    assert "Ah" not in choice.model_dump_json()
    assert choice.message.content.startswith("I look.")
    text = b"".join(
        c.model_dump_json().encode() for c in asked(writing(ANSWER), tokenizer, stream=True, **body)
    )
    assert b"Ah" not in text


def test_special_tokens_that_the_format_does_not_name_stay_out(tokenizer):
    (choice,) = asked(writing("a<pad>b<think>c<pad></think>d"), tokenizer).choices
    assert (choice.message.content, choice.message.reasoning) == ("abd", "c")


def test_without_parsers_everything_is_content(tokenizer):
    """The special tokens have no text, as ever."""
    settings = {"tool_call_parser": "none", "reasoning_parser": "none"}
    (choice,) = asked(writing("<think>a</think>b"), tokenizer, settings).choices
    assert choice.message.content == "ab"
    response = post(
        FakeDoor(), CHAT, {"messages": HI, "tools": TOOLS}, tokenizer=tokenizer, **settings
    )
    assert response.status_code == 400
    assert "--tool-call-parser" in response.json()["error"]["message"]


def test_answers_without_anything_to_parse_take_the_fast_way(tokenizer):
    """A chunk with nothing to show is left out; plain chats are encoded as they were."""
    plain = {"tool_call_parser": "auto", "reasoning_parser": "none"}
    response = post(
        writing("hi"), CHAT, {"messages": HI, "stream": True}, tokenizer=tokenizer, **plain
    )
    deltas = [e["choices"][0]["delta"] for e in events(response)[:-1]]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "h"}, {"content": "i"}, {}]


def test_a_parser_that_does_not_exist_is_the_operators_error(tokenizer):
    for flag in ("tool_call_parser", "reasoning_parser"):
        with pytest.raises(ConfigError, match=r"hermez.*(hermes|qwen3)"):
            make_app(FakeDoor(), tokenizer=tokenizer, **{flag: "hermez"})


def test_a_response_template_of_the_models_files_comes_first(tmp_path: Path):
    own = {
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "tool_calls": {
                "open": "<tool_call>",
                "close": "</tool_call>",
                "content": "json",
                "repeats": True,
                "transform": {"function": "{content}"},
            },
            "content": {"content": "text"},
        },
    }
    mine = talker(tmp_path, CHATML.replace("<tool_call>", "<call>"), response_template=own)
    text = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    (choice,) = asked(writing(text), mine, tools=TOOLS).choices
    assert json.loads(choice.message.tool_calls[0].function.arguments) == {}
    own["fields"]["content"] = {"content": "unheard of"}
    with pytest.raises(ConfigError, match="response_template"):
        make_app(FakeDoor(), tokenizer=talker(tmp_path, response_template=own))


def test_tokenize_counts_the_tools_of_a_chat(tokenizer):
    door = writing("")
    body = {"messages": HI, "tools": TOOLS}
    counted = post(door, "/tokenize", body, tokenizer=tokenizer).json()
    assert post(door, CHAT, body, tokenizer=tokenizer).status_code == 200
    assert counted["tokens"] == list(door.submitted[0].prompt)
