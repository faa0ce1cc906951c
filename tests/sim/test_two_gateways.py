"""Two gateways under load, one of which is restarted: whose requests are older is said alike by
both, before and after."""

from statistics import mean

import msgspec
import pytest
from tests.sim.test_overload import worker

from baton.core.door import Finish, Heard, Submit
from baton.core.gateway.front import Front
from baton.core.gateway.request import FrontSettings
from baton.core.gateway.stamps import Stamps
from baton.core.ids import Micros, Room
from baton.dev.sim import people
from baton.dev.sim import world as world_module
from baton.dev.sim.costs import Costs
from baton.dev.sim.overtaking import Overtaking
from baton.dev.sim.parts import Parts, Replaced
from baton.dev.sim.run import _replaced, be_silent
from baton.dev.sim.settings import Faults, WorldDraw, draw_table
from baton.dev.sim.tape import Tape
from baton.dev.sim.world import Violation, World

CLIENTS = 8  # of each gateway
GATEWAYS = ("gateway-0", "gateway-1")
SECONDS, RESTART_S, SETTLED_S = 24, 10, 14
# times as long as before, and as at the restarted gateway, requests at the other one take in the
# mean at most
EVEN = 1.25
COSTS = Costs(step_us=20_000)
SETTINGS = (
    Replaced(people, "ANSWERS", (4, 6, 8, 10, 10)),
    Replaced(world_module, "MAX_EVENTS", 2_000_000),
    Replaced(world_module, "PROBE_US", 20_000_000),
)


class Chosen(Tape):
    """Whoever asks has chosen a gateway."""

    gateway = 0

    def below(self, n: int, label: str) -> int:
        return self.gateway if label == "gateway" else super().below(n, label)


class Alike(Front):
    """All requests are as urgent, and all have more time than the whole run takes."""

    def _submit(self, submit: Submit, room: Room, now: Micros) -> None:
        limits = msgspec.structs.replace(submit.limits, deadline_ms=1_000_000)
        super()._submit(msgspec.structs.replace(submit, limits=limits, priority=0), room, now)


class Restarted(World):
    """So many clients at each gateway, each of which asks it again as soon as it has its answer;
    one gateway is restarted."""

    def _schedule(self) -> None:
        self._come(0)
        self._come(1)
        self.heap.at(
            RESTART_S * 1_000_000, lambda: self.gateways[GATEWAYS[1]].process.die("restarted")
        )
        self.heap.at(RESTART_S * 1_000_000 + 1_500_000, self._come, 1)

    def _come(self, gateway: int) -> None:
        for i in range(CLIENTS):
            self.heap.after(10_000 * i, self._ask, gateway)

    def _ask(self, gateway: int) -> None:
        self.tape.gateway = gateway
        self.people.ask()

    def start(self) -> None:
        hear = self.people.hear

        def again(heard: Heard) -> None:
            hear(heard)
            asked = self.people.oracle.clients[heard.request]
            if (
                isinstance(heard, Finish)
                and not asked.probe
                and self.heap.now < SECONDS * 1_000_000
            ):
                self.heap.after(
                    1 + 1_000 * self.tape.below(20, "thinks"),
                    self._ask,
                    GATEWAYS.index(asked.gateway),
                )

        self.people.hear = again
        super().start()


def waits(*planted: Replaced, judged: bool = True) -> dict[str, tuple[float, ...]]:
    """Mean seconds that requests of each gateway took: before one was restarted, and when it was
    back."""
    be_silent()
    workers = (worker("prefill", pages=64, max_rooms=3), worker("decode", pages=64, max_rooms=8))
    draw = WorldDraw(
        draw_table(Tape(script={})),
        GATEWAYS,
        workers,
        Faults(),
        0,
        SECONDS * 1000,
        True,
        True,
        costs=COSTS,
    )
    parts = Parts(front=Alike, replaced=(*SETTINGS, *planted))
    world = Restarted(Chosen(seed=2), parts, draw=draw, front=FrontSettings(queue_ms=500_000))
    if not judged:
        world.overtaking = Overtaking(lambda invariant, detail: None, lambda: 0, timely=False)
    with _replaced(parts):
        world.run()
    spans = ((2, RESTART_S - 3), (SETTLED_S, SECONDS))
    return {
        gateway: tuple(mean(took(world, gateway, *span)) for span in spans) for gateway in GATEWAYS
    }


def took(world: World, gateway: str, first_s: int, last_s: int) -> list[float]:
    """Seconds that the requests took which were sent to a gateway between two seconds."""
    asked = [
        c
        for c in world.people.clients
        if c.gateway == gateway and first_s * 1_000_000 <= c.sent_at < last_s * 1_000_000
    ]
    return [(c.ended_at - c.sent_at) / 1e6 for c in asked if isinstance(c.end, Finish)]


@pytest.mark.timeout(300)
def test_a_gateway_that_restarts_does_not_push_aside_the_requests_of_the_other():
    (before, after), (_, restarted) = waits().values()
    assert after <= EVEN * before, (
        f"requests at the other gateway took {before:.2f} s before, {after:.2f} s afterwards"
    )
    assert 1 / EVEN <= after / restarted <= EVEN, (
        f"{after:.2f} s at the other gateway, {restarted:.2f} s at the restarted one"
    )


FROM_ONE = Replaced(Stamps, "heard", lambda self, stamp: None)


@pytest.mark.timeout(300)
def test_with_stamps_from_one_the_requests_of_the_other_gateway_take_three_times_as_long():
    (before, after), (_, restarted) = waits(FROM_ONE, judged=False).values()
    assert after > 1.8 * before
    assert after > 2.5 * restarted


@pytest.mark.timeout(300)
def test_stamps_from_one_break_the_order():
    with pytest.raises(Violation, match=r"one_order: gateway-[01] gives"):
        waits(FROM_ONE)
