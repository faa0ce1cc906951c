"""Shrinks a failing run: more and more of its choices become 0, the calm one, as long as it breaks
the same invariant.

Choices with the same label (all lost frames, all late turns) are set to 0 together first; then
halves, quarters and so on down to single choices (delta debugging: Zeller and Hildebrandt 2002).
Then each of those left becomes as low as possible. The result is deterministic.

Without a fault its draws are gone too, so that another draw would read what stands at their
positions of the tape. So while a run shrinks, a choice is identified by its label and by how many
choices with this label came before it.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from baton.dev.sim.parts import Parts
from baton.dev.sim.run import run
from baton.dev.sim.tape import Script, Tape


class Name(NamedTuple):
    """A choice: its label, and how many choices with this label came before it."""

    label: str
    before: int


Named = Mapping[Name, int]
# returns the choices that a run has really made; None if it does not show what is looked for
Shows = Callable[[Named], Named | None]


class NamedTape(Tape):
    """A tape that also knows its choices by name. If it is given `named` choices, it makes those,
    and 0 otherwise."""

    def __init__(self, *, script: Script | None = None, named: Named | None = None) -> None:
        super().__init__(script=script or {})
        self._named = named
        self._counts: Counter[str] = Counter()
        self.named: dict[Name, int] = {}

    def below(self, n: int, label: str) -> int:
        name = self._next(label, n - 1)
        choice = super().below(n, label)
        if choice:
            self.named[name] = choice
        return choice

    def chance(self, probability: float, label: str) -> bool:
        if probability <= 0.0:
            return False
        name = self._next(label, 1)
        hit = super().chance(probability, label)
        if hit:
            self.named[name] = 1
        return hit

    def _next(self, label: str, most: int) -> Name:
        """Return the name of the next choice. Its wanted value is put where Tape looks."""
        name = Name(label, self._counts[label])
        self._counts[label] += 1
        if self._named is not None:
            self._script = {self.length: min(self._named.get(name, 0), most)}
        return name


def shrink(script: Script, parts: Parts, invariant: str, budget: int) -> Script:
    """Return a smaller script that breaks the same invariant, found in at most `budget` runs. If
    the script does not break it, return the script itself."""
    scripts: dict[tuple[tuple[Name, int], ...], Script] = {}

    def shows(tape: NamedTape) -> Named | None:
        if run(tape=tape, parts=parts).invariant != invariant:
            return None
        scripts[tuple(tape.named.items())] = tape.taken
        return tape.named

    first = shows(NamedTape(script=script))
    if first is None:
        return script
    return scripts[
        tuple(minimal(first, lambda named: shows(NamedTape(named=named)), budget - 1).items())
    ]


def minimal(found: Named, shows: Shows, budget: int) -> Named:
    """Do what `shrink` does, for anything that choices may show; `found` must show it."""
    return _Shrinking(found, shows, budget).go()


class _Shrinking:
    def __init__(self, found: Named, shows: Shows, budget: int) -> None:
        self._found, self._shows, self._budget = found, shows, budget
        self._tried: set[frozenset[tuple[Name, int]]] = set()

    def go(self) -> Named:
        before = None
        while self._budget > 0 and self._found != before:
            before = self._found
            self._calm_kinds()
            self._calm_runs()
            self._lower()
        return self._found

    def _try(self, candidate: Named) -> bool:
        """Try a candidate. If it still shows what is looked for and is smaller, keep it and return
        True. Candidates that were tried before, or are beyond the budget, are not tried."""
        key = frozenset(candidate.items())
        if key in self._tried or self._budget <= 0:
            return False
        self._tried.add(key)
        self._budget -= 1
        made = self._shows(candidate)
        if made is not None and _size(made) < _size(self._found):
            self._found = made
            return True
        return False

    def _without(self, gone: set[Name]) -> Named:
        return {name: choice for name, choice in self._found.items() if name not in gone}

    def _calm_kinds(self) -> None:
        """Set all choices with one label to 0 at once, the most frequent labels first."""
        counts = Counter(name.label for name in self._found)
        for label in sorted(counts, key=lambda label: (-counts[label], label)):
            gone = {name for name in self._found if name.label == label}
            if gone:
                self._try(self._without(gone))

    def _calm_runs(self) -> None:
        """Set runs of neighbours to 0, with half the length each time. The last ones come first, as
        most choices come after those that matter."""
        length = max(1, len(self._found) // 2)
        while length and self._budget > 0:
            end = len(self._found)
            while end > 0 and self._budget > 0:
                names = list(self._found)
                end = min(end, len(names))
                self._try(self._without(set(names[max(0, end - length) : end])))
                end -= length
            length //= 2

    def _lower(self) -> None:
        """Make single choices as low as they can be."""
        for name in list(self._found):
            for lower in _lower_than(self._found.get(name, 0)):
                if self._try({**self._found, name: lower}):
                    break


def _lower_than(choice: int) -> Iterator[int]:
    """Yield 1, then values ever closer to the choice."""
    step = choice - 1
    while step > 0:
        yield choice - step
        step //= 2


def _size(named: Named) -> tuple[int, int]:
    return len(named), sum(named.values())
