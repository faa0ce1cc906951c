"""Breadth-first search over everything that can happen in a small system.

    start ──step──▶ state ──step──▶ state ──step──▶ ...      every state once; the first way found to it is a shortest one

Of every state it is asked whether it is wrong, whether it is stuck, and whether the system can
still come to its end by steps that are not faults. The answer is the number of states, or the
shortest story that leads to a bad one.
"""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

S = TypeVar("S", bound=Hashable)


class Step(NamedTuple, Generic[S]):
    """Something that can happen. A fault may happen; that it will is nothing to count on."""

    says: tuple[object, ...]
    after: S
    fault: bool = False


class System(ABC, Generic[S]):
    """States are values: equal ones have the same future."""

    @abstractmethod
    def start(self) -> S:
        """Where it begins."""

    @abstractmethod
    def steps(self, state: S) -> Iterable[Step[S]]:
        """All that can happen next."""

    @abstractmethod
    def done(self, state: S) -> bool:
        """Whether it has come to its end. A done state may have steps."""

    def wrong(self, state: S) -> str:
        """What must never be; empty if all is well."""
        return ""

    def owes(self, state: S) -> bool:
        """Whether an end must be within reach from here."""
        return True


@dataclass(frozen=True)
class Story:
    """A shortest way to a bad state."""

    why: str
    steps: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{n:3}. {says}" for n, says in enumerate(self.steps, start=1)]
        return "\n".join([f"{self.why}, after {len(self.steps)} steps:", *lines])


@dataclass(frozen=True)
class Found:
    """What a search saw. With `bad`, the numbers are those of the part seen until then."""

    states: int
    edges: int
    depth: int  # steps to the farthest state
    done: int  # states that are an end
    bad: Story | None

    def __str__(self) -> str:
        seen = f"{self.states} states, {self.edges} steps, {self.depth} deep, {self.done} ends"
        return f"{seen}\n{self.bad}" if self.bad else seen


class _Search(Generic[S]):
    """The states seen so far, by number in the order in which they were found, and how they were
    reached."""

    def __init__(self, system: System[S], most: int) -> None:
        self.system, self.most = system, most
        self.states: list[S] = []
        self.numbers: dict[S, int] = {}
        self.parents = array("q")
        self.says: list[tuple[object, ...]] = []
        self.depths = array("q")
        self.edges = 0
        self.sources, self.targets = array("q"), array("q")  # of steps that are no faults
        self.ends: list[int] = []

    def run(self) -> Found:
        """Search all."""
        bad = self._meet(self.system.start(), -1, ())
        at = 0
        while bad is None and at < len(self.states):
            bad = self._expand(at)
            at += 1
        return self._found(bad if bad is not None else self._endless())

    def _expand(self, at: int) -> Story | None:
        state, alive = self.states[at], False
        for step in self.system.steps(state):
            self.edges += 1
            after = self.numbers.get(step.after)
            if after is None:
                after = len(self.states)
                if bad := self._meet(step.after, at, step.says):
                    return bad
            if not step.fault:
                alive = True
                self.sources.append(at)
                self.targets.append(after)
        stuck = not alive and not self.system.done(state) and self.system.owes(state)
        return self._story("nothing more can happen", at) if stuck else None

    def _meet(self, state: S, parent: int, says: tuple[object, ...]) -> Story | None:
        number = len(self.states)
        assert number < self.most, f"more than {self.most} states"
        self.numbers[state] = number
        self.states.append(state)
        self.parents.append(parent)
        self.says.append(says)
        self.depths.append(self.depths[parent] + 1 if parent >= 0 else 0)
        if self.system.done(state):
            self.ends.append(number)
        wrong = self.system.wrong(state)
        return self._story(wrong, number) if wrong else None

    def _endless(self) -> Story | None:
        """The nearest state that owes an end and cannot reach one."""
        into: list[list[int]] = [[] for _ in self.states]
        for source, target in zip(self.sources, self.targets, strict=True):
            into[target].append(source)
        reach = bytearray(len(self.states))
        frontier = list(self.ends)
        for end in frontier:
            reach[end] = 1
        while frontier:
            for before in into[frontier.pop()]:
                if not reach[before]:
                    reach[before] = 1
                    frontier.append(before)
        lost = (
            n for n, state in enumerate(self.states) if not reach[n] and self.system.owes(state)
        )
        first = next(lost, None)
        return None if first is None else self._story("no end can be reached any more", first)

    def _story(self, why: str, at: int) -> Story:
        steps = []
        while at > 0:
            steps.append(" ".join(map(str, self.says[at])))
            at = self.parents[at]
        return Story(why, tuple(reversed(steps)))

    def _found(self, bad: Story | None) -> Found:
        return Found(len(self.states), self.edges, max(self.depths), len(self.ends), bad)


def explore(system: System[S], *, most: int = 1_000_000) -> Found:
    """Search until all states are known or one is bad; more than `most` of them is an error."""
    return _Search(system, most).run()
