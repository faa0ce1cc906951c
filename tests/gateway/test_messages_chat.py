"""A request of Anthropic's Messages API is served as the chat that says the same."""

import asyncio
from typing import NamedTuple

import httpx
import pytest

from baton.core.messages import FinishReason, Grammar, Limits, Sampling
from baton.gateway.door import Capacity
from baton.gateway.messages_chat import as_chat
from baton.gateway.messages_schema import MessagesBody
from baton.gateway.tokenizer import Tokenizer

from .fake_door import FakeDoor
from .messages_client import HI, MESSAGES, VOCABULARY
from .rig import make_app
from .templates import BRACKETS, talker

CHAT = "/v1/chat/completions"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [{"name": "look", "description": "Looks.", "input_schema": SCHEMA}]
FUNCTIONS = [
    {
        "type": "function",
        "function": {"name": "look", "description": "Looks.", "parameters": SCHEMA},
    }
]
USE = {"type": "tool_use", "id": "toolu_01", "name": "look", "input": {"city": "Genève"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_01", "content": "rain"}
CALL = {
    "id": "01",
    "type": "function",
    "function": {"name": "look", "arguments": '{"city": "Genève"}'},
}


class Asked(NamedTuple):
    """What the core was asked for."""

    prompt: str
    sampling: Sampling
    limits: Limits
    grammar: Grammar | None
    cache_salt: str
    priority: int


class Service:
    """One gateway for all tests."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.door = FakeDoor()
        self.door.script = [FinishReason.STOP]
        self._app = make_app(self.door, tokenizer=tokenizer, reasoning_parser="none")
        self.open()

    def open(self) -> None:
        self.door.limits = Capacity(max_model_len=4096, pool_tokens=8192)
        self.door.submitted.clear()

    def post(self, path: str, body: dict) -> httpx.Response:
        async def go() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
                return await http.post(path, json=body)

        return asyncio.run(go())

    def asked(self, path: str, body: dict) -> Asked:
        self.door.submitted.clear()
        answer = self.post(path, body)
        assert answer.status_code == 200, answer.text
        (s,) = self.door.submitted
        prompt = VOCABULARY.decode(list(s.prompt), skip_special_tokens=False)
        return Asked(prompt, s.sampling, s.limits, s.grammar, s.cache_salt, s.priority)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory) -> Service:
    return Service(talker(tmp_path_factory.mktemp("talker")))


@pytest.fixture
def service(gateway) -> Service:
    gateway.open()
    return gateway


def text(*texts: str, **more) -> list[dict]:
    return [{"type": "text", "text": t} | more for t in texts]


def user(content) -> dict:
    return {"role": "user", "content": content}


def assistant(content, **more) -> dict:
    return {"role": "assistant", "content": content} | more


def system(content) -> dict:
    return {"role": "system", "content": content}


LOOKED = [HI, assistant([USE])]
CHAT_LOOKED = [HI, assistant(None, tool_calls=[CALL])]
TOLD = {"role": "tool", "tool_call_id": "01", "content": "rain"}
# By name: a message request, and the chat that says the same.
PAIRS: dict[str, tuple[dict, dict]] = {
    "text": ({}, {}),
    "blocks": (
        {"messages": [user(text("a", "b", cache_control={"type": "ephemeral"}))]},
        {"messages": [user("a\nb")]},
    ),
    "system": ({"system": "be brief"}, {"messages": [system("be brief"), HI]}),
    "system in blocks": (
        {"system": text("be", "brief")},
        {"messages": [system("be\nbrief"), HI]},
    ),
    "no system": ({"system": ""}, {}),
    "a line that changes with each request": (
        {"system": text("x-anthropic-billing-header: cch=1;", "be brief")},
        {"messages": [system("be brief"), HI]},
    ),
    "the same line before others": (
        {"system": "x-anthropic-billing-header: cch=1;\nbe brief"},
        {"messages": [system("be brief"), HI]},
    ),
    "system messages before all others": (
        {"system": "be brief", "messages": [system("and"), system(text("kind")), HI]},
        {"messages": [system("be brief\nand\nkind"), HI]},
    ),
    "a system message after the user's": (
        {"messages": [HI, system("9 tokens left")]},
        {"messages": [user("hi\n9 tokens left")]},
    ),
    "a system message before the user's": (
        {"messages": [HI, assistant("ho"), system(text("9 tokens left")), HI]},
        {"messages": [HI, assistant("ho"), user("9 tokens left\nhi")]},
    ),
    "a system message beside a result": (
        {"messages": [*LOOKED, system("9 tokens left"), user([RESULT])]},
        {"messages": [*CHAT_LOOKED, TOLD | {"content": "rain\n9 tokens left"}]},
    ),
    "a system message beside a result and text": (
        {"messages": [*LOOKED, user([RESULT, *text("so?")]), system("9 tokens left")]},
        {"messages": [*CHAT_LOOKED, TOLD, user("so?\n9 tokens left")]},
    ),
    "neighbours of one role": (
        {"messages": [HI, user("there"), assistant("a"), assistant("b"), HI]},
        {"messages": [user("hi\nthere"), assistant("a\nb"), HI]},
    ),
    "the answer's beginning": (
        {"messages": [HI, assistant("The ans")]},
        {"messages": [HI, assistant("The ans")], "continue_final_message": True},
    ),
    "thinking": (
        {
            "messages": [
                HI,
                assistant(
                    [
                        {"type": "thinking", "thinking": "Ah", "signature": ""},
                        {"type": "redacted_thinking", "data": "c2VjcmV0"},
                        *text("ho"),
                    ]
                ),
                HI,
            ]
        },
        {"messages": [HI, assistant("ho", reasoning_content="Ah"), HI]},
    ),
    "a call and its result": (
        {"messages": [*LOOKED, user([RESULT])], "tools": TOOLS},
        {"messages": [*CHAT_LOOKED, TOLD], "tools": FUNCTIONS},
    ),
    "a result with text around it": (
        {"messages": [*LOOKED, user([*text("so"), RESULT, *text("and?")])]},
        {"messages": [*CHAT_LOOKED, TOLD, user("so\nand?")]},
    ),
    "results in several messages": (
        {
            "messages": [
                HI,
                assistant([*text("I look."), USE, USE | {"id": "toolu_02"}]),
                user([RESULT | {"content": text("rain", "wind")}]),
                user([RESULT | {"tool_use_id": "toolu_02", "content": None}]),
            ]
        },
        {
            "messages": [
                HI,
                assistant("I look.", tool_calls=[CALL, CALL | {"id": "02"}]),
                TOLD | {"content": "rain\nwind"},
                TOLD | {"tool_call_id": "02", "content": ""},
            ]
        },
    ),
    "a result that is an error": (
        {"messages": [*LOOKED, user([RESULT | {"is_error": True}])]},
        {"messages": [*CHAT_LOOKED, TOLD | {"content": "Error:\nrain"}]},
    ),
    "any tool": (
        {"tools": TOOLS, "tool_choice": {"type": "any"}},
        {"tools": FUNCTIONS, "tool_choice": "required"},
    ),
    "no tool": (
        {"tools": TOOLS, "tool_choice": {"type": "none"}},
        {"tools": FUNCTIONS, "tool_choice": "none"},
    ),
    "one tool": (
        {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "look"}},
        {
            "tools": FUNCTIONS,
            "tool_choice": {"type": "function", "function": {"name": "look"}},
        },
    ),
    "one call at most": (
        {"tools": TOOLS, "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        {"tools": FUNCTIONS, "parallel_tool_calls": False},
    ),
    "a strict tool": (
        {"tools": [TOOLS[0] | {"strict": True, "type": "custom"}]},
        {"tools": [{"type": "function", "function": FUNCTIONS[0]["function"] | {"strict": True}}]},
    ),
    "no thinking": (
        {"thinking": {"type": "disabled"}},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ),
    "thinking for so many tokens": (
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"chat_template_kwargs": {"enable_thinking": True}},
    ),
    "thinking, but the template's variable says otherwise": (
        {
            "thinking": {"type": "adaptive"},
            "chat_template_kwargs": {"enable_thinking": False},
        },
        {"chat_template_kwargs": {"enable_thinking": False}},
    ),
    "effort": ({"output_config": {"effort": "low"}}, {"reasoning_effort": "low"}),
    "a schema": (
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": SCHEMA},
            }
        },
    ),
    "sampling": (
        {"temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.1, "seed": 4},
        {"temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.1, "seed": 4},
    ),
    "null counts as absent": (
        {"temperature": None, "top_k": None, "stop_sequences": None, "tools": None},
        {},
    ),
    "scheduling": (
        {"cache_salt": "us", "priority": -3},
        {"cache_salt": "us", "priority": -3},
    ),
    "without effect": (
        {
            "metadata": {"user_id": "u"},
            "service_tier": "auto",
            "cache_control": {"type": "ephemeral"},
            "context_management": {"edits": []},
            "nobody_knows": 3,
        },
        {},
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_the_same_chat(service, name):
    ours, chat = PAIRS[name]
    base = {"messages": [HI], "max_tokens": 20, "seed": 4}
    assert service.asked(MESSAGES, base | ours) == service.asked(CHAT, base | chat)


@pytest.mark.parametrize(
    ("thinking", "variables"),
    [
        (None, None),
        ({"type": "enabled", "budget_tokens": 9}, {"enable_thinking": True, "thinking": True}),
        ({"type": "adaptive"}, {"enable_thinking": True, "thinking": True}),
        ({"type": "disabled"}, {"enable_thinking": False, "thinking": False}),
    ],
)
def test_templates_know_thinking_by_one_of_two_names(thinking, variables):
    body = {"messages": [HI], "max_tokens": 1, "thinking": thinking}
    assert as_chat(MessagesBody.model_validate(body)).chat_template_kwargs == variables


def test_the_prompt_of_a_next_turn_begins_with_that_of_the_last_one(service):
    """So the prefix cache serves it: system messages that come later do not move to the front."""
    turns = [HI, assistant([USE]), user([RESULT]), system("9 tokens left")]
    body = {"max_tokens": 20, "system": "be brief", "tools": TOOLS}
    first = service.asked(MESSAGES, body | {"messages": turns}).prompt
    turns += [assistant("Rain."), user("and now?"), system("8 tokens left")]
    second = service.asked(MESSAGES, body | {"messages": turns}).prompt
    assert second.startswith(first)


# By name: what a request has, and what the refusal says of it.
WRONG: dict[str, tuple[dict, tuple[str, ...]]] = {
    "no limit": ({"max_tokens": None}, ("max_tokens = null", "integer")),
    "no token": ({"max_tokens": 0}, ("max_tokens = 0", "1")),
    "a limit beyond the context": ({"max_tokens": 5000}, ("max_tokens = 5000", "4096")),
    "no message": ({"messages": []}, ("messages = []", "at least 1")),
    "no text at all": (
        {"messages": [system("x-anthropic-billing-header: x")]},
        ("messages has no text", "some"),
    ),
    "an unknown role": (
        {"messages": [{"role": "poet", "content": "x"}]},
        ("messages[0].role", '"poet"', "'user'"),
    ),
    "an image": (
        {"messages": [user([{"type": "image", "source": {"type": "base64", "data": ""}}])]},
        ("messages[0].content[0].type", '"image"', "supported: text"),
    ),
    "a document": (
        {"messages": [user([*text("x"), {"type": "document", "source": {}}])]},
        ("messages[0].content[1].type", '"document"', "supported: text"),
    ),
    "an image in a result": (
        {"messages": [*LOOKED, user([RESULT | {"content": [{"type": "image"}]}])]},
        ("messages[2].content[0].content[0]", '"image"', "only text"),
    ),
    "an image in the system prompt": (
        {"system": [{"type": "image"}]},
        ("system[0]", '"image"', "only text"),
    ),
    "an image in a system message": (
        {"messages": [HI, system([{"type": "image"}])]},
        ("messages[1].content[0]", '"image"', "only text"),
    ),
    "a block without its text": (
        {"messages": [user([{"type": "text"}])]},
        ("messages[0].content[0].text is missing",),
    ),
    "a call of the user": (
        {"messages": [user([USE])]},
        ("messages[0].content[0]", "tool_use", "user", "belongs to the role assistant"),
    ),
    "a result of the assistant": (
        {"messages": [HI, assistant([RESULT])]},
        ("messages[1].content[0]", "tool_result", "belongs to the role user"),
    ),
    "a call without input": (
        {"messages": [HI, assistant([{"type": "tool_use", "id": "a", "name": "look"}])]},
        ("messages[1].content[0].input is missing",),
    ),
    "a call without result": (
        {"messages": [*LOOKED, HI]},
        ("messages[1]", '"toolu_01"', "without a tool_result"),
    ),
    "a call at the end": (
        {"messages": LOOKED},
        ("messages[1]", '"toolu_01"', "without a tool_result"),
    ),
    "a result without call": (
        {"messages": [HI, assistant("ho"), user([RESULT])]},
        ("messages[2]", '"toolu_01"', "no tool_use"),
    ),
    "a result of an earlier call": (
        {"messages": [*LOOKED, user([RESULT]), assistant("ho"), user([RESULT])]},
        ("messages[4]", '"toolu_01"', "no tool_use"),
    ),
    "two calls of one id": (
        {"messages": [HI, assistant([USE, USE]), user([RESULT])]},
        ("messages[1].content[1].id", '"toolu_01"', "differ"),
    ),
    "nothing to continue": (
        {"messages": [HI, assistant("")]},
        ("messages[1]", "no text", "end with a message of the user"),
    ),
    "a server tool": (
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        ("tools[0].type", '"web_search_20250305"', "supported: custom"),
    ),
    "a toolset": (
        {"tools": [TOOLS[0], {"type": "computer_toolset_20260801"}]},
        ("tools[1].type", '"computer_toolset_20260801"', "supported: custom"),
    ),
    "a tool without schema": (
        {"tools": [{"name": "look"}]},
        ("tools[0].input_schema is missing",),
    ),
    "a tool's name with spaces": (
        {"tools": [{"name": "a b", "input_schema": {}}]},
        ("tools[0].name", '"a b"', "pattern"),
    ),
    "a choice without tools": (
        {"tool_choice": {"type": "any"}},
        ("tool_choice", "needs tools"),
    ),
    "a choice of no tool": (
        {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "hear"}},
        ("tool_choice", '"hear"', "look"),
    ),
    "a choice without name": (
        {"tools": TOOLS, "tool_choice": {"type": "tool"}},
        ("tool_choice.name is missing",),
    ),
    "an unknown way of thinking": (
        {"thinking": {"type": "between_tools"}},
        ("thinking.type", '"between_tools"', "'adaptive'"),
    ),
    "a schema that is none": (
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "objekt"}}}},
        ("json_schema", "objekt"),
    ),
    "a format without schema": (
        {"output_config": {"format": {"type": "json_schema"}}},
        ("output_config.format.schema is missing",),
    ),
    "another server's tools": (
        {"mcp_servers": [{"name": "x"}]},
        ("mcp_servers", '"x"', "its absence"),
    ),
    "a container": ({"container": "c1"}, ("container", '"c1"', "its absence")),
    "a chat's stop": ({"stop": ["x"]}, ("stop", '["x"]', "use stop_sequences")),
    "a chat's choices": ({"n": 2}, ("n = 2", "leave it out")),
    "a chat's min_tokens": ({"min_tokens": 2}, ("min_tokens = 2", "leave it out")),
    "too many stop sequences": (
        {"stop_sequences": ["x"] * 65},
        ("stop_sequences", "65", "64"),
    ),
    "too many messages and results": (
        {"messages": [HI, assistant("a")] * 2048, "system": "be brief"},
        ("messages", "4097", "4096"),
    ),
}
TOO_MANY_CALLS = [USE | {"id": f"toolu_{i}"} for i in range(513)]
WRONG["too many calls"] = (
    {"messages": [HI, assistant(TOO_MANY_CALLS)]},
    ("messages[1].content[512]", "513", "512"),
)


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said(service, name):
    fields, words = WRONG[name]
    answer = service.post(MESSAGES, {"messages": [HI], "max_tokens": 20} | fields)
    found = answer.json()
    assert answer.status_code == 400
    assert found.keys() == {"type", "error"}
    assert (found["type"], found["error"]["type"]) == ("error", "invalid_request_error")
    for word in words:
        assert word in found["error"]["message"]
    assert not service.door.submitted


def test_a_missing_limit_is_said(service):
    answer = service.post(MESSAGES, {"messages": [HI]})
    assert answer.json()["error"]["message"] == "max_tokens is missing"


def test_the_tokens_of_a_conversation_are_counted_as_they_are_asked(service):
    body = {"messages": [*LOOKED, user([RESULT])], "system": "be brief", "tools": TOOLS}
    counted = service.post(f"{MESSAGES}/count_tokens", body)
    assert not service.door.submitted
    service.asked(MESSAGES, body | {"max_tokens": 9})
    (submit,) = service.door.submitted
    assert counted.json() == {"input_tokens": len(submit.prompt)}


def test_tokens_are_counted_before_workers_are_there_and_beside_fields_of_no_use(service):
    service.door.limits = None
    body = {"messages": [HI], "temperature": "hot", "stream": 3}
    counted = service.post(f"{MESSAGES}/count_tokens", body)
    assert counted.status_code == 200
    assert counted.json()["input_tokens"] > 0


def test_templates_get_the_calls_own_ids(tmp_path):
    """One of nine characters is refused by some of them with anything before it."""
    service = Service(talker(tmp_path, BRACKETS))
    conversation = [
        HI,
        assistant([USE | {"id": "toolu_abcdefghi"}]),
        user([RESULT | {"tool_use_id": "toolu_abcdefghi"}]),
    ]
    prompt = service.asked(MESSAGES, {"messages": conversation, "max_tokens": 9}).prompt
    assert prompt.count('id": "abcdefghi"') == 2
