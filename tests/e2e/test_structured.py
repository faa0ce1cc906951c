"""Structured output between real processes: valid, and the same tokens wherever and however often
an answer is begun."""

import json
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from tests.e2e.constrained import (
    MOST,
    SEEDS,
    THINK_END,
    Answer,
    Case,
    Stream,
    ask,
    ask_all,
    assert_right,
    compact,
    drawn_schema,
    inside,
    make_thinker,
    reasoning,
    streams,
)
from tests.e2e.service import Service, unified, wait_for
from tests.tiny import END

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


def bits(count: int) -> dict[str, Any]:
    """A schema of one shape: every answer has eight tokens for each of so many objects."""
    item = {
        "type": "object",
        "properties": {"n": {"enum": [0, 1]}},
        "required": ["n"],
        "additionalProperties": False,
    }
    return {"type": "array", "items": item, "minItems": count, "maxItems": count}


LONG = bits(30)  # enough to be killed in the middle
PROMPT = list(range(1, 40))
SHORTEST = 20  # tokens of such an answer
REASONING = range(6)
pytestmark = pytest.mark.timeout(180)


DECODERS = ("decode", "another")


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_thinker(tmp_path_factory.mktemp("thinker") / "model")


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory, thinker: Path) -> Iterator[Service]:
    """One prefill worker, and two decode workers with little memory."""
    service = Service(tmp_path_factory.mktemp("apart"), thinker)
    try:
        service.start_gateway("--reasoning-parser", "qwen3")
        service.start_worker("prefill", *POOLS)
        for name in DECODERS:
            service.start_worker("decode", *POOLS, name=name)
        service.wait_ready()
        wait_for(
            lambda: len(service.ledger()["workers"]) == 3, seconds=20, why="all have registered"
        )
        yield service
    finally:
        service.close()


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory, thinker: Path) -> Iterator[Service]:
    flags = ("--reasoning-parser", "qwen3")
    directory = tmp_path_factory.mktemp("together")
    with unified(directory, thinker, *POOLS, gateway=flags) as service:
        yield service


def start_again(service: Service, *names: str) -> None:
    """Start decode workers that were killed."""
    pids = {service.start_worker("decode", *POOLS, name=name).pid for name in names}

    def known() -> set[int]:
        return {rank["pid"] for w in service.ledger()["workers"] for rank in w["ranks"]}

    wait_for(lambda: pids <= known(), seconds=20, why="they have registered")
    wait_for(lambda: service.why_not_ready().startswith("2"), seconds=20, why="both decode")


def offloaded(service: Service) -> float:
    """How often a request has given way."""
    found = re.findall(
        r'events_total{.*event="offloaded".*} ([0-9.]+)', service.http.get("/metrics").text
    )
    return sum(map(float, found))


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
    start_again(apart, victim)
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
    assert offloaded(apart) > 0, "none has given way"
    apart.wait_clean()


@pytest.fixture(scope="module")
def cases(together: Service) -> list[Case]:
    """Twenty drawn schemas, each greedy and sampled, and structures behind reasoning."""
    closing = [
        token
        for text in '"]}'
        for token in together.http.post("/tokenize", json={"prompt": text}).json()["tokens"]
    ]
    assert len(closing) == 3
    drawn = [case for seed in SEEDS for case in drawn_schema(seed, closing=closing)]
    return drawn + [reasoning(seed, bits(6), bias=3.0) for seed in REASONING]


@pytest.fixture(scope="module")
def alone(together: Service, cases: list[Case]) -> dict[str, Answer]:
    """What a unified worker answers to each case, one after the other."""
    found = {case.name: ask(together, case) for case in cases}
    for case in cases:
        assert_right(case, found[case.name])
        assert inside(case, found[case.name].ids) >= SHORTEST, case.name
    texts = {answer.text for answer in found.values()}
    assert len(texts) > 30, "answers differ, so that one taken for another is found"
    return found


def assert_as_alone(
    cases: Sequence[Case], found: Sequence[Answer], alone: dict[str, Answer]
) -> None:
    for case, said in zip(cases, found, strict=True):
        assert said == alone[case.name], case.name


def test_drawn_schemas_have_the_same_tokens_split_and_unified(
    apart: Service, cases: list[Case], alone: dict[str, Answer]
) -> None:
    assert_as_alone(cases, ask_all(apart, cases, at_once=4), alone)
    apart.wait_clean()


def test_drawn_schemas_have_the_same_tokens_after_giving_way(
    apart: Service, cases: list[Case], alone: dict[str, Answer]
) -> None:
    before = offloaded(apart)
    assert_as_alone(cases, ask_all(apart, cases, at_once=len(cases)), alone)
    assert offloaded(apart) > before, "none has given way"
    apart.wait_clean()


def in_mid_object(begun: Sequence[Stream], alone: dict[str, Answer]) -> set[str]:
    """The cases whose streams are in their objects, with more to come."""
    return {
        s.case.name
        for s in begun
        if inside(s.case, s.ids) >= 3 and len(s.ids) + 5 <= len(alone[s.case.name].ids)
    }


def kill_under(service: Service, cases: Sequence[Case], alone: dict[str, Answer]) -> set[str]:
    """Answer cases at once, and kill all decode workers when a third of them are in their objects;
    the names of those that were. There are none if they came and went too fast."""
    least = (len(cases) + 2) // 3
    with streams(service, cases) as begun:

        def reached() -> bool:
            return len(in_mid_object(begun, alone)) >= least or all(s.all.done() for s in begun)

        wait_for(reached, seconds=30, why="a third in the middle, or all at their ends")
        for name in DECODERS:
            service.processes[name].kill()
        hit = in_mid_object(begun, alone)
        start_again(service, *DECODERS)
    for stream in begun:
        assert stream.all.result(0) == alone[stream.case.name].ids, stream.case.name
    return hit


def test_answers_have_the_same_tokens_after_a_kill_in_mid_object(
    apart: Service, cases: list[Case], alone: dict[str, Answer]
) -> None:
    some = [*cases[::4], *cases[-2:]]
    assert any(kill_under(apart, some, alone) for _ in range(4)), "none was in the middle"
    apart.wait_clean()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_answer_has_the_same_tokens_after_a_kill_in_mid_object(
    apart: Service, cases: list[Case], alone: dict[str, Answer]
) -> None:
    left = list(cases)
    for _ in range(30):
        if left:
            hit = kill_under(apart, left[:16], alone)
            left = [case for case in left if case.name not in hit]
    assert not left, f"{[case.name for case in left]} were never in the middle at a kill"
    apart.wait_clean()


def test_reasoning_ends_on_decode_and_the_grammar_begins_there(
    apart: Service, together: Service, cases: list[Case], alone: dict[str, Answer]
) -> None:
    """The first token is drawn on prefill; there it is reasoning, or the token that ends it."""
    thoughts = [alone[case.name].ids for case in cases if case.reasons]
    first_ends = [ids.index(THINK_END) for ids in thoughts]
    assert len([n for n in first_ends if n > 0]) >= 4, first_ends
    at_once = reasoning(0, bits(6), bias=100.0)
    for service in (together, apart):
        said = ask(service, at_once)
        assert said.ids[0] == THINK_END
        assert said.why == "stop"
        assert_right(at_once, said)
        assert THINK_END not in said.ids[1:], "the grammar has no such token, whatever its bias"
    assert ask(apart, at_once) == ask(together, at_once)


def test_a_model_cannot_end_its_answer_while_it_reasons(
    apart: Service, together: Service, cases: list[Case]
) -> None:
    """Its end token is the likeliest by far, and is drawn only where the grammar allows it."""
    cut = 0
    for seed in range(6):
        case = reasoning(seed, bits(6), bias=float(seed))
        eager = replace(
            case, body=case.body | {"logit_bias": {str(END): 30.0, str(THINK_END): 29.0}}
        )
        for one in (case, eager):
            said = [ask(service, one) for service in (together, apart)]
            assert said[0] == said[1], one.name
            assert_right(one, said[0])
            cut += said[0].why == "length"
            assert (said[0].why == "length") == (len(said[0].ids) == MOST), one.name
    assert cut, "some reason to their limit"


def test_two_choices_of_one_request_follow_one_grammar(
    apart: Service, together: Service, cases: list[Case]
) -> None:
    drawn = [case for case in cases if case.name.endswith("sampled")][:6]
    differ = 0
    for case in drawn:
        said = []
        for service in (together, apart):
            answer = service.http.post(case.path, json=case.body | {"n": 2, "temperature": 1.5})
            assert answer.status_code == 200, answer.text
            choices = sorted(answer.json()["choices"], key=lambda choice: choice["index"])
            said.append([Answer(c["token_ids"], c["text"], c["finish_reason"]) for c in choices])
        assert said[0] == said[1], case.name
        assert len(said[0]) == 2
        for one in said[0]:
            assert_right(case, one)
        differ += said[0][0] != said[0][1]
    assert differ >= 4, "choices are drawn apart"
    apart.wait_clean()


def run_at_once(service: Service, count: int) -> bool:
    """Whether so many requests are generating now."""
    return count == sum(
        room["state"] == "running" for w in service.ledger()["workers"] for room in w["rooms"]
    )


def beside_each_other() -> tuple[list[Case], list[Case]]:
    """Two free requests and two constrained ones, of the same prompts; four fit into one worker."""
    path = "/v1/completions"
    body = {"model": "m", "max_tokens": 220, "temperature": 0.8, "return_token_ids": True}
    bodies = [
        body | {"prompt": [(11 * n + i) % 200 + 1 for i in range(20)], "seed": n} for n in range(2)
    ]
    free = [Case(f"free {b['seed']}", path, b | {"ignore_eos": True}, True) for b in bodies]
    rule = {"structured_outputs": compact(bits(20))}
    return free, [Case(f"bound {b['seed']}", path, b | rule, bits(20)) for b in bodies]


@pytest.mark.parametrize("layout", ["together", "apart"])
def test_free_requests_say_beside_constrained_ones_what_they_say_alone(
    request: pytest.FixtureRequest, layout: str
) -> None:
    """All four are seen running; those of one worker are then in one batch."""
    service: Service = request.getfixturevalue(layout)
    free, bound = beside_each_other()
    alone = {case.name: ask(service, case) for case in [*free, *bound]}
    for case in bound:
        assert_right(case, alone[case.name])
        assert alone[case.name].why == "stop"
    for _ in range(5):
        with streams(service, [*free, *bound]) as begun:
            while not (seen := run_at_once(service, 4)) and not any(s.all.done() for s in begun):
                time.sleep(0.01)
        for stream in begun:
            assert stream.all.result(0) == alone[stream.case.name].ids, stream.case.name
        if seen:
            break
    assert seen, "the four never ran at once"
    service.wait_clean()
