"""Plans between workers, each built and proved once, however many roles of a process ask for it.

    Leader ────┐
    RankCore ──┴──▶ Plans ──▶ pair        whoever makes them (core/parts.py) gives one object to all

A plan is a pure function of the placements of both sides, so who asked first makes no difference.
"""

from collections.abc import Sequence

from baton.core.handoff.plan import PairPlan, pair
from baton.core.memory.state import Placement

MOST = 64  # layouts of a fleet are few; beyond this the one that was built first is forgotten


class Plans:
    """Remembers what `pair` has found; what does not fit is found anew whenever it is asked for."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[Placement, ...], tuple[Placement, ...]], PairPlan] = {}

    def pair(self, source: Sequence[Placement], target: Sequence[Placement]) -> PairPlan:
        """Raises Mismatch, as `pair` does."""
        sides = tuple(source), tuple(target)
        plan = self._known.get(sides)
        if plan is None:
            plan = self._known[sides] = pair(*sides)
            if len(self._known) > MOST:
                del self._known[next(iter(self._known))]
        return plan
