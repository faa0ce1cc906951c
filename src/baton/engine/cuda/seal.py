"""The seal on CUDA devices: the same sums as `core.handoff.seal.block_sums`, where the pool lies.

A program of the grid hashes `Tile.units` units: (block, head, layer) cells, which are contiguous,
in the order of the result. It goes through their rows `Tile.rows` at a time and through each row
`Tile.elements` at a time:

    a tile     [units, rows, elements]     loaded, multiplied with K, summed over the elements
    its rows   [units, rows]               keyed, mixed, added up
    the end    [units]                     summed over the rows, written

There are no atomics and no second pass, and sums are modulo 2^64, so that every grid finds the same
bits. A row is read as words of 4 bytes where all rows lie at multiples of 4, else as elements of 2
or 1 bytes, each multiplied with the K of its word, shifted to its place in the word.
"""

from functools import lru_cache
from math import gcd
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from baton.core.errors import Bug, ConfigError
from baton.core.handoff import seal
from baton.core.ids import GroupName
from baton.core.memory.state import Placement, SpecPlace

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise ConfigError(
        "CUDA kernels: Triton is not installed: pip install 'baton-llm[cuda]'"
    ) from error

WORD_BYTES = 4
ELEMENTS = MappingProxyType({4: tl.uint32, 2: tl.uint16, 1: tl.uint8})  # by their bytes
WARPS = 2
TILE_ELEMENTS = 4096  # of all units of a program: 64 for each thread
ROW_ELEMENTS = 128  # at most so many of one row: a warp reads 512 bytes at once
LINE_ELEMENTS = 32  # 128 bytes, which the memory delivers at once


class Tile(NamedTuple):
    """What a program holds at a time; all three are powers of two."""

    units: int
    rows: int
    elements: int


def tile_of(rows: int, elements: int) -> Tile:
    """Choose the tile for units of `rows` rows of `elements` elements."""
    aligned = elements & -elements  # the largest power of two that divides it
    whole = aligned if aligned >= LINE_ELEMENTS else triton.next_power_of_2(elements)
    wide = min(whole, ROW_ELEMENTS)
    high = min(triton.next_power_of_2(rows), TILE_ELEMENTS // wide)
    return Tile(TILE_ELEMENTS // (wide * high), high, wide)


class UnitShape(NamedTuple):
    """What the kernel is compiled for: the units of a block and the rows of a unit.

    Attributes:
        units: (head, layer) cells of a block
        layers: of them in a row, for each head
        row: elements of a row
        width: bytes of an element
    """

    units: int
    layers: int
    parts: int
    tokens: int
    row: int
    width: int
    tile: Tile


def shape_of(place: SpecPlace, tokens: int, address: int) -> UnitShape:
    """Return the shape of a spec's units in a pool that begins at `address`."""
    steps = (
        place.offset,
        place.block_stride,
        place.head_stride,
        place.layer_stride,
        place.row_bytes,
    )
    width = gcd(WORD_BYTES, address, *steps)
    layers, parts, row = len(place.layers), len(place.spec.parts), place.row_bytes // width
    units = place.heads.size * layers
    return UnitShape(units, layers, parts, tokens, row, width, tile_of(parts * tokens, row))


@triton.jit
def _mix(x):  # type: ignore[no-untyped-def]
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


# The compiler is not told what changes from call to call: a kernel is compiled once for each spec.
@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["out_stride", "total"],
    do_not_specialize_on_alignment=["slots", "firsts", "out"],
)
def sums_kernel(  # type: ignore[no-untyped-def]
    pool,
    constants,
    keys,
    slots,
    firsts,
    out,
    out_stride,
    total,
    offset,
    block_stride,
    head_stride,
    layer_stride,
    UNITS: tl.constexpr,
    LAYERS: tl.constexpr,
    PARTS: tl.constexpr,
    TOKENS: tl.constexpr,
    ROW: tl.constexpr,
    CELL: tl.constexpr,
    ELEMENT: tl.constexpr,
    TILE_UNITS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_ELEMENTS: tl.constexpr,
):
    """Write the sums of the units of one spec, in all blocks.

    Args:
        pool: uint8, at a multiple of the bytes of ELEMENT
        constants: uint64 [words of a cell], K
        keys: uint64 [UNITS, PARTS], unit keys
        slots: int64 [blocks], places in the pool
        firsts: int64 [blocks], position of each block's first row
        out: uint64 [blocks, UNITS], `out_stride` from one block to the next; is written
        total: blocks * UNITS
        offset, block_stride, head_stride, layer_stride: elements
        ROW, CELL: elements of a row, and of a cell of 4 KB
    """
    ROWS: tl.constexpr = PARTS * TOKENS
    PER_WORD: tl.constexpr = 32 // ELEMENT.primitive_bitwidth
    which = tl.program_id(0) * TILE_UNITS + tl.arange(0, TILE_UNITS)
    held = which < total
    block, unit = which // UNITS, which % UNITS
    slot = tl.load(slots + block, mask=held, other=0)
    first = tl.load(firsts + block, mask=held, other=0)
    start = offset + slot * block_stride
    start += (unit // LAYERS).to(tl.int64) * head_stride
    start += (unit % LAYERS).to(tl.int64) * layer_stride
    elements = pool.to(tl.pointer_type(ELEMENT)) + start[:, None, None]
    found = tl.zeros((TILE_UNITS, TILE_ROWS), tl.uint64)
    for begin in range(0, ROWS, TILE_ROWS):
        row = begin + tl.arange(0, TILE_ROWS)
        there = held[:, None] & (row < ROWS)[None, :]
        key = tl.load(keys + unit[:, None] * PARTS + (row // TOKENS)[None, :], mask=there, other=0)
        position = (first[:, None] + (row % TOKENS)[None, :]).to(tl.uint64)
        for cell in range(0, ROW, CELL):
            dot = tl.zeros((TILE_UNITS, TILE_ROWS), tl.uint64)
            for at in range(0, min(CELL, ROW), TILE_ELEMENTS):
                i = at + tl.arange(0, TILE_ELEMENTS)
                inside = (i < CELL) & (cell + i < ROW)
                k = tl.load(constants + i // PER_WORD, mask=i < CELL, other=0)
                k = k << (i % PER_WORD * ELEMENT.primitive_bitwidth)
                x = tl.load(
                    elements + row[None, :, None] * ROW + (cell + i)[None, None, :],
                    mask=there[:, :, None] & inside[None, None, :],
                    other=0,
                )
                dot += tl.sum(x.to(tl.uint64) * k[None, None, :], axis=2)
            where = _mix(position * 0x9E3779B97F4A7C15 + cell // CELL)
            found += tl.where(there, _mix(dot ^ _mix(key ^ where)), 0)
    tl.store(out + block.to(tl.int64) * out_stride + unit, tl.sum(found, axis=1), mask=held)


def fixed(shape: UnitShape) -> dict[str, Any]:
    """Return the arguments of the kernel that are compiled into it."""
    return {
        "UNITS": shape.units,
        "LAYERS": shape.layers,
        "PARTS": shape.parts,
        "TOKENS": shape.tokens,
        "ROW": shape.row,
        "CELL": seal.CELL_BYTES // shape.width,
        "ELEMENT": ELEMENTS[shape.width],
        "TILE_UNITS": shape.tile.units,
        "TILE_ROWS": shape.tile.rows,
        "TILE_ELEMENTS": shape.tile.elements,
    }


@lru_cache
def _constants(device: torch.device) -> torch.Tensor:
    return torch.from_numpy(seal.constants().copy()).to(device)


@lru_cache(maxsize=256)
def _unit_keys(place: SpecPlace, identity: int, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(seal.unit_keys(place, identity).copy()).to(device)


def block_sums(
    pool: torch.Tensor,
    placement: Placement,
    group: GroupName,
    slots: NDArray[np.int64],
    numbers: NDArray[np.int64],
    identity: int,
) -> torch.Tensor:
    """Compute the sums of blocks; the same function as `core.handoff.seal.block_sums`.

    It enqueues the work on the current stream of the pool's device and does not wait for it.

    Args:
        pool: uint8 [bytes], contiguous; on a CUDA device, or on any if Triton interprets
        placement: what the rank holds, and where
        group: the group of the blocks
        slots: int64 [blocks], places in the pool
        numbers: int64 [blocks], numbers of the blocks in their sequence
        identity: the weights identity, as the key of the seal

    Returns:
        uint64 [blocks, units], on the pool's device

    Raises:
        Bug: a slot is outside the pool
    """
    places = [p for p in placement.places.values() if p.spec.group == group]
    out = torch.empty(
        (slots.size, placement.unit_count(group)), dtype=torch.uint64, device=pool.device
    )
    if not out.numel():
        return out
    for place in places:
        _require_inside(pool, place, slots)
    tokens = placement.block_positions(group)
    blocks = torch.from_numpy(np.stack((slots, numbers * tokens))).to(
        pool.device, non_blocking=True
    )
    past = 0
    with torch.cuda.device_of(pool):  # type: ignore[no-untyped-call]
        for place in places:
            shape = shape_of(place, tokens, pool.data_ptr())
            keys = _unit_keys(place, identity, pool.device)
            begin, past = past, past + shape.units
            _launch(pool, place, shape, keys, blocks, out[:, begin:past])
    return out


def _require_inside(pool: torch.Tensor, place: SpecPlace, slots: NDArray[np.int64]) -> None:
    assert pool.dtype == torch.uint8
    assert pool.is_contiguous()
    first, last = int(slots.min()), int(slots.max())
    if first < 0 or last * place.block_stride + place.reach > pool.numel():
        raise Bug(f"blocks {first} to {last} are not all in a pool of {pool.numel()} bytes")


def _launch(
    pool: torch.Tensor,
    place: SpecPlace,
    shape: UnitShape,
    keys: torch.Tensor,
    blocks: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Enqueue the sums of one spec; `blocks`: int64 [2, blocks], slots and first positions."""
    slots, firsts = blocks
    total = len(slots) * shape.units
    grid = (triton.cdiv(total, shape.tile.units),)
    steps = (place.offset, place.block_stride, place.head_stride, place.layer_stride)
    sums_kernel[grid](
        pool,
        _constants(pool.device),
        keys,
        slots,
        firsts,
        out,
        out.stride(0),
        total,
        *(step // shape.width for step in steps),
        **fixed(shape),
        num_warps=WARPS,
    )
