"""Runs all checks over a log; each check sees only the steps of its kind of process."""

from collections.abc import Iterator, Sequence

import msgspec

from baton.core.ids import Micros
from baton.trace.checks.attempts import Attempts
from baton.trace.checks.check import Check
from baton.trace.checks.clients import ClientStreams
from baton.trace.checks.commits import CommitAfterArrival
from baton.trace.checks.landings import OneReadAByte
from baton.trace.checks.pages import PageBooks
from baton.trace.checks.plans import NewestEpoch, PlanSequence
from baton.trace.checks.quiet import QuietIsTrue
from baton.trace.log import CoreKind, Header, Parts, Record, Step

CHECKS: tuple[type[Check], ...] = (
    PlanSequence,
    NewestEpoch,
    PageBooks,
    CommitAfterArrival,
    QuietIsTrue,
    OneReadAByte,
    ClientStreams,
    Attempts,
)


class LogViolation(msgspec.Struct, frozen=True):
    """An invariant that is violated in a log."""

    check: str  # its name
    number: int  # of the step, from 1
    at: Micros
    invariant: str
    what: str

    def __str__(self) -> str:
        return (
            f"step {self.number} at {self.at / 1e6:.6f} s: {self.what} (invariant: "
            f"{self.invariant})"
        )


class Checks:
    """All checks over one log.

    A check that has found a violation is dropped, because further findings would follow from it.

    kinds: the checks that apply
    """

    def __init__(self, kinds: Sequence[type[Check]] = CHECKS) -> None:
        self._checks = [check() for check in kinds]
        self._by_core = {
            kind: [check for check in self._checks if kind in check.cores] for kind in CoreKind
        }
        self._steps = 0

    def feed(self, record: Record) -> Iterator[LogViolation]:
        """Check the next record."""
        match record:
            case Header():
                pass
            case Step():
                self._steps += 1
                for check in tuple(self._by_core[record.core]):
                    what = _first(check, record)
                    if what is not None:
                        self._drop(check)
                        yield LogViolation(
                            check.name, self._steps, record.at, check.invariant, what
                        )
            case _:
                self.made(record)

    def _drop(self, check: Check) -> None:
        for checks in self._by_core.values():
            if check in checks:
                checks.remove(check)

    def made(self, parts: Parts) -> None:
        """Note the parts of a core object that was made."""
        for check in self._checks:
            check.made(parts)


def _first(check: Check, step: Step) -> str | None:
    """Return the first violation in a step. A step that makes the check raise counts as one."""
    try:
        return next(iter(check.see(step)), None)
    except Exception as error:  # noqa: BLE001  (a log may come from anywhere; nonsense in it is a finding)
        return f"this step makes no sense: {type(error).__name__}: {error}"
