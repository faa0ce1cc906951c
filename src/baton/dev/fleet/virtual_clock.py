"""A clock that jumps from one thing that is to happen to the next."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any

from baton.core.ids import Micros


class VirtualClock:
    """What is to happen, and when: calls of one instant come in the order in which they were
    asked for."""

    def __init__(self) -> None:
        self.now = Micros(0)
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = count()

    def at(self, when: float, call: Callable[..., None], *args: Any) -> None:
        """Make a call at a time in microseconds, at once if that has passed."""
        due = max(self.now, round(when))
        heappush(self._heap, (due, next(self._numbers), call, args))

    def advance(self) -> bool:
        """Make the next call. Returns False if there is none."""
        if not self._heap:
            return False
        due, _, call, args = heappop(self._heap)
        self.now = Micros(due)
        call(*args)
        return True
