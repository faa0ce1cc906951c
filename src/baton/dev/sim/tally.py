"""The combined result of many runs: violations, and how often things occurred that should."""

from collections import Counter
from collections.abc import Callable, Mapping
from statistics import median

import msgspec

from baton.core.marks import Mark
from baton.dev.sim.run import RunKind, RunOutcome


class Violated(msgspec.Struct, frozen=True):
    """One run that broke an invariant."""

    seed: int
    invariant: str
    kind: RunKind
    detail: str


def _core(*marks: Mark) -> Callable[[RunOutcome], bool]:
    names = [m.name for m in marks]
    return lambda outcome: any(n in outcome.core_marks for n in names)


def _world(start: str) -> Callable[[RunOutcome], bool]:
    return lambda outcome: any(mark.startswith(start) for mark in outcome.marks)


SHARES: Mapping[str, Callable[[RunOutcome], bool]] = {
    "tp > 1 on both sides": lambda outcome: outcome.wide,
    "commits": _world("commit"),
    "failures": _world("failed: "),
    "crashes": _world("fault: crash"),
    "refetches": _core(Mark.READ_AGAIN),
    "withdrawals": _core(Mark.WITHDRAWN),
    "preemptions": _core(Mark.OFFLOADED),
    "resumptions": _core(Mark.RESUMED),
    "new epochs": _core(Mark.NEW_EPOCH),
    "clean": lambda outcome: outcome.clean,
}


class Tally:
    """Sums over runs, which may come in any order."""

    def __init__(self) -> None:
        self.violations: list[Violated] = []
        self.traces: dict[int, int] = {}  # seed -> hash of its run
        self.events = 0
        self._worlds: Counter[str] = Counter()  # share -> worlds in which it occurred
        self._marks: Counter[str] = Counter()  # name of a core mark -> worlds that took the branch
        self._events: list[int] = []
        self._requests: list[int] = []
        self._repeats = 0

    def add(self, outcome: RunOutcome) -> None:
        """Add a run."""
        self.traces[outcome.seed] = outcome.trace
        self.events += outcome.events
        self._events.append(outcome.events)
        self._requests.append(outcome.requests)
        self._repeats += outcome.repeats
        self._worlds.update(name for name, occurred in SHARES.items() if occurred(outcome))
        self._marks.update(outcome.core_marks.keys())
        if outcome.invariant:
            self.violations.append(
                Violated(outcome.seed, outcome.invariant, outcome.kind, outcome.detail)
            )

    @property
    def seeds(self) -> int:
        """The number of runs so far."""
        return len(self.traces)

    @property
    def median_events(self) -> float:
        """The median number of events of a world."""
        return median(self._events) if self._events else 0

    @property
    def median_requests(self) -> float:
        """The median number of requests of a world."""
        return median(self._requests) if self._requests else 0

    def shares(self) -> dict[str, float]:
        """Return the shares of worlds in which something occurred, and the share of requests whose
        prompt was asked before."""
        worlds = {name: self._worlds[name] / max(1, self.seeds) for name in SHARES}
        return worlds | {
            "requests that repeat a prompt": self._repeats / max(1, sum(self._requests))
        }

    def marks(self) -> dict[Mark, float]:
        """Return, for every rare branch of the core, the share of worlds that took it."""
        return {mark: self._marks[mark.name] / max(1, self.seeds) for mark in Mark}

    def never_hit(self) -> list[Mark]:
        """Return the branches that no world took."""
        return [mark for mark in Mark if not self._marks[mark.name]]

    def first_of_each(self) -> list[Violated]:
        """Return, for every broken invariant, the run with the lowest seed; runs are sorted by
        seed."""
        found: dict[str, Violated] = {}
        for violated in sorted(self.violations, key=lambda v: v.seed):
            found.setdefault(violated.invariant, violated)
        return list(found.values())
