"""The compiled operations against plain torch, and each row against itself in other company."""

from functools import cached_property
from typing import Any

import numpy as np
import pytest
import torch

from baton.core.memory.state import DType
from baton.engine.cpu_ops import ALONE_ROWS, CpuOps
from baton.engine.kernels.team import Team
from baton.engine.onednn import has_tiles
from baton.engine.ops import ROW_STEP, HeadNorms, Ops, TorchOps, lacking, sigmoid, softplus
from baton.engine.rope import Rope, RopeSettings

TORCH = {DType.F32: torch.float32, DType.BF16: torch.bfloat16, DType.F16: torch.float16}
# a rounding step of the dtype, relative to the largest
CLOSE = {DType.F32: 1e-6, DType.BF16: 8e-3, DType.F16: 1e-3}
ROWS = 3 * ALONE_ROWS + 5
POSITIONS = 97
ROPE = Rope(RopeSettings("default", 24, 100.0), positions=POSITIONS)
PARTIAL = Rope(RopeSettings("default", 18, 100.0), positions=POSITIONS)


def draw(dtype: DType, *shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(TORCH[dtype])


def norm(ops: Ops, dtype: DType, rows: int) -> torch.Tensor:
    return ops.norm(draw(dtype, ROWS, 72)[:rows], draw(dtype, 72, seed=1), 1e-5, add=None)


def add_norm(ops: Ops, dtype: DType, rows: int) -> torch.Tensor:
    x = draw(dtype, ROWS, 72)[:rows].clone()
    normed = ops.norm(x, draw(dtype, 72, seed=1), 1e-5, add=draw(dtype, ROWS, 72, seed=2)[:rows])
    return torch.cat((x, normed), -1)


def exact_norm(ops: Ops, dtype: DType, rows: int) -> torch.Tensor:
    """Of rows that are kept in float32, to which others are added; seen in `add_norm`'s way, but
    not rounded."""
    x = draw(DType.F32, ROWS, 72)[:rows].clone()
    normed = ops.norm(x, draw(dtype, 72, seed=1), 1e-5, add=draw(dtype, ROWS, 72, seed=2)[:rows])
    assert normed.dtype is TORCH[dtype]
    assert torch.equal(
        x, draw(DType.F32, ROWS, 72)[:rows] + draw(dtype, ROWS, 72, seed=2)[:rows].float()
    )
    return normed


def rotate(
    ops: Ops, dtype: DType, rows: int, norms: HeadNorms | None = None, rope: Rope = ROPE
) -> torch.Tensor:
    whole = draw(dtype, ROWS, 8, 24)[:rows].clone()
    positions = torch.arange(ROWS)[:rows] * 31 % POSITIONS
    ops.rotate(whole[:, :5], positions, rope, queries=3, norms=norms, eps=1e-6)
    return whole.flatten(1)


def norm_rotate(ops: Ops, dtype: DType, rows: int) -> torch.Tensor:
    return rotate(ops, dtype, rows, HeadNorms(draw(dtype, 24, seed=3), draw(dtype, 24, seed=4)))


def rotate_in_part(ops: Ops, dtype: DType, rows: int) -> torch.Tensor:
    return rotate(
        ops, dtype, rows, HeadNorms(draw(dtype, 24, seed=3), draw(dtype, 24, seed=4)), PARTIAL
    )


def gate(ops: Ops, dtype: DType, rows: int) -> torch.Tensor:
    return ops.gate(4 * draw(dtype, ROWS, 2 * 50)[:rows])


def linear(ops: Ops, dtype: DType, rows: int) -> torch.Tensor:
    return ops.linear(draw(dtype, 40, 72, seed=5), draw(dtype, 40, seed=6))(
        draw(dtype, ROWS, 72)[:rows]
    )


def linear_without_onednn(ops: Ops, dtype: DType, rows: int) -> torch.Tensor:
    """As on processors that do not multiply 16-bit elements."""
    make = ops._compiled if isinstance(ops, CpuOps) else ops.linear
    return make(draw(dtype, 40, 37, seed=5), draw(dtype, 40, seed=6))(draw(dtype, ROWS, 37)[:rows])


def by_head(
    ops: Ops, dtype: DType, rows: int, *, deep: int = 20, wide: int = 70, gap: int = 4
) -> torch.Tensor:
    """Out of a part of each row and into a part of each head, as latent attention does it; what
    lies beside it stays."""
    whole = draw(dtype, ROWS, 3 * (deep + gap))[:rows, : 3 * deep].view(rows, 3, deep)
    out = torch.full((rows, 3, wide + 2), 7.0, dtype=TORCH[dtype])
    ops.by_head(draw(dtype, 3, deep, wide, seed=7), scale=0.3)(whole, out[..., :wide])
    assert (out[..., wide:] == 7.0).all()
    return out[..., :wide].flatten(1)


def by_head_odd(ops: Ops, dtype: DType, rows: int) -> torch.Tensor:
    return by_head(ops, dtype, rows, deep=13, wide=32, gap=0)


def by_head_far(ops: Ops, dtype: DType, rows: int) -> torch.Tensor:
    """Rows that do not begin on a whole pair."""
    return by_head(ops, dtype, rows, deep=64, wide=5, gap=1)


def scores(ops: Ops, dtype: DType, rows: int, *, deep: int = 72) -> torch.Tensor:
    """More outputs than a thread takes at a time, and not a multiple of them."""
    found = ops.scores(draw(dtype, 600, deep, seed=5))(draw(dtype, ROWS, deep)[:rows])
    assert found.dtype is torch.float32
    assert found.shape == (rows, 600)
    return found


def scores_odd(ops: Ops, dtype: DType, rows: int) -> torch.Tensor:
    return scores(ops, dtype, rows, deep=37)


def weigh(ops: Ops, dtype: DType, rows: int) -> torch.Tensor:
    """More columns than are summed at a time; some places hold nothing."""
    places = torch.arange(ROWS * 6).view(ROWS, 6)[:rows] * 31 % 102 - 2
    weights = draw(DType.F32, 6, ROWS, seed=1).T[:rows]
    return ops.weigh(draw(dtype, 100, 900), weights, places.clamp(min=-1))


def gated_norm(ops: Ops, dtype: DType, rows: int) -> torch.Tensor:
    x, z = draw(DType.F32, ROWS, 3, 13)[:rows].clone(), draw(dtype, ROWS, 50, seed=1)[:rows, 7:46]
    return ops.gated_norm(x, z, draw(DType.F32, 13, seed=2), 1e-5)


OPERATIONS: list[Any] = [
    norm, add_norm, exact_norm, rotate, norm_rotate, rotate_in_part, gate, linear, by_head, by_head_odd, by_head_far, scores,
    linear_without_onednn, scores_odd, weigh, gated_norm,
]  # fmt: skip


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", TORCH)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_compiled_operations_agree_with_the_plain_ones(
    operation: Any, dtype: DType, threads: int
) -> None:
    expected = operation(TorchOps(), dtype, ROWS)
    found = operation(CpuOps(dtype, Team(threads)), dtype, ROWS)
    assert found.dtype == expected.dtype
    assert (found.float() - expected.float()).abs().max() <= CLOSE[
        dtype
    ] * expected.float().abs().max()
    # rounded to nearest, as torch does: all but a few on the edge are equal
    if found.dtype is not torch.float32:
        assert (found == expected).float().mean() > 0.97


@pytest.mark.parametrize("dtype", TORCH)
@pytest.mark.parametrize(
    "operation", [o for o in OPERATIONS if o not in (linear, scores, scores_odd)]
)
def test_a_row_does_not_depend_on_its_company(operation: Any, dtype: DType) -> None:
    ops = CpuOps(dtype, Team(2))
    together = operation(ops, dtype, ROWS)
    for rows in (1, 2, 3, 4, 5, 7, 8, 9, 12, 13, ALONE_ROWS):
        assert torch.equal(operation(ops, dtype, rows), together[:rows])


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16])
@pytest.mark.parametrize("operation", [scores, scores_odd])
def test_nor_does_a_score_of_a_16_bit_model(operation: Any, dtype: DType) -> None:
    """In float32 it is a product like others, whose rows are padded."""
    test_a_row_does_not_depend_on_its_company(operation, dtype)


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16])
def test_scores_are_not_rounded_to_16_bits(dtype: DType) -> None:
    found = scores(CpuOps(dtype, Team(1)), dtype, ROWS)
    exact = scores(TorchOps(), dtype, ROWS)
    assert (found - exact).abs().max() <= 1e-5 * exact.abs().max()


def test_the_gate_holds_at_extremes() -> None:
    gates = torch.tensor([-1e4, -200.0, -88.0, -20.0, 0.0, 20.0, 88.0, 1e4])
    x = torch.cat((gates, torch.ones(8)))[None]
    assert torch.allclose(
        CpuOps(DType.F32, Team(1)).gate(x)[0],
        torch.nn.functional.silu(gates),
        rtol=1e-6,
        atol=1e-30,
    )


def test_two_ranks_in_one_process_do_not_share_their_jobs() -> None:
    one, two = CpuOps(DType.F32, Team(1)), CpuOps(DType.F32, Team(1))
    assert one._norm.job_address != two._norm.job_address


def test_products_of_padded_rows_do_not_depend_on_the_row_count() -> None:
    """What `ROW_STEP` in ops.py promises: float32 rows from 4 on and bfloat16 rows from 1 on have
    one result each."""
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for dtype, counts in (
                (DType.F32, range(4, 40, 4)),
                (DType.BF16, (1, 2, 3, 5, 8, 13, 32)),
            ):
                for out, width in ((960, 576), (576, 1536), (48, 40)):
                    multiply = CpuOps(dtype, Team(threads)).linear(draw(dtype, out, width), None)
                    x = draw(dtype, 64, width, seed=1)
                    whole = multiply(x)
                    for rows in counts:
                        if dtype is DType.BF16 or rows % (4 * threads) == 0:
                            assert torch.equal(multiply(x[:rows]), whole[:rows])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", TORCH)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("out", "width"), [(576, 576), (96, 1088), (576, 1536), (64, 4096)])
def test_nor_do_their_last_bits_which_rounding_hides(
    dtype: DType, threads: int, out: int, width: int
) -> None:
    """A bias takes the leading bits of each sum away; what is left shows in which order the
    products were added up."""
    weight, row = draw(dtype, out, width), draw(dtype, 1, width, seed=1)
    leading = -(row.float() @ weight.float().T)[0].to(TORCH[dtype])
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        multiply = CpuOps(dtype, Team(threads)).linear(weight, leading)
        whole = multiply(row.repeat(64, 1))
        assert torch.equal(whole, whole[:1].repeat(64, 1))
        step = ROW_STEP[dtype] * threads
        for rows in {n + lacking(n, step) for n in (1, 2, 3, 4, 5, 8, 16, 24, 32)}:
            assert torch.equal(multiply(row.repeat(rows, 1)), whole[:rows]), f"{rows} rows"
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(not has_tiles(torch.bfloat16), reason="no tiles on this processor")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("out", "width"),
    [(300, 16), (192, 40), (96, 1088), (960, 576), (576, 1536), (896, 4864), (512, 5120),
     (300, 11008)],
)  # fmt: skip
def test_products_over_tiles_have_the_same_bits_for_any_number_of_rows(
    threads: int, out: int, width: int
) -> None:
    """As above, with more rows than are multiplied at once."""
    weight, row = draw(DType.BF16, out, width), draw(DType.BF16, 1, width, seed=1)
    leading = -(row.float() @ weight.float().T)[0].to(torch.bfloat16)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        multiply = CpuOps(DType.BF16, Team(threads)).linear(weight, leading)
        one = multiply(row)
        for rows in (2, 3, 4, 5, 9, 15, 16, 17, 31, 33, 37, 46, 50, 64, 65, 96, 131, 260, 600):
            assert torch.equal(multiply(row.repeat(rows, 1)), one.repeat(rows, 1)), f"{rows} rows"
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16])
def test_float32_products_of_a_16_bit_model_do_not_depend_on_the_row_count(dtype: DType) -> None:
    """Its steps are not padded, and routers are float32."""
    for out, width in ((16, 576), (8, 64), (256, 1024)):
        multiply = CpuOps(dtype, Team(1)).linear(draw(DType.F32, out, width), None)
        x = draw(DType.F32, 40, width, seed=1)
        whole = multiply(x)
        for rows in (1, 2, 3, 5, 7, 31):
            assert torch.equal(multiply(x[:rows]), whole[:rows])


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("deep", [72, 37])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", TORCH)
def test_each_matrix_is_multiplied_with_its_own_rows(
    dtype: DType, threads: int, deep: int, biased: bool
) -> None:
    """Numbers of rows on both sides of those that are taken together, one of them 0; more columns
    than a thread takes."""
    counts = np.array([1, 0, 3, 4, 17, 13, 2])
    pairs = [
        (draw(dtype, 300, deep, seed=n), draw(dtype, 300, seed=9 + n) if biased else None)
        for n in range(len(counts))
    ]
    x = draw(dtype, int(counts.sum()), deep, seed=20)
    found = CpuOps(dtype, Team(threads)).grouped((w.clone(), b) for w, b in pairs)(x, counts)
    parts = zip(x.double().split(counts.tolist()), pairs, strict=True)
    due = torch.cat(
        [rows @ w.double().T + (0 if b is None else b.double()) for rows, (w, b) in parts]
    )
    assert found.dtype is TORCH[dtype]
    assert (found - due).abs().max() <= CLOSE[dtype] * due.abs().max()


BY_ROWS = {  # and what each is, in float64
    sigmoid: lambda x: 1 / (1 + (-x).exp()),
    softplus: lambda x: (1 + x.exp()).log(),
}


@pytest.mark.parametrize("function", BY_ROWS)
@pytest.mark.parametrize("dtype", TORCH)
@pytest.mark.parametrize("columns", [1, 7, 16, 70])
def test_a_function_by_rows_does_not_depend_on_the_rows_before_it(
    function: Any, dtype: DType, columns: int
) -> None:
    x = 3 * draw(dtype, ROWS, columns)
    whole, expected = function(x), BY_ROWS[function](x.double())
    assert ((whole.double() - expected).abs() <= CLOSE[dtype] * expected.clamp(min=1)).all()
    for first in (1, 2, 3, 30, ROWS - 1):
        assert torch.equal(function(x[first:]), whole[first:])
        assert torch.equal(function(x[:first]), whole[:first])


@pytest.mark.parametrize("function", BY_ROWS)
def test_nor_on_the_rows_among_which_threads_divide_it(function: Any) -> None:
    threads, x = torch.get_num_threads(), draw(DType.F32, 700, 256)
    torch.set_num_threads(3)  # a third of so many elements is not a whole number of vectors
    try:
        whole = function(x)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.cat([function(row) for row in x.split(1)]), whole)


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.F16], ids=lambda d: d.value)
def test_whatever_some_models_alone_run_is_compiled_beforehand(dtype: DType) -> None:
    ops = CpuOps(dtype, Team(1))
    ops.warm()
    some = {name for name, made in vars(CpuOps).items() if isinstance(made, cached_property)}
    elsewhere = {"_groups"} if dtype is DType.F32 else set()
    assert some - vars(ops).keys() == elsewhere
