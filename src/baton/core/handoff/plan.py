"""The plan: which byte ranges of which source rank go where, computed from two placements and two
page lists (pure).

    pair(source placements, target placements) -> PairPlan      once per connection
    PairPlan.bind(leg, group, ...)             -> Copies        per offer, vectorised over blocks

A *leg* is the part of one source rank that one target rank reads: for every spec that they share,
an interval of heads times a set of layers. If the source holds a unit several times (tp > heads),
block b is read from replica `(b // 8) mod replicas`, by every target alike. When `pair` builds a
plan, it proves that the legs into a target rank make up exactly its part of the state, each byte
once. Blocks have the same size on both sides, because a sum belongs to a block.
"""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from math import lcm

import msgspec
import numpy as np
from numpy.typing import NDArray

from baton.core.errors import Bug, Mismatch, PeerError
from baton.core.ids import BlockIndex, GroupName
from baton.core.memory.state import Interval, Placement, SpecPlace, StateTable, extent_blocks
from baton.core.messages import BlockRun
from baton.core.work import Copies

REPLICA_RUN = 8  # adjacent blocks read from the same replica, so that they still merge
NOTHING: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
NOTHING.flags.writeable = False

Vectors = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
Grid = tuple[NDArray[np.int64], NDArray[np.int64]]
# a page list, and the first block that it holds
Pages = tuple[Sequence[int] | NDArray[np.integer], int]


class Spans(msgspec.Struct, frozen=True):
    """The byte ranges of block 0, and how far apart those of following blocks are: five int64
    vectors of equal length."""

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    source_stride: NDArray[np.int64]
    target_stride: NDArray[np.int64]


class Share(msgspec.Struct, frozen=True):
    """The part of a leg that belongs to one spec: global heads x global layers."""

    spec: str
    group: GroupName
    heads: Interval
    layers: tuple[int, ...]


class Leg(msgspec.Struct, frozen=True):
    """The part of the state that one target rank reads from one source rank. There are `replicas`
    copies of it, and this source holds number `replica`."""

    index: int
    source: int
    target: int
    replica: int
    replicas: int
    shares: tuple[Share, ...]


def leg_seals(sums: NDArray[np.uint64], units: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the sums mod 2^64 of a leg's columns: uint64 [blocks, units] -> [blocks]."""
    found: NDArray[np.uint64] = np.add.reduce(sums.take(units, axis=1), axis=1)
    return found


class PairPlan:
    """All legs between two workers. Equal inputs give equal digests on both sides."""

    def __init__(
        self, source: Sequence[Placement], target: Sequence[Placement], legs: Sequence[Leg]
    ) -> None:
        self.source, self.target, self.legs = tuple(source), tuple(target), tuple(legs)
        self.table = self.source[0].table.layout
        self.digest = _digest(self)
        held = [(leg, group) for leg in legs for group in sorted({s.group for s in leg.shares})]
        self._spans = {
            (leg.index, g): _spans(self.source[leg.source], self.target[leg.target], leg, g)
            for leg, g in held
        }
        self._source_units = {
            (leg.index, g): _columns(self.source[leg.source], leg, g) for leg, g in held
        }
        self._target_units = {
            (leg.index, g): _columns(self.target[leg.target], leg, g) for leg, g in held
        }

    def legs_into(self, target: int) -> tuple[Leg, ...]:
        """Return the legs that a target rank reads."""
        return tuple(leg for leg in self.legs if leg.target == target)

    def owned(self, leg: Leg, group: GroupName, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return those of `blocks` (int64 numbers in the sequence) that this leg reads; none if it
        has no part of the group."""
        if (leg.index, group) not in self._source_units:
            return blocks[:0]
        if leg.replicas == 1:
            return blocks
        mine: NDArray[np.int64] = blocks[(blocks // REPLICA_RUN) % leg.replicas == leg.replica]
        return mine

    def owned_of(self, leg: Leg, group: GroupName, start: int, past: int) -> tuple[BlockIndex, ...]:
        """Return those of the blocks [start, past) that this leg reads."""
        if leg.replicas == 1:
            return (
                tuple(map(BlockIndex, range(start, past)))
                if (leg.index, group) in self._source_units
                else ()
            )
        return tuple(
            map(BlockIndex, self.owned(leg, group, np.arange(start, past, dtype=np.int64)).tolist())
        )

    def admit(self, leg: Leg, group: GroupName, length: int) -> NDArray[np.int64]:
        """Return all blocks that this leg must bring for a sequence of `length` positions:
        completeness is measured by them."""
        extent = extent_blocks(self.table.group(group).extent, length, self.table.block_tokens)
        return self.owned(leg, group, np.arange(extent.start, extent.end, dtype=np.int64))

    def source_units(self, leg: Leg, group: GroupName) -> NDArray[np.int64]:
        """Return the columns of the source rank's block sums that the leg covers, in (spec, head,
        layer) order."""
        return self._source_units.get((leg.index, group), NOTHING)

    def target_units(self, leg: Leg, group: GroupName) -> NDArray[np.int64]:
        """Return the same units' columns in the target rank's block sums, in this order."""
        return self._target_units.get((leg.index, group), NOTHING)

    def bind(
        self,
        leg: Leg,
        group: GroupName,
        *,
        source: BlockRun,
        target_pages: NDArray[np.integer],
        target_start: int,
        blocks: NDArray[np.int64],
    ) -> list[Copies]:
        """Return the byte ranges for `blocks` (ascending), merged where they are adjacent on both
        sides.

        `source.pages` begins with the page of block `source.start`, `target_pages` with that of
        block `target_start`.

        Raises:
            PeerError: the source's run does not hold one of the blocks, or lists too few pages for
                itself
            Bug: the target's pages do not hold one of the blocks
        """
        if not blocks.size or (leg.index, group) not in self._source_units:
            return []
        theirs, ours = self.source[leg.source], self.target[leg.target]
        first, past = int(blocks[0]), int(blocks[-1]) + 1
        if (
            first < source.start
            or past > source.end
            or past > _held(theirs, group, len(source.pages), source.start)
        ):
            raise PeerError(
                f"blocks [{first}, {past}) of group {group!r} wanted, and the run offers "
                f"[{source.start}, {source.end}) "
                f"in {len(source.pages)} pages"
            )
        if first < target_start or past > _held(ours, group, len(target_pages), target_start):
            raise Bug(
                f"blocks [{first}, {past}) of group {group!r} are outside our "
                f"{len(target_pages)} pages from {target_start}"
            )
        from_pages, to_pages = (source.pages, source.start), (target_pages, target_start)
        if blocks.size == 1:
            return [Copies(group, *self._of_one(leg, group, first, from_pages, to_pages))]
        return [Copies(group, *self._ranges(leg, group, blocks, from_pages, to_pages))]

    def _of_one(
        self, leg: Leg, group: GroupName, block: int, source: Pages, target: Pages
    ) -> Vectors:
        """Return what `_ranges` does, for one block that both sides have: within a block, adjacent
        ranges are merged already."""
        theirs, ours = self.source[leg.source], self.target[leg.target]
        spans = self._spans[leg.index, group]
        from_slot, to_slot = (
            _slot(theirs, group, *source, block),
            _slot(ours, group, *target, block),
        )
        return (
            spans.source + from_slot * spans.source_stride,
            spans.target + to_slot * spans.target_stride,
            spans.nbytes,
        )

    def _ranges(
        self, leg: Leg, group: GroupName, blocks: NDArray[np.int64], source: Pages, target: Pages
    ) -> Vectors:
        """Return (source, target, bytes), merged where both sides are adjacent."""
        theirs, ours = self.source[leg.source], self.target[leg.target]
        spans = self._spans[leg.index, group]
        from_slots = _slots(theirs, group, *source, blocks)
        to_slots = _slots(ours, group, *target, blocks)
        return _merge(
            (np.multiply.outer(from_slots, spans.source_stride) + spans.source).ravel(),
            (np.multiply.outer(to_slots, spans.target_stride) + spans.target).ravel(),
            np.concatenate([spans.nbytes] * blocks.size),
        )


def _digest(plan: PairPlan) -> str:
    ranks = [
        [(p.tp, p.pp, p.tp_rank, p.pp_rank, p.page_blocks, p.strides) for p in side]
        for side in (plan.source, plan.target)
    ]
    described = msgspec.msgpack.encode(("baton-plan-2", REPLICA_RUN, plan.table, ranks, plan.legs))
    return blake2b(described, digest_size=16).hexdigest()


# ---- addresses ----------------------------------------------------------------------------------


def _held(placement: Placement, group: GroupName, pages: int, start: int) -> int:
    """Return the first block after a list of `pages` pages whose first page holds block `start`."""
    k = placement.blocks_per_page(group)
    return (start // k + pages) * k


def _slots(
    placement: Placement,
    group: GroupName,
    pages: Sequence[int] | NDArray[np.integer],
    start: int,
    blocks: NDArray[np.int64],
) -> NDArray[np.int64]:
    k, numbers = placement.blocks_per_page(group), np.asarray(pages, dtype=np.int64)
    return numbers[blocks - start] if k == 1 else numbers[blocks // k - start // k] * k + blocks % k


def _slot(
    placement: Placement,
    group: GroupName,
    pages: Sequence[int] | NDArray[np.integer],
    start: int,
    block: int,
) -> int:
    k = placement.blocks_per_page(group)
    return int(pages[block // k - start // k]) * k + block % k


def _merge(
    source: NDArray[np.int64], target: NDArray[np.int64], nbytes: NDArray[np.int64]
) -> Vectors:
    """Join neighbours that are adjacent on both sides. The vectors must not be empty."""
    if source.size == 1:
        return source, target, nbytes
    joins = (source[1:] == source[:-1] + nbytes[:-1]) & (target[1:] == target[:-1] + nbytes[:-1])
    first = np.flatnonzero(np.concatenate(([True], ~joins)))
    return source[first], target[first], np.add.reduceat(nbytes, first)


def _spans(theirs: Placement, ours: Placement, leg: Leg, group: GroupName) -> Spans:
    """Return the byte ranges of one block, merged where nothing lies between them on either side,
    in no block."""
    parts: dict[tuple[int, int], list[Vectors]] = {}  # by the strides of their blocks
    for share in (s for s in leg.shares if s.group == group):
        a, b = theirs.places[share.spec], ours.places[share.spec]
        at, to = _offsets(a, share), _offsets(b, share)
        parts.setdefault((a.block_stride, b.block_stride), []).append(
            (at, to, np.full_like(at, a.cell_bytes))
        )
    found = []
    for strides, ranges in parts.items():
        at, to, nbytes = (np.concatenate(column) for column in zip(*ranges, strict=True))
        order = at.argsort(kind="stable")
        merged = _merge(at[order], to[order], nbytes[order])
        found.append((*merged, *(np.full_like(merged[0], stride) for stride in strides)))
    return Spans(*(np.concatenate(column) for column in zip(*found, strict=True)))


def _grid(place: SpecPlace, share: Share) -> Grid:
    """Return a share's heads [heads, 1] and layers [1, layers], counted from the start of the
    place; read-only."""
    first = place.heads.start
    return _grid_of(
        share.heads.start - first,
        share.heads.end - first,
        tuple(map(place.layers.index, share.layers)),
    )


# needed many times while a plan is built, and by the plans of other ranks
@lru_cache(maxsize=256)
def _grid_of(first: int, past: int, layers: tuple[int, ...]) -> Grid:
    grid = (
        np.arange(first, past, dtype=np.int64)[:, None],
        np.array(layers, dtype=np.int64)[None, :],
    )
    for axis in grid:
        axis.flags.writeable = False
    return grid


def _offsets(place: SpecPlace, share: Share) -> NDArray[np.int64]:
    """Return the byte offset in the block of each (head, layer) of a share."""
    heads, layers = _grid(place, share)
    return (place.offset + heads * place.head_stride + layers * place.layer_stride).ravel()


def _columns(placement: Placement, leg: Leg, group: GroupName) -> NDArray[np.int64]:
    """Return the index in `Placement.units(group)` of each (spec, head, layer) of a leg."""
    first, at = {}, 0
    for name, place in placement.places.items():
        if place.spec.group == group:
            first[name] = at
            at += place.heads.size * len(place.layers)
    found = []
    for share in (s for s in leg.shares if s.group == group):
        place = placement.places[share.spec]
        heads, layers = _grid(place, share)
        found.append((first[share.spec] + heads * len(place.layers) + layers).ravel())
    return np.concatenate(found)


# ---- pairing ------------------------------------------------------------------------------------


def pair(source: Sequence[Placement], target: Sequence[Placement]) -> PairPlan:
    """Build and prove the plan between two workers. `source` and `target` list all their ranks in
    rank order.

    Raises:
        Mismatch: the tables differ, or the source does not hold all that a target rank needs
    """
    for placement in (*target, *source):
        _require_equal(target[0].table.layout, placement.table.layout)
    legs: list[Leg] = []
    for t, ours in enumerate(target):
        for s, theirs in enumerate(source):
            legs += _legs_between(s, theirs, t, ours, first=len(legs))
    plan = PairPlan(source, target, legs)
    for t in range(len(target)):
        _prove(plan, t)
    return plan


def _require_equal(ours: StateTable, theirs: StateTable) -> None:
    for field in StateTable.__struct_fields__:
        a, b = getattr(ours, field), getattr(theirs, field)
        if a != b:
            raise Mismatch(f"table.{field}", a, b)


def _legs_between(s: int, theirs: Placement, t: int, ours: Placement, *, first: int) -> list[Leg]:
    """Return one leg for each number of replicas among the shared specs (in which specs of one
    model may differ)."""
    by_replica: dict[tuple[int, int], list[Share]] = {}
    for name, place in ours.places.items():
        other = theirs.places.get(name)
        if other is None:
            continue
        heads, there = place.heads.meet(other.heads), frozenset(other.layers)
        layers = tuple(layer for layer in place.layers if layer in there)
        if heads.size and layers:
            replicas = max(1, theirs.tp // place.spec.heads)
            share = Share(name, place.spec.group, heads, layers)
            by_replica.setdefault((theirs.replica(place.spec), replicas), []).append(share)
    return [
        Leg(first + i, s, t, *which, tuple(by_replica[which]))
        for i, which in enumerate(sorted(by_replica))
    ]


def _prove(plan: PairPlan, t: int) -> None:
    """Prove that for every class of blocks (replicas take turns) the legs into rank `t` cover each
    unit and each byte once."""
    legs = plan.legs_into(t)
    for turn in range(lcm(*(leg.replicas for leg in legs))):
        now = [leg for leg in legs if turn % leg.replicas == leg.replica]
        for place in plan.target[t].places.values():
            _prove_units(
                place, [s for leg in now for s in leg.shares if s.spec == place.spec.name], t
            )
        for group in plan.table.groups:
            _prove_bytes(plan, group.name, now, t)


def _prove_units(place: SpecPlace, shares: Sequence[Share], t: int) -> None:
    count = np.zeros((place.heads.size, len(place.layers)), dtype=np.int64)
    for share in shares:
        heads, layers = _grid(place, share)
        count[heads, layers] += 1
    if (count != 1).any():
        heads, layers = np.nonzero(count != 1)
        head, last = place.heads.start + int(heads[0]), place.heads.start + int(heads[-1])
        wrong = [place.layers[int(x)] for x in np.unique(layers)]
        raise Mismatch(
            f"coverage of spec {place.spec.name!r} on target rank {t}, heads [{head}, "
            f"{last + 1}), layers {wrong}",
            "each unit from one leg",
            f"from {sorted({int(c) for c in count[heads, layers]})} legs",
        )


def _prove_bytes(plan: PairPlan, group: GroupName, legs: Sequence[Leg], t: int) -> None:
    block, page = np.zeros(1, dtype=np.int64), ((0,), 0)
    starts, sizes = [NOTHING], [NOTHING]
    for leg in legs:
        if not plan.source_units(leg, group).size:
            continue
        at, to, nbytes = plan._ranges(leg, group, block, page, page)
        _require_held(plan.source[leg.source], group, at, nbytes, leg.source)
        starts.append(to)
        sizes.append(nbytes)
    wanted = _cells(plan.target[t], group)
    written = _joined(np.concatenate(starts), np.concatenate(sizes))
    if written is None or not all(map(np.array_equal, written, wanted)):
        raise Mismatch(
            f"bytes of a block of group {group!r} on target rank {t}",
            int(wanted[1].sum()),
            int(sum(map(np.sum, sizes))),
            "the legs do not tile it",
        )


def _require_held(
    placement: Placement,
    group: GroupName,
    at: NDArray[np.int64],
    nbytes: NDArray[np.int64],
    rank: int,
) -> None:
    """Check that a source rank has every byte that is read of a block.

    Raises:
        Mismatch: it has not
    """
    starts, sizes = _cells(placement, group)
    which = np.searchsorted(starts, at, side="right") - 1
    outside = (which < 0) | (at + nbytes > starts[which] + sizes[which])
    if outside.any():
        first = int(outside.argmax())
        raise Mismatch(
            f"bytes read of a block of group {group!r} on source rank {rank}",
            (int(at[first]), int(at[first] + nbytes[first])),
            list(zip(starts.tolist(), (starts + sizes).tolist(), strict=True)),
        )


def _cells(placement: Placement, group: GroupName) -> Grid:
    """Return the byte ranges that a rank has in block 0: starts and sizes, ascending, merged.

    Raises:
        Mismatch: its cells overlap
    """
    if not placement.strides:  # the layout of memory/state.py has no holes
        size = placement.block_bytes(group)
        return np.zeros(int(size > 0), dtype=np.int64), np.full(int(size > 0), size)
    starts, sizes = [NOTHING], [NOTHING]
    for place in placement.places.values():
        if place.spec.group == group:
            whole = Share(place.spec.name, group, place.heads, place.layers)
            starts.append(_offsets(place, whole))
            sizes.append(np.full_like(starts[-1], place.cell_bytes))
    found = _joined(np.concatenate(starts), np.concatenate(sizes))
    if found is None:
        raise Mismatch(f"cells of group {group!r}", "disjoint", "overlapping")
    return found


def _joined(starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> Grid | None:
    """Sort byte ranges and join those that touch; None if two of them overlap."""
    if not starts.size:
        return starts, sizes
    order = starts.argsort(kind="stable")
    starts, ends = starts[order], (starts + sizes)[order]
    if (starts[1:] < ends[:-1]).any():
        return None
    first = np.flatnonzero(np.concatenate(([True], starts[1:] > ends[:-1])))
    last = np.concatenate((first[1:], [starts.size])) - 1
    return starts[first], ends[last] - starts[first]
