"""Every request is sent away at least twice, or computed again, and says what it says alone:
tokens, and logprobs to 1e-4."""

from pathlib import Path

import numpy as np
import pytest
from tests.e2e.fleet import Fleet, Layout
from tests.e2e.nursery import Nursery
from tests.tiny import make_tiny

from baton.core.messages import Drawn
from baton.shell.settings import Role

ONE = Layout()
PAGES = 9  # of 16 tokens
PROMPT, ANSWER = 20, 60  # six pages at the end
LARGE = 120  # a prompt that does not fit beside it, however short it still is: eight pages
REQUESTS, TIMES = 3, 2
SLOW = pytest.mark.slow


def fleet_of(
    nursery: Nursery, directory: Path, model: Path, decode: Layout, host_bytes: int
) -> Fleet:
    workers = {Role.PREFILL: (ONE,), Role.DECODE: (decode,)}
    return Fleet(nursery, directory, model, workers, pages=PAGES, host_kv_bytes=host_bytes)


def prompts(count: int, length: int) -> list[list[int]]:
    return [np.random.default_rng(n).integers(0, 300, length).tolist() for n in range(count)]


def events(fleet: Fleet) -> dict[str, int]:
    """Rare branches that decode has taken."""
    (found,) = [view.counters.events for view in fleet.books() if view.role == Role.DECODE.value]
    return found


def same(found: list[Drawn], due: list[Drawn]) -> None:
    assert [d.token for d in found] == [d.token for d in due]
    for f, d in zip(found, due, strict=True):
        assert f.logprob is not None
        assert d.logprob is not None
        assert abs(f.logprob - d.logprob) <= 1e-4


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("family", "decode"),
    [
        pytest.param("llama", ONE, id="llama"),
        pytest.param("gemma3", Layout(2), id="gemma3 tp2", marks=SLOW),
        pytest.param("gpt_oss", ONE, id="gpt_oss", marks=SLOW),
        pytest.param("deepseek_v32", ONE, id="deepseek_v32", marks=SLOW),
        pytest.param("qwen3_next", ONE, id="qwen3_next", marks=SLOW),
        pytest.param("qwen3_5", Layout(1, 2), id="qwen3_5 pp2", marks=SLOW),
        pytest.param("trial", ONE, id="SmolLM2", marks=SLOW),
    ],
)
def test_each_is_sent_away_twice_by_more_urgent_ones(
    tmp_path: Path, nursery: Nursery, request: pytest.FixtureRequest, family: str, decode: Layout
) -> None:
    path = (
        request.getfixturevalue("trial")
        if family == "trial"
        else make_tiny(tmp_path / "model", family)
    )
    fleet = fleet_of(nursery, tmp_path / "logs", path, decode, 1 << 26)
    try:
        pair = fleet.pair(ONE, decode)
        asked, (urgent,) = prompts(REQUESTS, PROMPT), prompts(1, LARGE)
        alone = [fleet.drawn(fleet.begin(pair, prompt, ANSWER)) for prompt in asked]
        urgent_alone = fleet.drawn(fleet.begin(pair, urgent, 2))
        for prompt, due in zip(asked, alone, strict=True):
            before = events(fleet).get("offloaded", 0)
            patient = fleet.begin(pair, prompt, ANSWER, priority=5)
            for n in range(TIMES):
                fleet.until_said(patient, 10 * (n + 1))
                same(fleet.drawn(fleet.begin(pair, urgent, 2)), urgent_alone)
            same(fleet.drawn(patient), due)
            assert events(fleet)["offloaded"] - before >= TIMES
        fleet.settle()
        found = events(fleet)
        assert found["offloaded"] == found["resumed"]
        assert "recompute" not in found
    finally:
        fleet.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("family", "decode"),
    [
        pytest.param("llama", ONE, id="llama"),
        pytest.param("gemma3", ONE, id="gemma3", marks=SLOW),
        pytest.param("qwen3_next", ONE, id="qwen3_next", marks=SLOW),
        pytest.param("trial", ONE, id="SmolLM2", marks=SLOW),
    ],
)
def test_without_host_memory_they_are_computed_again_and_say_the_same(
    tmp_path: Path, nursery: Nursery, request: pytest.FixtureRequest, family: str, decode: Layout
) -> None:
    path = (
        request.getfixturevalue("trial")
        if family == "trial"
        else make_tiny(tmp_path / "model", family)
    )
    fleet = fleet_of(nursery, tmp_path / "logs", path, decode, 0)
    try:
        pair = fleet.pair(ONE, decode)
        asked = prompts(4, PROMPT)
        alone = [fleet.drawn(fleet.begin(pair, prompt, ANSWER)) for prompt in asked]
        together = [fleet.begin(pair, prompt, ANSWER) for prompt in asked]
        for which, due in zip(together, alone, strict=True):
            same(fleet.drawn(which), due)
        fleet.settle()
        assert events(fleet)["recompute"] >= 2
    finally:
        fleet.close()
