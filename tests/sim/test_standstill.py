"""Worlds in which the whole machine stands still for a while: nobody takes anybody for lost, and
everybody is served."""

import msgspec
import pytest
from tests.sim.test_overload import worker

from baton.core.door import Finish
from baton.core.session.session import Session, SessionLimits, Sessions
from baton.dev.sim.costs import Costs
from baton.dev.sim.parts import Parts, Replaced
from baton.dev.sim.run import _replaced, be_silent
from baton.dev.sim.settings import Faults, WorldDraw, draw_table
from baton.dev.sim.tape import Tape
from baton.dev.sim.world import World

LONGER = 3 * SessionLimits().silence
SLOW = Costs(step_us=20_000)


def lost_while_standing_still(seed: int, *, credit: bool) -> tuple[World, list[str]]:
    """Everything stands still in the middle of the work: why anybody takes anybody for lost."""
    be_silent()
    roles = [(role, i) for role in ("prefill", "decode") for i in range(2)]
    workers = tuple(
        msgspec.structs.replace(worker(role, pages=40, max_rooms=8), name=f"{role}-{i}")
        for role, i in roles
    )
    draw = WorldDraw(
        draw_table(Tape(script={})),
        ("gateway-0",),
        workers,
        Faults(),
        12,
        12_000,
        True,
        True,
        costs=SLOW,
    )
    lost: list[str] = []
    lose = Sessions._lose

    def told(self: Sessions, session: Session, why: str, *rest: object, **more: bool) -> None:
        lost.append(why)
        lose(self, session, why, *rest, **more)  # type: ignore[arg-type]

    replaced = [Replaced(Sessions, "_lose", told)]
    if not credit:
        replaced.append(Replaced(Sessions, "turned", lambda self, now: None))
    with _replaced(Parts(replaced=tuple(replaced))):
        world = World(Tape(seed=seed), Parts(replaced=tuple(replaced)), draw=draw)
        world.heap.at(2_000_000, stand_still, world)
        world.run()
    return world, lost


def stand_still(world: World) -> None:
    for process in world.processes():
        process.paused_until = world.heap.now + LONGER


@pytest.mark.parametrize("seed", range(4))
def test_a_machine_that_stood_still_goes_on_where_it_was(seed: int) -> None:
    world, lost = lost_while_standing_still(seed, credit=True)
    assert [why for why in lost if "silent" in why] == []
    assert all(isinstance(client.end, Finish) for client in world.people.clients)


def test_without_credit_for_it_peers_are_taken_for_lost() -> None:
    assert any(
        "silent" in why for _, lost in [lost_while_standing_still(0, credit=False)] for why in lost
    )
