"""Worlds in which work hangs and requests kill whoever computes them: nobody else fails, and nobody waits for a deadline."""

from collections.abc import Iterator

import msgspec
import pytest
from tests.sim.test_overload import worker

from baton.core.door import Fail, Finish
from baton.core.marks import Mark
from baton.core.messages import FailCode
from baton.core.watchdog import Watchdog
from baton.sim.gray import DEATHS, NOTICED_US
from baton.sim.parts import SHIPPED, Parts, Replaced
from baton.sim.plants import BY_NAME
from baton.sim.run import _replaced, be_silent
from baton.sim.settings import Faults, WorldDraw, draw_table
from baton.sim.tape import Tape
from baton.sim.world import Violation, World

SEEDS = range(12)
BEYOND_US = 8_000_000  # noticed, the worker started again, its silence (3 s) heard by all; a request's own deadline is 20 s


@pytest.fixture(autouse=True)
def silence() -> None:
    be_silent()


def world(seed: int, faults: Faults, parts: Parts = SHIPPED, *, each: int = 3) -> World:
    """So many workers of each role, and nothing else that goes wrong."""
    roles = [(role, i) for role in ("prefill", "decode") for i in range(each)]
    workers = tuple(msgspec.structs.replace(worker(role, pages=40, max_rooms=8), name=f"{role}-{i}") for role, i in roles)
    draw = WorldDraw(draw_table(Tape(script={})), ("gateway-0",), workers, faults, 12, 800, True, True)
    with _replaced(parts):
        found = World(Tape(seed=seed), parts, draw=draw)
        found.run()
    return found


def worlds(faults: Faults, parts: Parts = SHIPPED) -> Iterator[World]:
    return (world(seed, faults, parts) for seed in SEEDS)


@pytest.mark.timeout(300)
def test_a_poison_request_ends_two_workers_and_is_refused_and_everybody_else_is_served() -> None:
    refused = raised = 0
    for found in worlds(Faults(poison=True)):
        for client in found.people.clients:
            request = client.submit.request
            if found.gray.deaths[request]:
                assert found.gray.deaths[request] == DEATHS
                assert isinstance(client.end, Fail)
                assert client.end.code is FailCode.POISON
                refused += 1
            elif isinstance(client.end, Fail):
                assert request in found.gray.failing
                assert client.end.code is FailCode.COMPUTE_FAILED
                raised += 1
            else:
                assert isinstance(client.end, Finish)
    assert refused >= 6
    assert raised >= 3


@pytest.mark.timeout(300)
def test_work_that_never_ends_costs_seconds_and_no_request_fails() -> None:
    given_up = 0
    for found in worlds(Faults(hangs=6)):
        given_up += found.core_marks[Mark.GIVEN_UP]
        for client in found.people.clients:
            assert isinstance(client.end, Finish)
            assert client.ended_at - client.sent_at <= NOTICED_US + BEYOND_US
    assert given_up >= 3


def violation(faults: Faults, parts: Parts, *, each: int = 3) -> str:
    for seed in range(60):
        try:
            world(seed, faults, parts, each=each)
        except Violation as found:
            return found.invariant
    return ""


@pytest.mark.parametrize(
    ("name", "each"),
    [("poison_tried_everywhere", 3), ("suspect_shares_its_step", 3), ("suspect_begins_at_once", 3), ("company_refused", 2)],
)
@pytest.mark.timeout(300)
def test_planted_bugs_with_poison_are_found_in_worlds_made_for_it(name: str, each: int) -> None:
    plant = BY_NAME[name]
    assert violation(Faults(poison=True), plant.make(), each=each) in plant.invariants


@pytest.mark.parametrize("name", ["watchdog_asleep", "watchdog_of_steps_alone"])
@pytest.mark.timeout(300)
def test_planted_bugs_of_the_watchdog_are_found_in_worlds_made_for_it(name: str) -> None:
    plant = BY_NAME[name]
    assert violation(Faults(hangs=6), plant.make()) in plant.invariants


def _impatient(self: Watchdog, lane: object) -> float:
    return 1_000.0  # microseconds


@pytest.mark.timeout(300)
def test_a_watchdog_that_ends_workers_which_are_slow_is_found() -> None:
    parts = Parts(replaced=(Replaced(Watchdog, "_bound", _impatient),))
    assert violation(Faults(reorder=0.01), parts) == "no_false_alarm"
