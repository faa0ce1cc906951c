"""Worlds with more requests than they can serve: what is taken is served or told in time, and holds
nothing afterwards."""

import pytest

from baton.core.door import Fail, Finish
from baton.core.gateway.assignment import Assignment
from baton.core.gateway.edge_queue import OLDEST_EVERY
from baton.core.gateway.epochs import Epochs
from baton.core.gateway.request import FrontSettings
from baton.core.messages import FailCode
from baton.core.scheduler.leader import Leader
from baton.dev.sim.costs import Costs
from baton.dev.sim.excuses import EVERYBODY, InjectedFault
from baton.dev.sim.parts import SHIPPED, Parts, Replaced
from baton.dev.sim.run import _replaced, be_silent
from baton.dev.sim.settings import Faults, WorkerDraw, WorldDraw, draw_table
from baton.dev.sim.tape import Tape
from baton.dev.sim.world import Violation, World

PATIENCE_MS = 200
SLOW = Costs(step_us=5_000)  # a step takes 5 ms, a request about 20


@pytest.fixture(autouse=True)
def silence():
    be_silent()


def worker(role: str, *, pages: int, max_rooms: int) -> WorkerDraw:
    return WorkerDraw(
        name=f"{role}-0",
        role=role,
        tp=1,
        pp=1,
        page_blocks=1,
        pages=pages,
        slots=8,
        step_tokens=8,
        last_chunk_tokens=8,
        max_rooms=max_rooms,
    )


def crowd(
    parts: Parts = SHIPPED,
    *,
    seed: int,
    requests: int = 60,
    queue_ms: int = PATIENCE_MS,
    max_queued: int = 12,
) -> World:
    """Decode runs one request at a time; prefill has pages for many, so that prompts pile up
    between the two."""
    workers = (worker("prefill", pages=64, max_rooms=3), worker("decode", pages=9, max_rooms=1))
    draw = WorldDraw(
        draw_table(Tape(script={})),
        ("gateway-0",),
        workers,
        Faults(),
        requests,
        20,
        True,
        True,
        costs=SLOW,
    )
    front = FrontSettings(queue_ms=queue_ms, max_queued=max_queued)
    world = World(Tape(seed=seed), parts, draw=draw, front=front)
    world.all_faults.append(InjectedFault(0, "crowd", frozenset({EVERYBODY})))
    with _replaced(parts):
        world.run()
    return world


@pytest.mark.parametrize("seed", range(2))
def test_in_a_crowd_everybody_is_served_or_told_in_time_and_nothing_is_left(seed):
    """The world itself checks that nothing is held at rest, and that two requests after the crowd
    end well."""
    world = crowd(seed=seed)
    clients = [c for c in world.people.clients if not c.probe]
    served = [c for c in clients if isinstance(c.end, Finish)]
    late = [c for c in clients if isinstance(c.end, Fail)]
    refused = [c for c in clients if c.gone]
    assert len(served) + len(late) + len(refused) == 60
    assert {c.gone for c in refused} <= {"refused"}
    assert all(c.ended_at == c.sent_at for c in refused), "at once"
    assert {c.end.code for c in late} <= {FailCode.QUEUE_TIMEOUT}
    assert all(c.ended_at - c.sent_at <= PATIENCE_MS * 1000 + 20_000 for c in late)
    assert len(served) >= 5
    assert len(late) + len(refused) >= 10, "this was no crowd"


def test_what_waits_in_the_middle_without_a_deadline_is_found():
    """Prompts that were computed ahead of admission hold their pages until somebody else ends
    them."""
    parts = Parts(replaced=(Replaced(Leader, "_unadmitted", lambda self, room: False),))
    with pytest.raises(Violation, match="bounded_wait"):
        crowd(parts, seed=0, queue_ms=50)


def listening(said: list[tuple[str, int]]) -> tuple[Replaced, ...]:
    """A gateway that tells who comes and who begins."""

    def start(self, request, now):
        said.append(("comes", request.arrival))
        shipped_start(self, request, now)

    def begin(self, request, pair, now):
        said.append(("begins", request.arrival))
        shipped_begin(self, request, pair, now)

    shipped_start, shipped_begin = Assignment.start, Epochs.begin
    return Replaced(Assignment, "start", start), Replaced(Epochs, "begin", begin)


def test_in_a_crowd_of_priorities_everybody_has_a_turn_within_the_bound():
    """Clients ask with priorities 0, 1 and 2 in turn; core/gateway/edge_queue.py states how often
    one can be passed over."""
    said = []
    world = crowd(Parts(replaced=listening(said)), seed=1, queue_ms=20_000, max_queued=100)
    assert all(isinstance(c.end, Finish) for c in world.people.clients)
    overtaken = 0
    for at, (what, arrival) in enumerate(said):
        if what == "begins":
            came = max(i for i, event in enumerate(said[:at]) if event == ("comes", arrival))
            passed = [s for what, s in said[came:at] if what == "begins"]
            overtaken += sum(s > arrival for s in passed)
            assert len(passed) + 1 <= OLDEST_EVERY * (sum(s < arrival for s in passed) + 1)
    assert overtaken > 20, "priorities did not matter here"
