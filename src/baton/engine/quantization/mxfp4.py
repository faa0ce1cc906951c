"""MXFP4: groups of 32 four-bit floats with one power of two each (Open Compute Project,
Microscaling Formats 1.0, 2023), as gpt-oss stores its experts.

    X_blocks uint8 [experts, outputs, groups, 16], two elements in a byte, the first in the low bits
    X_scales uint8 [experts, outputs, groups], exponents plus BIAS
    X        float [experts, inputs, outputs], as the model has it unquantised
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from baton.core.memory.state import Interval
from baton.engine.quantization.interface import (
    Quantised,
    ReadStored,
    Stored,
    TensorSource,
    part,
    require_dtype,
    require_shape,
)

if TYPE_CHECKING:
    import torch

GROUP = 32  # elements that share a scale
BIAS = 127  # of the scales' exponents
# e2m1: sign, two bits of exponent, one of mantissa
VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
BLOCKS, SCALES = "_blocks", "_scales"


class Mxfp4(Struct, frozen=True):
    """Implements WeightFormat."""

    def find(self, stored: Mapping[str, Stored]) -> Mapping[str, TensorSource]:
        found: dict[str, TensorSource] = {}
        for name, weight in stored.items():
            if name.endswith(BLOCKS) and len(weight.shape) == 4:
                stem = name.removesuffix(BLOCKS)
                scales = part(stored, stem + SCALES, weight)
                experts, outputs, groups, _ = weight.shape
                for tensor in (weight, scales):
                    require_dtype(tensor, "U8")
                require_shape(scales, weight.shape[:3], weight)
                shape = (experts, groups * GROUP, outputs)
                found[stem] = Mxfp4Experts(weight=weight, shape=shape, scales=scales)
        return found


class Mxfp4Experts(Quantised, frozen=True, kw_only=True):
    """Implements TensorSource; rows are experts."""

    scales: Stored

    @property
    def dtype(self) -> str:
        return "mxfp4"

    @property
    def parts(self) -> Sequence[Stored]:
        return self.weight, self.scales

    def load(
        self, read: ReadStored, rows: Interval | None, columns: Interval | None
    ) -> "torch.Tensor":
        assert columns is None, "experts are whole on a rank"
        return unpack(read(self.weight, rows), read(self.scales, rows)).transpose(1, 2)


def unpack(blocks: "torch.Tensor", scales: "torch.Tensor") -> "torch.Tensor":
    """Unpack MXFP4 to float32, exactly.

    Args:
        blocks: uint8 [.., groups, 16]
        scales: uint8 [.., groups]

    Returns:
        float32 [.., groups * 32]
    """
    import torch

    values = torch.tensor(VALUES)
    pairs = torch.stack((values[(blocks & 0xF).int()], values[(blocks >> 4).int()]), -1)
    return torch.ldexp(pairs.flatten(-2), (scales.int() - BIAS)[..., None]).flatten(-2)
