"""The OpenAPI document, and whether the gateway keeps what it says: generated requests, right ones and wrong ones."""

from collections import Counter

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
from baton.gateway.openapi import document
from baton.gateway.operations import OPERATIONS

from .fake_door import FakeDoor
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


class EndlessDoor(FakeDoor):
    """Answers every request at once, and forgets it."""

    def submit(self, submit, hear):
        super().submit(submit, hear)
        self.submitted.clear()


def door() -> FakeDoor:
    found = EndlessDoor()
    found.script = [ids("he"), ids("y"), FinishReason.STOP]
    return found


def mended(case):
    """A case with the values that only this service knows: its model, OpenAI's roles, what fits into the context."""
    if isinstance(case.body, dict):
        case.body.pop("model", None)
        case.body.pop("max_tokens", None)
        case.body.pop("max_completion_tokens", None)
        case.body |= {"n": 1}
        if "messages" in case.body:
            case.body["messages"] = [m | {"role": "user", "content": "hi"} for m in case.body["messages"][:3]]
            case.body |= {"logprobs": True, "top_logprobs": 2}
        else:
            case.body |= {"prompt": "zz", "logprobs": 2}
    return case


def check(cases: int) -> None:
    """So many generated requests against every endpoint."""
    schema = schemathesis.openapi.from_asgi("/openapi.json", make_app(door()))
    seen: Counter = Counter()
    for result in schema.get_all_operations():
        operation = result.ok()
        drawn = st.one_of([operation.as_strategy(generation_mode=mode) for mode in MODES])
        drawn |= operation.as_strategy(generation_mode=schemathesis.GenerationMode.POSITIVE).map(mended)
        body = operation.label.startswith("POST /v1/")

        @seed(4)
        @settings(
            max_examples=cases if body else max(1, cases // 20),
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=drawn)
        def keeps(case):
            answer = case.call_and_validate(checks=CHECKS)
            seen[case.operation.label, answer.status_code] += 1

        keeps()
    assert len({label for label, _ in seen}) == len(OPERATIONS)
    for operation in ("POST /v1/chat/completions", "POST /v1/completions"):
        assert {status for label, status in seen if label == operation} >= {200, 400}, "right ones and wrong ones"


def test_generated_requests_are_answered_as_documented():
    check(25)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_thousand_generated_requests_are_answered_as_documented():
    check(500)


def test_the_document_is_served_and_whole():
    answer = request(FakeDoor(), "GET", "/openapi.json", settings={"api_keys": ("k",)})
    found = answer.json()
    assert found == document(OPERATIONS)
    assert found["openapi"] == "3.1.0"
    named = {"ChatBody", "CompletionBody", "ChatAnswer", "CompletionAnswer", "FaultBody", "Books", "ModelList"}
    assert named <= found["components"]["schemas"].keys()
    references = {part.split('"')[0] for part in answer.text.split('"#/components/schemas/')[1:]}
    assert references <= found["components"]["schemas"].keys(), "a reference leads nowhere"
