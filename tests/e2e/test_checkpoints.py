"""Models with windows or recurrent state between real processes: of a conversation a worker that
computes prompts computes only what is new, from where it has ended the turn before."""

import json
from pathlib import Path

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.e2e.fleet import Fleet, Layout
from tests.e2e.nursery import Nursery
from tests.e2e.reference import Reference
from tests.e2e.service import Service, split, unified, wait_for
from tests.tiny import make_tiny

from baton.cli.main import run
from baton.core.messages import LedgerView
from baton.ports.speculative_config import SpeculativeConfig
from baton.shell.settings import Role

TURNS, OPENING, QUESTION, ANSWER = 4, 150, 37, 6
HOST_BYTES = 64 << 20
TARGET = Layout(1)
KINDS = {
    "gemma3": ("gemma3", Layout(1)),
    "gemma3, tp 2, pages of 64": ("gemma3", Layout(2, page=64)),
    "qwen3_next": ("qwen3_next", Layout(1)),
    "qwen3_5, pp 2": ("qwen3_5", Layout(1, 2)),
}


UNIFIED = {
    "gemma3": ("gemma3", Layout(1)),
    "gemma3, tp 2, pages of 64": ("gemma3", Layout(2, page=64)),
    "gemma3, drafts": ("gemma3", Layout(1)),
    "qwen3_next": ("qwen3_next", Layout(1)),
    "qwen3_5, pp 2": ("qwen3_5", Layout(1, 2)),
}
DRAFTS = SpeculativeConfig(method="suffix", num_speculative_tokens=6)


def some(n: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 250, n).tolist()


def prefill_of(fleet: Fleet) -> LedgerView:
    (view,) = [v for v in fleet.books() if v.role == Role.PREFILL.value]
    return view


@pytest.mark.parametrize(("family", "source"), KINDS.values(), ids=KINDS)
@pytest.mark.timeout(300)
def test_a_turn_computes_only_what_is_new(
    tmp_path: Path, nursery: Nursery, family: str, source: Layout
) -> None:
    path = make_tiny(tmp_path / "model", family, num_hidden_layers=4)
    reference, journals = Reference(path), tmp_path / "journals"
    journals.mkdir()
    fleet = Fleet(
        nursery,
        tmp_path / "logs",
        path,
        {Role.PREFILL: (source,), Role.DECODE: (TARGET,)},
        pages=128,
        max_model_len=1024,
        prefix_caching=True,
        host_kv_bytes=HOST_BYTES,
        record=journals,
    )

    def turn(prompt: list[int]) -> tuple[list[int], int]:
        """The answer, and how many tokens of the prompt were not computed."""
        fleet.settle()
        before = prefill_of(fleet).counters.cache.hits
        said = fleet.answer(fleet.begin(fleet.pair(source, TARGET), prompt, ANSWER))
        assert said == reference.answer(prompt, ANSWER), f"{len(prompt)} tokens"
        return said, prefill_of(fleet).counters.cache.hits - before

    try:
        prompt, known = some(OPENING, 3), 0
        for n in range(TURNS):
            said, reused = turn(prompt)
            assert reused == known, f"turn {n}"
            known = len(prompt)
            prompt += [*said, *some(QUESTION, 10 + n)]
        # another question after the second turn: its end was kept too
        other = some(OPENING, 3)
        again, _ = turn(other)
        other += [*again, *some(QUESTION, 77)]
        assert turn(other)[1] == OPENING
        # beginnings that differ in their last token have nothing in common
        other = some(OPENING, 3)
        other[-1] += 1
        assert turn([*other, *some(QUESTION, 78)])[1] == 0
        fleet.settle()
        view = prefill_of(fleet)
        assert view.counters.events["checkpoint_used"] == TURNS
        assert view.counters.events["checkpoint_kept"] == TURNS + 2
        assert 0 < view.host["used"] < view.host["total"]
    finally:
        fleet.close()
    assert len(list(journals.iterdir())) == source.tp * source.pp + 1
    for journal in sorted(journals.iterdir()):
        assert run(["replay-log", str(journal)]) == 0, journal.name


@pytest.mark.parametrize("name", UNIFIED)
@pytest.mark.timeout(300)
def test_a_turn_goes_on_where_the_answer_ended(tmp_path: Path, nursery: Nursery, name: str) -> None:
    """On a unified worker, which has the state there. The last token of an answer is not computed;
    and with drafts the page that it ends may not be sealed, so that it ends a step too early."""
    family, layout = UNIFIED[name]
    drafts = "drafts" in name
    path = make_tiny(tmp_path / "model", family, num_hidden_layers=4)
    reference, journals = Reference(path), tmp_path / "journals"
    journals.mkdir()
    fleet = Fleet(
        nursery,
        tmp_path / "logs",
        path,
        {Role.UNIFIED: (layout,)},
        pages=128,
        max_model_len=1024,
        prefix_caching=True,
        host_kv_bytes=HOST_BYTES,
        record=journals,
        **({"speculative": DRAFTS} if drafts else {}),
    )
    boot = fleet.boot(Role.UNIFIED, layout)

    def turn(prompt: list[int], count: int = ANSWER) -> tuple[list[int], int]:
        """The answer, and how many tokens of the prompt were not computed."""
        fleet.settle()
        before = fleet.books()[0].counters.cache.hits
        said = fleet.answer(fleet.begin((boot, boot), prompt, count))
        assert said == reference.answer(prompt, count), f"{len(prompt)} tokens"
        # meanwhile this process, which is the gateway, may have said nothing for too long
        fleet.turn_until(lambda: bool(fleet.front.usable_pairs()), what="the worker")
        return said, fleet.books()[0].counters.cache.hits - before

    try:
        prompt, known = some(OPENING, 3), {0}
        for n in range(TURNS):
            count = ANSWER + 9 * n
            said, reused = turn(prompt, count)
            assert reused in known, f"turn {n}"
            end = len(prompt) + count - 1
            known = {end, len(prompt)} if drafts else {end}
            prompt += [*said, *some(QUESTION, 10 + n)]
        # another question after the first prompt; and the first turn again, with other answers
        assert turn([*some(OPENING, 3), *some(QUESTION, 77)])[1] == OPENING
        other = some(OPENING, 3)
        other[-1] += 1
        assert turn([*other, *some(QUESTION, 78)])[1] == 0
        fleet.settle()
        (view,) = fleet.books()
        assert view.counters.events["checkpoint_used"] == TURNS
        assert drafts or view.counters.events["answer_used"] == TURNS - 1
        assert not view.counters.events.get("checkpoint_unusable")
        assert 0 < view.host["used"] < view.host["total"]
    finally:
        fleet.close()
    for journal in sorted(journals.iterdir()):
        assert run(["replay-log", str(journal)]) == 0, journal.name


@pytest.mark.parametrize("family", ["gemma3", "qwen3_5"])
@pytest.mark.parametrize("role", [Role.UNIFIED, Role.PREFILL])
@pytest.mark.timeout(300)
def test_a_long_beginning_in_common_is_computed_once(
    tmp_path: Path, nursery: Nursery, family: str, role: Role
) -> None:
    path, one = make_tiny(tmp_path / "model", family, num_hidden_layers=4), Layout(1)
    answers = role if role is Role.UNIFIED else Role.DECODE
    system, reference = some(700, 1), Reference(path)
    prompts = [[*system, *some(QUESTION, seed)] for seed in (2, 3, 3)]
    # before there are processes that wait for an answer of this one
    due = [reference.answer(prompt, 2) for prompt in prompts]
    fleet = Fleet(
        nursery,
        tmp_path / "logs",
        path,
        {role: (one,), answers: (one,)},
        pages=256,
        max_model_len=1024,
        prefix_caching=True,
        host_kv_bytes=HOST_BYTES,
    )

    def hits() -> int:
        (view,) = [view for view in fleet.books() if view.role == role.value]
        return view.counters.cache.hits

    try:
        pair, reused = (fleet.boot(role, one), fleet.boot(answers, one)), []
        for prompt, said in zip(prompts, due, strict=True):
            before = hits()
            assert fleet.answer(fleet.begin(pair, prompt, 2)) == said
            fleet.settle()
            reused.append(hits() - before)
        assert reused == [0, reused[1], reused[1]], "the last one was asked before"
        assert 512 <= reused[1] <= len(system)
        assert reused[1] % 16 == 0
        (view,) = [view for view in fleet.books() if view.role == role.value]
        assert view.counters.events["part_used"] == 2
        assert not view.counters.events.get("checkpoint_unusable")
    finally:
        fleet.close()


@pytest.mark.parametrize("family", ["gemma3", "qwen3_5"])
@pytest.mark.timeout(300)
def test_a_conversation_that_gives_way_says_the_same(
    tmp_path: Path, nursery: Nursery, family: str
) -> None:
    """Its state and its checkpoints share the host memory."""
    path, layout = make_tiny(tmp_path / "model", family, num_hidden_layers=4), Layout(1)
    reference = Reference(path)
    fleet = Fleet(
        nursery,
        tmp_path / "logs",
        path,
        {Role.UNIFIED: (layout,)},
        pages=12,
        prefix_caching=True,
        host_kv_bytes=1 << 20,
    )
    boot = fleet.boot(Role.UNIFIED, layout)
    try:
        patient, urgent = some(40, 1), some(130, 2)
        for turn in range(2):
            asked = fleet.begin((boot, boot), patient, 40, priority=5)
            fleet.until_said(asked, 5)
            said = fleet.answer(fleet.begin((boot, boot), urgent, 4))
            assert said == reference.answer(urgent, 4)
            answer = fleet.answer(asked)
            assert answer == reference.answer(patient, 40), f"turn {turn}"
            patient += [*answer, *some(5, turn)]
            urgent[-1] += 1
        fleet.settle()
        events = fleet.books()[0].counters.events
        assert events["resumed"] == 2
        assert events["checkpoint_kept"] > 0
    finally:
        fleet.close()


@pytest.mark.parametrize("family", ["gemma3", "qwen3_5"])
@pytest.mark.timeout(240)
def test_a_conversation_goes_on_elsewhere(tmp_path: Path, family: str) -> None:
    """Its worker is killed in the middle of an answer; the other one has nothing of it, and then
    what it has said itself."""
    path = make_tiny(tmp_path / "model", family, num_hidden_layers=4)
    reference = Reference(path)

    def ask(service: Service, prompt: list[int], *, kill: bool = False) -> tuple[list[int], int]:
        """The answer, and how many tokens of the prompt were not computed."""
        body = {"model": "m", "prompt": prompt, "max_tokens": 120, "temperature": 0}
        more = {"ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
        url = f"http://127.0.0.1:{service.port}/v1/completions"
        said: list[int] = []
        reused = 0
        with httpx.stream(
            "POST", url, json=body | more | {"return_token_ids": True}, timeout=60
        ) as answer:
            for line in answer.iter_lines():
                if not line or line == "data: [DONE]":
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                for choice in chunk["choices"]:
                    said += choice.get("token_ids") or []
                if usage := chunk.get("usage"):
                    reused = usage["prompt_tokens_details"]["cached_tokens"]
                if kill and len(said) > 10:
                    kill = False
                    busy = [w["name"] for w in service.ledger()["workers"] if w["rooms"]]
                    service.processes.pop(busy[0]).kill()
        return said, reused

    with unified(tmp_path, path, "--kv-pages", "64") as service:
        service.start_worker("unified", "--kv-pages", "64", name="unified-2")
        wait_for(lambda: len(service.ledger()["workers"]) == 2, seconds=60, why="two workers")
        prompt, known = some(OPENING, 3), 0
        for n in range(4):
            said, reused = ask(service, prompt, kill=n == 1)
            assert said == reference.answer(prompt, 120), f"turn {n}"
            assert n == 1 or reused == known, f"turn {n}"
            known = len(prompt) + 119
            prompt += [*said, *some(QUESTION, n)]
            service.wait_clean()


@pytest.mark.timeout(240)
def test_clients_and_operators_see_what_was_reused(tmp_path: Path) -> None:
    """With host memory of the size that it has by default."""
    path = make_tiny(tmp_path / "model", "gemma3", num_hidden_layers=4)
    reference = Reference(path)
    always = "--fetch-back", "always"
    with split(tmp_path, path, prefill=always, decode=always) as service:
        prompt, known = some(OPENING, 3), 0
        for turn in range(TURNS):
            body = service.complete(prompt, max_tokens=ANSWER, ignore_eos=True).json()
            said = body["choices"][0]["token_ids"]
            assert said == reference.answer(prompt, ANSWER), f"turn {turn}"
            assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == known
            known = len(prompt) + ANSWER - 1  # decode has the end of the answer
            prompt += [*said, *some(QUESTION, turn)]
            service.wait_clean()
        assert service.http.post("/reset_prefix_cache").status_code == 200
        body = service.complete(prompt, max_tokens=ANSWER, ignore_eos=True).json()
        assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        service.wait_clean()
        assert metric(service, "baton:events", event="checkpoint_kept", role="prefill") == TURNS + 1
        for event, role in (("checkpoint_borrowed", "prefill"), ("checkpoint_lent", "decode")):
            assert metric(service, "baton:events", event=event, role=role) == TURNS - 1
        used = metric(service, "baton:host_memory_bytes", state="used", role="prefill")
        assert 0 < used < metric(service, "baton:host_memory_bytes", state="total", role="prefill")


def metric(service: Service, name: str, **labels: str) -> float:
    """A figure of /metrics; 0 if it is not there."""
    families = text_string_to_metric_families(service.http.get("/metrics").text)
    family = next(family for family in families if family.name == name)
    due = (s.value for s in family.samples if labels.items() <= s.labels.items())
    return float(next(due, 0))
