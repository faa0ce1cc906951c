"""What clients write is in no log, whatever they ask and however wrong it is."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.service import Service, split

CANARY = "zxqcanary7391"
KEY = "sk-canary-2846-of-a-client"
DEBUG = ("--log-level", "debug")
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": f"{CANARY} hello"}]
SCHEMA = {"type": "object", "properties": {CANARY: {"enum": [f"{CANARY} value"]}}}
TOOL = {
    "type": "function",
    "function": {"name": CANARY, "description": CANARY, "parameters": SCHEMA},
}


def chat(messages: Any = HELLO, **fields: Any) -> tuple[str, dict[str, Any]]:
    return CHAT, {"messages": messages, "max_tokens": 3} | fields


def text(prompt: Any = f"{CANARY} text", **fields: Any) -> tuple[str, dict[str, Any]]:
    return TEXT, {"prompt": prompt, "max_tokens": 3} | fields


def role(name: str, content: Any) -> list[dict[str, Any]]:
    return [{"role": name, "content": content}]


SERVED = (
    text(),
    text(stream=True, logprobs=2, echo=True, stop=[CANARY], bad_words=[CANARY]),
    text(prompt_logprobs=1, n=2, cache_salt=CANARY, user=CANARY),
    text(structured_outputs={"choice": [CANARY]}, max_tokens=40),
    text(structured_outputs={"json": SCHEMA}),
    chat(),
    chat(stream=True, metadata={"who": CANARY}),
    chat(tools=[TOOL]),
    chat(tools=[TOOL], tool_choice="required"),
    chat(response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}),
    ("/v1/responses", {"input": CANARY, "instructions": CANARY, "max_output_tokens": 16}),
    ("/v1/messages", {"messages": HELLO, "system": CANARY, "max_tokens": 3}),
    ("/v1/messages/count_tokens", {"messages": HELLO}),
    ("/tokenize", {"prompt": CANARY}),
    ("/tokenize", {"messages": HELLO}),
    chat(of_another_server=CANARY),
    chat(**{f"{CANARY} {CANARY}": CANARY}),
)
REFUSED = (
    chat(role(CANARY, "hello")),
    chat(role("user", {"text": CANARY})),
    chat(CANARY),
    chat(temperature=CANARY),
    chat(mirostat=CANARY),
    chat(**{f"guided_ {CANARY}": CANARY}),
    chat(tools=[{"type": CANARY}]),
    chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": CANARY + "2"}}),
    chat(role("user", f"{CANARY} " * 4000)),
    chat(max_tokens=CANARY),
    text({CANARY: 1}),
    text(model=CANARY),
    text(f"{CANARY} \ud800"),
    text(logit_bias={CANARY: 1}),
    text(structured_outputs={"json": {"type": CANARY}}),
    text(structured_outputs={"regex": f"({CANARY}"}),
    text(structured_outputs={"grammar": f"root ::= {CANARY}"}),
    text(structured_outputs={"structural_tag": {"begin": CANARY}}),
    text(structured_outputs={CANARY: CANARY}),
    chat(response_format={"type": CANARY}),
    ("/v1/responses", {"input": [{"type": CANARY}]}),
    ("/v1/responses", {"input": CANARY, "text": {"format": {"type": CANARY}}}),
    ("/v1/messages", {"messages": role(CANARY, CANARY), "max_tokens": 3}),
    ("/v1/messages", {"messages": HELLO}),
    ("/tokenize", {"prompt": [CANARY]}),
    ("/detokenize", {"tokens": CANARY}),
    (f"/v1/models/{CANARY}", {}),
)
UNSATISFIABLE = text(
    structured_outputs={"regex": f"{CANARY}[a-z]{{3}}"}, allowed_token_ids=[1, 2], max_tokens=9
)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Iterator[Service]:
    """All processes tell all that they have to tell."""
    folder = tmp_path_factory.mktemp("private")
    keys = folder / "keys"
    keys.write_text(KEY + "\n")
    gateway = (*DEBUG, "--tool-call-parser", "hermes", "--api-key-file", str(keys))
    with split(folder, tiny, gateway=gateway, prefill=DEBUG, decode=DEBUG) as found:
        found.http.headers["authorization"] = f"Bearer {KEY}"
        yield found


def lines_with(service: Service, words: list[str]) -> list[str]:
    return [
        f"{name}: {line}"
        for name in service.processes
        for line in service.log(name).splitlines()
        if any(word in line for word in words)
    ]


@pytest.mark.parametrize("stage", ["served", "refused", "broken"])
def test_no_log_has_what_a_client_has_written(service: Service, stage: str) -> None:
    if stage == "broken":
        for raw in (f'{{"prompt": "{CANARY}', f'"{CANARY}"', f"{CANARY}", f'["{CANARY}"]'):
            assert service.http.post(TEXT, content=raw).status_code == 400
        answer = service.http.post(UNSATISFIABLE[0], json=UNSATISFIABLE[1])
        assert answer.status_code == 422, answer.text
        other = service.http.post(TEXT, json={}, headers={"authorization": f"Bearer {CANARY}"})
        assert other.status_code == 401
    for path, body in {"served": SERVED, "refused": REFUSED, "broken": ()}[stage]:
        answer = service.http.post(
            path, content=json.dumps(body), headers={"content-type": "application/json"}
        )
        assert (answer.status_code == 200) is (stage == "served"), (path, body, answer.text)
        assert answer.status_code < 500, (path, body, answer.text)
    with service.http.stream("POST", TEXT, json=text(max_tokens=200, stream=True)[1]) as left:
        next(left.iter_bytes())  # and the client leaves
    service.wait_clean(20)
    assert "request.ended" in service.log("gateway")
    assert "step_computed" in service.log("decode"), "workers log at debug"
    shown = lines_with(service, [CANARY, KEY, CANARY.encode().hex()])
    assert not shown, "\n".join(shown)
