"""Weights as small unsigned integers, packed into words of 32 bits.

weight = (level - zero) * scale,   where each group of inputs has a zero and a scale
"""

from typing import TYPE_CHECKING

from baton.core.errors import ConfigError
from baton.core.memory.state import Interval
from baton.engine.quantization.interface import ReadStored, Stored

if TYPE_CHECKING:
    import torch

WORD = 32
BITS = (4, 8)  # of a level
FLOATS = ("F16", "BF16", "F32")  # of scales


def words_of(cut: Interval, bits: int) -> tuple[Interval, slice]:
    """Return the words that hold some levels, and the place of the levels in these words."""
    each = WORD // bits
    words = Interval(cut.start // each, -(-cut.end // each))
    first = words.start * each
    return words, slice(cut.start - first, cut.end - first)


def unpacked(words: "torch.Tensor", bits: int) -> "torch.Tensor":
    """Unpack levels; the first of a word is in its lowest bits.

    Args:
        words: int32 [rows, words]
        bits: of a level, one of BITS

    Returns:
        uint8 [rows, words * 32 / bits]
    """
    import torch

    # A copy, because one column of words is contiguous for torch whatever its strides are. The
    # processors that serve are little-endian.
    octets = words.clone(memory_format=torch.contiguous_format).view(torch.uint8)
    if bits == 8:
        return octets
    return torch.stack((octets & 0xF, octets >> 4), -1).flatten(1)


def dequantised(
    levels: "torch.Tensor", zeros: "torch.Tensor", scales: "torch.Tensor", groups: "torch.Tensor"
) -> "torch.Tensor":
    """Compute weights: float32 [outputs, inputs].

    Args:
        levels: [outputs, inputs]
        zeros, scales: [outputs, groups]; zeros may be [1, 1], the same for all
        groups: int64 [inputs], the group of each input
    """
    found = levels.float()
    found -= zeros.float() if zeros.numel() == 1 else zeros.float()[:, groups]
    return found.mul_(scales.float()[:, groups])


def groups_of(
    read: ReadStored, order: Stored | None, inputs: Interval, *, group: int, count: int
) -> "torch.Tensor":
    """Return the group of each of some inputs: int64 [inputs].

    Args:
        order: the tensor that names them; None = each `group` adjacent inputs are a group
        count: number of groups

    Raises:
        ConfigError: `order` names a group that does not exist
    """
    import torch

    if order is None:
        return torch.arange(inputs.start, inputs.end) // group
    groups = read(order, inputs).long()
    if not bool(((groups >= 0) & (groups < count)).all()):
        raise ConfigError(
            f"{order.file}: tensor {order.name!r} names groups that are not among "
            f"the {count} groups of its matrix; fetch it again"
        )
    return groups
