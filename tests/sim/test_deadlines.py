"""Crowds whose requests have little time: none begins that would not end in time, and the workers
are kept busy by the others."""

import msgspec
import pytest
from tests.sim.test_flow import LONG
from tests.sim.test_overload import worker

from baton.core.door import Fail, Finish
from baton.core.gateway.registered_worker import RegisteredWorker
from baton.core.messages import FailCode
from baton.dev.sim import people
from baton.dev.sim.costs import Costs
from baton.dev.sim.excuses import EVERYBODY, InjectedFault
from baton.dev.sim.parts import SHIPPED, Parts, Replaced
from baton.dev.sim.run import _replaced, be_silent
from baton.dev.sim.settings import Faults, WorldDraw, draw_table
from baton.dev.sim.tape import Tape
from baton.dev.sim.world import World

ANSWER = 40  # tokens
# a step of n rows takes 5 + 5 n ms: 100 tokens a second with one, 180 with nine
BY_ROWS = Costs(step_us=5_000, row_us=5_000)
FLAT = Costs(step_us=40_000)  # 25 tokens a second for each, however many there are


def hurried(costs: Costs, *, hurry_ms: int, seed: int = 1, parts: Parts = SHIPPED) -> World:
    """Twenty requests a second, for answers of 40 tokens each."""
    be_silent()
    workers = tuple(
        msgspec.structs.replace(worker(role, pages=2048, max_rooms=128), slots=512)
        for role in ("prefill", "decode")
    )
    draw = WorldDraw(
        draw_table(Tape(script={})),
        ("gateway-0",),
        workers,
        Faults(),
        300,
        15_000,
        True,
        True,
        costs=costs,
    )
    draw = msgspec.structs.replace(draw, hurry_ms=hurry_ms)
    parts = Parts(
        replaced=(*LONG, Replaced(people, "LONG_ANSWERS", (ANSWER,) * 5), *parts.replaced)
    )
    world = World(Tape(seed=seed), parts, draw=draw)
    world.all_faults.append(InjectedFault(0, "crowd", frozenset({EVERYBODY})))
    with _replaced(parts):
        world.run()
    return world


def became(world: World) -> tuple[int, int, int]:
    """How many requests were served, how many were refused or told while they waited, and how many
    began and ran out of time."""
    clients = [c for c in world.people.clients if not c.probe]
    served = sum(isinstance(c.end, Finish) for c in clients)
    failed = sum(
        isinstance(c.end, Fail) and c.end.code is FailCode.DEADLINE_EXCEEDED for c in clients
    )
    told = sum(isinstance(c.end, Fail) and c.end.code is FailCode.QUEUE_TIMEOUT for c in clients)
    refused = sum(c.gone == "refused" for c in clients)
    assert served + failed + told + refused == len(clients)
    return served, told + refused, failed


@pytest.mark.parametrize("seed", [1, 3])  # all at once; over ten seconds
@pytest.mark.parametrize("hurry_ms", [3_000, 5_000, 8_000])
def test_in_a_crowd_with_little_time_whatever_begins_ends_in_time(seed, hurry_ms):
    """Of 180 tokens a second that could be generated from the first request to the last deadline,
    half are of use at least."""
    world = hurried(BY_ROWS, hurry_ms=hurry_ms, seed=seed)
    served, told, failed = became(world)
    assert failed == 0
    assert told > 200, "this was no crowd"
    asked = [c.sent_at for c in world.people.clients if not c.probe]
    seconds = (max(asked) - min(asked)) / 1e6 + hurry_ms / 1e3
    assert served * ANSWER >= 180 * seconds / 2


@pytest.mark.parametrize("hurry_ms", [5_000, 8_000])
def test_where_more_rows_cost_nothing_nearly_all_are_served(hurry_ms):
    served, _, failed = became(hurried(FLAT, hurry_ms=hurry_ms, seed=3))
    assert (served > 200, failed) == (True, 0)


def test_without_looking_at_the_time_nearly_all_that_begin_are_too_late():
    heedless = Parts(
        replaced=(
            Replaced(RegisteredWorker, "in_time", lambda *_: True),
            Replaced(RegisteredWorker, "takes_us", lambda *_: 0),
        )
    )
    served, _, failed = became(hurried(BY_ROWS, hurry_ms=5_000, seed=3, parts=heedless))
    assert failed > 100 > 30 > served
