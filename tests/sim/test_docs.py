"""docs/simulation.md says what the simulator checks: every invariant, with the right kind, and
every field of the summary."""

import re
from pathlib import Path

import msgspec

from baton.dev.cli.simulation.report import SimulationReport
from baton.dev.sim.run import CRASHED, LIVENESS, PROCESS_ENDED
from baton.trace.checks.all import CHECKS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "simulation.md").read_text()
VIOLATED = re.compile(r"violate\(\s*\"(\w+)\"")


def checked():
    """Every invariant that the simulator names."""
    sources = [
        path.read_text() for path in sorted((ROOT / "src" / "baton" / "dev" / "sim").rglob("*.py"))
    ]
    own = {name for source in sources for name in VIOLATED.findall(source)}
    return own | {check.name for check in CHECKS} | {PROCESS_ENDED}


def documented():
    """Kind of every invariant in the table."""
    table = PAGE.split("| invariant |")[1].split("\n\n")[0]
    kinds, kind = {}, ""
    for row in table.splitlines():
        if (head := re.match(r"\| \*\*(\w+)\*\*", row)) is not None:
            kind = head.group(1)
        elif (name := re.match(r"\| `(\w+)`", row)) is not None:
            kinds[name.group(1)] = kind
    return kinds


def test_every_invariant_is_in_the_table():
    assert set(documented()) == checked()


def test_kinds_are_right():
    kinds = documented()
    assert {name for name, kind in kinds.items() if kind == "liveness"} == LIVENESS
    assert {name for name, kind in kinds.items() if kind == "crash"} == {CRASHED, PROCESS_ENDED}


def test_fields_of_the_summary():
    named = set(re.findall(r"`(\w+)`", PAGE.split("Fields of the JSON:")[1].split("|")[0]))
    assert {field.name for field in msgspec.structs.fields(SimulationReport)} <= named
