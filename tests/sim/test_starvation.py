"""Minutes of virtual time under pressure: long and short, urgent and not. All end well, within the
stated bounds."""

from collections import defaultdict
from dataclasses import replace

import msgspec
import pytest
from tests.sim.test_overload import listening, worker

from baton.core.door import Finish, Heard, Submit
from baton.core.gateway.edge_queue import OLDEST_EVERY
from baton.core.gateway.front import Front
from baton.core.gateway.request import FrontSettings
from baton.core.ids import Micros, Room
from baton.core.marks import Mark
from baton.dev.sim import people
from baton.dev.sim import world as world_module
from baton.dev.sim.costs import Costs
from baton.dev.sim.excuses import EVERYBODY, InjectedFault
from baton.dev.sim.parts import Parts, Replaced
from baton.dev.sim.run import _replaced, be_silent
from baton.dev.sim.settings import Faults, WorldDraw, draw_table
from baton.dev.sim.tape import Tape
from baton.dev.sim.world import World

CLIENTS = 12
SLOWEST_S = 60
SETTINGS = (
    Replaced(people, "ANSWERS", (1, 2, 8, 24, 40)),  # tokens; prompts have up to 22
    Replaced(world_module, "MAX_EVENTS", 2_000_000),
    Replaced(world_module, "PROBE_US", 20_000_000),
)


class Crowd(World):
    """So many clients, each of which asks again as soon as it has its answer, for `hostile_ms`."""

    def _schedule(self) -> None:
        for _ in range(CLIENTS):
            self.heap.after(self.tape.below(20, "comes") * 10_000, self.people.ask)

    def start(self) -> None:
        until, hear = self.draw.hostile_ms * 1_000, self.people.hear

        def again(heard: Heard) -> None:
            hear(heard)
            if isinstance(heard, Finish) and self.heap.now < until:
                self.heap.after(1 + self.tape.below(20, "thinks") * 5_000, self.people.ask)

        self.people.hear = again  # type: ignore[method-assign]
        super().start()


class Patient(Front):
    """Whoever asks has more time than the whole run takes: what it waits for is bounded by turns,
    not by clocks."""

    def _submit(self, submit: Submit, room: Room, now: Micros) -> None:
        limits = msgspec.structs.replace(submit.limits, deadline_ms=1_000_000)
        super()._submit(msgspec.structs.replace(submit, limits=limits), room, now)


@pytest.mark.parametrize("seconds", [30, pytest.param(300, marks=pytest.mark.slow)])
def test_long_and_short_urgent_and_not_all_have_their_turn(seconds):
    """Decode holds one and a half of the longest requests; the world itself checks who overtakes
    whom while it is away."""
    be_silent()
    said: list[tuple[str, int]] = []
    decode = msgspec.structs.replace(worker("decode", pages=24, max_rooms=6), host_bytes=1 << 20)
    workers = (worker("prefill", pages=64, max_rooms=6), decode)
    costs = Costs(step_us=60_000)
    draw = WorldDraw(
        draw_table(Tape(script={})),
        ("gateway-0",),
        workers,
        Faults(),
        0,
        seconds * 1000,
        True,
        True,
        costs=costs,
    )
    parts = Parts(front=Patient, replaced=(*SETTINGS, *listening(said)))
    crowd = Crowd(Tape(seed=4), parts, draw=draw, front=FrontSettings(queue_ms=500_000))
    crowd.all_faults.append(InjectedFault(0, "crowd", frozenset({EVERYBODY})))
    with _replaced(replace(parts)):
        crowd.run()
    clients = [c for c in crowd.people.clients if not c.probe]
    assert len(clients) > 2 * seconds
    assert all(isinstance(c.end, Finish) for c in clients)
    assert crowd.core_marks[Mark.OFFLOADED] > seconds
    assert crowd.core_marks[Mark.PREEMPTED] > seconds / 3
    assert crowd.core_marks[Mark.OVERTAKEN] > seconds
    within_bound(said)
    took = defaultdict(list)
    for c in clients:
        took[c.submit.priority].append((c.ended_at - c.sent_at) / 1e6)
    assert max(max(times) for times in took.values()) < SLOWEST_S, {
        p: max(t) for p, t in took.items()
    }


def within_bound(said: list[tuple[str, int]]) -> None:
    """Of those that wait at the gateway; core/gateway/edge_queue.py states how often one can be
    passed over."""
    came: dict[int, int] = {}
    begun: list[int] = []
    for what, arrival in said:
        if what == "comes":
            came[arrival] = len(begun)
            continue
        passed = begun[came[arrival] :]
        assert len(passed) + 1 <= OLDEST_EVERY * (sum(s < arrival for s in passed) + 1)
        begun.append(arrival)
