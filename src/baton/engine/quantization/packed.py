"""compressed-tensors' `pack-quantized`: words over inputs, groups of adjacent inputs.

    weight_packed int32 [outputs, inputs * bits / 32]     weight_scale float [outputs, groups]
    weight_shape  int64 [2]                               weight_g_idx int32 [inputs], or absent
    weight_zero_point, or absent: int32 [outputs * bits / 32, groups], or int8 [outputs, groups]

Signed levels and zeros are stored with 2 ** (bits - 1) added, except int8 zeros
(compressed-tensors, compressors/pack_quantized). Without zero points, zeros are 0.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from baton.core.memory.state import Interval
from baton.engine.quantization.integers import (
    FLOATS,
    WORD,
    dequantised,
    groups_of,
    unpacked,
    words_of,
)
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

PACKED = "weight_packed"


class Packed(Struct, frozen=True, kw_only=True):
    """Implements WeightFormat; `bits` of a level."""

    bits: int

    def find(self, stored: Mapping[str, Stored]) -> Mapping[str, TensorSource]:
        found = (
            self._matrix(stored, weight)
            for name, weight in stored.items()
            if name.endswith("." + PACKED)
        )
        return {matrix.weight.name.removesuffix(PACKED) + "weight": matrix for matrix in found}

    def _matrix(self, stored: Mapping[str, Stored], weight: Stored) -> "PackedMatrix":
        stem = weight.name.removesuffix(PACKED)
        scale, zero, order = (
            stored.get(f"{stem}weight_{name}") for name in ("scale", "zero_point", "g_idx")
        )
        scale = part(stored, f"{stem}weight_scale", weight)
        require_dtype(weight, "I32")
        require_dtype(scale, *FLOATS)
        outputs, words = weight.shape
        inputs, groups = words * WORD // self.bits, scale.shape[-1]
        # groups of equal size: one more or less is as wrong as a missing row
        require_shape(scale, (outputs, groups if inputs % groups == 0 else groups + 1), weight)
        if zero is not None:
            require_dtype(zero, "I32", "I8")
            rows = outputs if zero.dtype == "I8" else -(-outputs * self.bits // WORD)
            require_shape(zero, (rows, groups), weight)
        if order is not None:
            require_shape(order, (inputs,), weight)
        return PackedMatrix(
            weight=weight,
            shape=(outputs, inputs),
            scale=scale,
            zero=zero,
            order=order,
            given=stored.get(f"{stem}weight_shape"),
            group=inputs // groups,
            bits=self.bits,
        )


class PackedMatrix(Quantised, frozen=True, kw_only=True):
    """Implements TensorSource; `zero`, `order` and `given` are zero points, g_idx and shape."""

    scale: Stored
    zero: Stored | None
    order: Stored | None
    given: Stored | None
    group: int
    bits: int

    @property
    def dtype(self) -> str:
        return "pack-quantized"

    @property
    def parts(self) -> Sequence[Stored]:
        others = (self.zero, self.order, self.given)
        return self.weight, self.scale, *(tensor for tensor in others if tensor is not None)

    def load(
        self, read: ReadStored, rows: Interval | None, columns: Interval | None
    ) -> "torch.Tensor":
        outputs, inputs = self.cut(rows, columns)
        words, here = words_of(inputs, self.bits)
        levels = unpacked(read(self.weight, outputs, words), self.bits)[:, here]
        scales = read(self.scale, outputs)
        groups = groups_of(read, self.order, inputs, group=self.group, count=scales.shape[1])
        return dequantised(levels, self._zeros(read, outputs), scales, groups)

    def _zeros(self, read: ReadStored, outputs: Interval) -> "torch.Tensor":
        """Return the zeros as they are added to levels: [outputs, groups], or [1, 1]."""
        import torch

        middle = 1 << (self.bits - 1)
        if self.zero is None:
            return torch.tensor([[middle]])
        if self.zero.dtype == "I8":
            return read(self.zero, outputs).int() + middle
        words, here = words_of(outputs, self.bits)
        return unpacked(read(self.zero, words).T, self.bits)[:, here].T
