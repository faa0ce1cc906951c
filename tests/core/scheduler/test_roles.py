"""Front, leaders and ranks together: right tokens, every request ends, everything comes back."""

import random

import numpy as np
import pytest
from msgspec.structs import replace
from tests.core.build import submit
from tests.core.world import Node, World, expected

from baton.core.door import Fail, Finish
from baton.core.events import MessageReceived, PeerLost
from baton.core.ids import Boot
from baton.core.messages import (
    Abort,
    Admitted,
    BlockRun,
    Doubt,
    FailCode,
    Failed,
    FirstToken,
    Intactness,
    Offer,
    Received,
    Recompute,
    Stale,
    Ticket,
    Tokens,
    Verdict,
)
from baton.core.rank.rank_effects import Read
from baton.core.scheduler.room import RoomState, Saw
from baton.core.scheduler.tables import DECODE, PREFILL, UNIFIED
from baton.core.work import Batch, ReadOutcome

P, D = 2, 3


def split(**limits: int) -> World:
    world = World()
    world.add("prefill", P, **limits)
    world.add("decode", D, **limits)
    world.run()
    return world


def prompt(length: int, salt: int = 0) -> tuple[int, ...]:
    return tuple((7 * i + salt) % 500 for i in range(length))


@pytest.mark.parametrize("length", [1, 3, 4, 5, 16, 23])
@pytest.mark.parametrize("step_tokens", [3, 8, 64])
@pytest.mark.parametrize("page_blocks", [(1, 1), (2, 1), (1, 2), (2, 3)])
def test_tokens_are_right_whatever_chunks_and_pages(
    length: int, step_tokens: int, page_blocks: tuple[int, int]
) -> None:
    world = World()
    world.add(
        "prefill", P, page_blocks=page_blocks[0], step_tokens=step_tokens, last_chunk_tokens=5
    )
    world.add("decode", D, page_blocks=page_blocks[1])
    world.run()
    world.submit(submit(1, prompt(length), max_tokens=9))
    world.run()
    assert world.tokens() == expected(prompt(length), 9)
    assert isinstance(world.end(), Finish)
    assert world.clean


def test_unified_draws_the_same_tokens() -> None:
    world = World()
    world.add("unified", 2, step_tokens=5)
    world.run()
    for n in range(1, 4):
        world.submit(submit(n, prompt(6 + 4 * n, n), max_tokens=6))
    world.run()
    for n in range(1, 4):
        assert world.tokens(n) == expected(prompt(6 + 4 * n, n), 6)
    assert world.clean


def test_unified_says_each_token_once() -> None:
    world = World()
    world.add("unified", 2)
    world.run()
    world.submit(submit(1, prompt(6), max_tokens=6))
    world.run()
    first = [m.index for _, _, m in world.log if isinstance(m, FirstToken)]
    later = [
        m.start + i for _, _, m in world.log if isinstance(m, Tokens) for i in range(len(m.drawn))
    ]
    assert first + later == list(range(6))


def test_decode_fetches_while_prefill_computes() -> None:
    world = split(step_tokens=4, last_chunk_tokens=4)
    world.submit(submit(1, prompt(20)))
    world.run()
    offers = [m for _, _, m in world.log if isinstance(m, Offer)]
    assert [o.number for o in offers] == [0, 1, 2, 3, 4, 5]
    assert [o.record is None for o in offers] == [True] * 5 + [False]
    admitted = next(i for i, (_, _, m) in enumerate(world.log) if isinstance(m, Admitted))
    assert admitted < world.log.index(next(e for e in world.log if e[2] is offers[-1]))


def test_requests_share_the_workers() -> None:
    world = split(pages=40)
    lengths = {n: 3 + 5 * n for n in range(1, 9)}
    for n, length in lengths.items():
        world.submit(submit(n, prompt(length, n), max_tokens=5))
    world.run()
    for n, length in lengths.items():
        assert world.tokens(n) == expected(prompt(length, n), 5)
    assert world.clean


def test_tight_pools_give_way_and_everything_still_ends_right() -> None:
    """Decode has 9 pages of 4 tokens; four rooms want up to 6 each."""
    world = World()
    world.add("prefill", P, pages=9)
    world.add("decode", D, pages=9)
    world.run()
    for n in range(1, 5):
        world.submit(submit(n, prompt(7, n), max_tokens=17))
    world.run()
    assert any(isinstance(m, Recompute) for _, _, m in world.log), "the pool was not tight"
    for n in range(1, 5):
        assert world.tokens(n) == expected(prompt(7, n), 17)
    assert world.clean


def test_a_request_larger_than_the_pool_is_refused_by_name() -> None:
    world = split()
    world.submit(submit(1, prompt(80)))
    world.run()
    end = world.end()
    assert isinstance(end, Fail)
    assert end.code is FailCode.OVERLOADED
    assert "80 tokens" in end.detail
    assert world.clean


def test_ending_at_the_first_token_never_enters_decode() -> None:
    world = split()
    world.submit(submit(1, prompt(6), max_tokens=1))
    world.run()
    assert world.tokens() == expected(prompt(6), 1)
    assert not any(isinstance(m, Received | Tokens) for _, _, m in world.log)
    assert world.clean


def test_an_end_of_sequence_token_stops() -> None:
    full = expected(prompt(6), 8)
    world = split()
    world.submit(submit(1, prompt(6), max_tokens=8, eos=(full[3],)))
    world.run()
    assert world.tokens() == full[: full.index(full[3]) + 1]
    assert world.clean


# ---- damage -------------------------------------------------------------------------------------


def damage_target(world: World, times: int) -> None:
    left = [times]

    def landed(read: Read, node: Node) -> ReadOutcome:
        if left[0]:
            left[0] -= 1
            node.engine.pool[int(read.copies[0].target[0]) + 5] ^= 0x40
        return ReadOutcome.OK

    world.on_landed = landed


def test_a_flipped_bit_is_fetched_again() -> None:
    world = split()
    damage_target(world, 2)
    world.submit(submit(1, prompt(9), max_tokens=5))
    world.run()
    assert world.tokens() == expected(prompt(9), 5)
    assert not any(isinstance(m, Doubt) for _, _, m in world.log)
    assert world.clean


def test_damage_that_goes_on_is_doubted_and_found_intact_at_the_source() -> None:
    world = split()
    damage_target(world, 3)
    world.submit(submit(1, prompt(9), max_tokens=5))
    world.run()
    verdicts = [m.found for _, _, m in world.log if isinstance(m, Verdict)]
    assert verdicts == [Intactness.INTACT]
    assert world.tokens() == expected(prompt(9), 5)
    assert world.clean


def test_damage_that_persists_ends_with_a_typed_error_and_nothing_left() -> None:
    world = split()
    damage_target(world, 10_000)
    world.submit(submit(1, prompt(9), max_tokens=5))
    world.run()
    end = world.end()
    assert isinstance(end, Fail)
    assert end.code is FailCode.HANDOFF_FAILED
    assert world.clean
    world.on_landed = lambda read, node: ReadOutcome.OK
    world.submit(submit(2, prompt(9), max_tokens=5))
    world.run()
    assert world.tokens(2) == expected(prompt(9), 5)


def test_damage_in_the_sources_pages_is_found_by_its_birth_sum_and_opens_a_new_epoch() -> None:
    world = split()
    world.freeze_reads = True
    world.submit(submit(1, prompt(9), max_tokens=5))
    world.run()
    source = world.nodes[Boot(P)]
    page = source.leader.worker.ledger.held(next(iter(source.leader.worker.rooms)))["full"][1]
    source.engine.pool[page * source.engine.placement.page_bytes("full") + 33] ^= 1
    world.freeze_reads = False
    world.run()
    assert [m.found for _, _, m in world.log if isinstance(m, Verdict)] == [Intactness.DAMAGED]
    assert {m.key.epoch for _, _, m in world.log if isinstance(m, Ticket)} == {1, 2}
    assert world.tokens() == expected(prompt(9), 5)
    assert world.clean


def test_a_reused_source_page_is_never_used() -> None:
    world = split()
    world.freeze_reads = True
    world.submit(submit(1, prompt(9), max_tokens=5))
    world.run()
    source = world.nodes[Boot(P)]
    good = source.engine.pool.copy()
    source.engine.pool[:] = np.roll(good, source.engine.placement.page_bytes("full"))
    world.freeze_reads = False
    world.run()
    assert world.tokens() == expected(prompt(9), 5), "a new epoch computed it again"
    assert world.clean


def test_a_read_that_fails_is_tried_again() -> None:
    world = split()
    left = [2]

    def landed(read: Read, node: Node) -> ReadOutcome:
        left[0] -= 1
        if left[0] >= 0:
            node.engine.pool[int(read.copies[0].target[0]) :][:64] = 1  # a partial landing
            return ReadOutcome.FAILED
        return ReadOutcome.OK

    world.on_landed = landed
    world.submit(submit(1, prompt(9), max_tokens=5))
    world.run()
    assert world.tokens() == expected(prompt(9), 5)
    assert world.clean


# ---- aborts, losses, lateness -------------------------------------------------------------------


@pytest.mark.parametrize("steps", range(0, 60, 2))
def test_an_abort_at_any_step_leaves_nothing(steps: int) -> None:
    world = split(step_tokens=4, last_chunk_tokens=4)
    world.submit(submit(1, prompt(14), max_tokens=6))
    world.submit(submit(2, prompt(10, 3), max_tokens=6))
    for _ in range(steps):
        world.step()
    world.cancel(1)
    world.run()
    assert world.tokens(2) == expected(prompt(10, 3), 6)
    assert world.clean
    assert world.front.open_requests == 0


@pytest.mark.parametrize("steps", range(0, 60, 3))
@pytest.mark.parametrize("lost", [P, D])
def test_a_worker_lost_at_any_step_leaves_nothing_on_the_others(steps: int, lost: int) -> None:
    world = split(step_tokens=4, last_chunk_tokens=4)
    world.submit(submit(1, prompt(14), max_tokens=6))
    for _ in range(steps):
        world.step()
    world.lose(lost)
    world.run()
    end, said = world.end(), world.tokens()
    assert end is None or isinstance(end, Finish)
    assert world.clean
    assert said == expected(prompt(14), 6)[: len(said)]
    world.add("prefill" if lost == P else "decode", lost + 10)
    world.submit(submit(2, prompt(9), max_tokens=4))
    world.run()
    assert world.tokens() == expected(prompt(14), 6), "the successor goes on where it ended"
    assert world.tokens(2) == expected(prompt(9), 4), "a restarted worker serves the next request"


def test_rows_of_generated_tokens_are_told_from_those_of_the_prompt() -> None:
    """However many are computed at once: some are one by one, and others together, on a worker
    where the answer goes on."""
    tokens, counts = 14, set[int]()

    def watch(node: Node) -> None:
        compute = node.engine.compute

        def watched(batch: Batch) -> None:
            for row in batch.rows:
                end = row.start + len(row.tokens)
                assert row.said == sum(at >= tokens for at in range(row.start, end))
                counts.add(row.said)
            compute(batch)

        node.engine.compute = watched  # type: ignore[method-assign]

    for steps in range(20, 80, 4):
        world = split(step_tokens=4, last_chunk_tokens=4)
        for node in world.nodes.values():
            watch(node)
        world.submit(submit(1, prompt(tokens), max_tokens=12))
        for _ in range(steps):
            world.step()
        world.lose(D)
        watch(world.add("decode", D + 10))
        world.run()
        assert world.tokens() == expected(prompt(tokens), 12)
    assert counts > {0, 1, 2}, "also some of which a row has both"


def test_stale_fails_a_room_that_lacks_something_and_none_that_has_everything() -> None:
    """Prefill may have withdrawn a room whose commit it has not heard of, and then hears of its
    admission (found by the simulator)."""
    ended = set()
    for steps in range(60):
        world = split(step_tokens=4, last_chunk_tokens=4)
        world.submit(submit(1, prompt(14), max_tokens=6))
        for _ in range(steps):
            world.step()
        decode = world.nodes[Boot(D)].leader
        for room in list(decode.worker.rooms.values()):
            state = room.state
            decode.step(MessageReceived(Boot(P), Stale(room.key)), world.now)
            world.run()
            failed = any(s == D and isinstance(m, Failed) for s, _, m in world.log)
            assert failed == (state in (RoomState.QUEUED, RoomState.FETCHING)), state
            ended.add(state)
        world.run()
        assert world.tokens() == expected(prompt(14), 6)
        assert world.clean
    assert ended >= {RoomState.QUEUED, RoomState.FETCHING, RoomState.COMMITTING, RoomState.RUNNING}


@pytest.mark.parametrize("steps", range(0, 60, 3))
def test_a_lost_gateway_leaves_the_workers_clean(steps: int) -> None:
    world = split(step_tokens=4, last_chunk_tokens=4)
    world.submit(submit(1, prompt(14), max_tokens=6))
    for _ in range(steps):
        world.step()
    for node in world.nodes.values():
        node.leader.step(PeerLost(world.GATEWAY, "dead"), world.now)
    world.queues = {pair: q for pair, q in world.queues.items() if world.GATEWAY not in pair}
    world.run()
    assert world.clean


@pytest.mark.parametrize("kind", [Offer, FirstToken, Admitted, Received, Tokens, Ticket])
def test_late_messages_change_nothing_but_time(kind: type) -> None:
    world = split(step_tokens=4, last_chunk_tokens=4)
    world.hold = lambda source, target, message: isinstance(message, kind) and target != Boot(P)
    world.submit(submit(1, prompt(14), max_tokens=6))
    world.run()
    world.release()
    world.run()
    assert world.tokens() == expected(prompt(14), 6)
    assert world.clean


@pytest.mark.parametrize("number", [0, 1, 4])
def test_an_offer_that_never_comes_ends_the_request_in_bounded_time(number: int) -> None:
    world = split(step_tokens=4, last_chunk_tokens=4)
    world.hold = lambda source, target, message: (
        isinstance(message, Offer) and message.number == number
    )
    world.submit(submit(1, prompt(14), max_tokens=6, deadline_ms=20_000))
    world.advance(70_000)
    assert isinstance(world.end(), Fail)
    assert world.clean


def test_reads_that_never_end_are_cancelled_with_the_request() -> None:
    world = split()
    world.freeze_reads = True
    world.submit(submit(1, prompt(9)))
    world.run()
    assert not world.clean
    world.cancel(1)
    world.run()
    assert world.clean


def test_an_offer_before_its_ticket_waits_without_pages_and_is_answered_stale() -> None:
    world = split()
    world.hold = lambda source, target, message: isinstance(message, Ticket) and target == Boot(D)
    world.submit(submit(1, prompt(9), deadline_ms=60_000))
    world.run()
    assert world.nodes[Boot(D)].leader.worker.ledger.clean
    world.advance(6_000)
    epochs = {key.epoch for key in world.nodes[Boot(P)].leader.worker.rooms}
    assert epochs == {2}, "prefill was told that decode does not know the first epoch"


def test_a_session_cut_between_prefill_and_decode_ends_the_rooms_of_both() -> None:
    world = split(step_tokens=4, last_chunk_tokens=4)
    world.submit(submit(1, prompt(14), max_tokens=6))
    for _ in range(8):
        world.step()
    world.lose(P, at=D)
    world.lose(D, at=P)
    world.run()
    assert world.clean
    world.advance(3_000)
    world.submit(submit(2, prompt(9), max_tokens=4))
    world.run()
    assert world.tokens(2) == expected(prompt(9), 4), "they pair again"


def test_many_requests_with_random_aborts_leave_nothing() -> None:
    rng = random.Random(5)
    world = split(pages=24, step_tokens=8, max_rooms=4)
    gone = set()
    for n in range(1, 41):
        world.submit(submit(n, prompt(rng.randint(1, 30), n), max_tokens=rng.randint(1, 12)))
        for _ in range(rng.randint(0, 12)):
            world.step()
        if rng.random() < 0.4:
            victim = rng.randint(1, n)
            world.cancel(victim)
            gone.add(victim)
    world.run()
    for n in range(1, 41):
        assert n in gone or isinstance(world.end(n), Finish)
    assert world.clean
    assert world.front.open_requests == 0


# ---- tables -------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [PREFILL, DECODE, UNIFIED])
def test_every_state_can_end_and_every_end_is_reached(table: dict) -> None:
    states = {s for s, _ in table} | set(table.values())
    for state in states - {RoomState.ENDED}:
        reached, frontier = {state}, [state]
        while frontier:
            now = frontier.pop()
            for (s, _), after in table.items():
                if s is now and after not in reached:
                    reached.add(after)
                    frontier.append(after)
        assert RoomState.ENDED in reached
        assert (state, Saw.END) in table
    assert not any(s is RoomState.ENDED for s, _ in table), "nothing follows the end"


def test_a_higher_epoch_ends_the_lower_and_an_old_one_changes_nothing() -> None:
    world = split()
    world.freeze_reads = True
    world.submit(submit(1, prompt(9)))
    world.run()
    decode = world.nodes[Boot(D)].leader
    first = next(iter(decode.worker.rooms.values())).ticket
    second = replace(first, key=replace(first.key, epoch=2))
    decode.step(MessageReceived(world.GATEWAY, second), world.now)
    world.run()
    assert first.key not in decode.worker.rooms
    decode.step(MessageReceived(world.GATEWAY, first), world.now)
    decode.step(MessageReceived(world.GATEWAY, Abort(first.key, "late")), world.now)
    assert set(decode.worker.rooms) == {second.key}


@pytest.mark.parametrize(
    "runs",
    [
        {"full": BlockRun(0, 9, tuple(range(9)))},
        {"full": BlockRun(0, 2, (1,))},
        {"x": BlockRun(0, 1, (0,))},
    ],
)
def test_an_offer_that_cannot_be_of_this_room_is_a_failure_of_the_room_alone(runs: dict) -> None:
    world = split()
    world.hold = lambda source, target, message: isinstance(message, Offer) and message.number == 1
    world.submit(submit(1, prompt(9)))
    world.run()
    _, _, offer = world.held[0]
    world.held = []
    world.nodes[Boot(D)].leader.step(MessageReceived(Boot(P), replace(offer, runs=runs)), world.now)
    world.run()
    end = world.end()
    assert isinstance(end, Fail)
    assert end.code is FailCode.HANDOFF_FAILED
    assert world.clean
