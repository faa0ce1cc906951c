"""A failing run made small: more and more of its choices become 0, the calm one, as long as it breaks the same invariant.

Choices that say the same (all lost frames, all late turns) go together first; then halves, quarters and so on down to
single ones (delta debugging: Zeller and Hildebrandt 2002); then what is left becomes as low as it can. Deterministic.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from baton.sim.parts import Parts
from baton.sim.run import run
from baton.sim.tape import Script


class Trail(NamedTuple):
    """The choices other than 0 that a run has really made, and what they were about."""

    choices: Script
    labels: Mapping[int, str]


Shows = Callable[[Script], Trail | None]  # the run of a script; None if it does not show what is looked for


def shrink(script: Script, parts: Parts, invariant: str, budget: int) -> Script:
    """A smaller script that breaks the same invariant, found in so many runs at most; the same one if it does not."""

    def shows(candidate: Script) -> Trail | None:
        outcome = run(script=candidate, parts=parts)
        return Trail(outcome.choices, outcome.labels) if outcome.invariant == invariant else None

    return minimal(script, shows, budget)


def minimal(script: Script, shows: Shows, budget: int) -> Script:
    """As `shrink`, for anything that a script may show."""
    first = shows(script)
    return script if first is None else _Shrinking(first, shows, budget - 1).go()


class _Shrinking:
    def __init__(self, found: Trail, shows: Shows, budget: int) -> None:
        self._found, self._shows, self._budget = found, shows, budget
        self._tried: set[tuple[tuple[int, int], ...]] = set()

    def go(self) -> Script:
        before = None
        while self._budget > 0 and self._found.choices != before:
            before = self._found.choices
            self._calm_kinds()
            self._calm_runs()
            self._lower()
        return dict(sorted(self._found.choices.items()))

    def _try(self, candidate: Script) -> bool:
        """Whether this is still a finding; then it is what we have. What was tried before, or is beyond the budget, is not."""
        key = tuple(sorted(candidate.items()))
        if key in self._tried or self._budget <= 0:
            return False
        self._tried.add(key)
        self._budget -= 1
        trail = self._shows(candidate)
        if trail is not None and _size(trail.choices) < _size(self._found.choices):
            self._found = trail
            return True
        return False

    def _without(self, gone: set[int]) -> Script:
        return {at: choice for at, choice in self._found.choices.items() if at not in gone}

    def _calm_kinds(self) -> None:
        """All choices of one kind at once, the most frequent kinds first."""
        counts: dict[str, int] = {}
        for label in self._found.labels.values():
            counts[label] = counts.get(label, 0) + 1
        for label in sorted(counts, key=lambda name: (-counts[name], name)):
            gone = {at for at, name in self._found.labels.items() if name == label}
            if gone & self._found.choices.keys():
                self._try(self._without(gone))

    def _calm_runs(self) -> None:
        """Runs of neighbours, of half the length each time; the last ones first, as most come after what matters."""
        length = max(1, len(self._found.choices) // 2)
        while length and self._budget > 0:
            end = len(self._found.choices)
            while end > 0 and self._budget > 0:
                places = sorted(self._found.choices)
                end = min(end, len(places))
                self._try(self._without(set(places[max(0, end - length) : end])))
                end -= length
            length //= 2

    def _lower(self) -> None:
        """Single choices, as low as they go."""
        for at in sorted(self._found.choices):
            for lower in _lower_than(self._found.choices.get(at, 0)):
                if self._try({**self._found.choices, at: lower}):
                    break


def _lower_than(choice: int) -> Iterator[int]:
    """1, then ever closer to the choice."""
    step = choice - 1
    while step > 0:
        yield choice - step
        step //= 2


def _size(script: Script) -> tuple[int, int]:
    return len(script), sum(script.values())
