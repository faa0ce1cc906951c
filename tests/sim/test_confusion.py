"""Peers that are confused, and peers that say things twice: who is believed, and that nobody is
harmed."""

from types import SimpleNamespace

import pytest
from tests.sim.test_checkers import DECODE, GATEWAY, LIMITS, PREFILL, PROMPT, SAMPLING, key
from tests.sim.test_worlds import every_kind, worker

from baton.core.door import Finish
from baton.core.ids import Boot, Stamp
from baton.core.marks import Mark
from baton.core.messages import Abort, Admitted, Close, Credits, Ended, HelloBack, Offer, Ticket
from baton.dev.sim.confusion import Confusion, Voice
from baton.dev.sim.run import be_silent
from baton.dev.sim.settings import Faults, WorldDraw
from baton.dev.sim.tape import Tape
from baton.dev.sim.world import World

TICKET = Ticket(key(), Stamp(1), GATEWAY, PREFILL, DECODE, PROMPT, (), SAMPLING, LIMITS)
OFFER = Offer(key(), 0, {}, (), None)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "faults", [Faults(confused=0.9), Faults(twice=0.4), Faults(confused=0.5, twice=0.3)]
)
def test_nobody_fails_because_of_what_others_say(seed, faults):
    be_silent()
    roles = ("prefill", "prefill", "decode", "decode", "unified")
    workers = tuple(worker(role, 1, 1, 1, number=n) for n, role in enumerate(roles))
    draw = WorldDraw(
        every_kind(),
        ("gateway-0", "gateway-1"),
        workers,
        faults,
        12,
        200,
        attempts_differ=True,
        quiet_ends=True,
    )
    world = World(Tape(seed=seed), draw=draw)
    world.run()
    assert world.marks["said again"] > 20
    assert bool(world.core_marks[Mark.WRONG_PARTY]) == bool(faults.confused)
    assert all(isinstance(c.end, Finish) for c in world.people.clients)


@pytest.mark.parametrize(
    ("message", "kinds"), [(HelloBack("ab"), ["mistaken pair"]), (Ended(key()), [])]
)
def test_what_is_wrong_of_a_pair_is_noted_as_a_fault_of_its_speaker(message, kinds):
    found, silent = [], SimpleNamespace(send=lambda *_: None)
    fault = lambda kind, name: found.append((kind, name))  # noqa: E731
    world = SimpleNamespace(tickets={}, marks={"said again": 0}, tell=lambda _: None, fault=fault)
    confusion = Confusion(world, Tape())
    process = SimpleNamespace(name="prefill-0/0", alive=True, wake=lambda _: None)
    confusion.joins(PREFILL, Voice(process, SimpleNamespace(number=lambda _: 1), silent))
    confusion._say(PREFILL, DECODE, message)
    assert found == [(kind, "prefill-0/0") for kind in kinds]


def test_judges_believe_whom_the_ticket_names():
    confusion = Confusion(SimpleNamespace(tickets={key(): TICKET}), Tape())
    everybody = (GATEWAY, PREFILL, DECODE, Boot(77))
    said = (
        (Abort(key(), "x"), {GATEWAY}),
        (Close(key().room), {GATEWAY}),
        (TICKET, {GATEWAY}),
        (OFFER, {PREFILL}),
        (Admitted(key()), {DECODE}),
        (Ended(key()), {PREFILL, DECODE}),
        (Credits(1, DECODE, {}, {}, 0, 0), {DECODE}),
        (Ended(key(5)), set(everybody)),  # nobody knows whose it is
    )
    for message, who in said:
        assert {boot for boot in everybody if confusion.rightful(boot, message)} == who, message
