"""The OpenAPI document, and whether the gateway keeps what it says: generated requests, right ones
and wrong ones."""

import asyncio
from collections import Counter

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

from baton.core.messages import FinishReason
from baton.gateway.door import LedgerReport
from baton.gateway.openapi import document
from baton.gateway.operations import OPERATIONS
from baton.gateway.responses_schema import LOGPROBS
from baton.gateway.structured import SINGLE

from .fake_door import FakeDoor, view
from .models import ids
from .rig import make_app, request

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


class EndlessDoor(FakeDoor):
    """Answers every request at once, and forgets it."""

    def submit(self, submit, hear):
        super().submit(submit, hear)
        self.submitted.clear()


def door() -> FakeDoor:
    found = EndlessDoor()
    found.script = [ids("he"), ids("y"), FinishReason.STOP]
    found.report, found.cleared = CLEARED, [CLEARED]
    return found


class Near:
    """An application whose clients are on its machine, so that they may do what operators do."""

    def __init__(self, app) -> None:
        self._app = app

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
        good = self.ask(
            "POST", "/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]}
        )
        return self.ask("GET", "/ready").status_code == good.status_code == 200


UNKNOWN = (
    *("model", "max_tokens", "max_completion_tokens", "tools", "tool_choice"),
    *("continue_final_message", "response_format", "structured_outputs", *SINGLE),
    *("max_output_tokens", "text", "stream_options"),
)


def mended(case):
    """A case with the values that only this service knows: its model, which writes no calls,
    OpenAI's roles, what fits into the context, and grammars that mean something."""
    if isinstance(case.body, dict) and case.path.startswith("/v1/messages"):
        kept = case.body.keys() & {"thinking", "stream", "metadata"}
        said = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
        case.body = {name: case.body[name] for name in kept} | said
    elif isinstance(case.body, dict):
        for field in UNKNOWN:
            case.body.pop(field, None)
        case.body |= {"n": 1}
        if "tokens" in case.body:
            case.body["tokens"] = [5] * min(len(case.body["tokens"]), 3)
        if case.body.get("messages"):
            count = min(3, len(case.body["messages"]))
            case.body["messages"] = [{"role": "user", "content": "hi"}] * count
            case.body |= {"logprobs": True, "top_logprobs": 2}
        elif "input" in case.body:
            case.body |= {"input": "hi", "include": [LOGPROBS], "top_logprobs": 2}
        else:
            case.body |= {"prompt": "zz", "logprobs": 2}
    return case


def check(
    app: Near, cases: int, *, checks=CHECKS, leave_out: frozenset[str] = frozenset()
) -> Counter:
    """So many generated requests against each endpoint with a body, and fewer against the others:
    how they ended."""
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    seen: Counter = Counter()
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.label in leave_out:
            continue
        drawn = st.one_of([operation.as_strategy(generation_mode=mode) for mode in MODES])
        drawn |= operation.as_strategy(generation_mode=schemathesis.GenerationMode.POSITIVE).map(
            mended
        )
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
            seen[case.operation.label, answer.status_code] += 1

        keeps()
    return seen


def check_awake_and_asleep(cases: int) -> int:
    """All endpoints, those that change what the service does too; afterwards it is awake and
    serves. Returns the number of requests."""
    app = Near(make_app(door()))
    seen = check(app, cases)
    assert len({label for label, _ in seen}) == len(OPERATIONS)
    for operation in (
        "POST /v1/chat/completions",
        "POST /v1/completions",
        "POST /v1/responses",
        "POST /v1/messages",
        "POST /v1/messages/count_tokens",
        "POST /tokenize",
        "POST /detokenize",
    ):
        assert {status for label, status in seen if label == operation} >= {200, 400}, (
            "right ones and wrong ones"
        )
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
    slept = check(app, max(2, cases // 10), checks=ASLEEP, leave_out=frozenset({"POST /wake_up"}))
    counts = "POST /v1/messages/count_tokens"  # as it does awake: no worker is needed
    statuses = {s for label, s in slept if label.startswith("POST /v1/") and label != counts}
    assert statuses >= {400, 503}
    assert 200 not in statuses
    assert app.ask("POST", "/wake_up").json() == {"is_sleeping": False}
    assert app.serves()
    return seen.total() + slept.total()


def test_generated_requests_are_answered_as_documented():
    check_awake_and_asleep(25)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_five_thousand_generated_requests_are_answered_as_documented():
    assert check_awake_and_asleep(650) >= 5000


def test_strangers_are_answered_as_documented():
    """Without a key, or, where there is none, from another machine."""
    with_key = Near(make_app(door(), api_keys=("k",)))
    seen = check(with_key, 4) + check(make_app(door()), 4)
    assert {status for label, status in seen if label in ("POST /sleep", "POST /wake_up")} >= {
        401,
        403,
    }
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
