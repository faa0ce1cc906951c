"""The plan: which byte ranges of which source rank go where, from two placements and two page lists (pure).

    pair(source placements, target placements) -> PairPlan      once per connection
    PairPlan.bind(leg, group, ...)             -> Copies        per offer, vectorised over blocks

A *leg* is the part of one source rank that one target rank reads: head intervals x layers of every spec they share.
Where the source holds a unit several times (tp > heads), replica number `(b // 8) mod replicas` is read for block b, for
every target alike. `pair` proves when it is built that the legs into a target rank are exactly its part of the state,
each byte once.
"""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

import msgspec
import numpy as np
from numpy.typing import NDArray

from baton.core.errors import Mismatch
from baton.core.ids import GroupName
from baton.core.messages import BlockRun
from baton.core.state import Extent, Full, Interval, Placement, SpecPlace, Unit, Whole, Window
from baton.core.work import Copies

REPLICA_RUN = 8  # adjacent blocks read from the same replica, so that they still merge


class Share(msgspec.Struct, frozen=True):
    """One spec's part of a leg: global heads x global layers."""

    spec: str
    group: GroupName
    heads: Interval
    layers: tuple[int, ...]


class Leg(msgspec.Struct, frozen=True):
    """What one target rank reads from one source rank. `replicas` copies of it exist; this source holds `replica`."""

    index: int
    source: int
    target: int
    replica: int
    replicas: int
    shares: tuple[Share, ...]


def extent_blocks(extent: Extent, length: int, block_tokens: int) -> Interval:
    """The blocks that a sequence of `length` positions carries over, by the group's extent."""
    end = -(-length // block_tokens)
    match extent:
        case Full():
            return Interval(0, end)
        case Window():
            return Interval(max(0, length - extent.tokens + 1) // block_tokens, end)
        case Whole():
            return Interval(0, 1)


def leg_seals(sums: NDArray[np.uint64], units: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Sum mod 2^64 of a leg's columns: [blocks, units] -> [blocks]."""
    found: NDArray[np.uint64] = sums[:, units].sum(axis=1, dtype=np.uint64)
    return found


class PairPlan:
    """All legs between two workers. Equal inputs give equal digests on both sides."""

    def __init__(self, source: Sequence[Placement], target: Sequence[Placement], legs: Sequence[Leg]) -> None:
        self.source, self.target, self.legs = tuple(source), tuple(target), tuple(legs)
        described = msgspec.msgpack.encode([[p.tp, p.pp, p.page_blocks] for p in (*source, *target)] + list(self.legs))
        self.digest = blake2b(described, digest_size=16).hexdigest()

    def legs_into(self, target: int) -> tuple[Leg, ...]:
        """The legs that a target rank reads."""
        return tuple(leg for leg in self.legs if leg.target == target)

    def owned(self, leg: Leg, group: GroupName, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of the blocks (numbers in the sequence) that this leg reads; empty if it has nothing of the group."""
        if not any(s.group == group for s in leg.shares):
            return blocks[:0]
        mine: NDArray[np.int64] = blocks[(blocks // REPLICA_RUN) % leg.replicas == leg.replica]
        return mine

    def source_units(self, leg: Leg, group: GroupName) -> NDArray[np.int64]:
        """Columns of the source rank's block sums that the leg covers."""
        return _columns(self.source[leg.source], leg, group)

    def target_units(self, leg: Leg, group: GroupName) -> NDArray[np.int64]:
        """The same units in the target rank's block sums, in the same order."""
        return _columns(self.target[leg.target], leg, group)

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
        """Byte ranges for `blocks` (ascending), merged where both sides are adjacent.

        `source.pages` holds pages from `source.start // k` on; `target_pages` from block `target_start` on.
        """
        if not blocks.size:
            return []
        theirs, ours = self.source[leg.source], self.target[leg.target]
        pages = np.asarray(source.pages, dtype=np.int64)
        from_slots = _slots(theirs, group, pages, source.start, blocks)
        to_slots = _slots(ours, group, np.asarray(target_pages, dtype=np.int64), target_start, blocks)
        spans = _spans(theirs, ours, leg, group)
        from_at = from_slots[:, None] * theirs.block_bytes(group) + spans[None, :, 0]
        to_at = to_slots[:, None] * ours.block_bytes(group) + spans[None, :, 1]
        nbytes = np.broadcast_to(spans[None, :, 2], from_at.shape)
        return [_merge(group, from_at.ravel(), to_at.ravel(), nbytes.ravel())]


def _slots(
    placement: Placement, group: GroupName, pages: NDArray[np.int64], start: int, blocks: NDArray[np.int64]
) -> NDArray[np.int64]:
    k = placement.page_blocks if placement.table.group(group).unit is Unit.PAGE else 1
    return pages[blocks // k - start // k] * k + blocks % k


def _merge(group: GroupName, source: NDArray[np.int64], target: NDArray[np.int64], nbytes: NDArray[np.int64]) -> Copies:
    joins = (source[1:] == source[:-1] + nbytes[:-1]) & (target[1:] == target[:-1] + nbytes[:-1])
    first = np.flatnonzero(np.concatenate(([True], ~joins)))
    return Copies(group, source[first], target[first], np.add.reduceat(nbytes, first))


@lru_cache(maxsize=4096)
def _columns(placement: Placement, leg: Leg, group: GroupName) -> NDArray[np.int64]:
    where = {unit: i for i, unit in enumerate(placement.units(group))}
    wanted = [
        (s.spec, h, layer)
        for s in leg.shares
        if s.group == group
        for h in range(s.heads.start, s.heads.end)
        for layer in s.layers
    ]
    return np.array([where[unit] for unit in wanted], dtype=np.int64)


@lru_cache(maxsize=4096)
def _spans(theirs: Placement, ours: Placement, leg: Leg, group: GroupName) -> NDArray[np.int64]:
    """Ranges of one block: rows of (offset in source block, offset in target block, bytes), merged."""
    rows: list[tuple[int, int, int]] = []
    for share in leg.shares:
        if share.group == group:
            rows += _share_spans(theirs.places[share.spec], ours.places[share.spec], share)
    spans = np.array(rows, dtype=np.int64).reshape(-1, 3)
    merged = _merge(group, spans[:, 0], spans[:, 1], spans[:, 2])
    return np.stack((merged.source, merged.target, merged.nbytes), axis=1)


def _share_spans(a: SpecPlace, b: SpecPlace, share: Share) -> list[tuple[int, int, int]]:
    found = []
    for head in range(share.heads.start, share.heads.end):
        for layer in share.layers:
            at = a.offset + (head - a.heads.start) * a.head_stride + a.layers.index(layer) * a.layer_stride
            to = b.offset + (head - b.heads.start) * b.head_stride + b.layers.index(layer) * b.layer_stride
            found.append((at, to, a.layer_stride))
    return found


def pair(source: Sequence[Placement], target: Sequence[Placement]) -> PairPlan:
    """Build and prove the plan between two workers; `source` and `target` list all ranks in rank order.

    Raises:
        Mismatch: the tables differ, or the source does not hold all of what a target rank needs
    """
    if source[0].table != target[0].table:
        raise Mismatch("table", target[0].table, source[0].table)
    legs: list[Leg] = []
    for t, ours in enumerate(target):
        for s, theirs in enumerate(source):
            legs += _legs_between(s, theirs, t, ours, first=len(legs))
    for t, ours in enumerate(target):
        _prove(t, ours, [leg for leg in legs if leg.target == t])
    return PairPlan(source, target, legs)


def _legs_between(s: int, theirs: Placement, t: int, ours: Placement, *, first: int) -> list[Leg]:
    """One leg for each number of replicas among the shared specs (specs of one model may differ in it)."""
    by_replica: dict[tuple[int, int], list[Share]] = {}
    for name, place in ours.places.items():
        other = theirs.places.get(name)
        if other is None:
            continue
        heads = place.heads.meet(other.heads)
        layers = tuple(layer for layer in place.layers if layer in set(other.layers))
        if heads.size and layers:
            replicas = max(1, theirs.tp // place.spec.heads)
            share = Share(name, place.spec.group, heads, layers)
            by_replica.setdefault((theirs.replica(place.spec), replicas), []).append(share)
    return [Leg(first + i, s, t, r, n, tuple(shares)) for i, ((r, n), shares) in enumerate(sorted(by_replica.items()))]


def _prove(t: int, ours: Placement, legs: Sequence[Leg]) -> None:
    """Every unit of the target rank is covered once for every class of blocks."""
    for name, place in ours.places.items():
        replicas = {leg.replicas for leg in legs for s in leg.shares if s.spec == name} or {1}
        for number in range(max(replicas)):
            count = np.zeros((place.heads.size, len(place.layers)), dtype=np.int64)
            for leg in legs:
                for share in (s for s in leg.shares if s.spec == name and leg.replica == number % leg.replicas):
                    heads = slice(share.heads.start - place.heads.start, share.heads.end - place.heads.start)
                    for layer in share.layers:
                        count[heads, place.layers.index(layer)] += 1
            if not (count == 1).all():
                head, layer = (int(x[0]) for x in np.nonzero(count != 1))
                raise Mismatch(
                    f"coverage of spec {name!r} on target rank {t}",
                    f"1 leg for head {place.heads.start + head}, layer {place.layers[layer]}",
                    f"{count[head, layer]} legs",
                )
