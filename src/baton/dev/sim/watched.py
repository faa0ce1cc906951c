"""A core object that a judge watches: the judge sees each event before it is taken, then its
effects."""

from collections.abc import Callable
from typing import Generic, TypeVar

from typing_extensions import override

from baton.core.events import Core
from baton.core.ids import Micros

E = TypeVar("E")
F = TypeVar("F")


class Watched(Core[E, F], Generic[E, F]):
    """Implements Core around another Core."""

    def __init__(
        self,
        core: Core[E, F],
        before: Callable[[E], None],
        after: Callable[[E, list[F]], None],
        *,
        misses: Callable[[E], bool] = lambda event: False,
    ) -> None:
        """misses: whether an event does not come"""
        self._core, self._before, self._after, self._misses = core, before, after, misses

    @override
    def step(self, event: E, now: Micros, /) -> list[F]:
        if self._misses(event):
            return []
        self._before(event)
        effects = self._core.step(event, now)
        self._after(event, effects)
        return effects

    @override
    def next_wake(self) -> Micros | None:
        return self._core.next_wake()
