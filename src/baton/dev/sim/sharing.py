"""Invariants of pages that rooms of a prefill worker share, kept from the orders and messages of
its leader.

Checked: a page that was found damaged, and every page that was computed above it, is given to no
other room; rooms that hold one of them end in the turn in which the damage is reported.
"""

from collections.abc import Callable, Iterable

from baton.core.agreement import Hold, StepPlan
from baton.core.effects import Effect, Issue, Send
from baton.core.ids import Boot, GroupName, Key
from baton.core.manifest import Manifest
from baton.core.messages import Intactness, Verdict

Place = tuple[Boot, GroupName, int]


class Sharing:
    """The shared pages of all prefill workers of a world, by boot."""

    def __init__(self, violate: Callable[[str, str], None]) -> None:
        self._violate = violate
        self._lists: dict[tuple[Boot, Key], list[Place]] = {}  # pages of rooms not yet dropped
        # the page itself, and those that it was computed above
        self._beneath: dict[Place, frozenset[Place]] = {}
        self._damaged: set[Place] = set()

    def acts(
        self, worker: Manifest, effects: Iterable[Effect], changed: Callable[[GroupName, int], bool]
    ) -> None:
        """A leader's turn is over. changed: whether a page is not what it was when it was sealed"""
        for effect in effects:
            match effect:
                case Send(message=Verdict(found=Intactness.DAMAGED) as verdict):
                    self._condemn(worker, verdict, changed)
                case Issue(plan=plan):
                    self._plan(worker, plan)
                case _:
                    pass
        for (boot, key), pages in self._lists.items():
            if boot == worker.boot and not self._damaged.isdisjoint(pages):
                self._violate(
                    "damage_leaves",
                    f"{_short(key)} holds a damaged page, or one computed above it, and goes on",
                )

    def _condemn(
        self, worker: Manifest, verdict: Verdict, changed: Callable[[GroupName, int], bool]
    ) -> None:
        if verdict.group not in worker.table.lasting:
            return  # it is of no page that is shared
        k = worker.blocks_per_page(verdict.group)
        pages = [
            where
            for where in self._lists.get((worker.boot, verdict.key), [])
            if where[1] == verdict.group
        ]
        bad = {
            pages[b // k]
            for b in verdict.blocks
            if b // k < len(pages) and changed(verdict.group, pages[b // k][2])
        }
        self._damaged |= {
            where for where, beneath in self._beneath.items() if not bad.isdisjoint(beneath)
        }

    def _plan(self, worker: Manifest, plan: StepPlan) -> None:
        boot = worker.boot
        for key in (*plan.drop, *plan.vacate):
            self._lists.pop((boot, key), None)
        for hold in plan.hold:
            if hold.key not in plan.drop:
                self._hold(worker, hold)

    def _hold(self, worker: Manifest, hold: Hold) -> None:
        """Note the pages of groups that last: pages of the others are never shared."""
        boot = worker.boot
        held = self._lists.setdefault((boot, hold.key), [])
        lasting = ((g, pages) for g, pages in hold.pages.items() if g in worker.table.lasting)
        for group, pages in lasting:
            for n, page in enumerate(pages):
                where = (boot, group, int(page))
                shared = hold.shared.get(group, 0)
                if n < shared and where in self._damaged:
                    self._violate(
                        "damage_leaves",
                        f"page {where[1:]} was damaged, and is shared with {_short(hold.key)}",
                    )
                if n >= shared:
                    self._damaged.discard(where)
                    self._beneath[where] = frozenset(
                        [where, *(other for other in held if other[1] == group)]
                    )
                held.append(where)


def _short(key: Key) -> str:
    return f"{key.room[-4:]}.{key.epoch}"
