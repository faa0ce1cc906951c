"""How far prefill computes ahead of each decode worker: only rooms that wait for that one's memory
count."""

from tests.core.build import key, ticket
from tests.core.world import World

from baton.core.events import MessageReceived
from baton.core.ids import Boot
from baton.core.messages import Admitted, Offer
from baton.core.scheduler.room import RoomState

P, D, OTHER = Boot(2), Boot(3), Boot(4)


def world(*decodes: Boot, ahead: float) -> World:
    """A prefill worker of 16 pages, and decode workers that hear of no offer."""
    world = World()
    world.add("prefill", P, pages=16, ahead=ahead)
    for boot in decodes:
        world.add("decode", boot)
    world.run()
    world.hold = lambda source, target, message: isinstance(message, Offer)
    return world


def give(world: World, number: int, pages: int, decode: Boot = D) -> RoomState:
    """Prefill is given a prompt of so many pages."""
    leader = world.nodes[P].leader
    leader.step(
        MessageReceived(World.GATEWAY, ticket(number, decode=decode, length=4 * pages)), world.now
    )
    world.run()
    state: RoomState = leader.worker.rooms[key(number)].state
    return state


def test_a_prompt_that_decode_has_admitted_is_ahead_of_nobody() -> None:
    w = world(D, ahead=0.25)
    assert give(w, 1, pages=3) is RoomState.OFFERED
    w.nodes[P].leader.step(MessageReceived(D, Admitted(key(1))), w.now)
    assert give(w, 2, pages=3) is RoomState.OFFERED
    assert give(w, 3, pages=3) is RoomState.QUEUED


def test_a_decode_worker_that_is_full_keeps_no_prompt_of_another_one_waiting() -> None:
    w = world(D, OTHER, ahead=0.25)
    assert give(w, 1, pages=2) is RoomState.OFFERED
    assert give(w, 2, pages=2) is RoomState.QUEUED
    assert give(w, 3, pages=2, decode=OTHER) is RoomState.OFFERED
