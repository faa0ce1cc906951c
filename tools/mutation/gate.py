"""Judges mutants: by worlds first, and those that survive by unit tests.

mutants ──▶ worlds that reach it ──all fine──▶ tests that reach it ──all pass──▶ survivor
                    └──▶ found by simulation           └──▶ found by tests
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from mutation.judges import tests, worlds
from mutation.modules import PACKAGE
from mutation.mutants import Mutant
from mutation.processes import Ended, Job, Pool
from mutation.reach import Reach

SIMULATION, TESTS, NOBODY = "simulation", "tests", ""
CRASHED, TOO_LONG = "ended its process", "out of time"
WORLDS_CPU_S = 240.0  # twelve times what the shipped code takes for 500 worlds
TESTS_CPU_S = 30.0  # and four times what the shipped code takes
SLOWER = 4


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant. `how`: the invariant or the test that it broke; `world`: the seed
    that showed it."""

    name: str
    module: str
    line: int
    change: str
    found_by: str
    how: str
    world: int | None
    worlds: int  # that execute the statement
    tests: int
    seconds: float


class Judging:
    """One run over some mutants. Tests are chosen for a mutant that no world shows."""

    def __init__(
        self,
        mutants: Iterable[Mutant],
        seeds_of: Callable[[Mutant], Sequence[int]],
        tests_of: Callable[[Mutant], list[str]],
        seconds_of: Mapping[str, float],
        jobs: int,
    ) -> None:
        if early := [name for name in sys.modules if name.startswith(f"{PACKAGE}.")]:
            raise RuntimeError(
                f"children would not import mutants, as this process has imported {early[0]}"
            )
        self._mutants = {mutant.name: mutant for mutant in mutants}
        self._seeds_of, self._tests_of, self._seconds_of = seeds_of, tests_of, seconds_of
        self._seconds: dict[str, float] = {}
        self._pool = Pool(jobs)
        for mutant in self._mutants.values():
            self._begin(mutant)

    def _begin(self, mutant: Mutant) -> None:
        seeds = self._seeds_of(mutant)
        if seeds:
            self._pool.add(
                Job(
                    f"{SIMULATION} {mutant.name}",
                    lambda say: worlds(mutant, seeds, say),
                    WORLDS_CPU_S,
                )
            )
        else:
            self._test(mutant, first=False)

    def _test(self, mutant: Mutant, *, first: bool) -> None:
        names = self._tests_of(mutant)
        limit = TESTS_CPU_S + SLOWER * sum(self._seconds_of.get(name, 1.0) for name in names)
        self._pool.add(
            Job(f"{TESTS} {mutant.name}", lambda say: tests(mutant, names, say), limit), first=first
        )

    def run(self, done: Callable[[Verdict], None]) -> None:
        """Judge all, and say each verdict as it comes. Whatever still runs is ended when this is
        interrupted."""
        try:
            for job, ended in self._pool.results():
                by, name = job.name.split(" ", 1)
                mutant = self._mutants[name]
                self._seconds[name] = self._seconds.get(name, 0.0) + ended.seconds
                how, world = by_worlds(ended) if by == SIMULATION else (by_tests(ended), None)
                if how or by == TESTS:
                    done(self._verdict(mutant, by if how else NOBODY, how, world))
                else:
                    self._test(mutant, first=True)
        finally:
            self._pool.close()

    def _verdict(self, mutant: Mutant, by: str, how: str, world: int | None) -> Verdict:
        return Verdict(
            name=mutant.name,
            module=mutant.module,
            line=mutant.line,
            change=mutant.change,
            found_by=by,
            how=how,
            world=world,
            worlds=len(self._seeds_of(mutant)),
            tests=len(self._tests_of(mutant)),
            seconds=round(self._seconds[mutant.name], 2),
        )


def by_worlds(ended: Ended) -> tuple[str, int | None]:
    """What a world showed, and its seed; empty if none showed anything."""
    begun = [word for word in ended.said if isinstance(word, int)]
    shown = next(
        (
            word["invariant"]
            for word in ended.said
            if isinstance(word, dict) and "invariant" in word
        ),
        None,
    )
    how = shown if shown is not None else TOO_LONG if ended.out_of_time else CRASHED
    return how, begun[-1] if how and begun else None


def by_tests(ended: Ended) -> str:
    """The test that failed, empty if none did."""
    failed = next((word["test"] for word in ended.said if "test" in word), "")
    code = next((word["code"] for word in ended.said if "code" in word), None)
    if code in (0, 5):  # 5: there is no test to run
        return ""
    return failed or (TOO_LONG if ended.out_of_time else CRASHED)


def of_reach(mutants: Sequence[Mutant], reach: Reach, budget_s: float, jobs: int) -> Judging:
    """Each is judged by the worlds and tests that execute it."""
    chosen: dict[str, list[str]] = {}

    def tests_of(mutant: Mutant) -> list[str]:
        if mutant.name not in chosen:
            chosen[mutant.name] = reach.tests_of(mutant, budget_s)
        return chosen[mutant.name]

    return Judging(mutants, reach.seeds_of, tests_of, reach.seconds, jobs)


def plain(verdict: Verdict) -> dict[str, object]:
    """For JSON."""
    return asdict(verdict)
