"""Agents with two tools and three turns, by the clients that people use, against a real split
service. The model is random: what it says in calls is held together by the grammar alone."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from openai import OpenAI
from tests.e2e.service import Service, wait_for

POOLS = ("--kv-pages", "300")
TEMPLATE = """{% if tools %}<|im_start|>system
Tools: {{ tools | tojson }}<|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}
<tool_call>
{{ call.function | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
SUM = {
    "type": "object",
    "properties": {
        "a": {"type": "integer", "minimum": 0, "maximum": 9},
        "b": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["a", "b"],
    "additionalProperties": False,
}
SCHEMAS = {"weather": CITY, "add": SUM}
pytestmark = pytest.mark.timeout(180)


def run_tool(name: str, arguments: dict[str, Any]) -> str:
    """What the client does with a call; a call that is not valid fails here."""
    if name == "weather":
        return f"It rains in {['Rome', 'Oslo'][['Rome', 'Oslo'].index(arguments['city'])]}."
    assert name == "add"
    return str(int(arguments["a"]) + int(arguments["b"]))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Iterator[Service]:
    directory = tmp_path_factory.mktemp("agents")
    (directory / "tools.jinja").write_text(TEMPLATE)
    service = Service(directory, tiny)
    try:
        flags = ("--chat-template", str(directory / "tools.jinja"))
        service.start_gateway(*flags, "--tool-call-parser", "hermes")
        service.start_worker("prefill", *POOLS)
        service.start_worker("decode", *POOLS)
        service.wait_ready()
        yield service
        wait_for(lambda: service.ledger()["clean"], seconds=5, why="ledger clean")
    finally:
        service.close()


@pytest.fixture(scope="module")
def client(service: Service) -> OpenAI:
    return OpenAI(
        base_url=f"http://127.0.0.1:{service.port}/v1", api_key="none", max_retries=0, timeout=60
    )


FUNCTIONS: list[Any] = [
    {"type": "function", "function": {"name": name, "description": "d", "parameters": schema}}
    for name, schema in SCHEMAS.items()
]


def streamed_message(client: OpenAI, **fields: Any) -> dict[str, Any]:
    """The message of a streamed chat, put together as clients do it."""
    message: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": []}
    for chunk in client.chat.completions.create(stream=True, **fields):
        delta = chunk.choices[0].delta
        if delta.content:
            message["content"] = (message["content"] or "") + delta.content
        for part in delta.tool_calls or []:
            if part.index == len(message["tool_calls"]):
                function = {"name": part.function.name, "arguments": ""}
                message["tool_calls"].append(
                    {"id": part.id, "type": "function", "function": function}
                )
            message["tool_calls"][part.index]["function"]["arguments"] += part.function.arguments
    return message


def whole_message(client: OpenAI, **fields: Any) -> dict[str, Any]:
    """The message of a chat that is not streamed."""
    answer = client.chat.completions.create(**fields).choices[0].message
    return answer.model_dump(include={"role", "content", "tool_calls"})


def loop(client: OpenAI, *, stream: bool) -> list[dict[str, Any]]:
    """A call of any tool, a call of a named one, and an answer."""
    ask = streamed_message if stream else whole_message
    messages: list[Any] = [{"role": "user", "content": "What is the weather, and what is 1 + 2?"}]
    for choice in ("required", {"type": "function", "function": {"name": "add"}}, "none"):
        message = ask(
            client,
            model="m",
            messages=messages,
            tools=FUNCTIONS,
            tool_choice=choice,
            parallel_tool_calls=False,
            temperature=0.8,
            seed=5,
            max_tokens=120 if choice != "none" else 10,
        )
        messages.append(message)
        for call in message.get("tool_calls") or []:
            function = call["function"]
            said = run_tool(function["name"], json.loads(function["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": said})
    return messages


def without_ids(messages: list[dict[str, Any]]) -> list[Any]:
    """Messages without the ids of calls, which are drawn for each answer."""
    return [
        (m["role"], m["content"], [c["function"] for c in m.get("tool_calls") or []])
        for m in messages
    ]


def test_openai_chat(client: OpenAI) -> None:
    whole, streamed = loop(client, stream=False), loop(client, stream=True)
    assert [m["role"] for m in whole] == [
        *("user", "assistant", "tool", "assistant", "tool", "assistant")
    ]
    assert whole[3]["tool_calls"][0]["function"]["name"] == "add"
    assert whole[-1]["content"]
    assert without_ids(streamed) == without_ids(whole)


def test_langchain(service: Service) -> None:
    model = ChatOpenAI(
        base_url=f"http://127.0.0.1:{service.port}/v1",
        api_key="none",
        model="m",
        temperature=0.8,
        seed=5,
        max_tokens=120,
        max_retries=0,
    )
    for stream in (False, True):
        messages: list[Any] = [HumanMessage("What is the weather, and what is 1 + 2?")]
        for choice in ("required", "add", "none"):
            bound = model.bind_tools(FUNCTIONS, tool_choice=choice, parallel_tool_calls=False)
            if stream:
                answer = None
                for chunk in bound.stream(messages):
                    answer = chunk if answer is None else answer + chunk
            else:
                answer = bound.invoke(messages)
            messages.append(answer)
            for call in answer.tool_calls:
                said = run_tool(call["name"], call["args"])
                messages.append(ToolMessage(said, tool_call_id=call["id"]))
        assert len(messages) == 6, "two calls, each with its result, and an answer"
        assert messages[-1].content


def responses_loop(client: OpenAI, *, stream: bool) -> list[Any]:
    """The loop of `loop`, by the Responses API."""
    items: list[Any] = [{"role": "user", "content": "What is the weather, and what is 1 + 2?"}]
    tools: list[Any] = [{"type": "function"} | tool["function"] for tool in FUNCTIONS]
    for choice in ("required", {"type": "function", "name": "add"}, "none"):
        fields: dict[str, Any] = {
            "model": "m",
            "input": items,
            "tools": tools,
            "tool_choice": choice,
            "parallel_tool_calls": False,
            "temperature": 0.8,
            "store": False,
            "max_output_tokens": 120 if choice != "none" else 10,
            "extra_body": {"seed": 5},
        }
        if stream:
            *_, last = client.responses.create(**fields, stream=True)
            assert last.type in ("response.completed", "response.incomplete")
            response = last.response
        else:
            response = client.responses.create(**fields)
        for item in response.output:
            items.append(item.model_dump(exclude_none=True, exclude={"parsed_arguments"}))
            if item.type == "function_call":
                said = run_tool(item.name, json.loads(item.arguments))
                items.append(
                    {"type": "function_call_output", "call_id": item.call_id, "output": said}
                )
    return items


def essence(item: dict[str, Any]) -> tuple[Any, ...]:
    """An item without ids."""
    if item.get("type") == "message":
        return "message", [part["text"] for part in item["content"]]
    return tuple(item.get(key) for key in ("type", "content", "name", "arguments", "output"))


def test_openai_responses(client: OpenAI) -> None:
    whole, streamed = responses_loop(client, stream=False), responses_loop(client, stream=True)
    kinds = [item.get("type", "message") for item in whole]
    assert kinds == [
        *("message", "function_call", "function_call_output"),
        *("function_call", "function_call_output", "message"),
    ]
    assert whole[3]["name"] == "add"
    assert whole[-1]["content"][0]["text"]
    assert [essence(item) for item in streamed] == [essence(item) for item in whole]


def anthropic_loop(client: Anthropic, *, stream: bool) -> list[Any]:
    """The loop of `loop`, by Anthropic's Messages API."""
    messages: list[Any] = [{"role": "user", "content": "What is the weather, and what is 1 + 2?"}]
    tools: list[Any] = [{"name": name, "input_schema": schema} for name, schema in SCHEMAS.items()]
    for choice in ({"type": "any"}, {"type": "tool", "name": "add"}, {"type": "none"}):
        if choice["type"] != "none":
            choice["disable_parallel_tool_use"] = True
        fields: dict[str, Any] = {
            "model": "m",
            "messages": messages,
            "tools": tools,
            "tool_choice": choice,
            "max_tokens": 120 if choice["type"] != "none" else 10,
            "extra_body": {"seed": 5, "temperature": 0.8},
        }
        if stream:
            with client.messages.stream(**fields) as events:
                answer = events.get_final_message()
        else:
            answer = client.messages.create(**fields)
        messages.append({"role": "assistant", "content": [b.model_dump() for b in answer.content]})
        results = [
            {
                "type": "tool_result",
                "tool_use_id": block.id,
                "content": run_tool(block.name, block.input),
            }
            for block in answer.content
            if block.type == "tool_use"
        ]
        if results:
            messages.append({"role": "user", "content": results})
    return messages


def without_call_ids(messages: list[Any]) -> list[Any]:
    """Blocks of messages without the ids of calls."""
    return [
        message["content"]
        if isinstance(message["content"], str)
        else [
            {k: v for k, v in block.items() if k not in ("id", "tool_use_id")}
            for block in message["content"]
        ]
        for message in messages
    ]


def test_anthropic(service: Service) -> None:
    client = Anthropic(
        base_url=f"http://127.0.0.1:{service.port}", api_key="none", max_retries=0, timeout=60
    )
    whole, streamed = anthropic_loop(client, stream=False), anthropic_loop(client, stream=True)
    assert [m["role"] for m in whole] == ["user", "assistant"] * 3
    assert [block["type"] for block in whole[1]["content"]][-1] == "tool_use"
    assert whole[3]["content"][-1]["name"] == "add"
    assert whole[5]["content"][0]["text"]
    assert without_call_ids(streamed) == without_call_ids(whole)
