"""What is said twice, or by a worker that the ticket does not name, changes nothing."""

import pytest
from tests.core.build import drawn, key, ticket
from tests.core.world import World

from baton.core.events import MessageReceived, TimerDue
from baton.core.ids import BlockIndex, Boot
from baton.core.messages import Admitted, Borrow, Loan, Offer, Record, Stale, Ticket
from baton.core.scheduler.leader import Leader
from baton.core.scheduler.room import RoomState

P, D, OTHER, U = 2, 3, 4, 5


def pair() -> World:
    """A prefill worker and its decode worker, a second prefill worker, and a unified one; nobody
    hears offers or admissions."""
    world = World()
    world.add("prefill", P)
    world.add("prefill", OTHER)
    world.add("decode", D)
    world.add("unified", U)
    world.run()
    world.hold = lambda source, target, message: isinstance(message, Offer | Admitted)
    return world


def leader(world: World, boot: int) -> Leader:
    return world.nodes[Boot(boot)].leader


def give(world: World, boot: int, said: Ticket) -> None:
    leader(world, boot).step(MessageReceived(World.GATEWAY, said), world.now)
    world.run()


def offer(number: int, record: Record | None = None) -> Offer:
    return Offer(key(), number, {}, (), record)


def admitted(world: World) -> list[Boot]:
    return [
        target
        for source, target, message in world.log
        if source == D and isinstance(message, Admitted)
    ]


# ---- another worker
# --------------------------------------------------------------------------------


def test_an_offer_of_another_prefill_worker_does_not_admit_a_room() -> None:
    world = pair()
    give(world, D, ticket())
    leader(world, D).step(MessageReceived(Boot(OTHER), offer(0)), world.now)
    world.run()
    room = leader(world, D).worker.rooms[key()]
    assert (room.state, room.offers, admitted(world)) == (RoomState.QUEUED, {}, [])
    leader(world, D).step(MessageReceived(Boot(P), offer(0)), world.now)
    world.run()
    assert admitted(world) == [P, World.GATEWAY]


def test_an_offer_of_another_prefill_worker_is_no_progress_of_a_room_that_fetches() -> None:
    world = pair()
    give(world, D, ticket())
    leader(world, D).step(MessageReceived(Boot(P), offer(0)), world.now)
    world.run()
    world.advance(1_000)
    room = leader(world, D).worker.rooms[key()]
    before = room.progress
    leader(world, D).step(
        MessageReceived(Boot(OTHER), offer(1, Record(room.length, drawn(7), None, 0))), world.now
    )
    world.run()
    assert (room.state, room.offers, room.record, room.progress) == (
        RoomState.FETCHING,
        {},
        None,
        before,
    )


def test_an_early_offer_of_another_prefill_worker_is_not_the_tickets() -> None:
    world = pair()
    leader(world, D).step(MessageReceived(Boot(OTHER), offer(0)), world.now)
    leader(world, D).step(MessageReceived(Boot(OTHER), Borrow(key(), BlockIndex(0))), world.now)
    give(world, D, ticket())
    room = leader(world, D).worker.rooms[key()]
    assert (room.state, room.offers) == (RoomState.QUEUED, {})
    assert not [m for source, _, m in world.log if source == D and isinstance(m, Loan)], (
        "nor is its question"
    )


# ---- twice
# -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("boot", [P, D, U])
def test_a_ticket_said_twice_leaves_its_room_as_it_is(boot: int) -> None:
    world = pair()
    said = ticket(prefill=U, decode=U) if boot == U else ticket()
    leader(world, boot).step(MessageReceived(World.GATEWAY, said), world.now)
    room, draft = (
        leader(world, boot).worker.rooms[key()],
        list(leader(world, boot).worker.draft.drop),
    )
    leader(world, boot).step(MessageReceived(World.GATEWAY, said), world.now)
    assert leader(world, boot).worker.rooms[key()] is room
    assert room.state is not RoomState.ENDING
    assert leader(world, boot).worker.draft.drop == draft


@pytest.mark.parametrize("boot", [P, D])
@pytest.mark.parametrize("again", [1, 2])
def test_after_the_end_neither_the_same_ticket_nor_an_older_one_makes_a_room(
    boot: int, again: int
) -> None:
    world = pair()
    give(world, boot, ticket(epoch=2))
    leader(world, boot).worker.end(leader(world, boot).worker.rooms[key(epoch=2)])
    leader(world, boot).step(TimerDue(), world.now)  # a turn, in which the ranks hear of it
    world.run()
    assert not leader(world, boot).worker.rooms
    give(world, boot, ticket(epoch=again))
    assert not leader(world, boot).worker.rooms


def test_an_offer_said_twice_is_taken_once() -> None:
    world = pair()
    give(world, D, ticket())
    for _ in range(2):
        leader(world, D).step(MessageReceived(Boot(P), offer(0)), world.now)
        world.run()
    room = leader(world, D).worker.rooms[key()]
    assert (room.state, room.taken) == (RoomState.FETCHING, 1)
    assert admitted(world) == [P, World.GATEWAY]


# ---- too late
# --------------------------------------------------------------------------------------


def test_an_admission_that_crosses_prefills_end_is_no_reason_for_another_failure() -> None:
    """Decode hears of the end from the gateway; a Stale would make it fail an epoch that has failed
    already."""
    world = pair()
    prefill = leader(world, P)
    prefill.step(MessageReceived(World.GATEWAY, ticket()), world.now)
    prefill.worker.end(prefill.worker.rooms[key()])
    assert prefill.worker.rooms[key()].state is RoomState.ENDING, (
        "its ranks have not heard of it yet"
    )
    prefill.step(MessageReceived(Boot(D), Admitted(key())), world.now)
    world.run()
    assert not prefill.worker.rooms
    assert not [m for _, _, m in world.log if isinstance(m, Stale)]
    prefill.step(MessageReceived(Boot(D), Admitted(key())), world.now)
    world.run()
    assert [m for _, target, m in world.log if target == D and isinstance(m, Stale)] == [
        Stale(key())
    ], "nothing is known of it"
