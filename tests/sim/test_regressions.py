"""Bugs of the shipped code that the simulator found: with the bug planted again its world fails, without it that world is well.

The seeds stand in src/baton/sim/plants/seeds.py (tools/planted_bugs.py finds them again when the simulator changes).
"""

import pytest

from baton.sim.bank import first
from baton.sim.plants import BY_NAME
from baton.sim.run import be_silent, run

FOUND = ("orders_forgotten", "deadline_blamed")


@pytest.mark.parametrize("name", FOUND)
@pytest.mark.timeout(300)
def test_a_bug_that_was_found_here_does_not_come_back(name):
    be_silent()
    world = first(BY_NAME[name])
    assert world is not None, f"{name} is not found any more"
    again = run(script=world.choices)
    assert not again.invariant, f"{name} is back: {again.detail}"
