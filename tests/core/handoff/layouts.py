"""The byte layout a second time, written from docs and not from core/memory/state.py: every byte of
a pool gets the number of the one state byte that belongs there. What a plan moves is judged by it.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from baton.core.ids import GroupName
from baton.core.memory.state import (
    DType,
    Full,
    Group,
    Placement,
    StateSpec,
    StateTable,
    Strides,
    Unit,
    Whole,
    Window,
)

NOBODY = -1
FULL, WINDOW, SLOT = GroupName("full"), GroupName("window"), GroupName("slot")
GROUPS = (
    Group(FULL, Unit.PAGE, Full()),
    Group(WINDOW, Unit.PAGE, Window(9)),
    Group(SLOT, Unit.SLOT, Whole()),
)


def mixed(heads: int, layers: int = 5, block_tokens: int = 2) -> StateTable:
    """Every kind of row: attention, one replicated unit and its odd-sized scales, a window, a
    slot."""
    every = tuple(range(layers))
    specs = (
        StateSpec("kv", FULL, every, ("k", "v"), heads, 1, DType.BF16),
        StateSpec("latent", FULL, every[1:], ("c",), 1, 3, DType.FP8),
        StateSpec("swa", WINDOW, every[::2], ("k", "v"), heads, 1, DType.FP8),
        StateSpec("delta", SLOT, every[1::2], ("s",), heads, 3, DType.FP8),
    )
    return StateTable(layers, block_tokens, GROUPS, tuple(spec for spec in specs if spec.layers))


class Layout(NamedTuple):
    """One worker: widths and blocks in a page."""

    tp: int
    pp: int
    k: int


def placements(table: StateTable, layout: Layout) -> list[Placement]:
    """All ranks of a worker in rank order."""
    tp, pp, k = layout
    return [Placement(table, tp, pp, rank % tp, rank // tp, k) for rank in range(tp * pp)]


def laid_out_elsewhere(placement: Placement, orders: dict[GroupName, str], blocks: int):
    """The placement of an engine with a layout of its own: all groups in one pool of `blocks`
    blocks, one after the other; `orders` has the axes of a group's specs from the outermost to the
    innermost: b(lock), l(ayer), h(ead)."""
    found, at = [], 0
    for place in placement.places.values():
        spec = place.spec
        tokens = placement.table.block_tokens
        tokens = tokens if placement.table.group(spec.group).unit is Unit.PAGE else 1
        step = len(spec.parts) * tokens * spec.row * spec.dtype.size
        sizes = {"b": blocks, "l": len(place.layers), "h": place.heads.size}
        strides = {}
        for axis in reversed(orders[spec.group]):
            strides[axis] = step
            step *= sizes[axis]
        found.append(Strides(spec.name, at, strides["b"], strides["l"], strides["h"]))
        at += step
    return replace(placement, strides=tuple(found))


def heads_of(spec: StateSpec, layout: Layout, rank: int) -> range:
    """Global heads a rank holds."""
    r = rank % layout.tp
    if layout.tp > spec.heads:
        copies = layout.tp // spec.heads
        return range(r // copies, r // copies + 1)
    each = spec.heads // layout.tp
    return range(r * each, (r + 1) * each)


def layers_of(table: StateTable, spec: StateSpec, layout: Layout, rank: int) -> list[int]:
    """Global layers of a spec that a rank holds."""
    stage, n = rank // layout.tp, table.num_layers
    mine = range(stage * n // layout.pp, (stage + 1) * n // layout.pp)
    return [layer for layer in spec.layers if layer in mine]


def state_byte(spec: int, head: int, layer: int, part: int, position: int, byte: int) -> int:
    """One number for each byte of a model's state."""
    return ((((spec * 64 + head) * 64 + layer) * 4 + part) * 4096 + position) * 4096 + byte


@cache
def block_bytes(
    table: StateTable, layout: Layout, rank: int, group: GroupName, number: int
) -> tuple[int, ...]:
    """State bytes of block `number` on a rank, in the order in which they lie."""
    tokens = table.block_tokens if table.group(group).unit is Unit.PAGE else 1
    return tuple(
        state_byte(s, head, layer, part, number * tokens + token, byte)
        for s, spec in enumerate(table.specs)
        if spec.group == group
        for head in heads_of(spec, layout, rank)
        for layer in layers_of(table, spec, layout, rank)
        for part in range(len(spec.parts))
        for token in range(tokens)
        for byte in range(spec.row * spec.dtype.size)
    )


def picture(
    table: StateTable,
    layout: Layout,
    rank: int,
    group: GroupName,
    pages: list[int],
    pool_pages: int,
    first: int,
    past: int,
) -> np.ndarray:
    """A rank's pool holding blocks [first, past) of a sequence; `pages` from the page of block
    `first` on."""
    k = layout.k if table.group(group).unit is Unit.PAGE else 1
    size = len(block_bytes(table, layout, rank, group, 0))
    pool = np.full(pool_pages * k * size, NOBODY, dtype=np.int64)
    for number in range(first, past):
        at = (pages[number // k - first // k] * k + number % k) * size
        pool[at : at + size] = block_bytes(table, layout, rank, group, number)
    return pool


def extent(table: StateTable, group: GroupName, length: int) -> tuple[int, int]:
    """Blocks [first, past) that a sequence of `length` carries over."""
    b = table.block_tokens
    match table.group(group).extent:
        case Full():
            return 0, -(-length // b)
        case Window(tokens):
            return max(0, length - tokens + 1) // b, -(-length // b)
        case Whole():
            return 0, 1
