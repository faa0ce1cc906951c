"""Plans that are built once: asking again, or as another role, must never bring another pair's
plan."""

import itertools

import pytest
from tests.core.handoff.layouts import Layout, mixed, placements

from baton.core.errors import Mismatch
from baton.core.handoff import plans as plans_module
from baton.core.handoff.plan import pair
from baton.core.handoff.plans import MOST, Plans

LAYOUTS = (Layout(1, 1, 1), Layout(2, 1, 1), Layout(1, 2, 1), Layout(1, 1, 2))


def test_every_pair_of_layouts_has_its_own_plan():
    """Digests name layouts; those of `pair` itself, asked for in between, are what is due."""
    plans = Plans()
    for _ in range(2):
        for source, target, heads in itertools.product(LAYOUTS, LAYOUTS, (2, 4)):
            sides = placements(mixed(heads), source), placements(mixed(heads), target)
            assert plans.pair(*sides).digest == pair(*sides).digest


def test_equal_placements_are_proved_once(monkeypatch):
    built = []
    monkeypatch.setattr(plans_module, "pair", lambda *sides: (built.append(sides), pair(*sides))[1])
    plans = Plans()
    first = plans.pair(placements(mixed(2), LAYOUTS[0]), placements(mixed(2), LAYOUTS[1]))
    assert (
        plans.pair(tuple(placements(mixed(2), LAYOUTS[0])), placements(mixed(2), LAYOUTS[1]))
        is first
    )
    assert len(built) == 1


def test_what_does_not_fit_is_refused_every_time():
    plans = Plans()
    for _ in range(2):
        with pytest.raises(Mismatch):
            plans.pair(placements(mixed(2), LAYOUTS[1])[:1], placements(mixed(2), LAYOUTS[0]))


def test_layouts_that_peers_make_up_do_not_fill_memory():
    plans = Plans()
    ours = placements(mixed(2), LAYOUTS[0])
    kept = [plans.pair(placements(mixed(2), Layout(1, 1, k)), ours) for k in range(1, MOST + 2)]
    assert len(plans._known) == MOST
    assert plans.pair(placements(mixed(2), Layout(1, 1, MOST + 1)), ours) is kept[-1]
