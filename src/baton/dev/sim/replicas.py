"""If several ranks of a worker hold the same unit, each block of it comes to all of them from the
same source rank.

The source's replicas need not hold the same bits (other kernels, other sums), but the copies that
decode holds must.
"""

from collections.abc import Callable, Sequence

from baton.core.ids import GroupName, Key, RankId
from baton.core.memory.state import Placement
from baton.dev.sim.memory import Range

# room, group, block in the pool, spec, head, layer
Unit = tuple[Key, GroupName, int, str, int, int]


class Replicas:
    """Knows from where the ranks of one worker read the units that several of them hold."""

    def __init__(self, name: str, violate: Callable[[str, str], None]) -> None:
        self._name, self._violate = name, violate
        self._sources: dict[Unit, RankId] = {}

    def asked(self, placement: Placement, key: Key, peer: RankId, ranges: Sequence[Range]) -> None:
        """A rank begins to read these ranges for a room."""
        if all(placement.tp <= place.spec.heads for place in placement.places.values()):
            return  # it shares no unit with another rank
        for group, _, target, nbytes in ranges:
            size = placement.block_bytes(group)
            for block in range(target // size, (target + nbytes - 1) // size + 1):
                start, end = (
                    max(0, target - block * size),
                    min(size, target + nbytes - block * size),
                )
                for spec, head, layer in _units(placement, group, start, end):
                    first = self._sources.setdefault((key, group, block, spec, head, layer), peer)
                    if first != peer:
                        self._violate(
                            "same_replica",
                            f"{self._name}: head {head} of {spec!r}, layer {layer}, block "
                            f"{block}: one rank reads it from "
                            f"source rank {first.rank}, another from {peer.rank}",
                        )


def _units(
    placement: Placement, group: GroupName, start: int, end: int
) -> list[tuple[str, int, int]]:
    """Return the units in these bytes of a block, if other ranks hold them too."""
    return [
        (place.spec.name, place.heads.start + h, layer)
        for place in placement.places.values()
        if place.spec.group == group and placement.tp > place.spec.heads
        for h in range(place.heads.size)
        for i, layer in enumerate(place.layers)
        if (at := place.offset + h * place.head_stride + i * place.layer_stride) < end
        and start < at + place.layer_stride
    ]
