"""An agent with two tools, by the clients that people use: it asks, runs the tools that it is told
to, sends what they say, and asks again."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from anthropic import Anthropic
from openai import OpenAI

QUESTION = "What is the weather, and what is 1 + 2?"
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
FUNCTIONS: list[Any] = [
    {"type": "function", "function": {"name": name, "description": "d", "parameters": schema}}
    for name, schema in SCHEMAS.items()
]


def run_tool(name: str, arguments: dict[str, Any]) -> str:
    """What the client does with a call; a call that is not valid fails here."""
    if name == "weather":
        return f"It rains in {['Rome', 'Oslo'][['Rome', 'Oslo'].index(arguments['city'])]}."
    assert name == "add"
    return str(int(arguments["a"]) + int(arguments["b"]))


@dataclass
class Turn:
    """What the model has said: its text, and its calls without their ids, which are drawn."""

    text: str = ""
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)


@dataclass(frozen=True)
class Ask:
    """How one turn is asked for. `choice`: auto, required, none, or the name of a tool."""

    choice: str
    max_tokens: int = 120
    parallel: bool = False

    @property
    def function(self) -> str | None:
        """The tool that must be called."""
        return self.choice if self.choice in SCHEMAS else None


Agent = Callable[[str, Sequence[Ask], bool], list[Turn]]


def openai_chat(url: str, asks: Sequence[Ask], stream: bool) -> list[Turn]:
    """By OpenAI's chats."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    turns = []
    for ask in asks:
        named = {"type": "function", "function": {"name": ask.function}}
        read = _streamed_message if stream else _whole_message
        message = read(
            client,
            model="m",
            messages=messages,
            tools=FUNCTIONS,
            tool_choice=named if ask.function else ask.choice,
            parallel_tool_calls=ask.parallel,
            temperature=0.8,
            seed=5,
            max_tokens=ask.max_tokens,
        )
        messages.append(message)
        turn = Turn(message["content"] or "")
        for call in message.get("tool_calls") or []:
            name, given = call["function"]["name"], json.loads(call["function"]["arguments"])
            turn.calls.append((name, given))
            said = run_tool(name, given)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": said})
        turns.append(turn)
    return turns


def _streamed_message(client: OpenAI, **fields: Any) -> dict[str, Any]:
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


def _whole_message(client: OpenAI, **fields: Any) -> dict[str, Any]:
    """The message of a chat that is not streamed."""
    answer = client.chat.completions.create(**fields).choices[0].message
    return answer.model_dump(include={"role", "content", "tool_calls"})


def openai_responses(url: str, asks: Sequence[Ask], stream: bool) -> list[Turn]:
    """By OpenAI's responses."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    tools: list[Any] = [{"type": "function"} | tool["function"] for tool in FUNCTIONS]
    turns = []
    for ask in asks:
        named = {"type": "function", "name": ask.function}
        fields: dict[str, Any] = {
            "model": "m",
            "input": items,
            "tools": tools,
            "tool_choice": named if ask.function else ask.choice,
            "parallel_tool_calls": ask.parallel,
            "temperature": 0.8,
            "store": False,
            "max_output_tokens": ask.max_tokens,
            "extra_body": {"seed": 5},
        }
        if stream:
            *_, last = client.responses.create(**fields, stream=True)
            assert last.type in ("response.completed", "response.incomplete")
            response = last.response
        else:
            response = client.responses.create(**fields)
        turn = Turn(response.output_text)
        for item in response.output:
            items.append(item.model_dump(exclude_none=True, exclude={"parsed_arguments"}))
        for item in response.output:
            if item.type == "function_call":
                given = json.loads(item.arguments)
                turn.calls.append((item.name, given))
                said = run_tool(item.name, given)
                items.append(
                    {"type": "function_call_output", "call_id": item.call_id, "output": said}
                )
        turns.append(turn)
    return turns


def anthropic_messages(url: str, asks: Sequence[Ask], stream: bool) -> list[Turn]:
    """By Anthropic's messages."""
    client = Anthropic(base_url=url, api_key="none", max_retries=0, timeout=60)
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    tools: list[Any] = [
        {"name": name, "description": "d", "input_schema": schema}
        for name, schema in SCHEMAS.items()
    ]
    kinds = {"required": "any", "auto": "auto", "none": "none"}
    turns = []
    for ask in asks:
        choice: dict[str, Any] = {"type": kinds.get(ask.choice, "tool")}
        if ask.function:
            choice["name"] = ask.function
        if ask.choice != "none":
            choice["disable_parallel_tool_use"] = not ask.parallel
        fields: dict[str, Any] = {
            "model": "m",
            "messages": messages,
            "tools": tools,
            "tool_choice": choice,
            "max_tokens": ask.max_tokens,
            "extra_body": {"seed": 5, "temperature": 0.8},
        }
        if stream:
            with client.messages.stream(**fields) as events:
                answer = events.get_final_message()
        else:
            answer = client.messages.create(**fields)
        messages.append({"role": "assistant", "content": [b.model_dump() for b in answer.content]})
        turn = Turn("".join(block.text for block in answer.content if block.type == "text"))
        results = []
        for block in answer.content:
            if block.type == "tool_use":
                turn.calls.append((block.name, dict(block.input)))
                said = run_tool(block.name, block.input)
                results.append({"type": "tool_result", "tool_use_id": block.id, "content": said})
        if results:
            messages.append({"role": "user", "content": results})
        turns.append(turn)
    return turns


def langchain(url: str, asks: Sequence[Ask], stream: bool) -> list[Turn]:
    """By LangChain's client, which not every installation has."""
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI

    messages: list[Any] = [HumanMessage(QUESTION)]
    turns = []
    for ask in asks:
        model = ChatOpenAI(
            base_url=f"{url}/v1",
            api_key="none",
            model="m",
            temperature=0.8,
            seed=5,
            max_tokens=ask.max_tokens,
            max_retries=0,
        )
        bound = model.bind_tools(
            FUNCTIONS, tool_choice=ask.choice, parallel_tool_calls=ask.parallel
        )
        if stream:
            answer: Any = None
            for chunk in bound.stream(messages):
                answer = chunk if answer is None else answer + chunk
        else:
            answer = bound.invoke(messages)
        messages.append(answer)
        turn = Turn(answer.text)
        for call in answer.tool_calls:
            turn.calls.append((call["name"], call["args"]))
            said = run_tool(call["name"], call["args"])
            messages.append(ToolMessage(said, tool_call_id=call["id"]))
        turns.append(turn)
    return turns


AGENTS: dict[str, Agent] = {
    "openai chat": openai_chat,
    "openai responses": openai_responses,
    "anthropic": anthropic_messages,
    "langchain": langchain,
}
