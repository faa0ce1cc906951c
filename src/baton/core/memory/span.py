"""Computes how many pages of each group a sequence needs, and how many of its first pages it no
longer needs (pure)."""

from baton.core.ids import GroupName
from baton.core.memory.state import Group, StateTable, Unit, Window


class Span:
    """Counts pages for one worker's page size. Positions and lengths are in tokens."""

    def __init__(self, table: StateTable, page_tokens: int) -> None:
        self._groups, self._page_tokens = table.groups, page_tokens
        self._windows = tuple(g for g in table.groups if isinstance(g.extent, Window))

    def past(self, tokens: int) -> dict[GroupName, int]:
        """Return the pages per group, from the first on, that hold `tokens` positions; 1 slot."""
        return {g.name: self._past(g, tokens) for g in self._groups}

    def gone(self, position: int) -> dict[GroupName, int]:
        """Return how many pages per group, from the first on, neither a step at `position` nor a
        later one looks back on."""
        return {g.name: self._gone(g, position) for g in self._groups}

    def live(self, tokens: int) -> dict[GroupName, int]:
        """Return the pages per group held when the last of `tokens` positions is computed next."""
        return {
            g.name: self._past(g, tokens) - self._gone(g, max(0, tokens - 1)) for g in self._groups
        }

    def moves(self, position: int) -> bool:
        """Whether a step at `position` needs other pages than one at the position before it."""
        return position % self._page_tokens == 0 or any(
            self._gone(g, position) != self._gone(g, position - 1) for g in self._windows
        )

    def reserve(self, tokens: int, *, step: int, position: int = 0) -> dict[GroupName, int]:
        """Return the pages per group with which `tokens` positions can be computed from `position`
        on, if at most `step` of them are under way at any time."""
        gone = self.gone(position)
        found = {g: n - gone[g] for g, n in self.past(tokens).items()}
        for group in self._groups:
            if isinstance(group.extent, Window):
                found[group.name] = min(
                    found[group.name], self._touched(group.extent.tokens - 1 + step)
                )
        return found

    def _past(self, group: Group, tokens: int) -> int:
        return -(-tokens // self._page_tokens) if group.unit is Unit.PAGE else 1

    def _gone(self, group: Group, position: int) -> int:
        return (
            max(0, position - group.extent.tokens + 1) // self._page_tokens
            if isinstance(group.extent, Window)
            else 0
        )

    def _touched(self, tokens: int) -> int:
        """Return the largest number of pages in which this many adjacent positions may lie."""
        return (tokens + self._page_tokens - 2) // self._page_tokens + 1
