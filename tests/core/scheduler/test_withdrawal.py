"""An older request that finds no prefill pages: younger ones which decode has not admitted give
way, others never."""

from tests.core.build import ticket
from tests.core.world import World

from baton.core.events import MessageReceived
from baton.core.ids import Boot
from baton.core.messages import Admitted, Ended, Failed, Offer, Withdrawn
from baton.core.scheduler.prefill_room import PrefillRoom

P, D = 2, 3


def world(pages: int = 4) -> World:
    """A pair whose decode side hears of no offer, so that it admits nothing by itself."""
    world = World()
    world.add("prefill", P, pages=pages)
    world.add("decode", D, pages=16)
    world.run()
    world.hold = lambda source, target, message: isinstance(message, Offer | Admitted)
    return world


def give(world: World, number: int, length: int) -> None:
    leader = world.nodes[Boot(P)].leader
    leader.step(MessageReceived(World.GATEWAY, ticket(number, length=length)), world.now)
    world.run()


def said(world: World, kind: type) -> list[tuple[int, int]]:
    """(room number, receiver) of every message of that kind from prefill."""
    return [(int(m.key.room, 16), t) for s, t, m in world.log if s == P and isinstance(m, kind)]


def rooms(world: World) -> dict[int, PrefillRoom]:
    leader = world.nodes[Boot(P)].leader
    return {int(k.room, 16): r for k, r in leader.worker.rooms.items()}


def test_the_youngest_unadmitted_room_gives_way_and_both_sides_are_told():
    w = world()
    give(w, 7, 8)
    give(w, 9, 8)
    give(w, 3, 8)
    assert said(w, Withdrawn) == [(9, D), (9, World.GATEWAY)]
    assert said(w, Ended) == [(9, World.GATEWAY)]
    assert rooms(w).keys() == {3, 7}
    assert len(w.nodes[Boot(P)].leader.worker.ledger.held(rooms(w)[3].key)["full"]) == 2


def test_as_many_give_way_as_are_needed():
    w = world()
    for number in (7, 8, 9):
        give(w, number, 4)
    give(w, 3, 12)
    assert [n for n, t in said(w, Withdrawn) if t == D] == [9, 8]


def test_an_admitted_room_never_gives_way():
    w = world()
    give(w, 9, 12)
    w.nodes[Boot(P)].leader.step(MessageReceived(Boot(D), Admitted(rooms(w)[9].key)), w.now)
    give(w, 3, 8)
    assert not said(w, Withdrawn)
    assert rooms(w).keys() == {3, 9}


def test_an_older_room_never_gives_way_to_a_younger_one():
    w = world()
    give(w, 3, 12)
    give(w, 9, 8)
    assert not said(w, Withdrawn)
    assert rooms(w).keys() == {3, 9}


def test_nobody_gives_way_where_it_would_not_help():
    w = world(pages=5)
    give(w, 2, 12)  # older than both, not to be moved
    give(w, 9, 4)
    give(w, 3, 16)
    assert not said(w, Withdrawn)


def test_pages_on_their_way_back_count():
    w = world()
    give(w, 8, 8)
    give(w, 9, 8)
    w.nodes[Boot(P)].leader.worker.end(rooms(w)[8])  # dropped, not quiet yet
    w.nodes[Boot(P)].leader.step(MessageReceived(World.GATEWAY, ticket(3, length=8)), w.now)
    w.run()
    assert not said(w, Withdrawn)
    assert rooms(w).keys() == {3, 9}


def test_decode_takes_no_memory_for_what_was_withdrawn_before_its_ticket_came():
    w = world()
    w.hold = lambda source, target, message: False
    for number in (7, 9, 3):
        give(w, number, 8)  # to prefill alone: its offers are early at decode
    assert (9, D) in said(w, Withdrawn)
    decode = w.nodes[Boot(D)].leader
    decode.step(MessageReceived(World.GATEWAY, ticket(9, length=8)), w.now)
    w.run()
    assert not [m for s, _, m in w.log if s == D and isinstance(m, Admitted | Failed)]
    assert not any(decode.worker.ledger.held(ticket(9).key).values())
