"""Drafts that were wrong leave no trace in recurrent state: slots have the bits that they have when
only the tokens that were right are computed."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from tests.engine.test_delta import Case, MemoryPool
from tests.engine.test_families import PAGES, prompt
from tests.engine.whole import Crew, Request, Rig
from tests.tiny import make_tiny

from baton.core.memory.state import DType
from baton.core.work import Row
from baton.engine.attention.delta import DeltaRows, ReferenceDelta
from baton.engine.attention.delta_cpu import CpuDelta
from baton.engine.attention.interface import AttentionBackend, AttentionMetadata, Segment
from baton.engine.attention.rollback import Rollback
from baton.engine.models.base import SLOT

FAMILIES = ("qwen3_next", "qwen3_5", "qwen3_5_moe")
SLOTS = 11
FREE = [page for page in range(64) if page not in PAGES]
# (rows that were generated, of which undecided) of the eight sequences of test_delta.py
DRAFTED = [(1, 0), (1, 0), (8, 7), (0, 0), (3, 2), (0, 0), (20, 20), (0, 0)]


def run(
    case: Case,
    make: type[AttentionBackend[DeltaRows]],
    segments: list[Segment],
    right: list[int] | None = None,
) -> np.ndarray:
    """The pool after a batch of two layers, of whose rows so many of each segment were right; None
    = nothing is taken back."""
    pool = MemoryPool(SLOTS * case.placement.block_bytes(SLOT))
    pool.bytes[:] = case.initial
    backend = make(pool, case.placement)
    metadata = AttentionMetadata(segments, torch.zeros(len(case.rows.x), dtype=torch.int64))
    back = Rollback(pool.bytes.reshape(SLOTS, -1), metadata) if right is not None else None
    for layer in (1, 2):
        rows = case.rows.at(torch.arange(len(case.rows.x)).flip(0)) if layer == 2 else case.rows
        out = rows.new_out()
        if back is not None:
            back.computes(backend, rows, layer=layer)
        backend.attend(rows, layer=layer, metadata=metadata, out=out)
        for tensor in (rows.x, rows.decay, rows.beta):  # the model may use their memory again
            if layer == 2:
                tensor.zero_()
    if back is not None and right is not None:
        back.settle(right)
    return pool.bytes.copy()


@pytest.mark.parametrize("make", [CpuDelta, ReferenceDelta])
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
@pytest.mark.parametrize("seed", range(4))
def test_slots_are_as_if_only_right_rows_had_been_computed(
    make: type[AttentionBackend[DeltaRows]], dtype: DType, seed: int
) -> None:
    case, chance = Case("shared", dtype), np.random.default_rng(seed)
    drafted = [
        msgspec.structs.replace(s, said=said, undecided=undecided)
        for s, (said, undecided) in zip(case.segments, DRAFTED, strict=True)
    ]
    # all right, all wrong, and any number between
    right = [
        s.count - (s.undecided, 0, *chance.integers(0, s.undecided + 1, 2))[seed] for s in drafted
    ]
    short = [
        msgspec.structs.replace(s, count=n, said=max(0, s.said - s.count + n), undecided=0)
        for s, n in zip(drafted, right, strict=True)
    ]
    assert np.array_equal(run(case, make, drafted, right), run(case, make, short))


def slots(rig: Rig) -> np.ndarray:
    return rig.pools[SLOT].array.reshape(-1, rig.placement.block_bytes(SLOT))[PAGES[0]].copy()


def answered(rig: Rig | Crew, request: Request, count: int) -> list[int]:
    """An answer without drafts."""
    rig.run([request.chunk(0, 30, draw=False)])
    (done,) = rig.run([request.chunk(30, len(request.prompt))])
    assert done.drawn is not None
    tokens = [done.drawn.token]
    while len(tokens) < count:
        (done,) = rig.run([request.next(tokens[-1], len(tokens))])
        assert done.drawn is not None
        tokens.append(done.drawn.token)
    return tokens


def guesses(request: Request, tokens: list[int], index: int, right: int, wrong: int) -> Row:
    """The row of token `index - 1` with so many drafts that are right, and then wrong ones."""
    good = tokens[index : index + right]
    bad = [(token + 1) % 250 for token in tokens[index + right : index + right + wrong]]
    return request.guessed([tokens[index - 1], *good, *bad], index)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tp", [1, 2])
def test_the_state_after_drafts_is_that_without_drafts_bit_for_bit(
    tmp_path: Path, family: str, tp: int
) -> None:
    """On every rank, beside another request that has no drafts."""
    path = make_tiny(tmp_path, family)
    request, other = Request(1, prompt(), PAGES), Request(2, prompt()[:40], FREE)

    def after(count: int) -> tuple[list[int], list[np.ndarray]]:
        """So many tokens of an answer without drafts, and the slots then."""
        crew = Crew(path, tp=tp, pp=1)
        tokens = answered(crew, request, count)
        found = [slots(rig) for rig in crew.rigs]
        crew.close()
        return tokens, found

    drafted = Crew(path, tp=tp, pp=1)
    tokens, _ = after(40)
    assert answered(drafted, request, 1) == tokens[:1]
    beside = answered(drafted, other, 1)[-1]
    index = 1
    for right, wrong in [(0, 3), (2, 2), (1, 0), (3, 1), (0, 1), (0, 6)] * 2:
        done, _ = drafted.run(
            [guesses(request, tokens, index, right, wrong), other.next(beside, 1)]
        )
        said = [d.token for d in (done.drawn, *done.more) if d is not None]
        assert said == tokens[index : index + right + 1]
        index += right + 1
        if index in (2, 5, 25):
            _, due = after(index)
            for rig, slot in zip(drafted.rigs, due, strict=True):
                assert np.array_equal(slots(rig), slot), index
    assert index == 25
    drafted.close()
