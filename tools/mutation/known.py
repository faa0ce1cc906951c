"""Mutants that are known to be found, each within a few worlds or by one test file: `make check`
sees that they still are."""

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from mutation.gate import SIMULATION, TESTS, Judging, Verdict
from mutation.mutants import ROOT, Mutant, of_core, sample

FILE = Path(__file__).parent / "known.json"
WORLDS = 40  # that each is judged by
# .. of which it was found by these when it was chosen: a change of the simulator draws other worlds
EARLY = 8
BY_WORLDS, BY_TESTS = 28, 12
OF_MODULE = 3
DRAWN = 3  # times as many as are wanted: not all are found so soon
LEAST = 0.75  # of those chosen, whose statements must still be there


@dataclass(frozen=True)
class Known:
    """By whom it is found; of tests, the file."""

    name: str
    by: str
    file: str


def read() -> list[Known]:
    """Those of the file."""
    return [Known(**entry) for entry in json.loads(FILE.read_text())]


def judging(
    mutants: Sequence[Mutant], entries: Mapping[str, Known], jobs: int, worlds: int = WORLDS
) -> Judging:
    """By the first worlds or by one test file, as each was found."""

    def seeds_of(mutant: Mutant) -> Sequence[int]:
        return range(worlds) if entries[mutant.name].by == SIMULATION else ()

    def files_of(mutant: Mutant) -> list[str]:
        return [file] if (file := entries[mutant.name].file) else []

    return Judging(mutants, seeds_of, files_of, {}, jobs)


def choose(excused: Collection[str], seed: int, jobs: int) -> list[Known]:
    """Draw mutants, and keep those that the first worlds find, or the test file of their module;
    few of a module."""
    mutants = [mutant for mutant in of_core() if mutant.name not in excused]
    tested = [mutant for mutant in mutants if _own(mutant.module)]
    by_worlds = _found(
        sample(mutants, DRAWN * BY_WORLDS, seed),
        lambda mutant: Known(mutant.name, SIMULATION, ""),
        jobs,
    )
    by_tests = _found(
        sample(tested, DRAWN * BY_TESTS, seed + 1),
        lambda m: Known(m.name, TESTS, _own(m.module)),
        jobs,
    )
    return [*_few(by_worlds, BY_WORLDS), *_few(by_tests, BY_TESTS)]


def _own(module: str) -> str:
    """The test file named like a module of the core; empty if there is none."""
    return next(
        (
            p.relative_to(ROOT).as_posix()
            for p in (ROOT / "tests" / "core").rglob(f"test_{module}.py")
        ),
        "",
    )


def _found(mutants: Sequence[Mutant], entry: Callable[[Mutant], Known], jobs: int) -> list[Known]:
    """Those that are found, in the order in which they were drawn."""
    entries = {mutant.name: entry(mutant) for mutant in mutants}
    found: set[str] = set()

    def done(verdict: Verdict) -> None:
        if verdict.found_by == entries[verdict.name].by:
            found.add(verdict.name)

    judging(mutants, entries, jobs, EARLY).run(done)
    return [known for name, known in entries.items() if name in found]


def _few(entries: Sequence[Known], count: int) -> list[Known]:
    chosen: list[Known] = []
    modules: Counter[str] = Counter()
    for known in entries:
        module = known.name.split(":")[0]
        if modules[module] < OF_MODULE and len(chosen) < count:
            modules[module] += 1
            chosen.append(known)
    return chosen


def write(entries: Sequence[Known]) -> None:
    """Replace the file."""
    FILE.write_text(json.dumps([asdict(known) for known in entries], indent=1) + "\n")
