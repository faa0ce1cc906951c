"""What a worker says of itself to whoever asks, and of its cache to its gateways."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.core.build import KV, manifest, settings, submit
from tests.core.driven import T0
from tests.core.world import Node, World

from baton.core.effects import Send
from baton.core.events import GatewayConnected, PeerLost
from baton.core.ids import Boot
from baton.core.messages import AskCache, CacheChanged, Credits, Offer, Register
from baton.core.scheduler.leader import Leader
from baton.core.scheduler.room import RoomState

G, LATER = World.GATEWAY, Boot(7)
P, D, U = Boot(2), Boot(3), Boot(4)


def test_the_age_of_a_room_is_told_in_milliseconds() -> None:
    world = World()
    world.add("prefill", 2)
    world.add("decode", 3)
    world.run()
    world.hold = lambda source, target, message: isinstance(message, Offer)
    world.submit(submit(1))
    world.advance(3_000)
    question = world.front.ask_ledger()
    world.run()
    told = {
        view.role: [(room.state, room.age_ms) for room in view.rooms]
        for view in world.front.ledger(question)
    }
    assert told == {"prefill": [(RoomState.OFFERED, 3_000)], "decode": [(RoomState.QUEUED, 3_000)]}


# ---- what is cached ------------------------------------------------------------------------------


def prompt(n: int) -> tuple[int, ...]:
    """Three pages and a token."""
    return tuple(range(20 * n, 20 * n + 13))


def ids(node: Node) -> set[int]:
    """What a worker has cached, as gateways name it."""
    pages = node.leader.worker.ledger.cache.hashes()
    return {int.from_bytes(page[:8], "little") for page in pages}


def known(world: World) -> bool:
    """Whether the gateway knows what each worker has."""
    caches = world.front.router.caches
    return all(caches.pages_of(boot) == ids(node) for boot, node in world.nodes.items())


def ask(world: World, n: int) -> None:
    world.submit(submit(n, prompt(n), max_tokens=6))
    world.advance(50)


def sent(world: World, kind: type[Any]) -> list[Any]:
    return [message for _, _, message in world.log if isinstance(message, kind)]


@pytest.mark.parametrize("roles", [("prefill", "decode"), ("unified",)])
def test_gateways_know_what_has_entered_and_what_has_given_way_to_it(
    roles: tuple[str, ...],
) -> None:
    world = World()
    for boot, role in enumerate(roles, 2):
        world.add(role, boot, pages=9, prefix_cache=True)
    world.run()
    world.advance(25)
    for n in range(1, 7):
        ask(world, n)
        assert known(world)
    cache = world.nodes[P].leader.worker.ledger.cache
    assert cache.evicted > 0
    assert world.front.router.caches.count(P) == len(ids(world.nodes[P])) > 0
    assert sent(world, AskCache) == []
    world.front.ask_reset_cache()
    world.advance(50)
    assert known(world)
    assert len(world.front.router.caches) == 0


def test_where_news_is_lost_the_gateway_asks_and_is_told_afresh() -> None:
    world = World()
    world.add("unified", U, prefix_cache=True)
    world.run()
    world.advance(25)
    ask(world, 1)
    world.hold = lambda source, target, message: isinstance(message, CacheChanged)
    world.submit(submit(2, prompt(2)))
    while not world.held:
        world.advance(1)
    world.held.clear()
    world.hold = lambda source, target, message: False
    assert not known(world)
    world.advance(100)
    assert known(world)
    assert len(sent(world, AskCache)) == 1
    assert [message.afresh for message in sent(world, CacheChanged)][-1]


def test_a_gateway_that_comes_later_is_told_all_and_each_is_told_how_often_it_was() -> None:
    world = World()
    node = world.add("unified", U, prefix_cache=True)
    world.run()
    world.advance(25)
    for n in (1, 2):
        ask(world, n)
    before = max(message.number for message in sent(world, CacheChanged))
    node.leader.step(GatewayConnected(LATER), world.now)
    told = [e for e in node.leader.effects() if isinstance(e, Send)]
    changed = [e.message for e in told if isinstance(e.message, CacheChanged)]
    assert [(m.number, m.worker, m.left) for m in changed] == [(1, U, b"")]
    entered = changed[0].entered
    pages = {int.from_bytes(entered[at : at + 8], "little") for at in range(0, len(entered), 8)}
    assert pages == ids(node)
    said = {e.to: e.message.cache_changes for e in told if isinstance(e.message, Credits)}
    assert said == {G: before, LATER: 1}


def test_a_gateway_that_is_gone_is_told_nothing_more() -> None:
    world = World()
    node = world.add("unified", U, prefix_cache=True)
    world.run()
    node.leader.step(GatewayConnected(LATER), world.now)
    node.leader.step(PeerLost(LATER, "gone"), world.now)
    world.advance(25)
    world.log.clear()
    ask(world, 1)
    assert {target for _, target, message in world.log if isinstance(message, CacheChanged)} == {G}


@pytest.mark.parametrize("guest", [False, True])
@pytest.mark.parametrize("on", [False, True])
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_worker_registers_with_whether_it_or_the_engine_that_it_is_a_guest_of_keeps_pages(
    role: str, on: bool, guest: bool
) -> None:
    worker = replace(manifest(role, 2), guest=guest)
    leader = Leader(worker, settings(prefix_cache=on), {KV: 16})
    (register,) = [
        e.message
        for e in leader.step(GatewayConnected(G), T0)
        if isinstance(e, Send) and isinstance(e.message, Register)
    ]
    assert register.caches == (on or guest)
