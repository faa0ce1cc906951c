"""oneDNN's products with packed weights, through private operators of torch (there are no public
ones).

So pyproject.toml bounds the version of torch, and tests/engine/test_ops.py checks that the products
equal `F.linear`. With `F.linear` instead, a decode step of the model `llama` of
tools/decode_step.py (bfloat16, one thread, context 512) takes 1.8 times the processor time for one
sequence and 1.4 times for eight; a prompt of 512 tokens takes 1.05 times.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

PACK_ROWS = 8  # oneDNN packs for a number of rows; by measurement, this packing suits all
# With tiles, oneDNN divides the depth of a product, and so the order of its sums, by the number of
# rows. With this packing it does so only beyond a number of rows, which `Tiles` states.
PACK_ROWS_OF_TILES = 1
TILE, FEW = 16, 4  # rows
SHALLOW, DEEP = 64, 4096  # depths
TILED = 1 << 17  # elements of a product's input


def multiplies(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies this dtype natively on this machine."""
    operators = torch.ops.mkldnn
    supported: Mapping[torch.dtype, Callable[[], bool]] = {
        torch.float32: lambda: True,
        torch.bfloat16: operators._is_mkldnn_bf16_supported,
        torch.float16: operators._is_mkldnn_fp16_supported,
    }
    return bool(torch._C._has_mkldnn and supported[dtype]())


def has_tiles(dtype: torch.dtype) -> bool:
    """Whether the processor multiplies whole tiles of this dtype (AMX)."""
    supported: Mapping[torch.dtype, Callable[[], bool]] = {
        torch.float32: lambda: False,
        torch.bfloat16: torch.cpu._is_amx_tile_supported,
        torch.float16: torch.cpu._is_amx_fp16_supported,
    }
    return supported[dtype]()


class Tiles(NamedTuple):
    """The numbers of rows with which a product over tiles adds up in the same order.

    By measurement of 130 sizes with one and two threads (tests/engine/test_ops.py has some of
    them): depths from 16 to 28,672 on a processor with AMX, oneDNN 3.

    Attributes:
        step: they are multiples of it
        most: the largest one, a multiple of `step`
    """

    step: int
    most: int

    @staticmethod
    def of(depth: int) -> "Tiles":
        """Return those of a product of this depth."""
        step = TILE if depth > DEEP else FEW if depth < SHALLOW else 1
        return Tiles(step, max(TILE, TILED // depth // TILE * TILE))


def linear(
    weight: torch.Tensor, bias: torch.Tensor | None
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the product x W^T + b, [rows, in] -> [rows, out]; the weight is packed once."""
    rows = PACK_ROWS_OF_TILES if has_tiles(weight.dtype) else PACK_ROWS
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    multiply = torch.ops.mkldnn._linear_pointwise.default

    def product(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = multiply(x, packed, bias, "none", [], "")
        return found

    return product
