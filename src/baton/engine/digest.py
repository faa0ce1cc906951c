"""The seal, compiled: the same sums as `core.handoff.seal.block_sums`, in one pass without the GIL.

It is written from the formula, not from the reference's code, so that the two check each other
(tests/engine/test_digest.py). It is compiled, or loaded from disk, when this module is imported, so
that no request waits for it.
"""

from hashlib import blake2b

import numba
import numpy as np
from numba.core import types
from numba.core.typing.templates import Signature
from numpy.typing import NDArray

from baton.core.errors import Bug
from baton.core.handoff.seal import constants
from baton.core.ids import GroupName
from baton.core.memory.state import Placement, SpecPlace, Unit

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
WORD_CONSTANTS = constants()
# The same sum over bytes, for rows of a size that is not a multiple of a word:
# K * (b0 + 2^8 b1 + 2^16 b2 + 2^24 b3).
BYTE_CONSTANTS = (WORD_CONSTANTS[:, None] << np.array([0, 8, 16, 24], dtype=np.uint64)).ravel()


def _signature(element: types.Type) -> Signature:
    def given(dtype: types.Type) -> types.Type:
        return types.Array(dtype, 1, "C", readonly=True)

    counts = (types.int64,) * 7
    out = types.Array(types.uint64, 2, "C")
    return types.void(
        given(element),
        given(types.uint64),
        given(types.int64),
        given(types.int64),
        given(types.int64),
        *counts,
        types.uint64,
        out,
    )


@numba.njit(inline="always")
def _mix(x: np.uint64) -> np.uint64:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@numba.njit(
    [_signature(types.uint32), _signature(types.uint8)],
    nogil=True,
    cache=True,
    boundscheck=False,
    error_model="numpy",
)
def _sums(  # type: ignore[no-untyped-def]
    pool,
    k,
    starts,
    firsts,
    layers,
    head,
    past_head,
    by_head,
    by_layer,
    parts,
    tokens,
    row,
    spec_key,
    out,
):
    """Compute the sums of one spec.

    Args:
        pool: elements, uint32 or uint8
        k: uint64, the constants of one cell, one for each element
        starts: int64 [blocks], first element of the spec in each block
        firsts: int64 [blocks], position of each block's first row
        by_head, by_layer: elements from a cell to that of the next head, and of the next layer
        row: elements of a row
        out: uint64 [blocks, units], is written
    """
    cells = (row + k.size - 1) // k.size
    where = np.empty((cells, tokens), np.uint64)
    dots = np.empty(tokens, np.uint64)
    for n in range(starts.size):
        for cell in range(cells):
            for t in range(tokens):
                where[cell, t] = _mix(np.uint64(firsts[n] + t) * GOLDEN + np.uint64(cell))
        unit = 0
        for h in range(head, past_head):
            for i_layer in range(layers.size):
                layer = layers[i_layer]
                at = starts[n] + (h - head) * by_head + i_layer * by_layer
                total = np.uint64(0)
                for part in range(parts):
                    key = _mix(
                        _mix(_mix(spec_key ^ np.uint64(layer)) ^ np.uint64(part)) ^ np.uint64(h)
                    )
                    for cell in range(cells):
                        width = np.uint64(min(k.size, row - cell * k.size))
                        for t in range(tokens):
                            # Unsigned indices: a signed one may count from the end, and that test
                            # keeps LLVM from vectorising.
                            begin = np.uint64(at + t * row + cell * k.size)
                            dot = np.uint64(0)
                            for i in range(width):
                                dot += k[i] * np.uint64(pool[begin + i])
                            dots[t] = dot
                        for t in range(tokens):
                            total += _mix(dots[t] ^ _mix(key ^ where[cell, t]))
                    at += tokens * row
                out[n, unit] = total
                unit += 1


def block_sums(
    pool: NDArray[np.uint8],
    placement: Placement,
    group: GroupName,
    slots: NDArray[np.int64],
    numbers: NDArray[np.int64],
    identity: int,
) -> NDArray[np.uint64]:
    """Compute the sums of blocks; the same function as `core.handoff.seal.block_sums`.

    Args:
        pool: uint8 [bytes]
        placement: what the rank holds, and where
        group: the group of the blocks
        slots: int64 [blocks], places in the pool
        numbers: int64 [blocks], numbers of the blocks in their sequence
        identity: the weights identity, as the key of the seal

    Returns:
        uint64 [blocks, units]
    """
    places = [p for p in placement.places.values() if p.spec.group == group]
    for p in places:
        if slots.size and (slots.min() < 0 or slots.max() * p.block_stride + p.reach > pool.size):
            raise Bug(
                f"a block in {slots.min()} .. {slots.max()} is outside the pool of {pool.size} "
                "bytes"
            )
    tokens = placement.table.block_tokens if placement.table.group(group).unit is Unit.PAGE else 1
    slots, firsts = slots.astype(np.int64), numbers.astype(np.int64) * tokens
    found = [
        _spec(pool, place, slots * place.block_stride + place.offset, firsts, tokens, identity)
        for place in places
    ]
    return np.concatenate([np.empty((slots.size, 0), dtype=np.uint64), *found], axis=1)


def _spec(
    pool: NDArray[np.uint8],
    place: SpecPlace,
    starts: NDArray[np.int64],
    firsts: NDArray[np.int64],
    tokens: int,
    identity: int,
) -> NDArray[np.uint64]:
    layers = np.array(place.layers, dtype=np.int64)
    sums = np.empty((starts.size, place.heads.size * layers.size), dtype=np.uint64)
    steps = (place.head_stride, place.layer_stride, place.row_bytes, pool.ctypes.data)
    in_words = not (any(step % 4 for step in steps) or (starts % 4).any())
    elements = pool[: pool.size // 4 * 4].view(np.uint32) if in_words else pool
    width = elements.itemsize
    _sums(
        elements,
        WORD_CONSTANTS if in_words else BYTE_CONSTANTS,
        starts // width,
        firsts,
        layers,
        place.heads.start,
        place.heads.end,
        place.head_stride // width,
        place.layer_stride // width,
        len(place.spec.parts),
        tokens,
        place.row_bytes // width,
        _spec_key(identity, place),
        sums,
    )
    return sums


def _spec_key(identity: int, place: SpecPlace) -> int:
    digest = blake2b(digest_size=8, person=b"baton-seal-1")
    for field in (identity, place.row_bytes):
        digest.update(np.array(field, dtype="<u8").tobytes())
    digest.update(place.spec.name.encode())
    return int.from_bytes(digest.digest(), "little")
