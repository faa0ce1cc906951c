"""Tools around the simulator: shrinking, stories, regressions, and the command."""

import numpy as np
import pytest

from baton.core.handoff.seal import block_sums
from baton.dev.sim.parts import SHIPPED, Parts
from baton.dev.sim.run import RunKind, be_silent, run
from baton.dev.sim.shrink import Name, NamedTape, minimal, shrink
from baton.dev.sim.story import SHORT_ROOM


def blind(*args):
    """A seal that sees nothing: what arrives wrong passes."""
    return np.zeros_like(block_sums(*args))


BLIND = Parts(block_sums=blind)


@pytest.fixture(autouse=True)
def _silent():
    be_silent()


@pytest.fixture(scope="module")
def failing():
    be_silent()
    return next(
        o for o in (run(seed, parts=BLIND) for seed in range(100)) if o.kind is RunKind.SAFETY
    )


# ---- shrinking -----------------------------------------------------------------------------------


def named(script):
    """Choices by name: of seven kinds."""
    return {Name(f"kind {at % 7}", at // 7): choice for at, choice in script.items()}


def shows(*needed):
    """A finding that needs these (position, least choice), and counts how often it was asked
    for."""
    due = named(dict(needed))

    def ask(made):
        ask.runs += 1
        return made if all(made.get(name, 0) >= least for name, least in due.items()) else None

    ask.runs = 0
    return ask


@pytest.mark.parametrize(
    "needed",
    [(), ((0, 1),), ((3, 5), (40, 1), (41, 1), (199, 12)), tuple((i, 2) for i in range(9))],
)
def test_only_what_a_finding_needs_is_left(needed):
    script = {at: 1 + at * 5 % 17 for at in range(200)} | {at: least + 3 for at, least in needed}
    assert minimal(named(script), shows(*needed), 5000) == named(dict(needed))


def test_shrinking_is_deterministic_and_keeps_to_its_budget():
    script = named(dict.fromkeys(range(300), 9))
    needed = ((17, 4), (120, 2), (121, 9), (290, 1))
    assert minimal(script, shows(*needed), 5000) == minimal(script, shows(*needed), 5000)
    for budget in (1, 2, 10, 50):
        ask = shows(*needed)
        found = minimal(script, ask, budget)
        assert ask.runs <= budget
        assert all(found[name] >= least for name, least in named(dict(needed)).items())


def test_what_does_not_fail_stays_as_it_is():
    script = run(3).choices
    assert shrink(script, SHIPPED, "right_bytes", 100) == script


@pytest.mark.parametrize("seed", range(4))
def test_choices_by_name_make_the_same_run(seed):
    outcome = run(seed)
    by_position = NamedTape(script=outcome.choices)
    assert run(tape=by_position).trace == outcome.trace
    by_name = NamedTape(named=by_position.named)
    assert run(tape=by_name).trace == outcome.trace
    assert by_name.taken == outcome.choices


def test_a_failing_world_becomes_small(failing):
    small = shrink(failing.choices, BLIND, failing.invariant, 80)
    assert run(script=small, parts=BLIND).invariant == failing.invariant
    assert len(small) <= len(failing.choices) // 3
    assert run(script=small, parts=SHIPPED).invariant == ""


# ---- stories -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_a_story_changes_nothing(seed):
    plain, told = run(seed), run(seed, story=True)
    assert (told.trace, told.events, told.choices) == (plain.trace, plain.events, plain.choices)
    assert plain.story == plain.settings == ()
    assert plain.diagram == ""
    assert sum("---- " in line for line in told.story) >= 4


def test_a_story_ends_with_the_violation_and_shows_its_room(failing):
    told = run(failing.seed, parts=BLIND, story=True)
    assert f"VIOLATION {failing.invariant}: {failing.detail}" in told.story[-1]
    words = "\n".join(told.story)
    for spoken in (
        "Ticket",
        "Offer",
        "fetch",
        "read 1 for",
        "hold",
        "batch",
        "Admitted",
        "is for request",
    ):
        assert spoken in words
    room = SHORT_ROOM.search(told.detail).group(0)
    assert told.diagram.startswith("sequenceDiagram")
    assert f": Ticket {room} " in told.diagram
    assert failing.invariant in told.diagram.splitlines()[-1]
    assert any(line.startswith("worker ") for line in told.settings)


def test_lost_frames_are_told():
    lossy = next(
        o
        for o in (run(seed, story=True) for seed in range(60))
        if any("-- lost" in line for line in o.story)
    )
    assert any("(again)" in line for line in lossy.story)
