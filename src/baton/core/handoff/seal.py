"""The seal: an order-free digest of state rows, keyed by what and where they are. This is the numpy
reference.

    row_hash = mix((sum_i K_i * w_i mod 2^64) XOR k_row)        seal(rows) = sum of row_hash mod 2^64

w_i are the row's 32-bit little-endian words, the last one padded with zeros. Rows over 4 KB are cut
into cells of 4 KB, each hashed like a row. K_i are fixed odd 64-bit constants, and

    k_row    = mix(unit_key XOR mix(position * GOLDEN + cell))
    unit_key = mix(mix(mix(spec_key XOR layer) XOR part) XOR head)
    spec_key = BLAKE2b-64 of (weights identity, row length, spec name)

Words have 32 bits because with 64-bit words two flipped top bits of a row would cancel. The key is
mixed in before a nonlinear finaliser because swapped rows would go unnoticed if it were merely
added. `mix` is the finaliser of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
generators, 2014). tests/core/handoff/golden/seal.json fixes the values for every implementation.
"""

from functools import lru_cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from baton.core.errors import Bug
from baton.core.ids import GroupName
from baton.core.memory.state import Placement, SpecPlace

U64 = np.uint64
CELL_BYTES = 4096
CELL_WORDS = CELL_BYTES // 4


def _constant(x: int) -> NDArray[np.uint64]:
    """Return a number as a read-only array without dimensions, which numpy takes as an operand in
    half the time of a scalar."""
    found = np.array(x, dtype=np.uint64)
    found.flags.writeable = False
    return found


GOLDEN = _constant(0x9E3779B97F4A7C15)
CONSTANT_SEED = U64(0x6261746F6E)  # "baton"
SHIFTS = _constant(30), _constant(27), _constant(31)
FACTORS = _constant(0xBF58476D1CE4E5B9), _constant(0x94D049BB133111EB)
WORD = np.dtype("<u4")
# the spec's key, layers, parts, first head, past head
Units = tuple[int, tuple[int, ...], int, int, int]


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the finaliser of splitmix64 elementwise; it is a bijection."""
    x = x ^ (x >> SHIFTS[0])  # a copy: the rest is in place
    x *= FACTORS[0]
    x ^= x >> SHIFTS[1]
    x *= FACTORS[1]
    x ^= x >> SHIFTS[2]
    return x


@lru_cache
def constants(count: int = CELL_WORDS) -> NDArray[np.uint64]:
    """Return K_0 .. K_(count - 1), read-only: the outputs of splitmix64 seeded with CONSTANT_SEED,
    made odd."""
    found = mix(np.arange(1, count + 1, dtype=np.uint64) * GOLDEN + CONSTANT_SEED) | U64(1)
    found.flags.writeable = False
    return found


def identity_bits(weights: str) -> int:
    """Return the first 64 bits of a weights identity, which is given as hex.

    Raises:
        ValueError: it is not hex
    """
    return int(weights[:16], 16)


@lru_cache(maxsize=256)
def spec_key(identity: int, spec: str, row_bytes: int) -> int:
    """Return the part of a row's key that all rows of one spec share: 64 bits."""
    fields = identity.to_bytes(8, "little") + row_bytes.to_bytes(8, "little") + spec.encode()
    return int.from_bytes(blake2b(fields, digest_size=8, person=b"baton-seal-1").digest(), "little")


def unit_keys(place: SpecPlace, identity: int) -> NDArray[np.uint64]:
    """Return the unit keys of one spec: uint64 [units, parts], read-only, as `Placement.units`."""
    return _unit_keys(*_units_of(place, identity))


def _units_of(place: SpecPlace, identity: int) -> Units:
    spec = spec_key(identity, place.spec.name, place.row_bytes)
    return spec, place.layers, len(place.spec.parts), place.heads.start, place.heads.end


@lru_cache(maxsize=256)
def _unit_keys(
    spec: int, layers: tuple[int, ...], parts: int, first_head: int, past_head: int
) -> NDArray[np.uint64]:
    by_layer = mix(U64(spec) ^ np.array(layers, dtype=np.uint64)[None, :, None])
    by_part = mix(by_layer ^ np.arange(parts, dtype=np.uint64)[None, None, :])
    keys = mix(by_part ^ np.arange(first_head, past_head, dtype=np.uint64)[:, None, None]).reshape(
        -1, parts
    )
    keys.flags.writeable = False
    return keys


def row_keys(
    units: NDArray[np.uint64], positions: NDArray[np.uint64], cell: int
) -> NDArray[np.uint64]:
    """Return k_row, the keys of units [...] and positions [...], broadcast against each other."""
    return mix(units ^ mix(positions * GOLDEN + U64(cell)))


@lru_cache(maxsize=512)
def _block_keys(units: Units, tokens: int, number: int, cells: int) -> NDArray[np.uint64]:
    """Return k_row of all rows of a block, uint64 [cells, units, parts, tokens], read-only. They
    are the same for every sequence."""
    positions = (number * tokens + np.arange(tokens, dtype=np.int64)).astype(np.uint64)
    keys = _unit_keys(*units)[:, :, None]
    found = np.stack([row_keys(keys, positions[None, None, :], cell) for cell in range(cells)])
    found.flags.writeable = False
    return found


def block_sums(
    pool: NDArray[np.uint8],
    placement: Placement,
    group: GroupName,
    slots: NDArray[np.int64],
    numbers: NDArray[np.int64],
    identity: int,
) -> NDArray[np.uint64]:
    """Return the sums of blocks as they lie in a pool.

    Args:
        pool: the group's pool, contiguous bytes
        slots: int64 [n], block index in the pool (page * k + j)
        numbers: int64 [n], block number in its sequence; for slot groups the tokens consumed
        identity: 64 bits of the weights identity

    Returns:
        uint64 [n, units], units in the order of `Placement.units(group)`

    Raises:
        Bug: a slot is outside the pool
    """
    tokens = placement.block_positions(group)
    places = [p for p in placement.places.values() if p.spec.group == group]
    for place in places:
        _require_inside(pool, place, slots)
    found = [
        _spec_sums(_cells(pool, place, slots), place, _keys(place, identity, tokens, numbers))
        for place in places
    ]
    if len(found) == 1:
        return found[0]
    return np.concatenate(found, axis=1) if found else np.zeros((len(slots), 0), dtype=np.uint64)


def _require_inside(pool: NDArray[np.uint8], place: SpecPlace, slots: NDArray[np.int64]) -> None:
    """Check that every slot is a block of the pool.

    Raises:
        Bug: one is not
    """
    if not slots.size:
        return
    # as unsigned numbers, negative slots are larger than any other
    last = int(np.maximum.reduce(slots.view(U64)))
    if last * place.block_stride + place.reach > pool.size:
        raise Bug(
            f"blocks {slots.min()} to {slots.max()} are not all in a pool of {pool.size} bytes"
        )


def _cells(
    pool: NDArray[np.uint8], place: SpecPlace, slots: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """Return the cells of blocks: uint8 [blocks, heads, layers, bytes of a cell], a copy."""
    count = int(slots.max()) + 1 if slots.size else 0
    view: NDArray[np.uint8] = np.ndarray(
        (count, place.heads.size, len(place.layers), place.cell_bytes),
        np.uint8,
        pool,
        place.offset,
        (place.block_stride, place.head_stride, place.layer_stride, 1),
    )
    return view[slots]


def _keys(
    place: SpecPlace, identity: int, tokens: int, numbers: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Return k_row of all rows of blocks: uint64 [blocks, cells, units, parts, tokens]."""
    units, cells = _units_of(place, identity), -(-place.row_bytes // CELL_BYTES)
    if numbers.size == 1:
        return _block_keys(units, tokens, int(numbers[0]), cells)[None]
    found = [_block_keys(units, tokens, number, cells) for number in numbers.tolist() or [0]]
    return np.stack(found)[: numbers.size]


def _spec_sums(
    held: NDArray[np.uint8], place: SpecPlace, keys: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    n, cells, units, parts, tokens = keys.shape
    rows = held.reshape(n, units, parts, tokens, place.row_bytes)
    total = _cell_sums(rows[..., :CELL_BYTES], keys[:, 0])
    for cell in range(1, cells):
        total += _cell_sums(rows[..., cell * CELL_BYTES : (cell + 1) * CELL_BYTES], keys[:, cell])
    return total


def _cell_sums(rows: NDArray[np.uint8], keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash cells: rows [blocks, units, parts, tokens, bytes], with keys of all axes but the last ->
    uint64 [blocks, units]."""
    spare = -rows.shape[-1] % 4
    padded = np.pad(rows, [(0, 0)] * 4 + [(0, spare)]) if spare else np.ascontiguousarray(rows)
    words = padded.view(WORD).astype(np.uint64)
    found: NDArray[np.uint64] = np.add.reduce(
        mix(words.dot(constants(words.shape[-1])) ^ keys), axis=(2, 3)
    )
    return found
