"""Reuse between real processes, counted in bytes that were read and tokens that were computed,
against what is new."""

from pathlib import Path

import numpy as np
import pytest
from tests.e2e.fleet import Fleet, Layout
from tests.e2e.nursery import Nursery

from baton.core.messages import LedgerView
from baton.shell.settings import Role

BLOCK = 16
TOKEN_BYTES = 2 * 2 * 16 * 2 * 4  # layers, heads, dimension, K and V, float32
SYSTEM, TURNS, QUESTION, ANSWER = 1000, 6, 37, 23
PREFIX, REQUESTS = 2048, 64


def some(n: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 250, n).tolist()


def fetched(views: list[LedgerView]) -> dict[str, int]:
    """Bytes that each decode worker has read so far."""
    return {v.name: v.counters.ranks.read_bytes for v in views if v.role == Role.DECODE.value}


def computed(views: list[LedgerView]) -> dict[str, int]:
    """Prompt tokens that each prefill worker has computed so far."""
    return {
        v.name: v.counters.cache.queries - v.counters.cache.hits
        for v in views
        if v.role == Role.PREFILL.value
    }


def pages(first: int, past: int, size: int) -> int:
    """Pages that hold any of these positions."""
    return -(-past // size) - first // size


@pytest.mark.parametrize(
    ("source", "target"),
    [
        pytest.param(Layout(1), Layout(1), id="page 16"),
        pytest.param(
            Layout(1, page=32),
            Layout(2, page=48),
            id="page 32, tp 2 page 48",
            marks=pytest.mark.slow,
        ),
    ],
)
@pytest.mark.timeout(300)
def test_a_chat_computes_and_sends_what_is_new(
    tmp_path: Path, tiny: Path, nursery: Nursery, source: Layout, target: Layout
) -> None:
    workers = {Role.PREFILL: (source,), Role.DECODE: (target,)}
    fleet = Fleet(
        nursery,
        tmp_path / "logs",
        tiny,
        workers,
        pages=192,
        max_model_len=2048,
        prefix_caching=True,
    )
    try:
        pair = fleet.pair(source, target)
        # positions that decode holds, and that prefill does
        prompt, held, known = some(SYSTEM, 0), 0, 0
        turns = []
        for turn in range(TURNS):
            prompt += some(QUESTION, 1 + turn)
            before = fleet.books()
            answer = fleet.answer(fleet.begin(pair, prompt, ANSWER))
            after = fleet.books()
            (read,) = (n - fetched(before)[name] for name, n in fetched(after).items())
            (run,) = (n - computed(before)[name] for name, n in computed(after).items())
            new = -(-(len(prompt) - held) // target.page)
            assert read <= (new + 1) * target.page * TOKEN_BYTES
            assert read >= (len(prompt) - held) * TOKEN_BYTES
            assert (
                len(prompt) - known
                <= run
                <= (-(-(len(prompt) - known) // source.page) + 1) * source.page
            )
            # the last token drawn is in no page
            known, held = len(prompt), len(prompt) + ANSWER - 1
            turns.append((list(prompt), answer))
            prompt += answer
        fleet.settle()
        for asked, answer in turns:
            fleet.clear()
            before = fleet.books()
            assert fleet.answer(fleet.begin(pair, asked, ANSWER)) == answer
            (read,) = (n - fetched(before)[name] for name, n in fetched(fleet.books()).items())
            assert read == pages(0, len(asked), BLOCK) * BLOCK * TOKEN_BYTES, (
                "nothing was cached any more"
            )
            fleet.settle()
    finally:
        fleet.close()


@pytest.mark.timeout(300)
def test_a_beginning_that_many_share_is_computed_once_and_sent_once_for_each_worker(
    tmp_path: Path, tiny: Path, nursery: Nursery
) -> None:
    sources, targets = (Layout(1), Layout(1, page=32)), (Layout(1), Layout(1, page=32))
    workers = {Role.PREFILL: sources, Role.DECODE: targets}
    fleet = Fleet(
        nursery,
        tmp_path / "logs",
        tiny,
        workers,
        pages=512,
        max_model_len=4096,
        prefix_caching=True,
    )
    try:
        prefix = some(PREFIX, 0)
        pairs = [fleet.pair(p, d) for p in sources for d in targets]
        prompts = [prefix + some(1 + n % 20, 1 + n) for n in range(REQUESTS)]
        alone = {n: fleet.answer(fleet.begin(pairs[0], prompts[n], 4)) for n in (0, 13, 63)}
        fleet.settle()
        fleet.clear()
        before = fleet.books()
        asked = [fleet.begin(pairs[n % len(pairs)], prompt, 4) for n, prompt in enumerate(prompts)]
        answers = [fleet.answer(request) for request in asked]
        assert {n: answers[n] for n in alone} == alone
        after = fleet.books()
        # of each request at most two blocks are its own; half of them at each worker
        own = REQUESTS // 2 * 2 * BLOCK
        for name, tokens in computed(after).items():
            assert PREFIX <= tokens - computed(before)[name] <= PREFIX + own < 2 * PREFIX
        for name, nbytes in fetched(after).items():
            assert (
                PREFIX
                <= (nbytes - fetched(before)[name]) // TOKEN_BYTES
                <= PREFIX + own
                < 2 * PREFIX
            )
        fleet.settle()
    finally:
        fleet.close()
