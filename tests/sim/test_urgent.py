"""An urgent request among others that run in the stages of a pipeline: it waits for their steps,
not for their ends."""

import msgspec
import pytest
from tests.sim.test_overload import worker

from baton.core.door import Finish, RequestId, Submit
from baton.core.events import Submitted
from baton.core.ids import TokenId
from baton.core.marks import Mark
from baton.core.messages import Limits, Sampling
from baton.dev.sim import content
from baton.dev.sim import world as world_module
from baton.dev.sim.clients import Client
from baton.dev.sim.costs import Costs
from baton.dev.sim.parts import Parts, Replaced
from baton.dev.sim.run import _replaced, be_silent
from baton.dev.sim.settings import Faults, WorldDraw, draw_table
from baton.dev.sim.tape import Tape
from baton.dev.sim.world import World

STEP_US = 60_000
PARTS = Parts(replaced=(Replaced(world_module, "PROBE_US", 20_000_000),))
COSTS = Costs(step_us=STEP_US)
# when, in steps; tokens of the prompt and of the answer; priority
Asked = tuple[int, int, int, int]


class Told(World):
    """Clients ask what they are told to ask."""

    asked: tuple[Asked, ...]

    def _schedule(self) -> None:
        for steps, *what in self.asked:
            self.heap.after(steps * STEP_US, self._ask, *what)

    def _ask(self, length: int, answer: int, priority: int) -> None:
        number = next(self.people._numbers)
        prompt = tuple(
            TokenId(content.scramble(number * 64 + i) % content.VOCABULARY) for i in range(length)
        )
        sampling, limits = Sampling(0.0, 1.0, 0, number, None), Limits(answer, (), (), 100_000)
        submit = Submit(RequestId(number), prompt, sampling, limits, priority=priority)
        self.people.oracle.clients[submit.request] = Client(
            submit, "gateway-0", self.heap.now, False, False, False, False
        )
        self.gateways["gateway-0"].step(Submitted(submit, self.new_room()))


def told(*asked: Asked, pp: int, pages: int, page_blocks: int = 1) -> list[Client]:
    """Those who asked, all well served, and what the core went through."""
    be_silent()
    decode = msgspec.structs.replace(
        worker("decode", pages=pages, max_rooms=8),
        pp=pp,
        page_blocks=page_blocks,
        host_bytes=1 << 20,
    )
    prefill = msgspec.structs.replace(
        worker("prefill", pages=128, max_rooms=8), step_tokens=280, last_chunk_tokens=280
    )
    hostile_ms = (max(at for at, *_ in asked) + 2) * STEP_US // 1000
    draw = WorldDraw(
        draw_table(Tape(script={})),
        ("gateway-0",),
        (prefill, decode),
        Faults(),
        0,
        hostile_ms,
        True,
        True,
        costs=COSTS,
    )
    world = Told(Tape(seed=1), PARTS, draw=draw)
    world.asked = asked
    with _replaced(PARTS):
        world.run()
    assert (world.core_marks[Mark.PIPELINED] > 20) == (pp > 1)
    clients = [c for c in world.people.clients if not c.probe]
    assert all(isinstance(c.end, Finish) for c in clients)
    return clients


@pytest.mark.parametrize("pp", [1, 2])
def test_an_urgent_request_does_not_wait_for_the_end_of_those_that_run(pp):
    """It needs the pages of all four, which is more than are in any one step of a pipeline."""
    *others, urgent = told(*[(0, 8, 40, 2)] * 4, (10, 140, 3, 0), pp=pp, pages=40)
    assert all(c.ended_at > urgent.ended_at for c in others)


@pytest.mark.parametrize("pp", [1, 2])
def test_who_lacks_a_page_has_it_from_the_least_urgent_though_others_fill_the_steps(pp):
    """Three rooms have all pages that they will ever need, the second of them is the least urgent;
    the fourth needs one more."""
    asked = [(0, 65, 25, 0), (0, 65, 25, 2), (0, 65, 25, 0), (0, 62, 8, 0)]
    *others, last = told(*asked, pp=pp, pages=11, page_blocks=8)
    assert all(c.ended_at > last.ended_at for c in others)
