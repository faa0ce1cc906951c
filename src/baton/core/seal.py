"""The seal: an order-free digest of state rows keyed by what and where they are. The numpy reference.

    row_hash = mix((sum_i K_i * w_i mod 2^64) XOR k_row)        seal(rows) = sum of row_hash mod 2^64

w_i are the row's 32-bit little-endian words, zero padded; K_i fixed odd 64-bit constants; k_row depends on weights
identity, spec, layer, part, head, position, cell and row length. Words of 32 bits: with 64-bit words two flipped top bits
of a row cancel. A key mixed in before a nonlinear finaliser: with a key merely added, swapped rows go unnoticed.
`mix` is the finaliser of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
"""

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from baton.core.ids import GroupName
from baton.core.state import Placement, SpecPlace, Unit

CELL_BYTES = 4096
CELL_WORDS = CELL_BYTES // 4
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
U64 = np.uint64


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finaliser, elementwise."""
    x = (x ^ (x >> U64(30))) * U64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> U64(27))) * U64(0x94D049BB133111EB)
    return x ^ (x >> U64(31))


def constants(count: int = CELL_WORDS) -> NDArray[np.uint64]:
    """K_i: odd outputs of splitmix64 seeded with 0x6261746F6E ("baton")."""
    steps = np.arange(1, count + 1, dtype=np.uint64) * GOLDEN + U64(0x6261746F6E)
    return mix(steps) | U64(1)


def identity_bits(weights: str) -> int:
    """The first 64 bits of a weights identity (hex)."""
    return int(weights[:16], 16)


def unit_key(identity: int, spec: str, layer: int, part: int, head: int, row_bytes: int) -> int:
    """The part of k_row that is the same for all positions: BLAKE2b over the named fields, 64 bits."""
    fields = f"baton-seal-1\0{identity}\0{spec}\0{layer}\0{part}\0{head}\0{row_bytes}".encode()
    return int.from_bytes(blake2b(fields, digest_size=8).digest(), "little")


def unit_keys(placement: Placement, group: GroupName, identity: int) -> NDArray[np.uint64]:
    """Keys [units, parts]; units in the order of `Placement.units`, parts padded with zeros."""
    places = [p for p in placement.places.values() if p.spec.group == group]
    width = max((len(p.spec.parts) for p in places), default=0)
    keys = [
        [unit_key(identity, p.spec.name, layer, n, head, p.row_bytes) for n in range(len(p.spec.parts))]
        + [0] * (width - len(p.spec.parts))
        for p in places
        for head in range(p.heads.start, p.heads.end)
        for layer in p.layers
    ]
    return np.array(keys, dtype=np.uint64).reshape(-1, width)


def block_sums(
    pool: NDArray[np.uint8],
    placement: Placement,
    group: GroupName,
    slots: NDArray[np.int64],
    numbers: NDArray[np.int64],
    identity: int,
) -> NDArray[np.uint64]:
    """Sums of blocks as they lie in a pool.

    Args:
        pool: the group's pool, bytes
        slots: int64 [n], block index in the pool (page * k + j)
        numbers: int64 [n], block number in its sequence; for slot groups the tokens consumed
        identity: 64 bits of the weights identity

    Returns:
        uint64 [n, units], units in the order of `Placement.units(group)`
    """
    size = placement.block_bytes(group)
    blocks = pool[: pool.size // size * size].reshape(-1, size)[slots] if size else np.zeros((len(slots), 0), np.uint8)
    paged = placement.table.group(group).unit is Unit.PAGE
    tokens = placement.table.block_tokens if paged else 1
    positions = (numbers[:, None] * tokens + np.arange(tokens, dtype=np.int64)).astype(np.uint64)
    keys = unit_keys(placement, group, identity)
    out, first = [], 0
    for place in (p for p in placement.places.values() if p.spec.group == group):
        units = place.heads.size * len(place.layers)
        out.append(_spec_sums(blocks, place, positions, keys[first : first + units]))
        first += units
    return np.concatenate(out, axis=1) if out else np.zeros((len(slots), 0), dtype=np.uint64)


def _spec_sums(
    blocks: NDArray[np.uint8], place: SpecPlace, positions: NDArray[np.uint64], keys: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    n, tokens = positions.shape
    parts = len(place.spec.parts)
    units = place.heads.size * len(place.layers)
    rows = blocks[:, place.offset : place.offset + place.nbytes].reshape(n, units, parts, tokens, place.row_bytes)
    total = np.zeros((n, units), dtype=np.uint64)
    with np.errstate(over="ignore"):
        for cell, start in enumerate(range(0, place.row_bytes, CELL_BYTES)):
            chunk = rows[..., start : start + CELL_BYTES]
            padded = np.zeros((*chunk.shape[:-1], -(-chunk.shape[-1] // 4) * 4), dtype=np.uint8)
            padded[..., : chunk.shape[-1]] = chunk
            words = padded.view("<u4").astype(np.uint64)
            dots = (words * constants(words.shape[-1])).sum(axis=-1, dtype=np.uint64)
            where = mix(positions * GOLDEN + U64(cell))  # [n, tokens]
            k_row = mix(keys[None, :, :parts, None] ^ where[:, None, None, :])
            total += mix(dots ^ k_row).sum(axis=(2, 3), dtype=np.uint64)
    return total
