"""Plans between workers. Each is built and proved once, however many roles of a process need it.

    Leader ────┐
    RankCore ──┴──▶ Plans ──▶ pair        whoever makes them (core/parts.py) gives one object to all

A plan is a pure function of the placements of both sides, so it makes no difference who needed it
first.
"""

from collections.abc import Sequence

from baton.core.handoff.plan import PairPlan, pair
from baton.core.memory.state import Placement

MOST = 64  # a fleet has few layouts; beyond this the plan that was built first is forgotten


class Plans:
    """Remembers the plans that `pair` has built. Pairs that do not fit are tried anew each time."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[Placement, ...], tuple[Placement, ...]], PairPlan] = {}

    def pair(self, source: Sequence[Placement], target: Sequence[Placement]) -> PairPlan:
        """Return the plan between two workers.

        Raises:
            Mismatch: as `pair` does
        """
        sides = tuple(source), tuple(target)
        plan = self._known.get(sides)
        if plan is None:
            plan = self._known[sides] = pair(*sides)
            if len(self._known) > MOST:
                del self._known[next(iter(self._known))]
        return plan
