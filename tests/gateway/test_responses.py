"""/v1/responses, whole and streamed, as OpenAI's client reads it."""

import asyncio
import json
from itertools import count, groupby

import httpx
import msgspec
import openai
import pytest
import uvloop
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from baton.core.messages import FailCode, FinishReason
from baton.gateway.responses_answer import OutputCall, OutputMessage, OutputReasoning
from baton.gateway.responses_output import Output
from baton.gateway.stream import TextDelta
from baton.gateway.tokenizer import Tokenizer
from baton.gateway.tool_calls import ToolCall

from .fake_door import FakeDoor
from .rig import make_app, post, request, served
from .templates import talker
from .test_tool_calls import ANSWER, ARGUMENTS, ids, writing

PATH = "/v1/responses"
TOOLS = [
    {
        "type": "function",
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
    {"type": "function", "name": "now", "parameters": None},
]
CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
EVENTS = TypeAdapter(ResponseStreamEvent)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    return talker(tmp_path_factory.mktemp("talker"))


def asked(door: FakeDoor, tokenizer: Tokenizer, settings: dict | None = None, **body):
    """One answer, read by the client of OpenAI, in memory: an object, or a list of events."""

    async def go():
        app = make_app(door, tokenizer=tokenizer, **(settings or {}))
        web = httpx.AsyncClient(transport=httpx.ASGITransport(app))
        async with openai.AsyncOpenAI(
            base_url="http://gateway/v1", api_key="none", max_retries=0, http_client=web
        ) as http:
            answer = await http.responses.create(**{"model": "tiny", "input": "hi"} | body)
            return [event async for event in answer] if body.get("stream") else answer

    return asyncio.run(go())


def raw_events(stream: str) -> list[dict]:
    """The events of a stream, each with its two lines."""
    found = []
    for part in filter(None, stream.split("\n\n")):
        name, data = part.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def text_of(answer: Response) -> str:
    """What the client makes of it, and all reasoning before it."""
    thought = [p.text for i in answer.output if i.type == "reasoning" for p in i.content]
    return "".join(thought) + "|" + answer.output_text


def rebuilt(events: list) -> list[dict]:
    """The items, put together from deltas alone; what ends a part says the same."""
    items: list[dict] = []
    for event in events:
        match event.type:
            case "response.output_item.added":
                assert event.output_index == len(items)
                items.append({"type": event.item.type, "id": event.item.id, "text": ""})
            case "response.output_text.delta" | "response.reasoning_text.delta":
                items[event.output_index]["text"] += event.delta
            case "response.function_call_arguments.delta":
                items[event.output_index]["text"] += event.delta
            case "response.output_text.done" | "response.reasoning_text.done":
                assert event.text == items[event.output_index]["text"]
            case "response.content_part.done":
                assert event.part.text == items[event.output_index]["text"]
            case "response.function_call_arguments.done":
                assert event.arguments == items[event.output_index]["text"]
                items[event.output_index]["name"] = event.name
        if "item_id" in event.model_fields_set:
            assert event.item_id == items[-1]["id"], "one item is open at a time"
    return items


# ---- whole and streamed -------------------------------------------------------------------------


def test_reasoning_text_and_calls_whole(tokenizer):
    door = writing(ANSWER)
    answer = asked(door, tokenizer, tools=TOOLS)
    reasoning, message, *calls = answer.output
    assert (reasoning.type, reasoning.content[0].text) == ("reasoning", "Ah, é")
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    assert (message.content[0].text, message.content[0].annotations) == ("I look.", [])
    assert [(c.type, c.name, c.status) for c in calls] == [
        ("function_call", "get_weather", "completed"),
        ("function_call", "now", "completed"),
    ]
    assert [c.arguments for c in calls] == ARGUMENTS
    assert all(c.call_id.startswith("call_") for c in calls)
    assert len({item.id for item in answer.output}) == 4
    assert (answer.status, answer.error, answer.incomplete_details) == ("completed", None, None)
    assert answer.output_text == "I look."
    assert answer.id.startswith("resp_")
    assert "get_weather" in tokenizer.decode(door.submitted[0].prompt)


def test_every_object_is_what_the_clients_types_require(tokenizer):
    """The client itself does not validate what it reads."""
    body = {"input": "hi", "tools": TOOLS, "include": ["message.output_text.logprobs"]}
    whole = post(writing(ANSWER), PATH, body, tokenizer=tokenizer)
    Response.model_validate(whole.json(), strict=True)
    streamed = post(writing(ANSWER), PATH, body | {"stream": True}, tokenizer=tokenizer)
    assert streamed.headers["content-type"].startswith("text/event-stream")
    found = raw_events(streamed.text)
    for event in found:
        EVENTS.validate_python(event)
    assert [e["sequence_number"] for e in found] == list(range(len(found)))
    assert "[DONE]" not in streamed.text


def test_events_come_in_openais_order(tokenizer):
    found = asked(writing("<think>a</think>b" + CALL), tokenizer, tools=TOOLS, stream=True)
    assert [kind.removeprefix("response.") for kind, _ in groupby(e.type for e in found)] == [
        "created",
        "in_progress",
        *("output_item.added", "content_part.added", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    assert found[0].response.status == found[1].response.status == "in_progress"
    assert found[0].response.output == []
    assert found[2].item.status == "in_progress"


@pytest.mark.parametrize("each", [1, 2, 3, 5, 7, 16, 1000])
@pytest.mark.parametrize(
    "text",
    [
        ANSWER,
        "plain, with é and 🙂",
        "<think>only thoughts</think>",
        "<think>cut",
        CALL * 3,
        "one " + CALL + " two",
        "<tool_call>{</tool_call> is no call",
        'cut off: <tool_call>{"name": "no',
        "",
    ],
)
def test_deltas_make_the_whole_answer_wherever_it_is_cut(tokenizer, text, each):
    whole = asked(writing(text), tokenizer, tools=TOOLS)
    events = asked(writing(text, each=each), tokenizer, tools=TOOLS, stream=True)
    items = rebuilt(events)
    said = {"message": "", "reasoning": ""}
    for item in items:
        if item["type"] in said:
            said[item["type"]] += item["text"]
    assert said["reasoning"] + "|" + said["message"] == text_of(whole)
    calls = [(c.name, c.arguments) for c in whole.output if c.type == "function_call"]
    assert [(i["name"], i["text"]) for i in items if i["type"] == "function_call"] == calls
    final = events[-1].response
    assert [i.type for i in final.output] == [i["type"] for i in items]
    assert (text_of(final), final.status) == (text_of(whole), whole.status)
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert [e.item for e in events if e.type == "response.output_item.done"] == final.output


def test_plain_text_takes_the_fast_way_and_says_the_same():
    """Without parsers, a step of one token bypasses the form's ordinary path."""
    door = FakeDoor()
    door.script = [ids("a"), ids("bc"), ids("d"), FinishReason.STOP]
    found = raw_events(post(door, PATH, {"input": "hi", "stream": True}).text)
    assert [e["delta"] for e in found if e["type"].endswith("text.delta")] == ["a", "bc", "d"]
    assert found[-1]["response"]["output"][0]["content"][0]["text"] == "abcd"
    assert [e["sequence_number"] for e in found] == list(range(len(found)))


def test_text_after_a_call_is_a_message_of_its_own(tokenizer):
    whole = asked(writing("one " + CALL + " two"), tokenizer, tools=TOOLS)
    assert [i.type for i in whole.output] == ["message", "function_call", "message"]
    assert whole.output_text == "one two"


def test_an_answer_cut_by_its_limit_is_incomplete(tokenizer):
    for stream in (False, True):
        door = writing("abc", reason=FinishReason.LENGTH)
        found = asked(door, tokenizer, stream=stream, max_output_tokens=4)
        answer = found[-1].response if stream else found
        assert not stream or found[-1].type == "response.incomplete"
        assert (answer.status, answer.incomplete_details.reason) == (
            "incomplete",
            "max_output_tokens",
        )
        assert (answer.output[0].status, answer.output_text) == ("incomplete", "abc")
        assert answer.max_output_tokens == 4
        assert door.submitted[0].limits.max_tokens == 4


def test_usage_counts_cached_and_reasoning_tokens(tokenizer):
    for stream in (False, True):
        door = writing(ANSWER)
        door.cached = [5]
        found = asked(door, tokenizer, tools=TOOLS, stream=stream)
        usage = (found[-1].response if stream else found).usage
        assert usage.input_tokens == len(door.submitted[0].prompt)
        assert usage.input_tokens_details.cached_tokens == 5
        assert usage.output_tokens == len(ids(ANSWER)) + 1
        assert usage.total_tokens == usage.input_tokens + usage.output_tokens
        assert usage.output_tokens_details.reasoning_tokens == len(ids("<think>\nAh, é"))


def test_logprobs_are_those_of_the_messages_tokens(tokenizer):
    for stream in (False, True):
        found = asked(
            writing("<think>x</think>hey" + CALL),
            tokenizer,
            tools=TOOLS,
            include=["message.output_text.logprobs"],
            top_logprobs=2,
            stream=stream,
        )
        answer = found[-1].response if stream else found
        (part,) = answer.output[1].content
        assert [p.token for p in part.logprobs] == ["</think>", "he", "y"]
        assert {len(p.top_logprobs) for p in part.logprobs} == {2}
        assert part.logprobs[0].bytes is not None
        if stream:
            deltas = [e for e in found if e.type == "response.output_text.delta"]
            assert [p.token for e in deltas for p in e.logprobs] == [p.token for p in part.logprobs]
    plain = asked(writing("hey"), tokenizer)
    assert plain.output[0].content[0].logprobs == []


def test_the_answer_repeats_the_request(tokenizer):
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    body = {
        "instructions": "Be brief.",
        "max_output_tokens": 9,
        "max_tool_calls": 3,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "reasoning": {"effort": "low", "summary": "auto"},
        "temperature": 0.5,
        "top_p": 0.25,
        "text": {"format": {"type": "json_schema", "name": "x", "schema": schema}},
        "tools": TOOLS,
        "truncation": "auto",
        "user": "me",
        "store": False,
        "background": False,
        "service_tier": "auto",
    }
    found = post(writing("{}"), PATH, {"input": "hi"} | body, tokenizer=tokenizer).json()
    given = {k: v for k, v in body.items() if k not in ("text", "service_tier")}
    assert {k: found[k] for k in given} == given
    assert found["text"]["format"] == body["text"]["format"]
    assert (found["tool_choice"], found["service_tier"]) == ("auto", "default")
    bare = post(writing("a"), PATH, {"input": "hi"}, tokenizer=tokenizer).json()
    assert bare["text"]["format"] == {"type": "text"}
    assert (bare["store"], bare["truncation"], bare["metadata"]) == (False, "disabled", {})
    assert (bare["temperature"], bare["top_p"], bare["max_output_tokens"]) == (1.0, 1.0, None)


def test_what_the_core_is_asked(tokenizer):
    door = writing("a")
    body = {
        "input": "hi",
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 5,
        "seed": 7,
        "stop": ["x"],
        "presence_penalty": 0.5,
        "cache_salt": "s",
        "priority": 3,
        "reasoning": {"effort": "none"},
    }
    assert post(door, PATH, body, tokenizer=tokenizer).status_code == 200
    assert post(door, "/v1/chat/completions", chat(body), tokenizer=tokenizer).status_code == 200
    mine, other = (msgspec.structs.replace(s, request=0, id="") for s in door.submitted)
    assert mine == other
    assert tokenizer.decode(mine.prompt).endswith("assistant\n\n\n\n\n")


def chat(body: dict) -> dict:
    """The same as a chat."""
    effort = {"reasoning_effort": body["reasoning"]["effort"]}
    messages = {"messages": [{"role": "user", "content": body["input"]}]}
    return {k: v for k, v in body.items() if k not in ("input", "reasoning")} | effort | messages


def test_grammars_are_those_of_chats(tokenizer):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    name = {"name": "x", "schema": schema}
    for text, response_format in (
        ({"type": "json_object"}, {"type": "json_object"}),
        ({"type": "json_schema"} | name, {"type": "json_schema", "json_schema": name}),
    ):
        door = writing("{}")
        post(door, PATH, {"input": "hi", "text": {"format": text}}, tokenizer=tokenizer)
        messages = [{"role": "user", "content": "hi"}]
        other = {"messages": messages, "response_format": response_format}
        post(door, "/v1/chat/completions", other, tokenizer=tokenizer)
        mine, same = (s.grammar for s in door.submitted)
        assert mine == same
        assert mine is not None


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "now"}])
def test_a_forced_call(tokenizer, choice):
    door = writing(CALL)
    answer = asked(door, tokenizer, tools=TOOLS, tool_choice=choice)
    assert [i.type for i in answer.output] == ["function_call"]
    assert door.submitted[0].grammar is not None
    assert ("get_weather" in door.submitted[0].grammar.text) == (choice == "required")


def test_parsed_output_and_parsed_calls_of_the_client(tokenizer):
    class Where(BaseModel):
        city: str

    async def go():
        app = make_app(writing('{"city": "Genève"}'), tokenizer=tokenizer)
        web = httpx.AsyncClient(transport=httpx.ASGITransport(app))
        async with openai.AsyncOpenAI(
            base_url="http://gateway/v1", api_key="none", http_client=web
        ) as http:
            return await http.responses.parse(model="tiny", input="hi", text_format=Where)

    assert asyncio.run(go()).output_parsed == Where(city="Genève")


def test_the_clients_own_accumulator_reads_the_stream(tokenizer):
    async def go():
        async with (
            served(writing(ANSWER), tokenizer=tokenizer) as (url, *_),
            openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as http,
            http.responses.stream(model="tiny", input="hi", tools=TOOLS) as stream,
        ):
            snapshots = [e.snapshot async for e in stream if e.type == "response.output_text.delta"]
            return snapshots, await stream.get_final_response()

    snapshots, final = uvloop.run(asyncio.wait_for(go(), 30))
    assert snapshots[-1] == final.output_text == "I look."
    assert [c.arguments for c in final.output if c.type == "function_call"] == ARGUMENTS


# ---- an agent -----------------------------------------------------------------------------------


def test_an_agent_sends_the_history_back_as_items(tokenizer):
    """Three turns with two tools; each prompt has all that went before, as a chat has it."""
    door = writing(
        "<think>\nwhere?\n</think>\n\nI look.\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Genève"}}\n</tool_call>'
    )
    answers = [CALL, "It is sunny."]

    async def go():
        app = make_app(door, tokenizer=tokenizer)
        web = httpx.AsyncClient(transport=httpx.ASGITransport(app))
        history = [{"role": "user", "content": "Weather?"}]
        async with openai.AsyncOpenAI(
            base_url="http://gateway/v1", api_key="none", http_client=web
        ) as http:
            for _ in range(3):
                answer = await http.responses.create(
                    model="tiny", instructions="Use tools.", input=history, tools=TOOLS, store=False
                )
                history += [item.model_dump(exclude_none=True) for item in answer.output]
                for call in answer.output:
                    if call.type == "function_call":
                        output = {"type": "function_call_output", "call_id": call.call_id}
                        history.append(output | {"output": f"result of {call.name}"})
                door.script = writing(answers.pop(0)).script if answers else door.script
        return answer

    answer = asyncio.run(go())
    assert answer.output_text == "It is sunny."
    tools = [
        {"type": "function", "function": {k: v for k, v in t.items() if k != "type"}} for t in TOOLS
    ]
    city = {"name": "get_weather", "arguments": '{"city": "Genève"}'}
    messages = [
        {"role": "system", "content": "Use tools."},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning": "where?",
            "tool_calls": [{"type": "function", "function": city}],
        },
        {"role": "tool", "content": "result of get_weather"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "now", "arguments": "{}"}}],
        },
        {"role": "tool", "content": "result of now"},
    ]
    body = {"messages": messages, "tools": tools}
    assert post(door, "/v1/chat/completions", body, tokenizer=tokenizer).status_code == 200
    *_, last, same = door.submitted
    assert tokenizer.decode(last.prompt) == tokenizer.decode(same.prompt)
    assert "where?" in tokenizer.decode(last.prompt)


# ---- failures -----------------------------------------------------------------------------------


def test_a_failure_before_the_first_token_has_a_status(tokenizer):
    door = FakeDoor()
    door.script = [FailCode.WORKER_LOST]
    for stream in (False, True):
        response = post(door, PATH, {"input": "hi", "stream": stream})
        assert (response.status_code, response.json()["error"]["code"]) == (503, "worker_lost")


def test_a_failure_inside_a_stream_is_an_error_event_and_a_failed_answer():
    async def scenario():
        door = FakeDoor()
        door.script = [[97]]
        async with served(door) as (url, *_), httpx.AsyncClient() as http:
            body = {"input": "hi", "stream": True}
            async with http.stream("POST", url + PATH, json=body) as response:
                parts = response.aiter_text()
                seen = await anext(parts)
                door.fail(door.submitted[0].request, FailCode.HANDOFF_FAILED)
                return seen + "".join([part async for part in parts])

    found = raw_events(uvloop.run(asyncio.wait_for(scenario(), 30)))
    *_, error, failed = found
    assert (error["type"], error["code"]) == ("error", "handoff_failed")
    assert (error["message"], error["error"]["message"]) == ("as told", "as told")
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["error"] == {"code": "server_error", "message": "as told"}
    assert [e["sequence_number"] for e in found] == list(range(len(found)))
    for event in (error, failed):
        EVENTS.validate_python(event)


def test_the_client_raises_what_happens_inside_a_stream():
    async def scenario():
        door = FakeDoor()
        door.script = [[97]]
        async with (
            served(door) as (url, *_),
            openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as http,
        ):
            stream = await http.responses.create(model="tiny", input="hi", stream=True)
            assert (await anext(stream)).type == "response.created"
            door.fail(door.submitted[0].request, FailCode.WORKER_LOST)
            with pytest.raises(openai.APIError, match="as told") as failed:
                [event async for event in stream]
            assert failed.value.code == "worker_lost"

    uvloop.run(asyncio.wait_for(scenario(), 30))


def test_keys_are_needed_as_elsewhere():
    response = post(FakeDoor(), PATH, {"input": "hi"}, api_keys=("k",))
    assert response.status_code == 401


def test_nothing_can_be_fetched_later(tokenizer):
    answer = asked(writing("a"), tokenizer)
    for method in ("GET", "DELETE", "POST"):
        assert request(FakeDoor(), method, f"{PATH}/{answer.id}").status_code == 404


# ---- items --------------------------------------------------------------------------------------


def test_items_follow_each_other_in_any_order():
    numbers = count()
    output = Output("0", numbers, lambda scored: ())
    call = ToolCall(0, "call_1", "f", "{}")
    pieces = [
        TextDelta("", (1, 2), (), "think"),
        TextDelta("say", (3,), (), "", ()),
        TextDelta("", (4, 5), (), "again"),
        TextDelta("", (), (), "", (call, call)),
        TextDelta("end", (6,), ()),
    ]
    events = [e for p in pieces for e in output.add(p)] + output.end("incomplete")
    assert [type(i) for i in output.items] == [
        *(OutputReasoning, OutputMessage, OutputReasoning),
        *(OutputCall, OutputCall, OutputMessage),
    ]
    assert [i.status for i in output.items] == ["completed"] * 5 + ["incomplete"]
    assert len({i.id for i in output.items}) == 6
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert output.reasoning_tokens == 4


def test_tokens_that_added_nothing_yet_belong_to_what_comes_next():
    output = Output("0", count(), lambda scored: ())
    for piece in (
        TextDelta("", (1,), ()),
        TextDelta("", (2,), (), "a"),
        TextDelta("", (3,), ()),
        TextDelta("b", (4,), ()),
        TextDelta("", (5,), ()),
    ):
        output.add(piece)
    assert output.reasoning_tokens == 2
