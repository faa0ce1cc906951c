"""What every implementation of the seal is tested by: geometries, a plain one in Python integers,
and the catalogue of damage.

An implementation is a function like `core.seal.block_sums`.
"""

from collections.abc import Callable, Iterator
from hashlib import blake2b, shake_128
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from baton.core.ids import GroupName
from baton.core.memory.state import (
    DType,
    Full,
    Group,
    Placement,
    StateSpec,
    StateTable,
    Unit,
    Whole,
)

BlockSums = Callable[
    [NDArray[np.uint8], Placement, GroupName, NDArray[np.int64], NDArray[np.int64], int],
    NDArray[np.uint64],
]
PAGED, SLOT = GroupName("full"), GroupName("slot")
GROUPS = (Group(PAGED, Unit.PAGE, Full()), Group(SLOT, Unit.SLOT, Whole()))
IDENTITY = 0xFEDCBA9876543210
MASK = 2**64 - 1


class Case(NamedTuple):
    """Blocks of one group in a pool of made-up bytes."""

    name: str
    placement: Placement
    group: GroupName
    slots: tuple[int, ...]
    numbers: tuple[int, ...]

    def pool(self) -> NDArray[np.uint8]:
        """Bytes that depend on the name alone."""
        size = self.placement.block_bytes(self.group) * (max(self.slots) + 1)
        return np.frombuffer(bytearray(shake_128(self.name.encode()).digest(size)), dtype=np.uint8)

    def sums(
        self, block_sums: BlockSums, pool: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint64]:
        """What an implementation says of it."""
        bytes_ = self.pool() if pool is None else pool
        return block_sums(
            bytes_,
            self.placement,
            self.group,
            np.array(self.slots),
            np.array(self.numbers),
            IDENTITY,
        )


def table(*specs: StateSpec, layers: int = 4, block_tokens: int = 4) -> StateTable:
    return StateTable(layers, block_tokens, GROUPS, specs)


def _kv(row: int, dtype: DType, *, heads: int = 2) -> StateSpec:
    return StateSpec("kv", PAGED, (0, 1, 3), ("k", "v"), heads, row, dtype)


def _delta(row: int, dtype: DType) -> StateSpec:
    return StateSpec("delta", SLOT, (2, 3), ("s",), 2, row, dtype)


def cases() -> list[Case]:
    """All element types; rows of part of a word, of whole words, of one cell, just over it, of
    many; pages and slots."""
    found = []
    for dtype in DType:
        for row in (1, 3, 16, 33, 64):
            whole = Placement(table(_kv(row, dtype)), 1, 1, 0, 0, 2)
            found.append(Case(f"{dtype.value} x {row}", whole, PAGED, (2, 0, 5), (0, 1, 700)))
    for row, dtype in (
        (1024, DType.F32),
        (1025, DType.F32),
        (4095, DType.FP8),
        (4097, DType.FP8),
        (4099, DType.BF16),
    ):
        whole = Placement(table(_kv(row, dtype, heads=1), block_tokens=2), 1, 1, 0, 0, 1)
        found.append(Case(f"cells of {dtype.value} x {row}", whole, PAGED, (1,), (9,)))
    for row, dtype in ((6, DType.F32), (2, DType.FP8), (4096, DType.F32)):
        whole = Placement(table(_delta(row, dtype)), 1, 1, 0, 0, 4)
        found.append(Case(f"slot of {dtype.value} x {row}", whole, SLOT, (1, 0), (2**31 + 1, 77)))
    # A spec whose bytes leave the next one of the block on an odd address, and a rank that holds
    # the second half.
    scale = StateSpec("scale", PAGED, (0, 1, 3), ("s",), 2, 1, DType.FP8)
    several = table(scale, _kv(8, DType.BF16), _delta(5, DType.F16), block_tokens=3)
    for tp_rank, pp_rank in ((0, 0), (1, 0), (1, 1)):
        placement = Placement(several, 2, 2, tp_rank, pp_rank, 1)
        found.append(
            Case(
                f"several specs on rank {tp_rank}, {pp_rank}",
                placement,
                PAGED,
                (0, 1, 2),
                (4, 5, 6),
            )
        )
    return found


# ---- a plain implementation ---------------------------------------------------------------------


def plain_mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def plain_constant(i: int) -> int:
    return plain_mix((0x6261746F6E + (i + 1) * 0x9E3779B97F4A7C15) & MASK) | 1


def plain_row(row: bytes, unit_key: int, position: int) -> int:
    total = 0
    for cell in range(-(-len(row) // 4096)):
        part = row[cell * 4096 : (cell + 1) * 4096]
        words = [int.from_bytes(part[i : i + 4], "little") for i in range(0, len(part), 4)]
        dot = sum(plain_constant(i) * w for i, w in enumerate(words)) & MASK
        where = plain_mix((position * 0x9E3779B97F4A7C15 + cell) & MASK)
        total += plain_mix(dot ^ plain_mix(unit_key ^ where))
    return total


def plain_sums(
    pool: NDArray[np.uint8],
    placement: Placement,
    group: GroupName,
    slots: NDArray[np.int64],
    numbers: NDArray[np.int64],
    identity: int,
) -> NDArray[np.uint64]:
    """Row by row in Python integers."""
    raw, size = pool.tobytes(), placement.block_bytes(group)
    tokens = placement.table.block_tokens if placement.table.group(group).unit is Unit.PAGE else 1
    found = []
    for slot, number in zip(slots.tolist(), numbers.tolist(), strict=True):
        at, sums = slot * size, []
        for name, head, layer in placement.units(group):
            spec = placement.places[name].spec
            length = spec.row * spec.dtype.size
            named = identity.to_bytes(8, "little") + length.to_bytes(8, "little") + name.encode()
            key = int.from_bytes(
                blake2b(named, digest_size=8, person=b"baton-seal-1").digest(), "little"
            )
            total = 0
            for part in range(len(spec.parts)):
                unit_key = plain_mix(plain_mix(plain_mix(key ^ layer) ^ part) ^ head)
                for token in range(tokens):
                    total += plain_row(raw[at : at + length], unit_key, number * tokens + token)
                    at += length
            sums.append(total & MASK)
        found.append(sums)
    return np.array(found, dtype=np.uint64).reshape(len(slots), -1)


# ---- the catalogue ------------------------------------------------------------------------------

ROW = 24  # bfloat16 elements: 12 words
TWIN = Placement(
    table(
        StateSpec("a", PAGED, (0, 1, 2), ("k", "v"), 3, ROW, DType.BF16),
        StateSpec("b", PAGED, (0, 1, 2), ("k", "v"), 3, ROW, DType.BF16),
        layers=3,
    ),
    1,
    1,
    0,
    0,
    1,
)
BLOCKS = 4
Rows = NDArray[np.uint8]  # [block, head, layer, part, token, byte], a view of one spec in the pool


def twin_rows(pool: NDArray[np.uint8]) -> tuple[Rows, Rows]:
    """Views of both specs of TWIN."""
    both = pool.reshape(BLOCKS, 2, 3, 3, 2, 4, 2 * ROW)
    return both[:, 0], both[:, 1]


def swap(x: NDArray[np.uint8], y: NDArray[np.uint8]) -> None:
    x[...], y[...] = y.copy(), x.copy()


def _elements(rows: Rows) -> NDArray[np.uint16]:
    return rows.view("<u2")


def _words(rows: Rows) -> NDArray[np.uint32]:
    return rows.view("<u4")


def _shift_by_one_token(rows: Rows) -> None:
    line = rows.transpose(1, 2, 3, 0, 4, 5).reshape(3, 3, 2, BLOCKS * 4, 2 * ROW)
    line = np.roll(line, 1, axis=3).reshape(3, 3, 2, BLOCKS, 4, 2 * ROW)
    rows[...] = line.transpose(3, 0, 1, 2, 4, 5)


def _compensate(rows: Rows) -> None:
    _words(rows)[0, 0, 0, 0, 0, 2] += np.uint32(1)
    _words(rows)[0, 0, 0, 0, 0, 5] -= np.uint32(1)


def _compensate_in_rows(rows: Rows) -> None:
    _words(rows)[0, 0, 0, 0, 0, 3] += np.uint32(9)
    _words(rows)[0, 0, 0, 0, 1, 3] -= np.uint32(9)


def _assign(x: NDArray[np.uint8], y: NDArray[np.uint8] | int) -> None:
    x[...] = y


CATALOGUE: dict[str, Callable[[Rows, Rows], object]] = {
    "rows swapped": lambda a, b: swap(a[0, 1, 1, 0, 0], a[0, 1, 1, 0, 2]),
    "rows swapped between blocks": lambda a, b: swap(a[0, 1, 1, 0, 0], a[1, 1, 1, 0, 0]),
    "rows of one unit reversed": lambda a, b: _assign(a[0, 0, 0, 0], a[0, 0, 0, 0, ::-1].copy()),
    "heads swapped": lambda a, b: swap(a[:, 0], a[:, 1]),
    "heads rotated": lambda a, b: _assign(a, np.roll(a, 1, axis=1)),
    "one head for all": lambda a, b: _assign(a, a[:, :1].copy()),
    "layers swapped": lambda a, b: swap(a[:, :, 0], a[:, :, 2]),
    "k and v exchanged": lambda a, b: swap(a[:, :, :, 0], a[:, :, :, 1]),
    "k and v exchanged in one unit": lambda a, b: swap(a[0, 0, 0, 0], a[0, 0, 0, 1]),
    "blocks swapped": lambda a, b: swap(a[1], a[2]),
    "blocks of both specs swapped": lambda a, b: (swap(a[1], a[2]), swap(b[1], b[2])),
    "specs swapped": lambda a, b: swap(a, b),
    "a head and a layer exchanged": lambda a, b: _assign(a, a.transpose(0, 2, 1, 3, 4, 5).copy()),
    "a token and a part exchanged": lambda a, b: swap(a[0, 0, 0, 0, 1], a[0, 0, 0, 1, 0]),
    "a row of another block": lambda a, b: _assign(a[0, 0, 0, 0, 0], a[3, 0, 0, 0, 0]),
    "a block of another place": lambda a, b: _assign(a[0], a[3]),
    "a row twice": lambda a, b: _assign(a[0, 0, 0, 0, 1], a[0, 0, 0, 0, 0]),
    "a shift by one token": lambda a, b: _shift_by_one_token(a),
    "a shift by one token inside a block": lambda a, b: _assign(a[0], np.roll(a[0], 1, axis=3)),
    "a shift by one byte": lambda a, b: _assign(a[0], np.roll(a[0], 1, axis=-1)),
    "a shift by one element": lambda a, b: _assign(a[0], np.roll(a[0], 2, axis=-1)),
    "a shift by one word": lambda a, b: _assign(a[0], np.roll(a[0], 4, axis=-1)),
    "elements of a row reversed": lambda a, b: _elements(a)[0, 0, 0, 0, 0].__setitem__(
        slice(None), _elements(a)[0, 0, 0, 0, 0, ::-1].copy()
    ),
    "halves of rows swapped": lambda a, b: swap(a[..., :ROW], a[..., ROW:]),
    "a row negated": lambda a, b: _elements(a)[0, 0, 0, 0, 0].__ixor__(np.uint16(0x8000)),
    "a unit negated": lambda a, b: _elements(a)[0, 0, 0].__ixor__(np.uint16(0x8000)),
    "everything negated": lambda a, b: _elements(a).__ixor__(np.uint16(0x8000)),
    "v negated": lambda a, b: _elements(a)[:, :, :, 1].__ixor__(np.uint16(0x8000)),
    "all bits flipped": lambda a, b: a.__ixor__(np.uint8(0xFF)),
    "a row zeroed": lambda a, b: _assign(a[0, 0, 0, 0, 0], 0),
    "a block zeroed": lambda a, b: _assign(a[1], 0),
    "a row's values doubled": lambda a, b: _elements(a)[0, 0, 0, 0, 0].__iadd__(np.uint16(0x80)),
    "all values doubled": lambda a, b: _elements(a).__iadd__(np.uint16(0x80)),
    "a row's words doubled": lambda a, b: _words(a)[0, 0, 0, 0, 0].__imul__(np.uint32(2)),
    "one added here and taken there": lambda a, b: _compensate(a),
    "the same added to one row and taken from another": lambda a, b: _compensate_in_rows(a),
    "two rows changed by the same pattern": lambda a, b: a[0, 0, 0, 0, :2].__ixor__(np.uint8(0x40)),
    "the same change in both specs": lambda a, b: (
        a[0].__ixor__(np.uint8(1)),
        b[0].__ixor__(np.uint8(1)),
    ),
}


def undamaged() -> Case:
    """All blocks of TWIN's pool."""
    return Case("twin", TWIN, PAGED, tuple(range(BLOCKS)), tuple(range(7, 7 + BLOCKS)))


def missed(block_sums: BlockSums, damage: Callable[[Rows, Rows], object]) -> list[int]:
    """Damaged blocks whose leg sum (over all units) did not change, and whole blocks whose sums
    did."""
    case = undamaged()
    before, pool = case.pool(), case.pool()
    damage(*twin_rows(pool))
    changed = (before != pool).reshape(BLOCKS, -1).any(axis=1)
    assert changed.any(), "this entry damages nothing"
    first, second = (case.sums(block_sums, p).sum(axis=1, dtype=np.uint64) for p in (before, pool))
    return np.flatnonzero((first != second) != changed).tolist()


def flipped_rows(row: bytes, bits: int) -> Iterator[bytes]:
    """A row with one bit flipped, every one of them, then with the same bit of two elements of
    `bits` bits, every pair."""
    whole = int.from_bytes(row, "little")
    yield from ((whole ^ (1 << i)).to_bytes(len(row), "little") for i in range(8 * len(row)))
    # sign, exponent, some of the fraction; the lowest
    for bit in (*range(bits - 1, bits // 2 - 2, -1), 0):
        for i, j in combinations(range(bit, 8 * len(row), bits), 2):
            yield (whole ^ (1 << i) ^ (1 << j)).to_bytes(len(row), "little")


def indistinct_flips(block_sums: BlockSums, dtype: DType, row: int, *, zero: bool) -> int:
    """Of a row and its flipped copies (16 and 32 bits an element), how many share a sum with
    another."""
    nbytes = row * dtype.size
    placement = Placement(
        table(StateSpec("a", PAGED, (0,), ("k",), 1, row, dtype), layers=1, block_tokens=1),
        1,
        1,
        0,
        0,
        1,
    )
    base = bytes(nbytes) if zero else shake_128(b"flips").digest(nbytes)
    rows = {base, *flipped_rows(base, 16), *flipped_rows(base, 32)}
    pool = np.frombuffer(b"".join(sorted(rows)), dtype=np.uint8)
    slots = np.arange(len(rows))
    sums = block_sums(pool, placement, PAGED, slots, np.full_like(slots, 3), IDENTITY)
    return len(rows) - len(np.unique(sums))


def flip_rates(block_sums: BlockSums) -> NDArray[np.float64]:
    """For each of a sum's 64 bits, the share of all one-bit changes of a row of 32 words that flip
    it."""
    placement = Placement(
        table(StateSpec("a", PAGED, (0,), ("k",), 1, 32, DType.F32), layers=1, block_tokens=1),
        1,
        1,
        0,
        0,
        1,
    )
    base = int.from_bytes(shake_128(b"rates").digest(128), "little")
    rows = [base, *(base ^ (1 << i) for i in range(1024))]
    pool = np.frombuffer(b"".join(r.to_bytes(128, "little") for r in rows), dtype=np.uint8)
    slots = np.arange(len(rows))
    sums = block_sums(pool, placement, PAGED, slots, np.full_like(slots, 3), IDENTITY)[:, 0]
    bits = (sums[1:] ^ sums[0])[:, None] >> np.arange(64, dtype=np.uint64) & np.uint64(1)
    rates: NDArray[np.float64] = bits.mean(axis=0)
    return rates
