"""oneDNN's products with packed weights, by private operators of torch: it offers none of this under a public name.

pyproject.toml bounds the version of torch for their sake, and tests/engine/test_ops.py holds them equal to `F.linear`. With
`F.linear` instead, a decode step of the model `llama` of tools/decode_step.py (bfloat16, one thread, context 512) takes 1.8 times
the processor time for one sequence, 1.4 times for eight, and a prompt of 512 tokens 1.05 times.
"""

from collections.abc import Callable, Mapping

import torch

PACK_ROWS = 8  # oneDNN packs for a row count; measured: the packing it picks serves all


def multiplies(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies this dtype natively here."""
    operators = torch.ops.mkldnn
    supported: Mapping[torch.dtype, Callable[[], bool]] = {
        torch.float32: lambda: True,
        torch.bfloat16: operators._is_mkldnn_bf16_supported,
        torch.float16: operators._is_mkldnn_fp16_supported,
    }
    return bool(torch._C._has_mkldnn and supported[dtype]())


def has_tiles() -> bool:
    """Whether the processor multiplies whole tiles of 16-bit elements (AMX)."""
    return torch.cpu._is_amx_tile_supported()


def linear(weight: torch.Tensor, bias: torch.Tensor | None) -> Callable[[torch.Tensor], torch.Tensor]:
    """x W^T + b over a weight packed once. [rows, in] -> [rows, out]."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, PACK_ROWS)
    multiply = torch.ops.mkldnn._linear_pointwise.default

    def product(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = multiply(x, packed, bias, "none", [], "")
        return found

    return product
