"""GPTQ (Frantar et al. 2022) as AutoGPTQ and GPTQModel write it: words over inputs.

    qweight int32 [inputs * bits / 32, outputs]    scales float [groups, outputs]
    qzeros  int32 [groups, outputs * bits / 32]    g_idx  int32 [inputs], the group of each input

With `desc_act` the inputs of a group are not adjacent, and only g_idx tells them. In the first
version of the format ("gptq") each word of qzeros was reduced by one in every element, with
borrows between elements; "gptq_v2" stores zeros as they are (GPTQModel, utils/model.py).
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from baton.core.memory.state import Interval
from baton.engine.quantization.integers import (
    BITS,
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

# What is added to a word of qzeros, by the name of the format and the bits of an element.
OFFSETS: Mapping[str, Mapping[int, int]] = {
    "gptq": {4: 0x11111111, 8: 0x01010101},
    "gptq_v2": {4: 0, 8: 0},
}


class Gptq(Struct, frozen=True, kw_only=True):
    """Implements WeightFormat.

    Attributes:
        bits: of a level
        offset: added to each word of qzeros
        group: inputs of a group, if a matrix has no g_idx; None = all
    """

    bits: int
    offset: int
    group: int | None

    def find(self, stored: Mapping[str, Stored]) -> Mapping[str, TensorSource]:
        found = (
            self._matrix(stored, weight)
            for name, weight in stored.items()
            if name.endswith(".qweight")
        )
        return {matrix.weight.name.removesuffix("qweight") + "weight": matrix for matrix in found}

    def _matrix(self, stored: Mapping[str, Stored], weight: Stored) -> "GptqMatrix":
        stem = weight.name.removesuffix("qweight")
        zeros, scales = (part(stored, stem + name, weight) for name in ("qzeros", "scales"))
        order = stored.get(stem + "g_idx")
        for tensor in (weight, zeros, *([] if order is None else [order])):
            require_dtype(tensor, "I32")
        require_dtype(scales, *FLOATS)
        words, outputs = weight.shape
        inputs = words * WORD // self.bits
        group = self.group or inputs
        require_shape(scales, (-(-inputs // group), outputs), weight)
        require_shape(zeros, (-(-inputs // group), outputs * self.bits // WORD), weight)
        if order is not None:
            require_shape(order, (inputs,), weight)
        return GptqMatrix(
            weight=weight,
            shape=(outputs, inputs),
            zeros=zeros,
            scales=scales,
            order=order,
            group=group,
            bits=self.bits,
            offset=self.offset,
        )


class GptqMatrix(Quantised, frozen=True, kw_only=True):
    """Implements TensorSource; `order` is g_idx."""

    zeros: Stored
    scales: Stored
    order: Stored | None
    group: int
    bits: int
    offset: int

    @property
    def dtype(self) -> str:
        return "gptq"

    @property
    def parts(self) -> Sequence[Stored]:
        return self.weight, self.zeros, self.scales, *([] if self.order is None else [self.order])

    def load(
        self, read: ReadStored, rows: Interval | None, columns: Interval | None
    ) -> "torch.Tensor":
        outputs, inputs = self.cut(rows, columns)
        words, here = words_of(inputs, self.bits)
        levels = unpacked(read(self.weight, words, outputs).T, self.bits)[:, here]
        words, here = words_of(outputs, self.bits)
        zeros = unpacked(read(self.zeros, None, words) + self.offset, self.bits)[:, here]
        scales = read(self.scales, None, outputs)
        groups = groups_of(read, self.order, inputs, group=self.group, count=len(scales))
        return dequantised(levels, zeros.T, scales.T, groups)


def read_gptq(said: Mapping[str, Any]) -> Gptq:
    """Read a quantization_config. Raises Unserved."""
    bits, group = said.get("bits"), said.get("group_size", 128)
    name = str(said.get("checkpoint_format", said.get("format", "gptq")))
    if bits not in BITS:
        raise Unserved(f"gptq of {bits} bits")
    if said.get("is_marlin_format"):
        name = "marlin"
    if name not in OFFSETS:
        raise Unserved(f"gptq in format {name!r}")
    if said.get("pack_dtype", "int32") != "int32":
        raise Unserved(f"gptq packed into {said['pack_dtype']}")
    if isinstance(group, bool) or not isinstance(group, int) or not (group > 0 or group == -1):
        raise Unserved(f"gptq with group_size {group!r}")
    return Gptq(bits=bits, offset=OFFSETS[name][bits], group=group if group > 0 else None)
