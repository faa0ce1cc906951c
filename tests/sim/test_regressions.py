"""Bugs of the shipped code that the simulator found: with the bug planted again its world fails,
without it that world is well.

The seeds stand in src/baton/dev/sim/plants/seeds.py (tools/planted_bugs.py finds them again when
the simulator changes). What is met in one world of 50,000 is looked for in worlds made for it.
"""

from collections.abc import Iterable
from types import SimpleNamespace

import msgspec
import pytest
from tests.sim import test_gray
from tests.sim.hash_seeds import traces
from tests.sim.test_overload import worker

from baton.core.agreement import Rehashed
from baton.core.gateway.request import Request
from baton.core.gateway.suspects import Suspects
from baton.core.handoff.fetch_back import FetchBack
from baton.core.ids import Boot, Rank, RankId
from baton.core.manifest import RankManifest
from baton.core.messages import FailCode, Stale
from baton.core.scheduler import roles as roles_module
from baton.core.scheduler import worker as worker_module
from baton.core.scheduler.fetching import Fetching
from baton.core.scheduler.inspections import Inspections
from baton.core.scheduler.room import RoomState
from baton.core.work import Connected
from baton.dev.sim import people
from baton.dev.sim.bank import first
from baton.dev.sim.costs import Costs
from baton.dev.sim.memory import SimFabric
from baton.dev.sim.parts import SHIPPED, Parts, Replaced
from baton.dev.sim.plants import BY_NAME
from baton.dev.sim.plants.resting import DoubtsNothing, NeverOrders, UsesOverdue
from baton.dev.sim.run import _replaced, be_silent, run
from baton.dev.sim.settings import Faults, WorldDraw, draw_table, draw_world
from baton.dev.sim.tape import Tape
from baton.dev.sim.world import Violation, World

OF_CROWDS = (5252, 7889, 8123, 17075)
FOUND = ("orders_forgotten", "deadline_blamed")


@pytest.mark.parametrize("name", FOUND)
@pytest.mark.timeout(300)
def test_a_bug_that_was_found_here_does_not_come_back(name):
    be_silent()
    world = first(BY_NAME[name])
    assert world is not None, f"{name} is not found any more"
    again = run(script=world.choices)
    assert not again.invariant, f"{name} is back: {again.detail}"


def _fails_whatever_it_has(self: Fetching, sender: Boot, stale: Stale) -> None:
    room = self.worker.find(stale.key)
    if room is not None and room.state is not RoomState.ENDING:
        self.worker.fail(
            room, FailCode.HANDOFF_FAILED, "the other side does not know this epoch", retry=True
        )


def _withdrawn(seed: int, *planted: Replaced) -> str:
    """What is violated in a world where two gateways press a prefill worker, which withdraws what
    it computes ahead, while frames lag and decode generates for so long that it hears of it."""
    long = Replaced(people, "ANSWERS", (16, 20, 20, 24, 24))
    workers = (worker("prefill", pages=12, max_rooms=8), worker("decode", pages=40, max_rooms=8))
    gateways, faults = ("gateway-0", "gateway-1"), Faults(lag=0.2, retry=0.2)
    draw = WorldDraw(draw_table(Tape(script={})), gateways, workers, faults, 24, 200, True, True)
    parts = Parts(replaced=(long, *planted))
    try:
        with _replaced(parts):
            World(Tape(seed=seed), parts, draw=draw).run()
    except Violation as violation:
        return f"{violation.invariant}: {violation.detail}"
    return ""


@pytest.mark.timeout(300)
def test_a_room_that_decode_has_committed_goes_on_though_prefill_has_withdrawn_it():
    """Admitted was late: prefill withdrew the room, and says that it does not know it (seeds 60328
    and 65614 of 100,000)."""
    be_silent()
    found = (
        (seed, _withdrawn(seed, Replaced(Fetching, "_on_stale", _fails_whatever_it_has)))
        for seed in range(340, 440)
    )
    seed = next((seed for seed, what in found if "does not know this epoch" in what), None)
    assert seed is not None, "it is not met any more: no world here shows what it guards against"
    assert _withdrawn(seed) == ""


class _LooksAtNothing(NeverOrders, UsesOverdue):
    """Cached pages are compared with nothing as long as they are cached."""


class _HearsNothing(Inspections):
    """What ranks find when they hash is not heard: the order stays under way for ever."""

    def take(self, rank: Rank, answers: Iterable[Rehashed]) -> None:
        pass


def _resting(seed: int, parts: Parts = SHIPPED) -> str:
    """What is violated in a world where nothing goes wrong but bits of cached pages, and clients
    ask what others have asked."""
    workers = (worker("prefill", pages=64, max_rooms=8), worker("decode", pages=64, max_rooms=8))
    faults = Faults(source_damage=5)
    draw = WorldDraw(
        table=draw_table(Tape(script={})),
        gateways=("gateway-0",),
        workers=workers,
        faults=faults,
        requests=24,
        hostile_ms=3000,
        attempts_differ=True,
        quiet_ends=True,
        fetch_back=FetchBack.ALWAYS,
        alike=True,
        verify_ms=400,
    )
    try:
        with _replaced(parts):
            World(Tape(seed=seed), parts, draw=draw).run()
    except Violation as violation:
        return f"{violation.invariant}: {violation.detail}"
    return ""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("parts", "what"),
    [
        (
            Parts(replaced=(Replaced(worker_module, "Scrubber", _LooksAtNothing),)),
            "damaged long ago",
        ),
        (Parts(replaced=(Replaced(roles_module, "Borrowing", DoubtsNothing),)), "nobody is told"),
        (Parts(replaced=(Replaced(worker_module, "Inspections", _HearsNothing),)), "still keeps"),
    ],
    ids=["at rest", "lent", "never answered"],
)
def test_a_cached_page_that_changes_is_not_served_for_long(parts, what):
    """Pages that decode had cached were never compared again, and prefill kept to itself that a
    loan was damaged."""
    be_silent()
    seed = next((seed for seed in range(40) if what in _resting(seed, parts)), None)
    assert seed is not None, "it is not met any more: no world here shows what it guards against"
    assert _resting(seed) == ""


def test_a_connection_that_is_asked_for_again_is_answered_though_the_first_was_given_up():
    """The answer to the first, which nobody wanted any more, took that of the second away (seed
    69552)."""
    be_silent()
    world = World(Tape(script={}))
    world.costs = Costs(connect_us=100_000)
    process = SimpleNamespace(
        name="prefill-0/0", alive=True, port_call=lambda: None, wake=lambda: None
    )
    fabric = SimFabric(world, process, {}, None)
    peer = RankId(Boot(7), Boot(7), Rank(0))
    fabric.connect(peer, RankManifest(Boot(7), 0, 0, 0, (), {}))
    world.heap.advance(50_000)
    fabric.disconnect(peer)
    fabric.connect(peer, RankManifest(Boot(7), 0, 0, 0, (), {}))
    world.heap.advance(120_000)
    assert list(fabric.poll()) == []
    world.heap.advance(150_000)
    assert list(fabric.poll()) == [Connected(peer, "")]


def test_a_crowd_may_take_as_many_events_as_its_requests_need():
    """A hundred requests over eight legs were taken for an endless loop at their last probe (seed
    27884)."""
    be_silent()
    for requests, most in ((12, 60_000), (46, 60_000), (100, 130_000)):
        draw = WorldDraw(draw_table(Tape(script={})), (), (), Faults(), requests, 0, True, True)
        world = World(Tape(script={}), draw=draw)
        world.heap.events = most - 1
        world.heap.after(1, lambda: None)
        world.heap.after(3, lambda: None)
        world._advance(2)
        with pytest.raises(Violation, match=f"more than {most} events"):
            world._advance(4)


def _innocent_of_anything(self: Suspects, request: Request, sender: Boot) -> bool:
    """Whichever of its two workers tries another request, or an earlier epoch of this one."""
    trials = {self._alone(boot) for boot in request.pair or ()} - {None}
    return bool(trials) and request.key not in trials


def _poisoned(seed: int, parts: Parts = SHIPPED) -> str:
    """What is violated in a world where workers crash and requests kill them."""
    try:
        test_gray.world(seed, Faults(poison=True, crashes=2), parts, each=2)
    except Violation as violation:
        return violation.invariant
    return ""


@pytest.mark.timeout(300)
def test_a_request_is_not_acquitted_by_a_step_that_has_not_ended_its_worker():
    """Decode tried one request alone and missed the prefill worker that another one had ended: that
    one was never a suspect."""
    be_silent()
    parts = Parts(replaced=(Replaced(Suspects, "innocent", _innocent_of_anything),))
    seed = next((seed for seed in range(60) if _poisoned(seed, parts) == "poison_bounded"), None)
    assert seed is not None, "it is not met any more: no world here shows what it guards against"
    assert _poisoned(seed) == ""


@pytest.mark.parametrize(
    "seed",
    [
        *OF_CROWDS,
        56542,
        67484,
        77429,
        80083,
        93003,
        95205,
        95319,
        97122,
        100014,
        110509,
        113577,
    ],
)
def test_checkers_are_not_misled(seed):
    """A request whose worker is ended by another request long after all has healed, and that waits
    for the successor; one that ends three workers, while one drains; a Close of a room
    that is open, by somebody's mistake; a room that ends in the very step that says Received;
    offers that came before their ticket, and that a confused worker says again after it; a page
    that a generated token and a chunk of another prompt complete in one step; a worker that drains
    until its last prompt, of 20 s, is computed; a crowd whose last request waits for longer
    than it would take alone; a suspect whose step is over, as only the worker knows that the next
    one ends."""
    be_silent()
    tape = Tape(seed=seed)
    # they are of one version and without drafts, as then
    draw = msgspec.structs.replace(draw_world(tape), older="", drafts=False)
    World(tape, draw=draw).run()


@pytest.mark.parametrize("seed", [15529, 36081, 38264, 45846, 50818])
def test_what_was_found_in_mixed_worlds_does_not_come_back(seed):
    """A loan that a confused worker says again is not returned to its lender, so nobody need be
    told of what differed in it; a worker that says that an epoch has ended in which it computes is
    not confused, but lies, and the next one that its request ends is the third; a worker that gives
    up in the turn in which it finds damage ends with its rooms; a step of a request that its worker
    has given up ends that worker, and counts against the request."""
    be_silent()
    tape = Tape(seed=seed)
    World(tape, draw=msgspec.structs.replace(draw_world(tape), drafts=False)).run()


@pytest.mark.parametrize("seed", [1222, 2375])
def test_a_checkpoint_that_takes_too_long_is_a_fault(seed):
    """What follows a checkpoint within a prompt waits for its copy, as it does for a step."""
    be_silent()
    World(Tape(seed=seed)).run()


def test_nothing_is_kept_of_a_state_that_goes_on_already():
    """The next chunk was ordered as this position was kept of an earlier prompt; before this one's
    chunk had ended the caches were emptied, and it was to be kept anew: of a slot that was two
    positions further."""
    be_silent()
    World(Tape(seed=27905)).run()


def test_two_groups_that_last_are_named_in_one_order():
    """An order to hash cached pages named their groups as a set of strings has them, which differs
    from process to process."""
    assert len(traces(102, "SHIPPED")) == 1
