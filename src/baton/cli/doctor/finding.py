"""Findings: what the doctor reports about one thing."""

from enum import Enum

import msgspec


class State(Enum):
    """Severity: a problem keeps something from working; a warning makes it slow, or may later."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(msgspec.Struct, frozen=True):
    """One line of the report. `remedy` says what to do; empty if there is nothing to do."""

    area: str
    what: str
    state: State
    said: str
    remedy: str = ""


def ok(area: str, what: str, said: str, remedy: str = "") -> Finding:
    """Make a finding without fault; a remedy here is only a suggestion."""
    return Finding(area, what, State.OK, said, remedy)


def warning(area: str, what: str, said: str, remedy: str) -> Finding:
    """Make a finding about something that works, but slowly or not safely."""
    return Finding(area, what, State.WARNING, said, remedy)


def problem(area: str, what: str, said: str, remedy: str) -> Finding:
    """Make a finding about something that does not work."""
    return Finding(area, what, State.PROBLEM, said, remedy)
