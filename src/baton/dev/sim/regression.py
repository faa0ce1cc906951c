"""A failing run as a file: the choices other than the calm ones that make it, and what it breaks.

Each choice has a label that says what it is about. So a file from an older simulator, whose tape
has other choices in these places, is noticed instead of testing something else.
"""

import textwrap
from collections.abc import Mapping

import msgspec

from baton.core.errors import ConfigError
from baton.dev.sim.run import RunOutcome
from baton.dev.sim.tape import Script

FORMAT = 1


class TapeChoice(msgspec.Struct, frozen=True, array_like=True):
    """A choice other than 0."""

    at: int  # position on the tape
    choice: int
    label: str


class Regression(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One failing run."""

    format: int
    seed: int  # the first seed that showed it
    planted: str | None  # the bug that was planted, if any
    invariant: str
    detail: str
    choices: tuple[TapeChoice, ...]
    guests: bool = False  # whether workers are guests of vLLM engines

    @property
    def script(self) -> Script:
        """The script that repeats the run."""
        return {c.at: c.choice for c in self.choices}

    def drifted(self, labels: Mapping[int, str]) -> list[str]:
        """Return the choices that are about something else in a run of today's simulator."""
        return [
            f"choice {c.at} was about {c.label!r} and is now about {labels[c.at]!r}"
            for c in self.choices
            if c.at in labels and labels[c.at] != c.label
        ]


def regression(
    outcome: RunOutcome, planted: str | None, *, seed: int, guests: bool = False
) -> Regression:
    """Return what is kept of a failing run."""
    choices = tuple(
        TapeChoice(at, choice, outcome.labels[at]) for at, choice in sorted(outcome.choices.items())
    )
    return Regression(FORMAT, seed, planted, outcome.invariant, outcome.detail, choices, guests)


def encoded(kept: Regression) -> bytes:
    """Return the content of a file."""
    return msgspec.json.format(msgspec.json.encode(kept), indent=2) + b"\n"


def decoded(raw: bytes) -> Regression:
    """Read the content of a file.

    Raises:
        ConfigError: it is not a failing run, or has another format
    """
    try:
        kept = msgspec.json.decode(raw, type=Regression)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"not a failing run kept by 'baton sim': {error}") from error
    if kept.format != FORMAT:
        raise ConfigError(
            f"a failing run in format {kept.format}; this version reads format {FORMAT}"
        )
    return kept


def snippet(kept: Regression) -> str:
    """Return a test to paste into tests/sim/test_regressions.py. It requires the run to be fine
    once the bug is fixed, or, for a planted bug, to find it."""
    script = ", ".join(f"{c.at}: {c.choice}" for c in kept.choices)
    labels = ", ".join(dict.fromkeys(c.label for c in kept.choices))
    shipped = ", parts=GUESTS" if kept.guests else ""
    parts, broken = (
        (f', parts=BY_NAME["{kept.planted}"].make()', kept.invariant)
        if kept.planted
        else (shipped, "")
    )
    body = (
        *textwrap.wrap(
            f"{kept.detail}. Choices: {labels}", 110, initial_indent="# ", subsequent_indent="# "
        ),
        *textwrap.wrap(f"script = {{{script}}}", 110, subsequent_indent="    "),
        f'assert run(script=script{parts}).invariant == "{broken}"',
    )
    name = f"{kept.planted or kept.invariant}_of_seed_{kept.seed}"
    return "\n".join([f"def test_{name}():", *(f"    {line}" for line in body)])
