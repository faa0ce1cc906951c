"""Core objects in the hands of a test: what comes of their steps is kept until somebody looks at
it."""

from collections.abc import Callable
from itertools import count
from typing import Any

from baton.core.agreement import Report
from baton.core.door import Submit
from baton.core.events import AskWorkers, ForgetQuestion, ReportDue, Submitted
from baton.core.ids import Micros, Room
from baton.core.messages import AskLedger, Clear, ResetCache
from baton.core.rank.rank import RankCore

T0 = Micros(0)  # where the time makes no difference


class Driven:
    """A leader or a front; whatever it has not itself is looked for in there."""

    def __init__(self, core: Any) -> None:
        self.__dict__.update(core=core, _kept=[])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["core"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["core"], name, value)

    def step(self, event: Any, now: int) -> list[Any]:
        """One event, and what comes of it."""
        effects: list[Any] = self.core.step(event, Micros(now))
        self._kept.extend(effects)
        return effects

    def effects(self) -> list[Any]:
        """What has come of all steps since the last call."""
        kept = list(self._kept)
        self._kept.clear()
        return kept


class DrivenFront(Driven):
    """A front; mints rooms and numbers of questions as the HTTP side does."""

    def __init__(self, core: Any) -> None:
        super().__init__(core)
        self.__dict__.update(_new_rooms=count(1), _new_questions=count(1))

    def submit(self, submit: Submit, now: int) -> list[Any]:
        """A client asks."""
        return self.step(Submitted(submit, Room(f"{next(self._new_rooms):032x}")), now)

    def ask_ledger(self, *, audit: bool = True) -> int:
        """The number of the question."""
        return self._ask(lambda question: AskLedger(question, audit))

    def ask_clear(self) -> int:
        """The number of the question."""
        return self._ask(Clear)

    def ask_reset_cache(self, worker: str | None = None) -> int:
        """The number of the question."""
        return self._ask(ResetCache, worker)

    def _ask(
        self, message: Callable[[int], AskLedger | Clear | ResetCache], worker: str | None = None
    ) -> int:
        question: int = next(self._new_questions)
        self.step(AskWorkers(message(question), worker), T0)
        return question

    def forget_ledger(self, question: int) -> list[str]:
        """End a question; the names of those that have not answered."""
        names: list[str] = self.core.unanswered(question)
        self.step(ForgetQuestion(question), T0)
        return names


def report_of(rank: RankCore) -> Report | None:
    """What its leader has not been told yet."""
    effects = rank.step(ReportDue(), T0)
    assert all(isinstance(effect, Report) for effect in effects)
    return next((effect for effect in effects if isinstance(effect, Report)), None)
