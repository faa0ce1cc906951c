"""Cached state as a table: what kinds there are, and which part of each a rank holds, and where.

Everything about state (pools, plan, seal, handshake, accounting) is a loop over this table (law 5).

Layout of a page of a group, k blocks of B tokens each:

    page = [block 0][block 1]..[block k-1]        a kernel addresses blocks: page * k + j
    block = [spec 0][spec 1]..                    the group's specs in table order
    spec  = [head][layer][part][token][row]       head-major: a range of heads is one byte range

An engine that lays out its pool in another way states strides (`Strides`); only [part][token][row],
the cell of a head and layer, is then one byte range.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cached_property, lru_cache
from types import MappingProxyType

import msgspec
from msgspec.structs import replace

from baton.core.errors import Bug, ConfigError
from baton.core.ids import GroupName


class DType(Enum):
    """Element type of a state row."""

    F32 = "f32"
    BF16 = "bf16"
    F16 = "f16"
    FP8 = "fp8"

    @property
    def size(self) -> int:
        """Bytes of one element."""
        return {"f32": 4, "bf16": 2, "f16": 2, "fp8": 1}[self.value]


class Unit(Enum):
    """How a group is allocated: by page (k blocks) or by slot (one per request)."""

    PAGE = "page"
    SLOT = "slot"


class Full(msgspec.Struct, frozen=True, tag="full", forbid_unknown_fields=True):
    """All positions of the sequence."""


class Window(msgspec.Struct, frozen=True, tag="window", forbid_unknown_fields=True):
    """The last `tokens` positions."""

    tokens: int


class Whole(msgspec.Struct, frozen=True, tag="whole", forbid_unknown_fields=True):
    """One state for the whole sequence so far."""


Extent = Full | Window | Whole


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of the state with one list of pages (or slots) and one extent.

    Attributes:
        optional: whether a sequence can be computed on without it, and with the same tokens: where
            it is missing it counts as zeros (drafts are worse then, and nothing else)
    """

    name: GroupName
    unit: Unit
    extent: Extent
    optional: bool = False


class StateSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of cached state.

    Attributes:
        layers: global layer ids
        heads: over all ranks
        row: length of a row, in elements
    """

    name: str
    group: GroupName
    layers: tuple[int, ...]
    parts: tuple[str, ...]
    heads: int
    row: int
    dtype: DType


class StateTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All state of a model: the part of a manifest that must be equal on both sides.

    Attributes:
        num_layers: layers of the model, which pipeline stages divide
        block_tokens: B, token positions in a block (the unit of layout, transfer and seal)
    """

    num_layers: int
    block_tokens: int
    groups: tuple[Group, ...]
    specs: tuple[StateSpec, ...]

    @property
    def lasting(self) -> tuple[GroupName, ...]:
        """The groups whose pages hold the state of their positions for as long as the sequence
        grows, so that they can serve another sequence with the same beginning. Pages that a window
        has passed are gone, and a slot holds the state at one length only."""
        return tuple(group.name for group in self.groups if isinstance(group.extent, Full))

    @property
    def cacheable(self) -> bool:
        """Whether a sequence can be computed from the end of another one's pages: all state lasts,
        but for what is optional."""
        return all(group.optional or group.name in self.lasting for group in self.groups)

    @property
    def layout(self) -> "StateTable":
        """The table without `Group.optional`, which says nothing of where state lies. So two
        workers need not agree on it; what an older gateway hands on does not say it."""
        return replace(self, groups=tuple(replace(g, optional=False) for g in self.groups))

    def specs_of(self, group: GroupName) -> tuple[StateSpec, ...]:
        """Return the group's specs, in the order in which they lie in a block."""
        return tuple(s for s in self.specs if s.group == group)

    def group(self, name: GroupName) -> Group:
        """Return the group with this name.

        Raises:
            Bug: the table has no such group
        """
        for group in self.groups:
            if group.name == name:
                return group
        raise Bug(f"group {name!r} is not of this model; it has {[g.name for g in self.groups]}")


class Interval(msgspec.Struct, frozen=True, order=True):
    """The half-open interval [start, end)."""

    start: int
    end: int

    @property
    def size(self) -> int:
        """The number of members; never negative."""
        return max(0, self.end - self.start)

    def meet(self, other: "Interval") -> "Interval":
        """Return the intersection; an empty one has size 0."""
        start = max(self.start, other.start)
        return Interval(start, max(start, min(self.end, other.end)))


def extent_blocks(extent: Extent, length: int, block_tokens: int) -> Interval:
    """Return the blocks of a sequence of `length` positions that a handoff carries, for a group of
    this extent."""
    end = -(-length // block_tokens)
    match extent:
        case Full():
            return Interval(0, end)
        case Window():
            return Interval(max(0, length - extent.tokens + 1) // block_tokens, end)
        case Whole():
            return Interval(0, 1)


def shard(heads: int, tp: int, tp_rank: int, *, what: str) -> Interval:
    """Return the units [start, end) of `heads` that `tp_rank` of `tp` holds (DESIGN: one shard rule
    for everything).

    Raises:
        ConfigError: neither `heads` nor `tp` divides the other
    """
    if tp <= heads and heads % tp == 0:
        each = heads // tp
        return Interval(tp_rank * each, (tp_rank + 1) * each)
    if tp > heads and tp % heads == 0:
        unit = tp_rank // (tp // heads)
        return Interval(unit, unit + 1)
    legal = [n for n in range(1, 4 * heads + 1) if heads % n == 0 or n % heads == 0]
    raise ConfigError(
        f"{what}: {heads} heads cannot be divided over tensor parallel width "
        f"{tp}; widths that fit: {legal}"
    )


class Strides(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the cells of one spec lie in a pool that another engine has laid out.

    A cell is what one head of one layer has in a block. That of block b, the rank's n-th layer and
    its h-th head begins at byte

        offset + b * block + n * layer + h * head

    and its parts, tokens and rows follow each other, as in our own layout.
    """

    spec: str
    offset: int
    block: int
    layer: int
    head: int


class SpecPlace(msgspec.Struct, frozen=True):
    """Where one spec lies in the pool of one rank. Strides and offset are in bytes; the stride of a
    token is `row_bytes`. The cell of a head and layer (parts, tokens, rows) is contiguous."""

    spec: StateSpec
    heads: Interval  # global units held
    layers: tuple[int, ...]  # global layer ids held, ascending
    offset: int  # of the spec in block 0
    row_bytes: int
    part_stride: int
    layer_stride: int
    head_stride: int
    block_stride: int
    cell_bytes: int

    @property
    def nbytes(self) -> int:
        """The bytes of the spec in one block."""
        return self.cell_bytes * self.heads.size * len(self.layers)

    @property
    def reach(self) -> int:
        """The bytes from the start of a block to the end of its last cell."""
        return (
            self.offset
            + (self.heads.size - 1) * self.head_stride
            + (len(self.layers) - 1) * self.layer_stride
            + self.cell_bytes
        )


class Placement(msgspec.Struct, frozen=True, dict=True):
    """The part of the state that one rank holds, and its byte layout. If tp > heads, several ranks
    hold the same unit (see `replica`).

    Attributes:
        page_blocks: k, the number of blocks in a page
        strides: where the cells of each spec lie, if another engine has laid out the pool; empty =
            our own layout
    """

    table: StateTable
    tp: int
    pp: int
    tp_rank: int
    pp_rank: int
    page_blocks: int
    strides: tuple[Strides, ...] = ()

    def __post_init__(self) -> None:
        if not (0 <= self.tp_rank < self.tp and 0 <= self.pp_rank < self.pp):
            raise ConfigError(
                f"rank (tp {self.tp_rank}, pp {self.pp_rank}) is outside "
                f"tp={self.tp} x pp={self.pp}"
            )
        if self.page_blocks < 1:
            raise ConfigError(f"a page of {self.page_blocks} blocks: it needs at least one")
        if self.pp > self.table.num_layers:
            raise ConfigError(
                f"pipeline width {self.pp} exceeds the model's {self.table.num_layers} layers"
            )

    @property
    def layer_interval(self) -> Interval:
        """The global layer ids of this pipeline stage."""
        n = self.table.num_layers
        return Interval(self.pp_rank * n // self.pp, (self.pp_rank + 1) * n // self.pp)

    @cached_property
    def places(self) -> Mapping[str, SpecPlace]:
        """The place of each spec, by its name. Specs without a layer on this stage are absent."""
        return _places(self)

    @cached_property
    def _block_bytes(self) -> dict[GroupName, int]:
        return {
            g.name: sum(p.nbytes for p in self.places.values() if p.spec.group == g.name)
            for g in self.table.groups
        }

    @cached_property
    def _page_blocks(self) -> dict[GroupName, int]:
        return {g.name: self.page_blocks if g.unit is Unit.PAGE else 1 for g in self.table.groups}

    @cached_property
    def _block_positions(self) -> dict[GroupName, int]:
        return {
            g.name: self.table.block_tokens if g.unit is Unit.PAGE else 1 for g in self.table.groups
        }

    @cached_property
    def _unit_counts(self) -> dict[GroupName, int]:
        sizes = [(p.spec.group, p.heads.size * len(p.layers)) for p in self.places.values()]
        return {g.name: sum(n for group, n in sizes if group == g.name) for g in self.table.groups}

    def unit_count(self, group: GroupName) -> int:
        """Return the number of `units` of the group."""
        return self._unit_counts[group]

    def block_bytes(self, group: GroupName) -> int:
        """Return the bytes of one block (or slot) of the group on this rank; 0 if its stage holds
        none of it."""
        return self._block_bytes.get(group, 0)

    def blocks_per_page(self, group: GroupName) -> int:
        """Return the blocks in a page of the group: k for groups of pages, 1 for a slot."""
        return self._page_blocks[group]

    def block_positions(self, group: GroupName) -> int:
        """Return the positions in a block of the group; a slot counts as one."""
        return self._block_positions[group]

    def page_bytes(self, group: GroupName) -> int:
        """Return the bytes of one page (or slot) of the group on this rank."""
        return self.blocks_per_page(group) * self.block_bytes(group)

    def replica(self, spec: StateSpec) -> int:
        """Return which copy of its unit this rank holds; 0 unless tp > heads."""
        return self.tp_rank % (self.tp // spec.heads) if self.tp > spec.heads else 0

    def units(self, group: GroupName) -> tuple[tuple[str, int, int], ...]:
        """Return (spec name, global head, global layer) of every unit in this rank's blocks of the
        group, in the order of the bytes.

        This is the order of the second axis of a block-sum array (handoff/seal.py).
        """
        return tuple(
            (p.spec.name, head, layer)
            for p in self.places.values()
            if p.spec.group == group
            for head in range(p.heads.start, p.heads.end)
            for layer in p.layers
        )


@lru_cache(maxsize=256)  # every manifest makes its placements anew, and few of them differ
def _places(placement: Placement) -> Mapping[str, SpecPlace]:
    table, stage = placement.table, placement.layer_interval
    held: list[SpecPlace] = []
    sizes: dict[GroupName, int] = {}  # of the specs so far in a block of each group
    for spec in table.specs:
        layers = tuple(x for x in spec.layers if stage.start <= x < stage.end)
        if not layers:
            continue
        heads = shard(spec.heads, placement.tp, placement.tp_rank, what=f"state {spec.name!r}")
        tokens = table.block_tokens if table.group(spec.group).unit is Unit.PAGE else 1
        row = spec.row * spec.dtype.size
        part = row * tokens
        cell = part * len(spec.parts)
        head = cell * len(layers)
        offset = sizes.get(spec.group, 0)
        held.append(SpecPlace(spec, heads, layers, offset, row, part, cell, head, 0, cell))
        sizes[spec.group] = offset + head * heads.size
    if placement.strides:
        return _strided(placement, held)
    return MappingProxyType(
        {p.spec.name: replace(p, block_stride=sizes[p.spec.group]) for p in held}
    )


def _strided(placement: Placement, held: Sequence[SpecPlace]) -> Mapping[str, SpecPlace]:
    given = {s.spec: s for s in placement.strides}
    if given.keys() != {p.spec.name for p in held}:
        raise ConfigError(
            f"strides are given for {sorted(given)}, and the rank holds "
            f"{sorted(p.spec.name for p in held)}"
        )
    found = {}
    for place in held:
        at = given[place.spec.name]
        if min(at.offset, at.block, at.layer, at.head) < 0:
            raise ConfigError(f"the strides of {place.spec.name!r} are negative: {at}")
        found[place.spec.name] = replace(
            place,
            offset=at.offset,
            block_stride=at.block,
            layer_stride=at.layer,
            head_stride=at.head,
        )
    return MappingProxyType(found)
