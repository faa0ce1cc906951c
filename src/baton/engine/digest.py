"""The seal, compiled: the same sums as `core.seal.block_sums`, one pass over the bytes without holding the interpreter.

Written from the formula and not from the reference's code: the two check each other (tests/engine/test_digest.py).
"""

import numba
import numpy as np
from numpy.typing import NDArray

from baton.core.ids import GroupName
from baton.core.seal import CELL_BYTES, constants, unit_keys
from baton.core.state import Placement, SpecPlace, Unit

WORDS = CELL_BYTES // 4


@numba.njit(inline="always")
def _mix(x: np.uint64) -> np.uint64:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@numba.njit(nogil=True, cache=True, boundscheck=False)
def _whole_words(words, starts, firsts, keys, k, tokens, row_words, out):  # type: ignore[no-untyped-def]
    """Rows of at most one cell whose length is a multiple of 4 bytes.

    words: uint32 of the pool; starts: first word of the spec in each block; firsts: position of each block's first row;
    keys [units, parts]; out [blocks, units].
    """
    units, parts = keys.shape
    golden = np.uint64(0x9E3779B97F4A7C15)
    for n in range(starts.size):
        at = starts[n]
        for u in range(units):
            total = np.uint64(0)
            for p in range(parts):
                for t in range(tokens):
                    dot = np.uint64(0)
                    for i in range(row_words):
                        dot += k[i] * np.uint64(words[at + i])
                    at += row_words
                    where = _mix(np.uint64(firsts[n] + t) * golden)
                    total += _mix(dot ^ _mix(keys[u, p] ^ where))
            out[n, u] = total


@numba.njit(nogil=True, cache=True, boundscheck=False)
def _any_bytes(pool, starts, firsts, keys, k, tokens, row_bytes, out):  # type: ignore[no-untyped-def]
    """Rows of any length, cut into cells; a cell's last word is padded with zeros."""
    units, parts = keys.shape
    golden = np.uint64(0x9E3779B97F4A7C15)
    for n in range(starts.size):
        at = starts[n]
        for u in range(units):
            total = np.uint64(0)
            for p in range(parts):
                for t in range(tokens):
                    for cell in range((row_bytes + 4095) // 4096):
                        end = min(row_bytes, (cell + 1) * 4096)
                        dot = np.uint64(0)
                        for b in range(cell * 4096, end):
                            word, lane = (b - cell * 4096) // 4, (b - cell * 4096) % 4
                            dot += k[word] * (np.uint64(pool[at + b]) << np.uint64(8 * lane))
                        where = _mix(np.uint64(firsts[n] + t) * golden + np.uint64(cell))
                        total += _mix(dot ^ _mix(keys[u, p] ^ where))
                    at += row_bytes
            out[n, u] = total


def block_sums(
    pool: NDArray[np.uint8],
    placement: Placement,
    group: GroupName,
    slots: NDArray[np.int64],
    numbers: NDArray[np.int64],
    identity: int,
) -> NDArray[np.uint64]:
    """See `core.seal.block_sums`."""
    size = placement.block_bytes(group)
    tokens = placement.table.block_tokens if placement.table.group(group).unit is Unit.PAGE else 1
    keys, out, first = unit_keys(placement, group, identity), [], 0
    for place in (p for p in placement.places.values() if p.spec.group == group):
        units = place.heads.size * len(place.layers)
        parts = len(place.spec.parts)
        mine = np.ascontiguousarray(keys[first : first + units, :parts])
        out.append(_spec(pool, place, slots * size + place.offset, numbers * tokens, mine, tokens))
        first += units
    return np.concatenate(out, axis=1) if out else np.zeros((len(slots), 0), dtype=np.uint64)


def _spec(
    pool: NDArray[np.uint8],
    place: SpecPlace,
    starts: NDArray[np.int64],
    firsts: NDArray[np.int64],
    keys: NDArray[np.uint64],
    tokens: int,
) -> NDArray[np.uint64]:
    sums = np.empty((starts.size, keys.shape[0]), dtype=np.uint64)
    if place.row_bytes % 4 == 0 and place.row_bytes <= CELL_BYTES and not (starts % 4).any() and pool.size % 4 == 0:
        words = pool.view(np.uint32)
        _whole_words(words, starts // 4, firsts, keys, constants(), tokens, place.row_bytes // 4, sums)
    else:
        _any_bytes(pool, starts, firsts, keys, constants(), tokens, place.row_bytes, sums)
    return sums
