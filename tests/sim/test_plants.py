"""The bank of planted bugs: each is found within 500 seeds by the invariant that it says; in
test_worlds.py what ships breaks none."""

import pytest

from baton.core.scheduler import roles
from baton.dev.sim import gateway as gateway_module
from baton.dev.sim.bank import PlantResult, first, measure, table
from baton.dev.sim.parts import SHIPPED, Parts, Replaced
from baton.dev.sim.plants import BANK, BY_NAME
from baton.dev.sim.plants.epochs import RepeatsTickets
from baton.dev.sim.plants.handing import RecordBehind
from baton.dev.sim.run import CRASHED, be_silent, run

NAMED = {  # in the record of what must never happen here
    1: {"commit_without_record", "fetch_used_before_end"},
    2: {"gate_after_fold"},
    3: {"slot_view"},
    4: {"trim_to_shorter"},
    5: {"collapsed_identity"},
    6: {"free_while_reading", "source_reused_no_seal"},
    7: {"no_epoch"},
}


@pytest.fixture(autouse=True)
def _silent():
    be_silent()


@pytest.mark.parametrize("plant", BANK, ids=lambda plant: plant.name)
@pytest.mark.timeout(300)
def test_a_planted_bug_is_found_by_the_invariant_that_it_says(plant):
    found = first(plant)
    assert found is not None, f"{plant.name} is not found within 500 seeds"
    assert found.invariant in plant.invariants


def test_the_bank_is_whole():
    assert len(BANK) == len(BY_NAME) >= 28
    for row, names in NAMED.items():
        assert all(BY_NAME[name].row == row for name in names)
    assert all(plant.invariants and CRASHED not in plant.invariants for plant in BANK)


@pytest.mark.parametrize(
    "parts",
    [
        Parts(replaced=(Replaced(gateway_module, "GatewayPump", RepeatsTickets),)),
        Parts(replaced=(Replaced(roles, "Offering", RecordBehind),)),
    ],
    ids=["tickets", "records"],
)
def test_what_a_plant_needs_around_it_is_harmless_by_itself(parts):
    broken = [
        (o.seed, o.invariant, o.detail)
        for o in (run(seed, parts=parts) for seed in range(30))
        if o.invariant
    ]
    assert not broken


def test_a_plant_is_gone_when_its_run_is_over():
    short, before = 10, run(5).trace
    for plant in BANK:
        if plant.make().replaced:
            run(short, parts=plant.make())
    assert run(5).trace == before
    assert Parts() == SHIPPED


def test_measuring_and_the_table():
    plants = [BY_NAME["blind_seal"], BY_NAME["fetch_used_before_end"]]
    found = [measure(plant, range(4)) for plant in plants]
    assert found[1].first_seed is not None
    assert found[1].seeds == 4
    *_, last = table(plants, found).splitlines()
    assert last.startswith("| `fetch_used_before_end` |")
    assert last.endswith(f"| {found[1].first_seed} | {found[1].rate:.1%} of 4 |  |")
    assert "not found" in table(plants[:1], [PlantResult("blind_seal", None, "", 0.0, 4, {})])
