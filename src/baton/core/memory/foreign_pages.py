"""The ledger of a worker whose pages another engine gives out: it notes which pages each room has,
and the sums of their blocks at birth. Several rooms may have the same page, as the engine has a
prefix cache of its own.
"""

from collections.abc import Collection, Mapping, Sequence

from baton.core.errors import Bug
from baton.core.ids import GroupName, Key, Page
from baton.core.memory.page_sums import PageSums
from baton.core.memory.pages import Ledger, PageState


class ForeignLedger(Ledger):
    """The pages of all groups, by room. Its own pools are never touched.

    Attributes:
        sums: of pages, whoever has them
        condemned: pages that the engine has not been told of yet, and must not use any more
        tainted: requests that the engine may still compute from damaged state, and the pages that
            it has given them since the damage was found
    """

    def __init__(self, totals: Mapping[GroupName, int]) -> None:
        super().__init__(totals)
        self.sums = PageSums(totals)
        self.condemned: dict[GroupName, set[Page]] = {}
        self.tainted: dict[Key, dict[GroupName, set[Page]]] = {}

    def adopt(
        self, key: Key, pages: Mapping[GroupName, tuple[Page, ...]], state: PageState
    ) -> None:
        """Append pages to a room's lists.

        Raises:
            Bug: a page is outside its pool
        """
        held = self._held.setdefault(key, dict.fromkeys(self.pools, ()))
        self._begins.setdefault(key, dict.fromkeys(self.pools, 0))
        for g, more in pages.items():
            if outside := [p for p in more if not 0 <= p < self.pools[g].total]:
                raise Bug(
                    f"pages {outside[:4]} of group {g} are outside a pool of {self.pools[g].total}"
                )
            held[g] = held[g] + more
        self._state[key] = state

    def condemn(self, key: Key, at: int) -> set[Key]:
        """The page `at` of the room's lists is damaged. It is refused from now on, with all that
        these rooms have computed above it. Returns the rooms that have one of the pages at that
        place."""
        damaged = {(g, pages[at]) for g, pages in self._held[key].items() if at < len(pages)}
        rooms = {
            other
            for other, held in self._held.items()
            if any(page in held[g] for g, page in damaged)
        }
        for room in rooms:
            self.tainted.setdefault(room, {})
            for group, pages in self._held[room].items():
                self._condemn(group, pages[at:])
        return rooms

    def _condemn(self, group: GroupName, pages: Collection[Page]) -> None:
        self.sums.refuse(group, tuple(pages))
        self.condemned.setdefault(group, set()).update(pages)

    def given(self, key: Key, pages: Mapping[GroupName, Sequence[Page]]) -> None:
        """The engine has given pages to a request: if it is tainted, so are they."""
        if (known := self.tainted.get(key)) is not None:
            for group, some in pages.items():
                known.setdefault(group, set()).update(some)

    def written(self, pages: Mapping[GroupName, Sequence[Page]]) -> None:
        """The engine computes into these pages: what was known of them is over."""
        self.sums.forget(pages)
        for known in self.tainted.values():
            for group, some in known.items():
                self.sums.refuse(group, tuple(some))

    def engine_ended(self, key: Key) -> None:
        """The engine computes no more of a request. What it has computed from damaged state must
        leave its cache."""
        for group, pages in self.tainted.pop(key, {}).items():
            self._condemn(group, pages)

    def give_back(self, key: Key) -> None:
        """Forget the room's pages."""
        for table in (self._state, self._begins, self._held):
            table.pop(key, None)

    def audit(self) -> None:
        """Check that a state is known for each room with pages.

        Raises:
            Bug: it is not
        """
        if self._held.keys() != self._state.keys():
            raise Bug(f"rooms with pages {set(self._held)}, with a state {set(self._state)}")
