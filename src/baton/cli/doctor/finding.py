"""What the doctor says about one thing."""

from enum import Enum

import msgspec


class State(Enum):
    """How bad it is: a problem keeps something from working, a warning makes it slow or may do so later."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(msgspec.Struct, frozen=True):
    """One line. `remedy` says what to do; empty where nothing needs to be done."""

    area: str
    what: str
    state: State
    said: str
    remedy: str = ""


def ok(area: str, what: str, said: str, remedy: str = "") -> Finding:
    """Nothing to complain of; a remedy here is only an offer."""
    return Finding(area, what, State.OK, said, remedy)


def warning(area: str, what: str, said: str, remedy: str) -> Finding:
    """It works, but."""
    return Finding(area, what, State.WARNING, said, remedy)


def problem(area: str, what: str, said: str, remedy: str) -> Finding:
    """It does not work."""
    return Finding(area, what, State.PROBLEM, said, remedy)
