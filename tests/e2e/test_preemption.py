"""Preemption between real processes: pools too small for what runs, and every answer is that of a
request alone."""

from pathlib import Path

import numpy as np
import pytest
from tests.e2e.fleet import Fleet, Layout
from tests.e2e.nursery import Nursery
from tests.tiny import make_tiny

from baton.shell.settings import Role

PAGES = 7  # of 16 tokens: one request alone comes to need 6
REQUESTS, PROMPT, ANSWER = 4, 20, 70


@pytest.mark.parametrize(
    ("family", "layout"),
    [
        # windows beside the full state, on two ranks
        pytest.param("gemma3", Layout(2), id="gemma3"),
        # slots beside pages, and a stage without pages
        pytest.param("qwen3_next", Layout(1, 2), id="qwen3_next"),
        pytest.param("llama", Layout(1, 2), id="llama", marks=pytest.mark.slow),
        pytest.param("deepseek_v3", Layout(1), id="deepseek_v3", marks=pytest.mark.slow),
        # index keys beside latent rows
        pytest.param("deepseek_v32", Layout(2), id="deepseek_v32", marks=pytest.mark.slow),
    ],
)
@pytest.mark.timeout(300)
def test_requests_that_give_way_say_what_they_say_alone(
    tmp_path: Path, nursery: Nursery, family: str, layout: Layout
) -> None:
    path = make_tiny(tmp_path / "model", family)
    workers = {Role.PREFILL: (Layout(1),), Role.DECODE: (layout,)}
    fleet = Fleet(nursery, tmp_path / "logs", path, workers, pages=PAGES, host_kv_bytes=1 << 24)
    try:
        pair = fleet.pair(Layout(1), layout)
        prompts = [
            np.random.default_rng(n).integers(0, 300, PROMPT).tolist() for n in range(REQUESTS)
        ]
        alone = [fleet.answer(fleet.begin(pair, prompt, ANSWER)) for prompt in prompts]
        assert not any("offloaded" in view.counters.events for view in fleet.books())
        together = [fleet.begin(pair, prompt, ANSWER) for prompt in prompts]
        assert [fleet.answer(request) for request in together] == alone
        fleet.settle()
        (events,) = [
            view.counters.events for view in fleet.books() if view.role == Role.DECODE.value
        ]
        assert events["offloaded"] == events["resumed"] >= REQUESTS
        assert "recompute" not in events
    finally:
        fleet.close()
