"""The OpenAPI document, and whether the gateway keeps what it says: generated requests, right ones
and wrong ones."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from itertools import cycle
from typing import Any

import httpx
import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from baton.gateway.auth import GUARDED
from baton.gateway.door import LedgerReport
from baton.gateway.openapi import document
from baton.gateway.operations import OPERATIONS
from baton.gateway.responses_schema import LOGPROBS
from baton.gateway.structured import SINGLE
from baton.gateway.tokenizer import Tokenizer

from .fake_door import FakeDoor, view
from .following_door import FollowingDoor
from .rig import make_app, request
from .templates import talker
from .written_answers import TOOLS

CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
)
MODES = list(schemathesis.GenerationMode)


# 503 is then the right answer
ASLEEP = tuple(check for check in CHECKS if check is not not_a_server_error)
CLEARED = LedgerReport(
    (msgspec.structs.replace(view("unified", clean=True), cleared=("full",)),), (), 0
)


def door() -> FollowingDoor:
    found = FollowingDoor()
    found.report, found.cleared = CLEARED, [CLEARED]
    return found


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    return talker(tmp_path_factory.mktemp("talker"))


HI = [{"role": "user", "content": "hi"}]
INTEGER = {"type": "integer", "minimum": 1, "maximum": 3}
REQUIRED = {"tools": TOOLS, "tool_choice": "required"}
# right requests, of a plain answer, of one with a structure and of calls
GOOD: tuple[dict[str, Any], ...] = ({}, {"structured_outputs": {"json": INTEGER}}, REQUIRED)


class Near:
    """An application whose clients are on its machine, so that they may do what operators do."""

    def __init__(self, app) -> None:
        self._app = app
        self._good = cycle(GOOD)

    async def __call__(self, scope, receive, send) -> None:
        await self._app(scope | {"client": ("127.0.0.1", 5)}, receive, send)

    def ask(self, method: str, path: str, **arguments) -> httpx.Response:
        async def go() -> httpx.Response:
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(self), base_url="http://gateway"
            ) as http:
                return await http.request(method, path, **arguments)

        return asyncio.run(go())

    def serves(self) -> bool:
        """Whether it is awake, and answers."""
        return self.ask("GET", "/ready").status_code == 200 and self.answers()

    def answers(self) -> bool:
        """Whether the next right request is answered as it should: refused if it is asleep."""
        wish = next(self._good)
        answer = self.ask("POST", "/v1/chat/completions", json={"messages": HI} | wish)
        if self.ask("GET", "/is_sleeping").json()["is_sleeping"]:
            return answer.status_code == 503
        if answer.status_code != 200:
            return False
        message = answer.json()["choices"][0]["message"]
        if wish is REQUIRED:
            calls = [call["function"] for call in message.get("tool_calls") or ()]
            return bool(calls) and all(isinstance(json.loads(c["arguments"]), dict) for c in calls)
        return message.get("content") == "1" if wish else True


UNKNOWN = (
    *("model", "max_tokens", "max_completion_tokens", "tools", "tool_choice"),
    *("continue_final_message", "response_format", "structured_outputs", *SINGLE),
    *("max_output_tokens", "text", "stream_options"),
)


FUNCTIONS = [tool["function"] for tool in TOOLS]
SCHEMA = {"type": "object", "properties": {"n": INTEGER}, "required": ["n"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
NOW = {"type": "function", "function": {"name": "now"}}
THEN = {"type": "function", "function": {"name": "then"}}  # there is none
CHOICES: tuple[Any, ...] = (None, "auto", "required", NOW, "none", THEN)
STRUCTURES: tuple[dict[str, Any], ...] = (
    {"structured_outputs": {"regex": "a+"}},
    {"structured_outputs": {"choice": ["a", "b"]}},
    {"guided_json": SCHEMA},
    {"ebnf": 'root ::= "a"'},
)
STRICT = [{**tool, "function": tool["function"] | {"strict": True}} for tool in TOOLS]
# what a request of each endpoint may want, tools and structures
WISHES: dict[str, tuple[dict[str, Any], ...]] = {
    "/v1/chat/completions": (
        {},
        *({"tools": TOOLS, "tool_choice": choice} for choice in CHOICES),
        {"tools": STRICT, "tool_choice": "auto", "parallel_tool_calls": False},
        {"response_format": FORMAT},
        {"response_format": {"type": "json_object"}},
        *STRUCTURES,
    ),
    "/v1/completions": ({}, {"response_format": FORMAT}, *STRUCTURES),
    "/v1/responses": (
        {},
        *(
            {"tools": [{"type": "function"} | f for f in FUNCTIONS], "tool_choice": choice}
            for choice in (
                *(None, "auto", "required", "none"),
                *({"type": "function", "name": name} for name in ("now", "then")),
            )
        ),
        {"text": {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}}},
        *STRUCTURES[:1],
    ),
    "/v1/messages": (
        {},
        *(
            {
                "tools": [
                    {"name": f["name"], "input_schema": f.get("parameters", {"type": "object"})}
                    for f in FUNCTIONS
                ],
                "tool_choice": choice,
            }
            for choice in (
                *({"type": "auto"}, {"type": "any"}, {"type": "none"}),
                {"type": "tool", "name": "now", "disable_parallel_tool_use": True},
                {"type": "tool", "name": "then"},
            )
        ),
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    ),
}


def mended(case, wish):
    """A case with the values that only this service knows: its model, OpenAI's roles, what fits
    into the context, and tools and grammars that mean something."""
    if isinstance(case.body, dict) and case.path.startswith("/v1/messages"):
        kept = case.body.keys() & {"thinking", "stream", "metadata"}
        said = {"messages": HI, "max_tokens": 300}
        case.body = {name: case.body[name] for name in kept} | said | wish
    elif isinstance(case.body, dict):
        for field in UNKNOWN:
            case.body.pop(field, None)
        case.body |= {"n": 1}
        if "tokens" in case.body:
            case.body["tokens"] = [5] * min(len(case.body["tokens"]), 3)
        if case.body.get("messages"):
            count = min(3, len(case.body["messages"]))
            case.body["messages"] = HI * count
            case.body |= {"logprobs": True, "top_logprobs": 2}
        elif "input" in case.body:
            case.body |= {"input": "hi", "include": [LOGPROBS], "top_logprobs": 2}
        else:
            case.body |= {"prompt": "zz", "logprobs": 2}
        case.body |= wish
    return case


# fields that ask for tools or a structure, of all endpoints
WISHED = ("tools", "response_format", "structured_outputs", *SINGLE, "text", "output_config")


def check(
    app: Near,
    cases: int,
    *,
    checks=CHECKS,
    leave_out: frozenset[str] = frozenset(),
    after_bad: Callable[[], bool] = lambda: True,
) -> Counter:
    """So many generated requests against each endpoint with a body, and fewer against the others.

    Args:
        after_bad: asked after every answer of a bad request; must be true

    Returns:
        How they ended: by operation and status, and by operation, field and status
    """
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    seen: Counter = Counter()
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.label in leave_out:
            continue
        drawn = st.one_of([operation.as_strategy(generation_mode=mode) for mode in MODES])
        good = operation.as_strategy(generation_mode=schemathesis.GenerationMode.POSITIVE)
        wishes = st.sampled_from(WISHES.get(operation.path, ({},)))
        drawn |= st.builds(mended, good, wishes)
        body = operation.label.startswith("POST /v1/") or "tokenize" in operation.label

        @seed(4)
        @settings(
            max_examples=cases if body else max(8, cases // 20),
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=drawn)
        def keeps(case):
            answer = case.call_and_validate(checks=checks)
            label, status = case.operation.label, answer.status_code
            seen[label, status] += 1
            seen["all"] += 1
            if isinstance(case.body, dict):
                seen.update((label, f, status) for f in WISHED if case.body.get(f))
            if 400 <= status < 500:
                assert after_bad(), (
                    f"a right request is not answered after {case.as_curl_command()}"
                )

        keeps()
    return seen


def check_wishes(seen: Counter) -> None:
    """Every endpoint has accepted tools and structures, and refused some."""
    chat, responses, messages = (
        f"POST /v1/{name}" for name in ("chat/completions", "responses", "messages")
    )
    for operation, field in (
        *((operation, "tools") for operation in (chat, responses, messages)),
        (chat, "response_format"),
        (chat, "structured_outputs"),
        ("POST /v1/completions", "structured_outputs"),
        (responses, "text"),
        (messages, "output_config"),
    ):
        assert seen[operation, field, 200], (operation, field)
        assert seen[operation, field, 400], (operation, field)


def check_awake_and_asleep(tokenizer: Tokenizer, cases: int) -> Counter:
    """All endpoints, those that change what the service does too; afterwards it is awake and
    serves. Returns what `check` does."""
    behind = door()
    app = Near(make_app(behind, tokenizer=tokenizer, tool_call_parser="hermes"))
    seen = check(app, cases, after_bad=app.answers)
    assert behind.constrained > cases
    assert len({key[0] for key in seen if key != "all"}) == len(OPERATIONS)
    for operation in (
        "POST /v1/chat/completions",
        "POST /v1/completions",
        "POST /v1/responses",
        "POST /v1/messages",
        "POST /v1/messages/count_tokens",
        "POST /tokenize",
        "POST /detokenize",
    ):
        assert seen[operation, 200], "right ones"
        assert seen[operation, 400], "wrong ones"
    for operation in (
        "POST /sleep",
        "POST /wake_up",
        "POST /reset_prefix_cache",
        "GET /debug/ledger",
    ):
        assert seen[operation, 200], "not only refused"
    app.ask("POST", "/wake_up")
    assert app.serves()
    assert app.ask("POST", "/sleep").status_code == 200
    slept = check(
        app,
        max(2, cases // 10),
        checks=ASLEEP,
        leave_out=frozenset({"POST /wake_up"}),
        after_bad=app.answers,
    )
    counts = "POST /v1/messages/count_tokens"  # as it does awake: no worker is needed
    statuses = {key[-1] for key in slept if key[0].startswith("POST /v1/") and key[0] != counts}
    assert statuses >= {400, 503}
    assert 200 not in statuses
    assert app.ask("POST", "/wake_up").json() == {"is_sleeping": False}
    assert app.serves()
    return seen + slept


def test_generated_requests_are_answered_as_documented(tokenizer):
    seen = check_awake_and_asleep(tokenizer, 25)
    for status in (200, 400):
        assert any(key[1:] == ("tools", status) for key in seen), status


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_five_thousand_generated_requests_are_answered_as_documented(tokenizer):
    seen = check_awake_and_asleep(tokenizer, 650)
    assert seen["all"] >= 5000
    check_wishes(seen)


def test_strangers_are_answered_as_documented(tokenizer):
    """Without a key, or, where there is none, from another machine."""
    with_key = Near(make_app(door(), tokenizer=tokenizer, api_keys=("k",)))
    seen = check(with_key, 4) + check(make_app(door(), tokenizer=tokenizer), 4)
    for status in (401, 403):
        assert seen["POST /sleep", status] + seen["POST /wake_up", status]
    assert seen["GET /health", 401] == 0
    assert with_key.ask("GET", "/is_sleeping").json() == {"is_sleeping": False}


def test_the_document_is_served_and_whole():
    answer = request(FakeDoor(), "GET", "/openapi.json", settings={"api_keys": ("k",)})
    found = answer.json()
    assert found == msgspec.json.decode(msgspec.json.encode(document(OPERATIONS)))
    assert found["openapi"] == "3.1.0"
    named = {
        "ChatBody",
        "CompletionBody",
        "ChatAnswer",
        "CompletionAnswer",
        "ResponsesBody",
        "ResponsesAnswer",
        "FaultBody",
        "MessagesBody",
        "CountTokensBody",
        "MessageAnswer",
        "MessagesFaultBody",
        "Books",
        "ModelList",
    }
    assert named <= found["components"]["schemas"].keys()
    references = {part.split('"')[0] for part in answer.text.split('"#/components/schemas/')[1:]}
    assert references <= found["components"]["schemas"].keys(), "a reference leads nowhere"


def test_every_endpoint_that_says_that_it_needs_a_key_is_guarded():
    """An operator's order would otherwise be open to everybody who reaches the port, as soon as
    there are keys."""
    for op in OPERATIONS:
        assert (401 in op.faults) == op.path.startswith(GUARDED), op.path
