"""Ranges between blocks of unequal size, the slow path of the plan.

    source, 4 tokens a block    [0 1 2 3][4 5 6 7]
    target, 6 tokens a block    [0 1 2 3  4 5][6 7 ...

A run of tokens that lies in one block on both sides (0-3, 4-5, 6-7) is a range of its own for each head, layer and part;
between equal blocks all of these are one range.
"""

from math import gcd

import msgspec
import numpy as np
from numpy.typing import NDArray


class Cells(msgspec.Struct, frozen=True):
    """One entry for each (head, layer, part) of a leg: int64 vectors of equal length, in bytes."""

    source: NDArray[np.int64]  # of its first token, from the start of the source's block
    target: NDArray[np.int64]
    row: NDArray[np.int64]  # of one token


def runs(blocks: NDArray[np.int64], source_tokens: int, target_tokens: int) -> NDArray[np.int64]:
    """First position of every run of `gcd` tokens in the source's `blocks`: [blocks, runs of a block]."""
    step = gcd(source_tokens, target_tokens)
    return blocks[:, None] * source_tokens + np.arange(0, source_tokens, step)[None, :]


def cross(
    cells: Cells,
    positions: NDArray[np.int64],
    source: tuple[NDArray[np.int64], int],
    target: tuple[NDArray[np.int64], int],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(source, target, bytes) of each run of each cell, runs of a cell beside each other, not yet merged.

    positions: [blocks, runs], from `runs`. `source` and `target`: byte at which the block of each run begins, of a shape that
    broadcasts to positions, and tokens of a block.
    """
    (from_block, source_tokens), (to_block, target_tokens) = source, target
    row = cells.row[None, :, None]
    at = from_block[:, None, :] + cells.source[None, :, None] + (positions % source_tokens)[:, None, :] * row
    to = to_block[:, None, :] + cells.target[None, :, None] + (positions % target_tokens)[:, None, :] * row
    nbytes = np.broadcast_to(gcd(source_tokens, target_tokens) * row, at.shape)
    return at.ravel(), to.ravel(), nbytes.ravel()
