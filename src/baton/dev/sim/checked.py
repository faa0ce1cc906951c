"""A core object whose steps also pass the checkers of recorded runs: a world sees what `baton
replay-log` would find in its log.

pump ──event──▶ Checked ──▶ Watched ──▶ Leader, RankCore or Front
                   └──Step──▶ Checks of the process (trace/checks) ──▶ Violation
"""

from collections.abc import Callable
from typing import Generic, TypeVar, cast

from typing_extensions import override

from baton.core.events import Core
from baton.core.ids import Micros
from baton.trace.checks.all import Checks
from baton.trace.log import AnyEffect, AnyEvent, CoreKind, Step

E = TypeVar("E", bound=AnyEvent)
F = TypeVar("F", bound=AnyEffect)


class Checked(Core[E, F], Generic[E, F]):
    """Implements Core around another Core.

    checks: those of its process
    violate: takes the name of a check, and what it found
    """

    def __init__(
        self, kind: CoreKind, core: Core[E, F], checks: Checks, violate: Callable[[str, str], None]
    ) -> None:
        self._kind, self._core, self._checks, self._violate = kind, core, checks, violate

    @override
    def step(self, event: E, now: Micros, /) -> list[F]:
        effects = self._core.step(event, now)
        step = Step(now, self._kind, event, cast(tuple[AnyEffect, ...], tuple(effects)))
        for found in self._checks.feed(step):
            self._violate(found.check, str(found))
        return effects

    @override
    def next_wake(self) -> Micros | None:
        return self._core.next_wake()
