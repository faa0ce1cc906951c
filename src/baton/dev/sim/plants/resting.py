"""Damage at rest that is not found, not told, or not acted upon: evidence dropped, hashing never
ordered, pages kept."""

from collections.abc import Collection, Iterable

from baton.core.agreement import Ballot, Fetch
from baton.core.ids import Micros
from baton.core.memory.prefix_cache import CachedPage
from baton.core.memory.scrubber import Scrubber
from baton.core.scheduler import roles as roles_module
from baton.core.scheduler import worker as worker_module
from baton.core.scheduler.borrowing import Borrowing
from baton.dev.sim.parts import Parts, Replaced
from baton.dev.sim.plants.plant import Plant

# ruff: noqa: D101  (each class is described by the plant that it is part of)


class DoubtsNothing(Borrowing):
    def _doubt(self, fetch: Fetch, ballots: Iterable[Ballot]) -> None:
        """It is computed, and that is that."""


class NeverOrders(Scrubber):
    def timer(self, *, busy: bool) -> Micros | None:
        return None


class UsesOverdue(Scrubber):
    def fresh(self, chain: Iterable[CachedPage]) -> tuple[CachedPage, ...]:
        return tuple(chain)


class FindsNothing(Scrubber):
    def ended(self, ordered_at: Micros, damaged: Collection[CachedPage]) -> list[CachedPage]:
        super().ended(ordered_at, ())
        return []


def _scrubber(kind: type[Scrubber]) -> Parts:
    return Parts(replaced=(Replaced(worker_module, "Scrubber", kind),))


PLANTS = (
    Plant(
        "loan_doubt_dropped",
        "prefill reads damaged state from decode, computes it instead, and does not tell decode",
        ("lender_told",),
        None,
        lambda: Parts(replaced=(Replaced(roles_module, "Borrowing", DoubtsNothing),)),
    ),
    Plant(
        "never_scrubbed",
        "cached pages are not hashed at rest",
        ("damage_found_in_time",),
        None,
        lambda: _scrubber(NeverOrders),
    ),
    Plant(
        "overdue_used",
        "cached pages are used though they were not verified in time",
        ("verified_in_time", "damage_found_in_time"),
        None,
        lambda: _scrubber(UsesOverdue),
    ),
    Plant(
        "damage_at_rest_ignored",
        "pages that are found damaged at rest stay cached",
        ("damage_found_in_time",),
        None,
        lambda: _scrubber(FindsNothing),
    ),
)
