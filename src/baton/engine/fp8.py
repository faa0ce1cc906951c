"""Weights stored as 8-bit floats with a scale for each block of rows and columns (DeepSeek-AI 2024: DeepSeek-V3, section 3.3).

    weight           e4m3 [rows, columns]
    weight_scale_inv float [rows / block rows, columns / block columns], rounded up; what is stored is multiplied by it

A block at an edge is cut off there, and its scale is that of its place: kv_a_proj_with_mqa has 576 rows in blocks of 128.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from baton.core.errors import ConfigError

if TYPE_CHECKING:
    import torch

FP8 = "F8_E4M3"  # safetensors' name
Block = tuple[int, int]  # rows, columns


def scale_name(name: str) -> str:
    """Where the scales of a tensor lie."""
    return f"{name}_scale_inv"


def block_of(config: Mapping[str, Any]) -> Block | None:
    """The block of a config.json whose weights are stored like this; None: they are not.

    Raises:
        ConfigError: they are, in blocks that are none
    """
    found = config.get("quantization_config")
    if not isinstance(found, dict) or found.get("quant_method") != "fp8" or found.get("weight_block_size") is None:
        return None
    match found["weight_block_size"]:
        case [int(rows), int(columns)] if rows > 0 and columns > 0:
            return rows, columns
    raise ConfigError(
        f"config.json: weight_block_size is {found['weight_block_size']!r}; expected are two whole numbers, rows and columns"
    )


def dequantised(weight: "torch.Tensor", scales: "torch.Tensor", block: Block, *, first: tuple[int, int]) -> "torch.Tensor":
    """A part of a weight in float32.

    weight: [rows, columns] of it; scales: of the blocks it touches; first: its first row and column inside their first block.
    """
    import torch

    rows, columns = ((torch.arange(size) + start) // step for size, start, step in zip(weight.shape, first, block, strict=True))
    return weight.float() * scales.float()[rows][:, columns]
