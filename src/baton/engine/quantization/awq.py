"""AWQ (Lin et al. 2023) in AutoAWQ's `gemm` layout: four bits, words over outputs.

    qweight int32 [inputs, outputs / 8]    scales float [groups, outputs]
    qzeros  int32 [groups, outputs / 8]    a group is a run of adjacent inputs

Nibble i of a word holds output ORDER[i] of its eight (AutoAWQ, awq/utils/packing_utils.py).
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
    Unserved,
    part,
    require_dtype,
    require_shape,
)

if TYPE_CHECKING:
    import torch

BITS = 4
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


class Awq(Struct, frozen=True, kw_only=True):
    """Implements WeightFormat; `group` is the number of inputs of a group, None = all."""

    group: int | None

    def find(self, stored: Mapping[str, Stored]) -> Mapping[str, TensorSource]:
        found = (
            self._matrix(stored, weight)
            for name, weight in stored.items()
            if name.endswith(".qweight")
        )
        return {matrix.weight.name.removesuffix("qweight") + "weight": matrix for matrix in found}

    def _matrix(self, stored: Mapping[str, Stored], weight: Stored) -> "AwqMatrix":
        stem = weight.name.removesuffix("qweight")
        zeros, scales = (part(stored, stem + name, weight) for name in ("qzeros", "scales"))
        for tensor in (weight, zeros):
            require_dtype(tensor, "I32")
        require_dtype(scales, *FLOATS)
        inputs, words = weight.shape
        groups = -(-inputs // (self.group or inputs))
        require_shape(zeros, (groups, words), weight)
        require_shape(scales, (groups, words * WORD // BITS), weight)
        return AwqMatrix(
            weight=weight,
            shape=(words * WORD // BITS, inputs),
            zeros=zeros,
            scales=scales,
            group=self.group or inputs,
        )


class AwqMatrix(Quantised, frozen=True, kw_only=True):
    """Implements TensorSource."""

    zeros: Stored
    scales: Stored
    group: int

    @property
    def dtype(self) -> str:
        return "awq"

    @property
    def parts(self) -> Sequence[Stored]:
        return self.weight, self.zeros, self.scales

    def load(
        self, read: ReadStored, rows: Interval | None, columns: Interval | None
    ) -> "torch.Tensor":
        outputs, inputs = self.cut(rows, columns)
        words, here = words_of(outputs, BITS)
        levels = _in_order(read(self.weight, inputs, words))[:, here]
        zeros = _in_order(read(self.zeros, None, words))[:, here]
        scales = read(self.scales, None, outputs)
        groups = groups_of(read, None, inputs, group=self.group, count=len(scales))
        return dequantised(levels.T, zeros.T, scales.T, groups)


def _in_order(words: "torch.Tensor") -> "torch.Tensor":
    """Unpack [rows, words] to levels [rows, outputs]."""
    levels = unpacked(words, BITS).view(len(words), -1, len(ORDER))
    return levels[..., [ORDER.index(i) for i in range(len(ORDER))]].flatten(1)


def read_awq(said: Mapping[str, Any]) -> Awq:
    """Read a quantization_config. Raises Unserved."""
    bits = said.get("bits", said.get("w_bit", BITS))
    layout = str(said.get("version", said.get("checkpoint_format", "gemm"))).lower()
    group = said.get("group_size", said.get("q_group_size", 128))
    if bits != BITS:
        raise Unserved(f"awq of {bits} bits")
    if layout != "gemm":
        raise Unserved(f"awq in layout {layout!r}")
    if isinstance(group, bool) or not isinstance(group, int) or not (group > 0 or group == -1):
        raise Unserved(f"awq with group_size {group!r}")
    return Awq(group=group if group > 0 else None)
