"""Routed experts against one MLP after the other, whole and divided over ranks, and each row
against itself in company."""

import pytest
import torch
import torch.nn.functional as F

from baton.core.errors import ConfigError
from baton.core.memory.state import DType
from baton.engine.comm import Alone
from baton.engine.cpu_ops import CpuOps
from baton.engine.kernels.team import Team
from baton.engine.models.experts import Experts, held_experts
from baton.engine.ops import Ops, TorchOps

COUNT, HIDDEN, INNER, K = 8, 48, 32, 3
ROWS = 70
TORCH = {DType.F32: torch.float32, DType.BF16: torch.bfloat16}
CLOSE = {DType.F32: 1e-6, DType.BF16: 1.5e-2}


def draw(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


UP, UP_BIAS = draw(COUNT, 2 * INNER, HIDDEN, seed=1) / HIDDEN**0.5, draw(COUNT, 2 * INNER, seed=2)
DOWN, DOWN_BIAS = draw(COUNT, HIDDEN, INNER, seed=3) / INNER**0.5, draw(COUNT, HIDDEN, seed=4)
X = draw(ROWS, HIDDEN, seed=5)
# The seventh expert has no row, and the first has most of them.
WEIGHTS, IDS = (
    (draw(ROWS, COUNT, seed=6) + torch.tensor([2.0] + [0.0] * 5 + [-99.0, 0.0])).softmax(-1).topk(K)
)


def build(ops: Ops, dtype: DType, *, tp: int = 1, rank: int = 0) -> Experts:
    held = held_experts(COUNT, tp=tp, rank=rank)
    own = range(held.start, held.end)
    to = TORCH[dtype]
    first = ops.grouped((UP[e].to(to), UP_BIAS[e].to(to)) for e in own)
    second = ops.grouped((DOWN[e].to(to), DOWN_BIAS[e].to(to)) for e in own)
    return Experts(held, first, second, ops.gate, ops, Alone())


def expected(rows: int = ROWS) -> torch.Tensor:
    found = torch.zeros(rows, HIDDEN, dtype=torch.float64)
    for row in range(rows):
        for weight, e in zip(WEIGHTS[row], IDS[row], strict=True):
            gate, up = F.linear(X[row].double(), UP[e].double(), UP_BIAS[e].double()).chunk(2)
            found[row] += weight.double() * F.linear(
                F.silu(gate) * up, DOWN[e].double(), DOWN_BIAS[e].double()
            )
    return found


def cpu(dtype: DType, threads: int = 1) -> CpuOps:
    return CpuOps(dtype, Team(threads))


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "plain"])
def test_each_row_goes_through_its_experts(dtype: DType, compiled: bool) -> None:
    experts = build(cpu(dtype) if compiled else TorchOps(), dtype)
    found, due = experts(X.to(TORCH[dtype]), WEIGHTS, IDS).double(), expected()
    assert (found - due).abs().max() <= CLOSE[dtype] * due.abs().max()


def test_what_the_ranks_find_adds_up_to_the_whole() -> None:
    whole = build(cpu(DType.F32), DType.F32)(X, WEIGHTS, IDS)
    parts = [
        build(cpu(DType.F32), DType.F32, tp=4, rank=rank)(X, WEIGHTS, IDS) for rank in range(4)
    ]
    assert (sum(parts) - whole).abs().max() <= 1e-6 * whole.abs().max()
    assert len({tuple(part[0].tolist()) for part in parts}) > 1


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_a_row_has_the_same_bits_alone_and_in_company(dtype: DType, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    experts, x = build(cpu(dtype, threads), dtype), X.to(TORCH[dtype])
    together = experts(x, WEIGHTS, IDS)
    for count in (1, 2, 3, 5, 33):
        assert torch.equal(experts(x[-count:], WEIGHTS[-count:], IDS[-count:]), together[-count:])
    torch.set_num_threads(before)


def test_a_rank_none_of_whose_experts_is_used_adds_nothing() -> None:
    part = build(cpu(DType.F32), DType.F32, tp=8, rank=6)
    assert not part(X, WEIGHTS, IDS).any()


def test_experts_that_cannot_be_divided_are_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=r"8 experts cannot be divided over tensor parallel " r"width 3; .* \[1, 2, 4, 8\]",
    ):
        held_experts(8, tp=3, rank=0)
