"""Models with windows or recurrent state between real processes: of a conversation decode fetches
what it lacks, and the state that does not last, counted in bytes."""

from pathlib import Path

import numpy as np
import pytest
from tests.e2e.fleet import Fleet, Layout
from tests.e2e.nursery import Nursery
from tests.e2e.reference import Reference
from tests.tiny import make_tiny

from baton.shell.settings import Role

BLOCK, TURNS, OPENING, QUESTION, ANSWER = 16, 3, 300, 37, 6
SOURCE, TARGET = Layout(1), Layout(1)


def some(n: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 250, n).tolist()


@pytest.mark.parametrize("family", ["gemma3", "qwen3_next"])
@pytest.mark.timeout(300)
def test_what_lasts_is_sent_once(tmp_path: Path, nursery: Nursery, family: str) -> None:
    path = make_tiny(tmp_path / "model", family, num_hidden_layers=4)
    reference = Reference(path)
    fleet = Fleet(
        nursery,
        tmp_path / "logs",
        path,
        {Role.PREFILL: (SOURCE,), Role.DECODE: (TARGET,)},
        pages=64,
        max_model_len=1024,
        prefix_caching=True,
    )

    def read() -> int:
        """Bytes that decode has read so far."""
        views = [v for v in fleet.books() if v.role == Role.DECODE.value]
        return sum(v.counters.ranks.read_bytes for v in views)

    def turn(prompt: list[int]) -> tuple[list[int], int]:
        before = read()
        said = fleet.answer(fleet.begin(fleet.pair(SOURCE, TARGET), prompt, ANSWER))
        assert said == reference.answer(prompt, ANSWER), f"{len(prompt)} tokens"
        return said, read() - before

    try:
        # how many bytes a block that lasts has, and the state that does not: by prompts whose
        # windows are alike, and of which nothing is known
        _, least = turn(some(4 * BLOCK, 1))
        _, more = turn(some(6 * BLOCK, 2))
        block = (more - least) // 2
        passing = least - 4 * block
        assert block > 0
        assert passing > 0, "it has state that does not last"
        prompt, known = some(OPENING, 3), 0
        for n in range(TURNS):
            said, came = turn(prompt)
            blocks = -(-len(prompt) // BLOCK) - known // BLOCK
            assert abs(came - blocks * block - passing) <= 2 * block, f"turn {n}"
            assert n == 0 or came < (len(prompt) // BLOCK) * block / 2
            known = (len(prompt) + ANSWER - 1) // BLOCK * BLOCK
            prompt += [*said, *some(QUESTION, 10 + n)]
        fleet.settle()
        assert all(v.counters.cache.hits == 0 for v in fleet.books() if v.role == "prefill")
    finally:
        fleet.close()
