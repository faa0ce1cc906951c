"""What a rank keeps of the blocks it is fetching: orders, their pieces, and the workers they come from."""

from collections.abc import Mapping

import msgspec

from baton.core.agreement import Fetch, Suspect
from baton.core.ids import BlockIndex, GroupName, Key, RankId, Seal
from baton.core.manifest import Manifest
from baton.core.plan import Leg, PairPlan


class Piece(msgspec.Struct, frozen=True):
    """Some blocks of one group on one leg, read and hashed together."""

    order: int
    key: Key
    leg: Leg
    group: GroupName
    blocks: tuple[BlockIndex, ...]
    tries: int


class Peer(msgspec.Struct):
    """A prefill worker we may read from."""

    manifest: Manifest
    fabric: str
    plan: PairPlan
    legs: tuple[Leg, ...]  # into this rank
    waiting: set[RankId]  # connections not answered yet
    why: str = ""  # of the first one that failed


class OpenOrder(msgspec.Struct):
    """A fetch order under way: what is still open, what has gone on differing, and the sums it must match."""

    fetch: Fetch
    open: set[tuple[int, GroupName, BlockIndex]]
    sums: Mapping[tuple[int, GroupName, BlockIndex], Seal]
    suspects: list[Suspect] = []
