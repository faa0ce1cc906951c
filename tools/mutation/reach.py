"""Which statements of the core each world and each test executes: a mutant is judged by those that
reach it.

A world that does not execute the changed statement is the same run without the change, so nothing
is lost, and most of the time is saved. Statements in functions whose results are cached count as
executed by all: who asks second does not execute them.
"""

import ast
import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutation.judges import TESTS, pytest_once, trees_of
from mutation.modules import replace
from mutation.mutants import ROOT, Mutant, files
from mutation.processes import Job, Pool, Say

PROBES = "__reached__"
CPU_S = 3600.0
Line = str  # "module:line"


@dataclass
class Reach:
    """Seeds by line; and of tests how long each took, which lines it executes, which all of its
    file, which all do."""

    worlds: dict[Line, list[int]]
    count: int
    seconds: dict[str, float]
    tests: dict[Line, list[str]]
    files: dict[Line, list[str]]
    anyone: set[Line]

    def seeds_of(self, mutant: Mutant) -> Sequence[int]:
        """Worlds that execute the statement."""
        return range(self.count) if mutant.edit.always else self.worlds.get(line_of(mutant), [])

    def tests_of(self, mutant: Mutant, budget_s: float) -> list[str]:
        """Tests that execute the statement: those of the file named like the module first, then the
        quickest; as many as take that long."""
        line = line_of(mutant)
        if mutant.edit.always or line in self.anyone:
            found = set(self.seconds)
        else:
            files = set(self.files.get(line, ()))
            found = {
                *self.tests.get(line, ()),
                *(t for t in self.seconds if t.split("::")[0] in files),
            }
        own = f"/test_{mutant.module}.py::"
        ordered = sorted(found, key=lambda test: (own not in test, self.seconds[test], test))
        spent, within = 0.0, []
        for test in ordered:
            spent += self.seconds[test]
            if spent > budget_s and within:
                break
            within.append(test)
        return within


def line_of(mutant: Mutant) -> Line:
    """Where the mutant's statement begins."""
    return f"{mutant.module}:{mutant.edit.statement.lineno}"


# ---- probes
# ---------------------------------------------------------------------------------------


class _Probes:
    """One byte a statement, set when it is executed."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.trees = trees_of(paths)
        self.lines: list[Line] = []
        for path, tree in self.trees.items():
            self._instrument(path.stem, tree)
        self.hits = bytearray(len(self.lines))

    def _instrument(self, module: str, tree: ast.Module) -> None:
        """Put a probe before each statement of each function."""
        done: set[int] = set()
        for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
            for node in list(ast.walk(function)):
                for field in ("body", "orelse", "finalbody"):
                    statements = getattr(node, field, None)
                    if isinstance(statements, list) and id(statements) not in done:
                        done.add(id(statements))
                        statements[:] = [
                            s for each in statements for s in (self._probe(module, each), each)
                        ]

    def _probe(self, module: str, statement: ast.stmt) -> ast.stmt:
        place = ast.Subscript(
            ast.Name(PROBES, ast.Load()), ast.Constant(len(self.lines)), ast.Store()
        )
        self.lines.append(f"{module}:{statement.lineno}")
        return ast.copy_location(ast.Assign([place], ast.Constant(1)), statement)

    def take(self) -> list[Line]:
        """What was executed since the last call."""
        taken = [self.lines[i] for i, hit in enumerate(self.hits) if hit]
        self.hits[:] = bytes(len(self.hits))
        return taken

    def install(self) -> None:
        """From now on this process imports the core with probes."""
        replace(self.trees, {PROBES: self.hits})


def _watch_worlds(seeds: Sequence[int], say: Say) -> None:
    """Says {seed, lines, invariant} of each."""
    probes = _Probes(files())
    probes.install()
    from baton.dev.sim.run import be_silent, run

    be_silent(for_good=True)
    for seed in seeds:
        probes.take()
        outcome = run(seed)
        say({"seed": seed, "lines": probes.take(), "invariant": outcome.invariant})


class _Watcher:
    """Says {test, lines, seconds, failed} of each test, {file, lines} of its fixtures and {anyone}
    of what imports execute."""

    def __init__(self, probes: _Probes, say: Say) -> None:
        self._probes, self._say = probes, say
        self._began: dict[str, float] = {}
        self._failed: set[str] = set()

    def pytest_collection_finish(self) -> None:
        self._say({"anyone": self._probes.take()})

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._began[nodeid] = time.process_time()

    def pytest_runtest_logreport(self, report: Any) -> None:
        test, lines = report.nodeid, self._probes.take()
        if report.failed:
            self._failed.add(test)
        if report.when == "setup":
            self._say({"file": test.split("::")[0], "lines": lines})
        elif report.when == "call":
            self._say({"test": test, "lines": lines})
        else:
            self._say(
                {
                    "ended": test,
                    "seconds": time.process_time() - self._began[test],
                    "failed": test in self._failed,
                }
            )


def _watch_tests(paths: Sequence[str], say: Say) -> None:
    probes = _Probes(files())
    probes.install()
    code = pytest_once(paths, _Watcher(probes, say))
    if code not in (0, 1):  # all passed, or some failed
        raise RuntimeError(f"pytest ended with code {code}")


# ---- measuring
# ------------------------------------------------------------------------------------


class NotGreen(Exception):
    """The code as it ships fails already: nothing can be judged by that."""


def measure(count: int, jobs: int, cache: Path) -> Reach:
    """Run all worlds and tests once, or read what was found when they were run with the same
    sources.

    Raises NotGreen if the shipped code breaks an invariant of a world.
    """
    pool = Pool(jobs)
    kept = {
        "tests": cache / f"tests-{sources()}.json",
        "worlds": cache / f"worlds-{sources('src')}-{count}.json",
    }
    said: dict[str, list[Any]] = {
        name: json.loads(path.read_text()) if path.exists() else [] for name, path in kept.items()
    }
    new = {name for name, words in said.items() if not words}
    if "tests" in new:
        pool.add(Job("tests", lambda say: _watch_tests(TESTS, say), CPU_S))
    if "worlds" in new:
        for part in range(jobs):
            seeds = range(part, count, jobs)
            pool.add(Job("worlds", lambda say, seeds=seeds: _watch_worlds(seeds, say), CPU_S))
    try:
        for job, ended in pool.results():
            if ended.code:
                raise NotGreen(
                    f"the {job.name} of the shipped code ended with code "
                    f"{ended.code}, after {ended.said[-1:]}"
                )
            said[job.name] += ended.said
    finally:
        pool.close()
    cache.mkdir(parents=True, exist_ok=True)
    for name in new:
        kept[name].write_text(json.dumps(said[name]))
    return _summed([*said["worlds"], *said["tests"]], count)


def _summed(said: Sequence[Any], count: int) -> Reach:
    reach = Reach({}, count, {}, {}, {}, set())
    failed = {word["ended"] for word in said if word.get("failed")}
    for word in said:
        if word.get("invariant"):
            raise NotGreen(f"the shipped code breaks {word['invariant']} in world {word['seed']}")
        if "seed" in word:
            _note(reach.worlds, word["lines"], word["seed"])
        elif "file" in word:
            _note(reach.files, word["lines"], word["file"])
        elif "test" in word and word["test"] not in failed:
            _note(reach.tests, word["lines"], word["test"])
        elif "ended" in word and word["ended"] not in failed:
            reach.seconds[word["ended"]] = word["seconds"]
        elif "anyone" in word:
            reach.anyone |= set(word["anyone"])
    for seeds in reach.worlds.values():
        seeds.sort()
    if failed:
        print(f"left out, as they fail already: {', '.join(sorted(failed))}")
    return reach


def _note(table: dict[Line, list[Any]], lines: Sequence[Line], who: Any) -> None:
    for line in lines:
        known = table.setdefault(line, [])
        if not known or known[-1] != who:
            known.append(who)


def sources(*folders: str) -> str:
    """A hash of everything that decides what is executed, and so what is found."""
    found = hashlib.sha256()
    for folder in folders or ("src", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            found.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return found.hexdigest()[:16]
