"""Who judges a mutant: worlds of the simulator, then unit tests. Each runs in a child of its own
(processes.py)."""

import ast
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mutation.modules import replace
from mutation.mutants import ROOT, Mutant
from mutation.processes import Say

WORLD_S = 20.0  # of processor time; the longest of the shipped code's first 500 takes 0.15
TESTS = tuple(
    f"tests/{name}"
    for name in (
        "core",
        "trace",
        "models",
        "wire",
        "shell",
        "sim/test_caches.py",
        "sim/test_checkers.py",
        "sim/test_loans.py",
        "sim/test_regressions.py",
        "sim/test_starvation.py",
        "sim/test_sums.py",
        "sim/test_urgent.py",
        "sim/test_waits.py",
        "gateway/test_front_door.py",
    )
)
# Plugins that a test does not ask for take longer to load than most tests; schemathesis alone takes
# a second.
OPTIONS = (
    "-q",
    "-p",
    "no:cacheprovider",
    "-p",
    "pytest_timeout",
    "-m",
    "not slow",
    "--rootdir",
    str(ROOT),
)


def _become(mutant: Mutant | None) -> None:
    if mutant is not None:
        mutant.edit.apply()
        replace({mutant.source: mutant.tree})


def worlds(mutant: Mutant | None, seeds: Sequence[int], say: Say) -> None:
    """Run worlds until one shows something: says each seed before it, and in the end {invariant,
    detail}, empty if nothing."""
    _become(mutant)
    from baton.dev.sim.run import be_silent, run

    be_silent(for_good=True)
    for seed in seeds:
        say(seed)
        signal.setitimer(signal.ITIMER_PROF, WORLD_S)  # its signal ends the process
        outcome = run(seed)
        if outcome.invariant:
            say({"invariant": outcome.invariant, "detail": outcome.detail[:300]})
            return
    say({"invariant": "", "detail": ""})


class _Chosen:
    """Pytest runs these tests, or files of tests, in this order, and says which failed."""

    def __init__(self, tests: Sequence[str], say: Say) -> None:
        self._places = {test: i for i, test in enumerate(tests)}
        self._say = say

    def _place(self, item: Any) -> int | None:
        return self._places.get(item.nodeid, self._places.get(item.nodeid.split("::")[0]))

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        places = [
            (place, i) for i, item in enumerate(items) if (place := self._place(item)) is not None
        ]
        items[:] = [items[i] for _, i in sorted(places)]

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self._say({"test": report.nodeid})

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._say({"test": report.nodeid})


def calm_hypothesis() -> None:
    """Examples that are the same in every run, and no data base of those that failed."""
    from hypothesis import settings

    settings.register_profile("mutation", derandomize=True, database=None)
    settings.load_profile("mutation")


def pytest_once(paths: Sequence[str], plugin: object, *options: str) -> int:
    """One run of pytest in this process, from the root of the checkout."""
    import pytest

    os.chdir(ROOT)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    calm_hypothesis()
    return int(pytest.main([*OPTIONS, *options, *paths], plugins=[plugin]))


def tests(mutant: Mutant | None, names: Sequence[str], say: Say) -> None:
    """Run tests by their names until one fails: says {test} of it, and in the end {code} of
    pytest."""
    if not names:  # pytest would look through all there are
        say({"code": 5})
        return
    _become(mutant)
    files = list(dict.fromkeys(name.split("::")[0] for name in names))
    say({"code": pytest_once(files, _Chosen(names, say), "-x")})


def trees_of(paths: Sequence[Path]) -> dict[Path, ast.Module]:
    """The files' trees."""
    return {path: ast.parse(path.read_text()) for path in paths}
