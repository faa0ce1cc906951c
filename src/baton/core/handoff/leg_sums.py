"""The seals of a room's blocks on each leg of a plan, added up from their birth sums (pure)."""

from collections.abc import Mapping

import numpy as np

from baton.core.handoff.birth_sums import RoomSums
from baton.core.handoff.plan import PairPlan, leg_seals
from baton.core.ids import BlockIndex, GroupName, Rank, Seal
from baton.core.messages import LegSums


def leg_sums(
    plan: PairPlan,
    sums: RoomSums,
    blocks: Mapping[GroupName, tuple[BlockIndex, BlockIndex]],
    first: Mapping[GroupName, int],
) -> tuple[LegSums, ...]:
    """Return the seals of the blocks [start, end) of each group, as the plan's source ranks hold
    them.

    first: by group, the block of row 0 of `sums`
    """
    found = []
    for leg in plan.legs:
        for group, (start, past) in blocks.items():
            numbers = plan.owned_of(leg, group, start, past)
            if numbers:
                rows = sums[Rank(leg.source), group].take(np.array(numbers) - first[group], axis=0)
                seals = leg_seals(rows, plan.source_units(leg, group))
                found.append(LegSums(leg.index, group, numbers, tuple(map(Seal, seals.tolist()))))
    return tuple(found)
