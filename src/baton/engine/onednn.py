"""oneDNN's products with packed weights, through private operators of torch (there are no public
ones).

So pyproject.toml bounds the version of torch, and tests/engine/test_ops.py checks that the products
equal `F.linear`. With `F.linear` instead, a decode step of the model `llama` of
tools/decode_step.py (bfloat16, one thread, context 512) takes 1.8 times the processor time for one
sequence and 1.4 times for eight; a prompt of 512 tokens takes 1.05 times.
"""

from collections.abc import Callable, Mapping

import torch

PACK_ROWS = 8  # oneDNN packs for a number of rows; by measurement, this packing suits all


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


def linear(
    weight: torch.Tensor, bias: torch.Tensor | None
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the product x W^T + b, [rows, in] -> [rows, out]; the weight is packed once."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, PACK_ROWS)
    multiply = torch.ops.mkldnn._linear_pointwise.default

    def product(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = multiply(x, packed, bias, "none", [], "")
        return found

    return product
