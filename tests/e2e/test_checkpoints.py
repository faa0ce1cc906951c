"""Models with windows or recurrent state between real processes: of a conversation prefill computes
only what is new, from where it has ended the turn before."""

from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.e2e.fleet import Fleet, Layout
from tests.e2e.nursery import Nursery
from tests.e2e.reference import Reference
from tests.e2e.service import Service, split
from tests.tiny import make_tiny

from baton.cli.main import run
from baton.core.messages import LedgerView
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


@pytest.mark.timeout(240)
def test_clients_and_operators_see_what_was_reused(tmp_path: Path) -> None:
    """With host memory of the size that it has by default."""
    path = make_tiny(tmp_path / "model", "gemma3", num_hidden_layers=4)
    reference = Reference(path)
    with split(tmp_path, path) as service:
        prompt, known = some(OPENING, 3), 0
        for turn in range(TURNS):
            body = service.complete(prompt, max_tokens=ANSWER, ignore_eos=True).json()
            said = body["choices"][0]["token_ids"]
            assert said == reference.answer(prompt, ANSWER), f"turn {turn}"
            assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == known
            known = len(prompt)
            prompt += [*said, *some(QUESTION, turn)]
            service.wait_clean()
        assert service.http.post("/reset_prefix_cache").status_code == 200
        body = service.complete(prompt, max_tokens=ANSWER, ignore_eos=True).json()
        assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        service.wait_clean()
        assert metric(service, "baton:events", event="checkpoint_kept", role="prefill") == TURNS + 1
        assert metric(service, "baton:events", event="checkpoint_used", role="prefill") == TURNS - 1
        used = metric(service, "baton:host_memory_bytes", state="used", role="prefill")
        assert 0 < used < metric(service, "baton:host_memory_bytes", state="total", role="prefill")


def metric(service: Service, name: str, **labels: str) -> float:
    """A figure of /metrics; 0 if it is not there."""
    families = text_string_to_metric_families(service.http.get("/metrics").text)
    family = next(family for family in families if family.name == name)
    due = (s.value for s in family.samples if labels.items() <= s.labels.items())
    return float(next(due, 0))
