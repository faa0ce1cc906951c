"""Two hundred requests at once on slow machines over slow wires, and nothing wrong: all are served,
and nothing is done twice."""

import msgspec
import pytest
from tests.sim.test_overload import worker

from baton.core.door import Finish
from baton.core.gateway.request import FrontSettings
from baton.core.handoff.progress import ProgressTracker
from baton.core.marks import Mark
from baton.core.memory.host_ledger import state_bytes
from baton.core.memory.state import Placement
from baton.core.rank import read_queue
from baton.core.rank.read_queue import READS
from baton.core.scheduler.leader import Leader
from baton.dev.sim import world as world_module
from baton.dev.sim.costs import Costs, Shares
from baton.dev.sim.parts import SHIPPED, Parts, Replaced
from baton.dev.sim.plants.overload import PLANTS
from baton.dev.sim.run import _replaced, be_silent
from baton.dev.sim.settings import LONGEST, Faults, WorldDraw, draw_costs, draw_service, draw_table
from baton.dev.sim.tape import Tape
from baton.dev.sim.world import Violation, World

REQUESTS = 200
LONG = (
    Replaced(world_module, "MAX_EVENTS", 1_000_000),
    Replaced(world_module, "PROBE_US", 60_000_000),
    Replaced(world_module, "END_US", 900_000_000),
)
# a prompt's state takes 30 to 60 ms
WIRE = Costs(bytes_per_ms=50, read_us=1_000, shares=Shares.ALL)
ENGINE = Costs(step_us=50_000, token_us=2_000)  # a step takes 50 to 115 ms
BOTH = Costs(step_us=20_000, token_us=1_000, row_us=500, bytes_per_ms=50, shares=Shares.SOURCE)


def flow(costs: Costs, *, workers: int = 1, parts: Parts = SHIPPED) -> World:
    """All ask within two seconds; workers hold as many as come, so that whatever is slow has them
    all in its queue."""
    be_silent()
    drawn = [
        msgspec.structs.replace(worker(role, pages=512, max_rooms=64), name=f"{role}-{i}")
        for role in ("prefill", "decode")
        for i in range(workers)
    ]
    draw = WorldDraw(
        draw_table(Tape(script={})),
        ("gateway-0",),
        tuple(drawn),
        Faults(),
        REQUESTS,
        2_000,
        True,
        True,
        costs=costs,
    )
    parts = Parts(replaced=(*LONG, *parts.replaced))
    world = World(Tape(seed=1), parts, draw=draw, front=FrontSettings(queue_ms=300_000))
    with _replaced(parts):
        world.run()
    return world


@pytest.mark.parametrize(
    ("costs", "workers"), [(WIRE, 1), (ENGINE, 1), (BOTH, 2)], ids=["wire", "engine", "both"]
)
def test_whoever_waits_for_its_turn_is_served_and_nothing_is_done_twice(costs, workers):
    world = flow(costs, workers=workers)
    clients = [c for c in world.people.clients if not c.probe]
    assert sum(isinstance(c.end, Finish) for c in clients) == REQUESTS
    assert world.work.done >= REQUESTS * 5
    assert world.work.again <= world.work.done // 50
    assert (
        not {Mark.STALL, Mark.NEW_EPOCH, Mark.READ_AGAIN, Mark.FETCH_FAILED}
        & world.core_marks.keys()
    )
    longest = max(c.ended_at - c.sent_at for c in clients)
    assert longest > 2 * 1_500_000, (
        "nobody waited for as long as would have been called a standstill"
    )


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_a_clock_that_runs_while_somebody_queues_is_found_here(plant):
    costs = WIRE if plant.name == "reads_all_at_once" else ENGINE
    with pytest.raises(Violation) as found:
        flow(costs, parts=plant.make())
    assert found.value.invariant in plant.invariants


def test_the_plants_replace_what_they_say():
    names = {(r.owner, r.name) for plant in PLANTS for r in plant.make().replaced}
    assert names == {
        (ProgressTracker, "patience_ends"),
        (Leader, "_on_progress"),
        (read_queue, "READS"),
    }


FETCH_US = 500_000  # the deadline of a read


@pytest.mark.timeout(300)
def test_no_wire_is_so_slow_that_a_read_runs_out_of_time_behind_those_that_are_given_with_it():
    """Each rank of each decode worker that shares the wire has so many reads with it, of the
    largest ordinary request at most; of few heads several ranks read the same ones."""
    replicas = 0
    for seed in range(600):
        draw = draw_service(Tape(seed=seed))
        costs = draw_costs(Tape(seed=seed), draw)
        for w in draw.workers if costs.bytes_per_ms else ():
            ranks = [(t, p) for p in range(w.pp) for t in range(w.tp)]
            reads = [
                state_bytes(Placement(draw.table, w.tp, w.pp, t, p, 1), LONGEST) for t, p in ranks
            ]
            replicas += sum(reads) > state_bytes(Placement(draw.table, 1, 1, 0, 0, 1), LONGEST)
            others = max(1, len(draw.workers) - 1)
            assert others * READS * sum(map(costs.carrying, reads)) < FETCH_US
    assert replicas > 10
