"""Products on tile registers, against numpy, and beside a library that uses them too."""

import numba
import numpy as np
import pytest
import torch

from baton.engine.kernels import amx

pytestmark = pytest.mark.skipif(not amx.available(), reason="no tile registers")


def words(x: torch.Tensor) -> np.ndarray:
    return x.contiguous().view(torch.int32).numpy().view(np.uint32)


@pytest.fixture(scope="module")
def multiply():
    @numba.njit
    def run(a, a_row, b, b_row, c, c_row, depth, add):
        before = amx.begin_tiles()
        amx.tile_product(
            a.ctypes.data, a_row, b.ctypes.data, b_row, c.ctypes.data, c_row, depth, add
        )
        amx.end_tiles(before)

    return run


@pytest.mark.parametrize("add", [0, 1])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_a_product_equals_numpys_and_touches_nothing_else(multiply, steps: int, add: int) -> None:
    torch.manual_seed(steps)
    depth = steps * amx.AMX_DEPTH
    left = torch.randn(amx.AMX_ROWS, 2 * depth + 6).bfloat16()  # rows are further apart than needed
    right = torch.randn(2 * depth, 40).bfloat16()
    paired = words(right.view(depth, 2, 40).permute(0, 2, 1)).reshape(depth, 40)
    found = np.full((amx.AMX_ROWS + 1, 36), 3.0, dtype=np.float32)
    multiply(words(left), depth + 3, paired, 40, found, 36, depth, add)
    expected = (left[:, : 2 * depth].double() @ right[:, :32].double()).numpy() + 3.0 * add
    assert np.abs(found[:-1, :32] - expected).max() < 1e-4
    assert (found[:, 32:] == 3.0).all()
    assert (found[-1] == 3.0).all()


@pytest.fixture(scope="module")
def multiply_few():
    @numba.njit
    def run(rows, a, b, c, depth):
        before = amx.begin_tiles()
        amx.shape_tiles(rows)
        if rows > 16:
            amx.tile_product(a.ctypes.data, depth, b.ctypes.data, 32, c.ctypes.data, 32, depth, 0)
        else:
            amx.half_product(a.ctypes.data, depth, b.ctypes.data, 32, c.ctypes.data, 32, depth, 0)
        amx.end_tiles(before)

    return run


@pytest.mark.parametrize("rows", [1, 2, 15, 16, 17, 31, 32])
def test_few_rows_have_the_bits_of_many_and_no_others_are_read_or_written(
    multiply_few, rows: int
) -> None:
    left, right = torch.randn(32, 96).bfloat16(), words(torch.randn(48, 64).bfloat16())
    whole = np.full((32, 32), 3.0, dtype=np.float32)
    multiply_few(32, words(left), right, whole, 48)
    left[rows:] = float("nan")
    found = np.full((32, 32), 3.0, dtype=np.float32)
    multiply_few(rows, words(left), right, found, 48)
    assert np.array_equal(found[:rows], whole[:rows])
    assert (found[rows:] == 3.0).all()


def test_a_matrix_library_finds_the_tiles_as_it_left_them(multiply) -> None:
    weight, x = torch.randn(96, 64).bfloat16(), torch.randn(40, 64).bfloat16()
    expected = torch.nn.functional.linear(x, weight)
    room = np.zeros((32, 32), dtype=np.uint32)
    for _ in range(3):
        multiply(room, 32, room, 32, np.zeros((32, 32), np.float32), 32, 32, 0)
        assert torch.equal(torch.nn.functional.linear(x, weight), expected)
