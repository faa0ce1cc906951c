"""The shipped classes and functions that a world is made of. A planted bug is one of them replaced (sim/plants)."""

from dataclasses import dataclass, field
from typing import Any

from baton.core.decode import DecodeLeader
from baton.core.front import Front
from baton.core.prefill import PrefillLeader
from baton.core.rank import RankCore
from baton.core.seal import block_sums
from baton.core.session import Sessions
from baton.core.unified import UnifiedLeader
from baton.sim.host_store import SimHostStore
from baton.sim.sums import BlockSums


@dataclass(frozen=True)
class Replaced:
    """An attribute of a shipped module or class, replaced while a world runs."""

    owner: Any
    name: str
    value: Any


@dataclass(frozen=True)
class Parts:
    """What runs."""

    front: type[Front] = Front
    prefill: type[PrefillLeader] = PrefillLeader
    decode: type[DecodeLeader] = DecodeLeader
    unified: type[UnifiedLeader] = UnifiedLeader
    rank: type[RankCore] = RankCore
    sessions: type[Sessions] = Sessions
    block_sums: BlockSums = block_sums
    host_store: type[SimHostStore] = SimHostStore
    replaced: tuple[Replaced, ...] = field(default=())


SHIPPED = Parts()
