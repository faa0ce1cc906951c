"""Invariants of one rank's memory under vLLM, which gives the pages out: no read of ours lands
where vLLM has something else by now."""

from collections.abc import Callable, Collection

from typing_extensions import override

from baton.core.ids import GroupName, Key
from baton.core.work import Handle
from baton.dev.sim.books import ShadowBooks, Where
from baton.dev.sim.story import short
from baton.vllm.names import FULL


class GuestBooks(ShadowBooks):
    """The shadow books of one rank. users: the rooms whose requests have a page in vLLM now"""

    users: Callable[[int], set[Key]]

    @override
    def _own(self, where: Where, key: Key, computed: Collection[Where]) -> None:
        """The leader says that vLLM has given a page to a room. vLLM may have taken it back
        already: whether that is right is judged when it does so."""
        self._holders[where] = {key}

    def taken(self, page: int) -> None:
        """vLLM gives a page out: nothing of ours may be under way into it."""
        for handle, (owner, pages) in self._reads.items():
            if (FULL, page) in pages:
                of = short(owner) if owner is not None else "nobody"
                self._violate(
                    "own_reads_ended",
                    f"{self._name}: vLLM gives out page {page}, and read {handle} of {of} may land",
                )

    @override
    def landing(self, handle: Handle, group: GroupName, start: int, nbytes: int) -> None:
        super().landing(handle, group, start, nbytes)
        owner, size = self._reads[handle][0], self._page_bytes[group]
        for page in range(start // size, (start + nbytes - 1) // size + 1):
            if (users := self.users(page)) != {owner}:
                self._violate(
                    "landing",
                    f"{self._name}: read {handle} lands in page {page}, which vLLM has for "
                    f"{', '.join(map(short, sorted(users))) or 'nobody'}",
                )
