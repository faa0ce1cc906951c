"""What a gateway has asked all its workers: their books, as they answer one by one."""

from collections.abc import Mapping

from baton.core.ids import Boot
from baton.core.messages import LedgerView


class Questions:
    """Keeps the open questions and the answers so far."""

    def __init__(self) -> None:
        self._asked: dict[int, dict[Boot, str]] = {}  # workers whose answer is due, by name
        self._views: dict[int, list[LedgerView]] = {}

    def ask(self, question: int, workers: Mapping[Boot, str]) -> None:
        """A new question is put to these workers."""
        assert question not in self._asked, "the number of a question is new"
        self._asked[question], self._views[question] = dict(workers), []

    def answered(self, boot: Boot, view: LedgerView) -> None:
        """A worker answers for itself. One that was not asked, or has answered, changes nothing."""
        due = self._asked.get(view.question, {})
        if due.get(boot) == view.name:
            del due[boot]
            self._views[view.question].append(view)

    def lost(self, boot: Boot) -> None:
        """A worker is gone, so its answers are not waited for."""
        for due in self._asked.values():
            due.pop(boot, None)

    def answers(self, question: int) -> list[LedgerView]:
        """Return the answers so far."""
        return list(self._views[question])

    def complete(self, question: int) -> list[LedgerView] | None:
        """Return all answers, or None while one is due."""
        return None if self._asked[question] else self.answers(question)

    def unanswered(self, question: int) -> list[str]:
        """Return the names of the workers whose answer is due."""
        return list(self._asked[question].values())

    def forget(self, question: int) -> None:
        """A question has ended."""
        del self._views[question], self._asked[question]
