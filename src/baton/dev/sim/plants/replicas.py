"""Plans that read a source's replicas as they please."""

import numpy as np
from numpy.typing import NDArray

from baton.core.handoff.plan import Leg, PairPlan
from baton.core.ids import GroupName
from baton.dev.sim.parts import Parts, Replaced
from baton.dev.sim.plants.plant import Plant


def _owned_by_target(
    self: PairPlan, leg: Leg, group: GroupName, blocks: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Every target rank has a replica of its own for all blocks, where the blocks should take
    turns."""
    held = (leg.index, group) in self._spans and leg.replica == leg.target % leg.replicas
    return blocks if held else blocks[:0]


PLANTS = (
    Plant(
        "replica_per_target",
        "the source replica is chosen by the target's rank: two copies of one head come from "
        "two sources, which may differ",
        ("same_replica",),
        5,
        lambda: Parts(replaced=(Replaced(PairPlan, "owned", _owned_by_target),)),
    ),
)
