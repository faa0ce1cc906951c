"""Speculative decoding between real processes: answers are those of transformers, in fewer steps."""

from pathlib import Path

import numpy as np
import pytest
from tests.e2e.fleet import Fleet, Layout
from tests.e2e.nursery import Nursery
from tests.e2e.reference import Reference
from tests.tiny import make_tiny

from baton.ports.speculative_config import SpeculativeConfig
from baton.shell.settings import Role

ANSWER, AT_ONCE, PROMPTS = 40, 4, 8
ROUNDS = 12  # at most: whether a draft is tried depends on how fast steps are
ANY = SpeculativeConfig(method="suffix", num_speculative_tokens=6)


def prompts() -> list[list[int]]:
    """Some that repeat themselves, and some that do not."""
    chance = np.random.default_rng(5)
    return [
        (chance.integers(0, 250, 9).tolist() * 4)[: 20 + 2 * n]
        if n % 2
        else chance.integers(0, 250, 20 + 2 * n).tolist()
        for n in range(PROMPTS)
    ]


@pytest.mark.parametrize(
    ("family", "source", "target"),
    [
        ("llama", Layout(1), Layout(2)),
        ("gemma3", Layout(1), Layout(1)),
        ("deepseek_v3", Layout(1), Layout(1)),
        ("qwen3_next", Layout(1), Layout(2)),
        ("qwen3_5", Layout(2), Layout(1)),
    ],
)
@pytest.mark.timeout(300)
def test_answers_are_the_same(
    tmp_path: Path, nursery: Nursery, family: str, source: Layout, target: Layout
) -> None:
    path = make_tiny(tmp_path / "model", family)
    reference = Reference(path)
    # before: a fleet wants to be turned
    due = [(prompt, reference.answer(prompt, ANSWER)) for prompt in prompts()]
    fleet = Fleet(
        nursery,
        tmp_path / "logs",
        path,
        {Role.PREFILL: (source,), Role.DECODE: (target,)},
        pages=12,  # too few for all at once: some are preempted, and computed again
        max_model_len=256,
        prefix_caching=True,
        speculative=ANY,
    )
    try:
        for _ in range(ROUNDS):
            for n in range(0, PROMPTS, AT_ONCE):
                pair = fleet.pair(source, target)
                begun = [
                    (fleet.begin(pair, prompt, ANSWER), right)
                    for prompt, right in due[n : n + AT_ONCE]
                ]
                for request, right in begun:
                    assert fleet.answer(request) == right
            fleet.settle()
            (counted,) = [v.speculation for v in fleet.books() if v.role == Role.DECODE.value]
            if sum(counted.accepted):
                break
        assert counted.drafts > 0
        assert sum(counted.accepted) > 0
    finally:
        fleet.close()
