"""Weights in fp8 with a scale for each block of rows and columns (DeepSeek-V3, 2024, section 3.3).

    weight           e4m3 [rows, columns]
    weight_scale_inv float [rows / block rows, columns / block columns], rounded up; the factor of a
    block

A block at the edge may be smaller: kv_a_proj_with_mqa has 576 rows in blocks of 128.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from baton.core.errors import ConfigError

if TYPE_CHECKING:
    import torch

FP8 = "F8_E4M3"  # safetensors' name
Block = tuple[int, int]  # rows, columns


def scale_name(name: str) -> str:
    """Return the name of the tensor with the scales of a tensor."""
    return f"{name}_scale_inv"


def block_of(config: Mapping[str, Any]) -> Block | None:
    """Return the block size in a config.json; None = the weights are not block-scaled fp8.

    Raises:
        ConfigError: the config has an invalid block size
    """
    found = config.get("quantization_config")
    if (
        not isinstance(found, dict)
        or found.get("quant_method") != "fp8"
        or found.get("weight_block_size") is None
    ):
        return None
    match found["weight_block_size"]:
        case [int(rows), int(columns)] if rows > 0 and columns > 0:
            return rows, columns
    raise ConfigError(
        f"config.json: weight_block_size is {found['weight_block_size']!r}; expected are two "
        "whole numbers, rows and columns"
    )


def dequantised(
    weight: "torch.Tensor", scales: "torch.Tensor", block: Block, *, first: tuple[int, int]
) -> "torch.Tensor":
    """Dequantise a part of a weight to float32.

    Args:
        weight: e4m3 [rows, columns], the part
        scales: scales of the blocks that the part touches
        block: rows and columns of a block
        first: first row and column of the part, counted from the start of the first of these blocks
    """
    import torch

    rows, columns = (
        (torch.arange(size) + start) // step
        for size, start, step in zip(weight.shape, first, block, strict=True)
    )
    return weight.float() * scales.float()[rows][:, columns]
