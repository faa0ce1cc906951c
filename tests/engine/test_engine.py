"""The engine: batches in any company, blocks sealed at birth, tails zeroed, failures that are not
lost."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.engine.rig import GREEDY, IDENTITY, B, Rig, row
from tests.tiny import make_tiny

from baton.core.handoff.seal import block_sums
from baton.core.ids import Seq
from baton.core.memory.state import DType
from baton.core.messages import Sampling
from baton.core.work import Batch, DigestDone, DigestOrder, Job
from baton.engine.models.base import KV

PROMPT = [(11 * i + 5) % 300 for i in range(41)]
RANDOM = Sampling(temperature=1.0, top_p=0.95, top_k=50, seed=5, logprobs=5)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wide enough for products whose bits depend on the row count, where a step is not padded."""
    return make_tiny(tmp_path_factory.mktemp("tiny") / "model", "qwen3", intermediate_size=1536)


@pytest.fixture(
    params=[(DType.F32, 1), (DType.F32, 2), (DType.BF16, 1)], ids=["f32", "f32-two-threads", "bf16"]
)
def rig(path: Path, request: pytest.FixtureRequest) -> Iterator[Rig]:
    dtype, threads = request.param
    with Rig(path, dtype=dtype, threads=threads) as made:
        yield made


def logits_of(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    seen: list[torch.Tensor] = []
    whole = rig.model.logits

    def keep(hidden: torch.Tensor) -> torch.Tensor:
        found = whole(hidden)
        seen.append(found.clone())
        return found

    monkeypatch.setattr(rig.model, "logits", keep)
    return seen


def test_a_rooms_logits_have_the_same_bits_alone_and_in_any_batch(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = logits_of(rig, monkeypatch)
    rig.run(row(PROMPT, pages=[1, 2, 3], sampling=None))
    others = [row([9 + n], start=0, pages=[10 + n], name=f"o{n}") for n in range(16)]
    mine = row([77], start=len(PROMPT), pages=[1, 2, 3])
    rig.run(mine)
    for company in (
        [],
        others[:1],
        others[:7],
        others,
        [row(PROMPT[:20], pages=[30, 31], name="chunk"), *others[:3]],
    ):
        rig.run(*company, mine)
        assert torch.equal(seen[-1][len(company)], seen[0][0])


def test_chunks_and_whole_prompts_end_in_the_same_token(rig: Rig) -> None:
    whole = rig.run(row(PROMPT, pages=[1, 2, 3], sampling=GREEDY)).rows[0].drawn
    rig.run(row(PROMPT[:32], pages=[4, 5, 6], sampling=None))
    chunked = rig.run(row(PROMPT[32:], start=32, pages=[4, 5, 6], sampling=GREEDY)).rows[0].drawn
    assert whole == chunked
    assert whole is not None


def test_only_rows_with_a_draw_are_drawn(rig: Rig) -> None:
    done = rig.run(
        row([1, 2], pages=[1], sampling=None), row([3], pages=[2], sampling=RANDOM, name="b")
    )
    assert done.rows[0].drawn is None
    assert done.rows[1].drawn is not None
    assert len(done.rows[1].drawn.top) == 5
    assert [r.key.room for r in done.rows] == ["a", "b"]


@pytest.mark.parametrize("page_blocks", [1, 2])
def test_final_blocks_are_sealed_and_their_tails_zeroed(path: Path, page_blocks: int) -> None:
    with Rig(path, dtype=DType.BF16, page_blocks=page_blocks) as rig:
        k = page_blocks
        pages = [7, 3, 9][: -(-3 // k)]
        sums = rig.run(row(PROMPT, pages=pages, final=(0, 3))).rows[0].sums[KV]
        slots = np.array([pages[n // k] * k + n % k for n in range(3)], dtype=np.int64)
        expected = block_sums(rig.pool.bytes, rig.placement, KV, slots, np.arange(3), IDENTITY)
        assert np.array_equal(sums, expected)
        place = rig.placement.places["kv"]
        size = rig.placement.block_bytes(KV)
        last = rig.pool.bytes[slots[2] * size : (slots[2] + 1) * size].reshape(
            -1, B, place.row_bytes
        )
        assert not last[:, len(PROMPT) - 32 :].any()
        assert last[:, : len(PROMPT) - 32].any(axis=-1).all()


def test_a_seal_counts_blocks_from_the_sequences_start(path: Path) -> None:
    with Rig(path) as rig:
        rig.run(row(PROMPT[:16], pages=[5, 6, 7], sampling=None, final=(0, 1)))
        sums = rig.run(row(PROMPT[16:], start=16, pages=[5, 6, 7], final=(1, 3))).rows[0].sums[KV]
        expected = block_sums(
            rig.pool.bytes, rig.placement, KV, np.array([6, 7]), np.array([1, 2]), IDENTITY
        )
        assert np.array_equal(sums, expected)


def test_a_block_that_is_not_final_is_neither_sealed_nor_zeroed(path: Path) -> None:
    with Rig(path) as rig:
        done = rig.run(row(PROMPT[:20], pages=[5, 6], final=(0, 1)))
        assert done.rows[0].sums[KV].shape[0] == 1
        size = rig.placement.block_bytes(KV)
        row_bytes = rig.placement.places["kv"].row_bytes
        assert (rig.pool.bytes[6 * size : 7 * size].reshape(-1, B, row_bytes)[:, 4:] == 0x3E).all()


def test_nothing_outside_a_rooms_pages_is_written(path: Path) -> None:
    with Rig(path) as rig:
        before = rig.pool.bytes.copy()
        rig.run(row(PROMPT, pages=[7, 3, 9], final=(0, 3)), row([5], pages=[20], name="b"))
        size = rig.placement.page_bytes(KV)
        changed = np.flatnonzero((rig.pool.bytes != before).reshape(-1, size).any(axis=1))
        assert set(changed.tolist()) == {3, 7, 9, 20}


def test_a_digest_reads_the_bytes_as_they_lie(path: Path) -> None:
    with Rig(path) as rig:
        slots, numbers = np.arange(40, 60, dtype=np.int64), np.arange(20, dtype=np.int64)
        for fill in (1, 2):
            rig.pool.bytes[:] = fill
            rig.engine.digest(DigestOrder(Job(fill), KV, slots, numbers))
            found: list[object] = []
            while not found:
                found = list(rig.engine.poll())
            assert isinstance(found[0], DigestDone)
            assert found[0].job == fill
            expected = block_sums(rig.pool.bytes, rig.placement, KV, slots, numbers, IDENTITY)
            assert np.array_equal(found[0].sums, expected)


def test_a_failure_of_compute_comes_out_of_poll(path: Path) -> None:
    with Rig(path) as rig, pytest.raises(IndexError):
        rig.run(row([100_000], pages=[1]))


def test_batches_end_in_the_order_of_their_submission(path: Path) -> None:
    with Rig(path) as rig:
        for n in range(1, 6):
            rig.engine.submit(Batch(Seq(n), (row([n], pages=[n], name=f"r{n}"),)))
        ended: list[int] = []
        while len(ended) < 5:
            ended += [done.seq for done in rig.engine.poll()]  # type: ignore[union-attr]
        assert ended == [1, 2, 3, 4, 5]


def test_closing_twice_is_allowed(path: Path) -> None:
    rig = Rig(path)
    rig.engine.close()
    rig.engine.close()
