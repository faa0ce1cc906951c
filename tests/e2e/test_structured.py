"""Structured output between real processes: valid, and the same tokens wherever and however often
an answer is begun."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import jsonschema
import pytest
from tests.e2e.service import Service, unified, wait_for

POOLS = ("--kv-pages", "60", "--page-size", "16")
SHORT = {"type": "string", "maxLength": 6}
SCHEMAS = (
    {
        "type": "object",
        "properties": {"name": SHORT, "age": {"enum": [1, 2]}},
        "required": ["age"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"type": "boolean"}, "minItems": 3, "maxItems": 5},
    {
        "type": "object",
        "properties": {
            "kind": {"const": "leaf"},
            "more": {"type": "array", "items": SHORT, "minItems": 2, "maxItems": 3},
        },
        "required": ["kind", "more"],
        "additionalProperties": False,
    },
)
# long enough to be killed in the middle, and of one shape
LONG = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"n": {"enum": [0, 1]}},
        "required": ["n"],
        "additionalProperties": False,
    },
    "minItems": 30,
    "maxItems": 30,
}
PROMPT = list(range(1, 40))
pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Iterator[Service]:
    """One prefill worker, and two decode workers with little memory."""
    service = Service(tmp_path_factory.mktemp("apart"), tiny)
    try:
        service.start_gateway()
        service.start_worker("prefill", *POOLS)
        for name in ("decode", "another"):
            service.start_worker("decode", *POOLS, name=name)
        service.wait_ready()
        wait_for(
            lambda: len(service.ledger()["workers"]) == 3, seconds=20, why="all have registered"
        )
        yield service
    finally:
        service.close()


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Iterator[Service]:
    with unified(tmp_path_factory.mktemp("together"), tiny, *POOLS) as service:
        yield service


def compact(schema: dict) -> dict:
    """A random model would write white space most of the time."""
    return {"json": schema, "disable_any_whitespace": True}


def answer(service: Service, schema: dict, **fields: object) -> tuple[list[int], str, str]:
    """Ids, text and finish reason."""
    said = service.complete(PROMPT, max_tokens=400, structured_outputs=compact(schema), **fields)
    assert said.status_code == 200, said.text
    choice = said.json()["choices"][0]
    return choice["token_ids"], choice["text"], choice["finish_reason"]


@pytest.mark.parametrize("n", range(len(SCHEMAS)))
def test_answers_are_valid_and_the_same_split_and_unified_alone_and_in_company(
    apart: Service, together: Service, n: int
) -> None:
    draws: list[dict[str, object]] = [
        {},
        *({"temperature": 1.2, "seed": seed} for seed in range(5)),
    ]
    alone = [answer(together, SCHEMAS[n], **fields) for fields in draws]
    free = apart.ids(PROMPT, max_tokens=30, ignore_eos=True)
    with ThreadPoolExecutor(8) as pool:
        bystander = pool.submit(apart.ids, PROMPT, max_tokens=30, ignore_eos=True)
        company = list(pool.map(lambda fields: answer(apart, SCHEMAS[n], **fields), draws))
        assert bystander.result() == free, "one without a grammar says what it says alone"
    assert company == alone
    for _, text, why in company:
        assert why == "stop"
        jsonschema.validate(json.loads(text), SCHEMAS[n])
    apart.wait_clean()
    together.wait_clean()


def test_an_answer_goes_on_after_its_decode_worker_is_killed_in_mid_object(
    apart: Service, together: Service
) -> None:
    expected, text, _ = answer(together, LONG)
    jsonschema.validate(json.loads(text), LONG)
    body = {
        "model": "m",
        "prompt": PROMPT,
        "max_tokens": 400,
        "temperature": 0,
        "structured_outputs": compact(LONG),
        "return_token_ids": True,
        "stream": True,
    }
    found: list[int] = []
    victim = ""
    url = f"http://127.0.0.1:{apart.port}/v1/completions"
    with httpx.stream("POST", url, json=body, timeout=60) as stream:
        for line in stream.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            assert "error" not in event, event
            found += event["choices"][0]["token_ids"]
            if len(found) > 20 and not victim:
                (victim,) = [
                    w["name"]
                    for w in apart.ledger()["workers"]
                    if w["role"] == "decode" and w["rooms"]
                ]
                apart.processes[victim].kill()
    assert victim
    assert found == expected
    apart.start_worker("decode", *POOLS, name=victim)
    wait_for(lambda: apart.http.get("/ready").json()["why"].startswith("2"), seconds=20, why="both")
    apart.wait_clean()


def test_answers_that_give_way_to_each_other_come_back_and_stay_right(apart: Service) -> None:
    """More than the decode workers have memory for; prompts differ, so nothing is shared."""

    def one(n: int) -> tuple[list[int], str, str]:
        prompt = [(7 * n + i) % 200 + 1 for i in range(200)]
        said = apart.complete(prompt, max_tokens=400, structured_outputs=compact(LONG))
        assert said.status_code == 200, said.text
        choice = said.json()["choices"][0]
        return choice["token_ids"], choice["text"], choice["finish_reason"]

    alone = [one(n) for n in range(6)]
    with ThreadPoolExecutor(6) as pool:
        crowd = list(pool.map(one, range(6)))
    assert crowd == alone
    for _, text, _ in crowd:
        jsonschema.validate(json.loads(text), LONG)
    counted = re.findall(
        r'events_total{.*event="offloaded".*} ([0-9.]+)', apart.http.get("/metrics").text
    )
    assert sum(map(float, counted)) > 0, "none has given way"
    apart.wait_clean()
