"""MXFP4: groups of 32 four-bit floats with one power of two each (Open Compute Project,
Microscaling Formats 1.0, 2023)."""

import torch

GROUP = 32  # elements that share a scale
BIAS = 127  # of the scales' exponents
# e2m1: sign, two bits of exponent, one of mantissa
VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def unpack(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Unpack MXFP4 to float32, exactly.

    Args:
        blocks: uint8 [rows, groups, 16], two elements in a byte, the first in the low bits
        scales: uint8 [rows, groups], exponents plus BIAS

    Returns:
        float32 [rows, groups * 32]
    """
    values = torch.tensor(VALUES)
    pairs = torch.stack((values[(blocks & 0xF).int()], values[(blocks >> 4).int()]), -1)
    numbers = torch.ldexp(pairs.flatten(2), (scales.int() - BIAS)[..., None])
    return numbers.flatten(1)
