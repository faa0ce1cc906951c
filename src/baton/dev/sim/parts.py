"""The shipped classes and functions that a world is made of. A planted bug replaces one
(sim/plants)."""

from dataclasses import dataclass, field
from typing import Any

from baton.core.gateway.front import Front
from baton.core.handoff.seal import block_sums
from baton.core.rank.rank import RankCore
from baton.core.session.session import Sessions
from baton.dev.sim.host_store import SimHostStore
from baton.dev.sim.sums import BlockSums


@dataclass(frozen=True)
class Replaced:
    """An attribute of a shipped module or class, replaced while a world runs."""

    owner: Any
    name: str
    value: Any


@dataclass(frozen=True)
class Parts:
    """The parts of a world."""

    front: type[Front] = Front
    rank: type[RankCore] = RankCore
    sessions: type[Sessions] = Sessions
    block_sums: BlockSums = block_sums
    host_store: type[SimHostStore] = SimHostStore
    guests: bool = False  # whether workers are guests of simulated vLLM engines
    replaced: tuple[Replaced, ...] = field(default=())


SHIPPED = Parts()
GUESTS = Parts(guests=True)
