"""All checks together: over recorded runs, which are good, and over runs of a core with a bug."""

import contextlib
from typing import Any

import pytest
from tests.trace.histories import (
    issues,
    leader_parts,
)
from tests.trace.plants import (
    EagerFront,
    ForgetfulWorker,
    HastyDecode,
    LoudRank,
    Planted,
    RepeatingFront,
)
from tests.trace.rig import RecordedWorld, read
from tests.trace.scenarios import SCENARIOS, journals

from baton.trace.checks.all import CHECKS, Checks, LogViolation
from baton.trace.checks.clients import ClientStreams
from baton.trace.checks.commits import CommitAfterArrival
from baton.trace.checks.pages import PageBooks
from baton.trace.checks.plans import PlanSequence
from baton.trace.checks.quiet import QuietIsTrue
from baton.trace.log import (
    Header,
)

# ---- all together -------------------------------------------------------------------------------


def test_every_check_says_what_it_holds() -> None:
    assert len({check.invariant for check in CHECKS}) == len(CHECKS)


def test_a_violation_names_step_time_and_invariant_once() -> None:
    checks = Checks()
    records = [Header(1, 1, "0"), leader_parts(), issues(1), issues(5), issues(9)]
    (found,) = [v for r in records for v in checks.feed(r)]
    assert found.number == 2
    assert found.invariant == PlanSequence.invariant
    assert str(found).startswith("step 2 at 0.000000 s: plan 5 was issued after plan 1")


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_invariant_is_violated_in_a_recorded_run(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for process, data in journals(name, monkeypatch).items():
        assert violations(data) == [], process


BUGS = [
    (EagerFront, "late admitted", ClientStreams),
    (HastyDecode, "doubt", CommitAfterArrival),
    (ForgetfulWorker, "random aborts", PageBooks),
    (LoudRank, "slow engine", QuietIsTrue),
    (RepeatingFront, "late tokens", ClientStreams),
]


@pytest.mark.parametrize(
    ("bug", "scenario", "check"), BUGS, ids=lambda v: getattr(v, "__name__", v)
)
def test_a_run_of_a_core_with_a_bug_violates_its_invariant(
    bug: type, scenario: str, check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal plays with the same effects, for the bug is in both; its own books are what finds
    it."""
    monkeypatch.setattr(RecordedWorld, "make", staticmethod(Planted(bug)))
    found = [
        v.invariant for data in broken_journals(scenario, monkeypatch) for v in violations(data)
    ]
    assert check.invariant in found


def violations(data: bytes) -> list[LogViolation]:
    checks = Checks()
    return [v for record in read(data) for v in checks.feed(record)]


def broken_journals(scenario: str, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What was written, although the run itself may have failed."""
    made: list[RecordedWorld] = []
    plain = RecordedWorld.__init__

    def init(self: RecordedWorld, **front: int) -> None:
        plain(self, **front)
        made.append(self)

    monkeypatch.setattr(RecordedWorld, "__init__", init)
    with contextlib.suppress(Exception):
        journals(scenario, monkeypatch)
    return [data for world in made for data in world.finished().values()]
