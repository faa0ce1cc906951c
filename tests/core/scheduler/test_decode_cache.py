"""Decode's prefix cache: what is not fetched again, what is never written again, and what comes
back."""

from typing import Any

import msgspec
import pytest
from tests.core.build import KV, B, submit
from tests.core.driven import Driven
from tests.core.world import Node, World, expected

from baton.core.door import Fail
from baton.core.events import GatewayConnected
from baton.core.ids import BlockIndex, Boot, Key, Page
from baton.core.marks import Mark
from baton.core.messages import FailCode, Offer, Recompute
from baton.core.rank.rank_effects import Read
from baton.core.scheduler.room import RoomState
from baton.core.work import ReadOutcome

P, D = 2, 3


def prompt(n: int, salt: int = 0) -> tuple[int, ...]:
    return tuple((7 * i + 13 * salt + 1) % 997 for i in range(n))


class Wire:
    """Blocks that decode has read, by room."""

    def __init__(self, world: World) -> None:
        self.blocks: dict[Key, int] = {}
        world.on_landed = self._landed

    def _landed(self, read: Read, node: Node) -> ReadOutcome:
        nbytes = sum(int(c.nbytes.sum()) for c in read.copies)
        size = node.engine.placement.block_bytes(KV)
        assert nbytes % size == 0
        self.blocks[read.key] = self.blocks.get(read.key, 0) + nbytes // size
        return ReadOutcome.OK

    def of(self, number: int) -> int:
        """All epochs of the request whose room has this number."""
        return sum(n for key, n in self.blocks.items() if int(key.room, 16) == number)


def split(
    *,
    source: int = 1,
    target: int = 1,
    pages: int = 40,
    more: int = 60,
    step_tokens: int = 64,
    **limits: Any,
) -> tuple[World, Wire]:
    """Prefill without a cache, so that it computes everything; decode with one. source, target:
    blocks of a page."""
    world = World()
    world.add(
        "prefill", P, pages=more, page_blocks=source, step_tokens=step_tokens, stall_ms=60_000
    )
    world.add("decode", D, pages=pages, page_blocks=target, prefix_cache=True, **limits)
    world.run()
    return world, Wire(world)


def decode(world: World) -> Any:
    return world.nodes[Boot(D)].leader


def rooms(world: World) -> dict[int, Any]:
    return {int(r.ticket.stamp): r for r in decode(world).worker.rooms.values()}


def ask(world: World, number: int, tokens: tuple[int, ...], count: int) -> None:
    world.submit(submit(number, tokens, max_tokens=count))
    world.run()
    assert world.tokens(number) == expected(tokens, count)
    assert world.clean


def complete(positions: int, k: int) -> int:
    """Blocks of whole pages."""
    return positions // (k * B) * k


# ---- what is fetched ----------------------------------------------------------------------------


@pytest.mark.parametrize("step_tokens", [64, 8])
@pytest.mark.parametrize(("source", "target"), [(1, 1), (1, 2), (2, 1), (3, 2), (2, 3), (4, 1)])
@pytest.mark.parametrize("length", [3, 4, 8, 11, 13, 16, 24, 25])
def test_a_repeated_prompt_and_the_next_turn_fetch_what_is_new(
    length: int, source: int, target: int, step_tokens: int
) -> None:
    world, wire = split(source=source, target=target, step_tokens=step_tokens)
    first = prompt(length)
    ask(world, 1, first, 6)
    assert wire.of(1) == -(-length // B)
    computed = length + 5  # the last token drawn is in no page
    ask(world, 2, first, 3)
    assert wire.of(2) == -(-length // B) - complete(length, target)
    turn = (*first, *world.tokens(1), *prompt(5, 1))
    ask(world, 3, turn, 4)
    assert wire.of(3) == -(-len(turn) // B) - complete(computed, target)
    ask(world, 4, prompt(length, 2), 2)
    assert wire.of(4) == -(-length // B), "another beginning"


@pytest.mark.parametrize("target", [1, 2])
def test_a_room_of_which_all_is_cached_waits_for_its_record(target: int) -> None:
    world, wire = split(target=target)
    first = prompt(16)
    ask(world, 1, first, 5)
    world.hold = lambda source, to, message: (
        isinstance(message, Offer) and message.record is not None
    )
    world.submit(submit(2, first, max_tokens=5))
    world.run()
    assert rooms(world)[2].state is RoomState.FETCHING
    world.release()
    world.run()
    assert world.tokens(2) == expected(first, 5)
    assert wire.of(2) == 0
    assert decode(world).worker.marks[Mark.ALL_CACHED] == 1
    assert world.clean


def test_an_offer_is_judged_as_a_whole() -> None:
    """What is said of the cached part is wrong: nobody would have read it, and yet the handoff is
    not what it should be."""
    world, _ = split()
    ask(world, 1, prompt(16), 3)
    send = world._send

    def lie(source: Boot, target: Boot, message: Any) -> None:
        if isinstance(message, Offer) and message.runs:
            run = message.runs[KV]
            before = msgspec.structs.replace(run, start=BlockIndex(-1), pages=(Page(7), *run.pages))
            message = msgspec.structs.replace(message, runs={KV: before})
        send(source, target, message)

    world._send = lie  # type: ignore[method-assign]
    world.submit(submit(2, prompt(18), max_tokens=3))
    world.run()
    end = world.end(2)
    assert isinstance(end, Fail)
    assert end.code is FailCode.HANDOFF_FAILED
    assert world.clean


def test_tokens_that_were_generated_are_found_while_their_room_still_runs() -> None:
    world, wire = split()
    world.submit(submit(1, prompt(6), max_tokens=30))
    while len(world.tokens(1)) < 15:
        world.step()
    said = world.tokens(1)
    world.submit(submit(2, (*prompt(6), *said[:11]), max_tokens=2))
    world.run()
    assert world.tokens(2) == expected((*prompt(6), *said[:11]), 2)
    assert wire.of(2) == 5 - 17 // B
    assert world.clean


def test_without_seals_nothing_is_kept() -> None:
    world = World()
    for role, boot in (("prefill", P), ("decode", D)):
        node = world.add(role, boot, pages=40, prefix_cache=True)
        leader = node.leader
        unsealed = msgspec.structs.replace(leader.worker.manifest, seal=False)
        world.nodes[Boot(boot)] = Node(
            Driven(type(leader.core)(unsealed, leader.worker.settings, {KV: 40})), node.engine
        )
        world.nodes[Boot(boot)].leader.step(GatewayConnected(world.GATEWAY), world.now)
    world.run()
    wire = Wire(world)
    for n in (1, 2):
        ask(world, n, prompt(16), 3)
        assert wire.of(n) == 4
    assert not len(decode(world).worker.ledger.cache)


# ---- what is never written ----------------------------------------------------------------------


@pytest.mark.parametrize("target", [1, 2])
@pytest.mark.parametrize("length", [15, 16, 17])
def test_what_is_cached_is_never_written(length: int, target: int) -> None:
    """Compared after every step, from the moment at which a page enters."""
    world, _ = split(target=target, pages=20)
    node = world.nodes[Boot(D)]
    pool = node.engine.pool.reshape(20, -1)
    kept: dict[Any, bytes] = {}
    enter = decode(world).worker.ledger.enter

    def entered(*of: Any) -> bool:
        found: bool = enter(*of)
        look()
        return found

    decode(world).worker.ledger.enter = entered

    def look() -> None:
        entries = {e: pool[e.pages[KV]].tobytes() for e in decode(world).worker.ledger.cache.all()}
        assert all(kept.get(e, now) == now for e, now in entries.items())
        kept.update(entries)

    for n in range(1, 5):
        world.submit(submit(n, (*prompt(length), *prompt(n - 1, n)), max_tokens=9))
        for _ in range(8 * n):
            world.step()
            look()
    while world.step():
        look()
    for n in range(1, 5):
        assert world.tokens(n) == expected((*prompt(length), *prompt(n - 1, n)), 9)
    assert len(kept) > length // (B * target)
    assert world.clean


# ---- pins ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", range(0, 60, 2))
def test_an_abort_at_any_step_leaves_no_pin(steps: int) -> None:
    world, _ = split()
    ask(world, 1, prompt(14), 4)
    world.submit(submit(2, prompt(22), max_tokens=6))
    world.submit(submit(3, prompt(22), max_tokens=6))
    for _ in range(steps):
        world.step()
    world.cancel(2)
    world.run()
    assert world.tokens(3) == expected(prompt(22), 6)
    assert world.clean
    assert decode(world).worker.ledger.pins == 0


def test_the_cache_gives_way_before_any_room_does() -> None:
    world, _ = split(pages=9, host_bytes=1 << 20)
    for n in range(1, 12):
        ask(world, n, prompt(7 + n % 5, n), 9)
    leader = decode(world)
    assert leader.worker.ledger.cache.evicted > 0
    assert not leader.worker.marks[Mark.OFFLOADED]
    assert not any(isinstance(m, Recompute) for _, _, m in world.log)


@pytest.mark.parametrize("host_bytes", [1 << 20, 0])
def test_rooms_that_share_pages_give_way_and_say_the_same(host_bytes: int) -> None:
    world, _ = split(pages=11, host_bytes=host_bytes)
    ask(world, 1, prompt(8), 1)
    for n in range(2, 6):
        world.submit(submit(n, (*prompt(8), *prompt(3, n)), max_tokens=17))
    world.run()
    for n in range(2, 6):
        assert world.tokens(n) == expected((*prompt(8), *prompt(3, n)), 17)
    marks = decode(world).worker.marks
    assert marks[Mark.OFFLOADED if host_bytes else Mark.RECOMPUTE] > 0
    assert world.clean
    assert decode(world).worker.ledger.pins == 0


def test_a_room_that_comes_back_holds_pages_of_its_own() -> None:
    world, _ = split(pages=11, host_bytes=1 << 20)
    ask(world, 1, prompt(8), 1)
    for n in range(2, 6):
        world.submit(submit(n, (*prompt(8), *prompt(3, n)), max_tokens=17))
    seen = 0
    while world.step():
        for room in decode(world).worker.rooms.values():
            if room.state is RoomState.RESTORING:
                assert decode(world).worker.ledger.shared(room.key) == 0
                seen += 1
            if room.state is RoomState.OFFLOADED:
                assert not any(decode(world).worker.ledger.held(room.key).values())
    assert seen


# ---- numbers ------------------------------------------------------------------------------------


def test_hits_are_counted_in_tokens_and_in_bytes_that_stayed_off_the_wire() -> None:
    world, wire = split(target=2)
    ask(world, 1, prompt(19), 3)
    ask(world, 2, prompt(19), 3)
    counters = decode(world)._books._counters()
    size = world.nodes[Boot(D)].engine.placement.block_bytes(KV)
    assert counters.cache.hits == 16
    assert counters.cache.saved_bytes == 4 * size == (5 - wire.of(2)) * size
