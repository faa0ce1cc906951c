"""Weights in eight bits with a scale for the tensor, each row, or each block of rows and columns.

    weight                            e4m3 or int8 [rows, columns]
    weight_scale or weight_scale_inv  factors: one, [rows, 1], or
                                      [rows / block rows, columns / block columns], rounded up

Blocks are those of DeepSeek-V3 (2024, section 3.3). A block at the edge may be smaller:
kv_a_proj_with_mqa has 576 rows in blocks of 128.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

from msgspec import Struct

from baton.core.errors import ConfigError
from baton.core.memory.state import Interval
from baton.engine.quantization.interface import (
    Quantised,
    ReadStored,
    Stored,
    TensorSource,
    require_dtype,
)

if TYPE_CHECKING:
    import torch

FP8 = "F8_E4M3"  # safetensors' name
NARROW = (FP8, "I8")
SUFFIXES = ("_scale_inv", "_scale")
FLOATS = ("F32", "BF16", "F16", "F64")
Block = tuple[int, int]  # rows, columns


class Scaled(Struct, frozen=True, kw_only=True):
    """Implements WeightFormat; `block` None = no tensor has a scale for each block."""

    block: Block | None = None

    def find(self, stored: Mapping[str, Stored]) -> Mapping[str, TensorSource]:
        return {
            name: self._matrix(stored, weight)
            for name, weight in stored.items()
            if weight.dtype in NARROW and name.endswith("weight") and len(weight.shape) == 2
        }

    def _matrix(self, stored: Mapping[str, Stored], weight: Stored) -> "ScaledMatrix":
        names = [weight.name + suffix for suffix in SUFFIXES]
        scale = next((stored[name] for name in names if name in stored), None)
        if scale is None:
            raise ConfigError(
                f"{weight.file}: tensor {weight.name!r} is stored as {weight.dtype} and has no "
                f"scales in {names[0]!r} or {names[1]!r}; fetch it again"
            )
        if f"{weight.name}_zero_point" in stored:
            raise ConfigError(
                f"{weight.file}: tensor {weight.name!r} has a zero point, which is not supported "
                "for weights of 8 bits that are not packed"
            )
        require_dtype(scale, *FLOATS)
        return ScaledMatrix(
            weight=weight, shape=weight.shape, scale=scale, step=self._step(weight, scale)
        )

    def _step(self, weight: Stored, scale: Stored) -> Block:
        """Return the rows and columns that share a scale. Raises ConfigError."""
        rows, columns = weight.shape
        if self.block is not None and scale.shape == _grid(weight, self.block):
            return self.block
        if prod(scale.shape) == 1:
            return rows, columns
        if scale.shape in ((rows,), (rows, 1)):
            return 1, columns
        due = f"one scale, or [{rows}, 1]"
        if self.block is not None:
            due = f"weight_block_size {list(self.block)} asks for {list(_grid(weight, self.block))}"
        raise ConfigError(
            f"{weight.file}: tensor {weight.name!r} of shape {list(weight.shape)} has scales of "
            f"shape {list(scale.shape)} in {scale.name!r}; expected: {due}"
        )


def _grid(weight: Stored, block: Block) -> tuple[int, int]:
    rows, columns = (-(-size // step) for size, step in zip(weight.shape, block, strict=True))
    return rows, columns


class ScaledMatrix(Quantised, frozen=True, kw_only=True):
    """Implements TensorSource; `step` is the number of rows and columns that share a scale."""

    scale: Stored
    step: Block

    @property
    def dtype(self) -> str:
        return self.weight.dtype

    @property
    def parts(self) -> Sequence[Stored]:
        return self.weight, self.scale

    def load(
        self, read: ReadStored, rows: Interval | None, columns: Interval | None
    ) -> "torch.Tensor":
        here = self.cut(rows, columns)
        grid = _grid(self.weight, self.step)
        scales = read(self.scale).float().view(grid)
        for dim, (cut, step) in enumerate(zip(here, self.step, strict=True)):
            if grid[dim] > 1:  # one scale is broadcast
                scales = scales.index_select(dim, _numbers(cut) // step)
        return read(self.weight, rows, columns).float().mul_(scales)


def _numbers(cut: Interval) -> "torch.Tensor":
    import torch

    return torch.arange(cut.start, cut.end)
