"""Memory that changes while nobody looks: cached pages are hashed where they lie, and what prefill
finds of a loan is heard."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.core.build import KV, key, submit
from tests.core.driven import Driven
from tests.core.scheduler.test_borrowing import D, P, Split, prompt, spoil
from tests.core.world import Node, World, expected

from baton.core.events import GatewayConnected, MessageReceived
from baton.core.handoff.fetch_back import FetchBack
from baton.core.ids import BlockIndex, Boot, GroupName
from baton.core.marks import Mark
from baton.core.memory.prefix_cache import CachedPage
from baton.core.messages import Abort, Doubt, Failed, Intactness, Loan, Offer, Returned, Verdict
from baton.core.scheduler.leader import Leader
from baton.core.scheduler.room import RoomState
from baton.core.work import ReadOutcome

VERIFY_MS = 10_000
DECODE: dict[str, Any] = {"verify_ms": VERIFY_MS}


def entries(node: Node) -> list[CachedPage]:
    """What a worker has cached, from the first page of a sequence on."""
    return sorted(node.leader.worker.ledger.cache.live(), key=lambda entry: entry.number)


def flip(node: Node, entry: CachedPage) -> None:
    """A bit of a page changes."""
    node.engine.pool[int(entry.pages[KV]) * node.engine.placement.page_bytes(KV) + 5] ^= 1


def held(split: Split) -> Split:
    """Decode has eight pages of a conversation, and prefill none."""
    split.conversation()
    assert [entry.number for entry in entries(split.decode)] == list(range(8))
    return split


@pytest.mark.parametrize("node", ["prefill", "decode"])
def test_a_page_that_changes_leaves_the_cache_within_the_interval_with_all_above_it(
    node: str,
) -> None:
    b = Split(prefill=dict(DECODE), decode=dict(DECODE))
    b.ask(1, prompt(33))
    worker: Node = getattr(b, node)
    before = entries(worker)
    flip(worker, before[3])
    b.world.advance(VERIFY_MS)
    assert entries(worker) == before[:3]
    assert worker.leader.worker.marks[Mark.DAMAGED_AT_REST] == 1
    tally = worker.leader.worker.reuse.tally()
    assert (tally.verified_pages >= len(before), tally.damaged_pages) == (True, 1)
    assert b.world.clean
    b.world.advance(10 * VERIFY_MS)
    assert entries(worker) == before[:3], "the others are verified again and again, and stay"
    b.ask(2, prompt(33))


def test_without_seals_nothing_is_verified_and_what_is_cached_is_used_however_old_it_is() -> None:
    world = World()
    node = world.add("unified", D, prefix_cache=True, verify_ms=VERIFY_MS)
    worker = node.leader.worker
    unsealed = Leader(replace(worker.manifest, seal=False), worker.settings, worker.ledger.totals())
    world.nodes[Boot(D)] = node = Node(Driven(unsealed), node.engine)
    node.leader.step(GatewayConnected(world.GATEWAY), world.now)
    world.submit(submit(1, prompt(9)))
    world.run()
    world.advance(2 * VERIFY_MS)
    world.submit(submit(2, prompt(9)))
    world.run()
    assert world.tokens(2) == expected(prompt(9), 4)
    tally = node.leader.worker.reuse.tally()
    assert (tally.hits, tally.verified_pages) == (8, 0)


def test_rooms_that_hold_a_damaged_page_begin_anew_and_answer_rightly() -> None:
    b = Split(decode=dict(DECODE), mode=FetchBack.NEVER)
    b.ask(1, prompt(21))
    b.world.hold = lambda source, target, message: (
        isinstance(message, Offer) and message.record is not None
    )
    b.begin(2, (*prompt(21), 5, 6, 7))
    b.begin(3, prompt(9, 4))
    b.world.run()
    assert b.decode.leader.worker.ledger.pins == 5
    flip(b.decode, entries(b.decode)[1])
    b.world.advance(VERIFY_MS // 2)
    failed = b.said(Failed)
    assert [m.retry for m in failed] == [True], "the room that shares nothing goes on"
    b.world.release()
    b.world.run()
    b.ended_well(2, (*prompt(21), 5, 6, 7))
    b.ended_well(3, prompt(9, 4))


def test_a_loan_that_is_damaged_is_told_before_it_is_returned_and_decode_drops_it() -> None:
    b = held(Split())
    before = entries(b.decode)
    flip(b.decode, before[2])
    b.ask(2, prompt(21))
    told = [m for _, target, m in b.world.log if isinstance(m, Doubt | Returned) and target == D]
    assert [type(m) for m in told] == [Doubt, Returned]
    assert told[0].blocks == (2,)
    assert [m.found for m in b.said(Verdict)] == [Intactness.DAMAGED]
    assert before[2] not in entries(b.decode)
    assert not set(before[3:]) & set(entries(b.decode)), "nor what was computed above it"
    assert b.decode.leader.worker.marks[Mark.DAMAGED] == 1
    assert b.leader.worker.marks[Mark.LOAN_DAMAGED] == 1


def test_what_differs_only_on_its_way_is_intact_and_stays() -> None:
    b = held(Split())
    before = entries(b.decode)
    b.spoils = spoil
    b.ask(2, prompt(21))
    assert [m.found for m in b.said(Verdict)] == [Intactness.INTACT]
    assert set(before) <= set(entries(b.decode))
    assert b.leader.worker.marks[Mark.LOAN_DAMAGED] == 0


def test_pages_that_were_doubted_and_are_intact_are_verified_by_that_and_no_others() -> None:
    """They need not be hashed again, and may be used though the order under way is answered
    late."""
    b = held(Split(decode=dict(DECODE)))
    cache, pages = b.decode.leader.worker.ledger.cache, entries(b.decode)
    before = [cache.verified_at(entry) for entry in pages]
    b.spoils = spoil
    b.world.advance(VERIFY_MS // 4)
    b.ask(2, prompt(21))
    assert [m.found for m in b.said(Verdict)] == [Intactness.INTACT]
    (doubt,) = b.said(Doubt)
    later = {
        n
        for n, (entry, at) in enumerate(zip(pages, before, strict=True))
        if cache.verified_at(entry) != at
    }
    assert later == set(doubt.blocks)


def test_a_read_that_fails_is_no_evidence() -> None:
    b = held(Split())
    b.spoils = lambda read, node: ReadOutcome.FAILED
    b.ask(2, prompt(21))
    assert b.leader.worker.marks[Mark.BORROWED_IN_VAIN] == 1
    assert b.said(Doubt) == []


@pytest.fixture
def lent() -> Split:
    """Eight pages are lent for room 2, and prefill reads them."""
    b = held(Split())
    b.world.freeze_reads = True
    b.begin(2, (*prompt(21), *b.world.tokens(1), 9, 9))
    b.world.run()
    assert b.said(Loan)[-1].runs
    return b


def doubt(b: Split, **changes: Any) -> Doubt:
    return replace(Doubt(b.said(Loan)[-1].key, 0, KV, (BlockIndex(1),)), **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"blocks": (BlockIndex(8),)},
        {"blocks": (BlockIndex(-1),)},
        {"blocks": (BlockIndex(1), BlockIndex(99))},
        {"group": GroupName("other")},
        {"key": key(77)},
    ],
)
def test_a_doubt_about_what_is_not_lent_is_answered_and_nothing_is_hashed(
    lent: Split, changes: dict[str, Any]
) -> None:
    flip(lent.decode, entries(lent.decode)[1])
    lent.decode.leader.step(MessageReceived(Boot(P), doubt(lent, **changes)), lent.world.now)
    lent.world.run()
    assert lent.said(Verdict)[-1].found is Intactness.GONE
    assert len(entries(lent.decode)) == 8


def test_a_doubt_of_somebody_elses_changes_nothing(lent: Split) -> None:
    flip(lent.decode, entries(lent.decode)[1])
    lent.decode.leader.step(MessageReceived(Boot(99), doubt(lent)), lent.world.now)
    lent.world.run()
    assert lent.said(Verdict) == []
    assert len(entries(lent.decode)) == 8


def test_a_room_that_holds_what_is_doubted_ends_with_it(lent: Split) -> None:
    flip(lent.decode, entries(lent.decode)[1])
    lent.decode.leader.step(MessageReceived(Boot(P), doubt(lent)), lent.world.now)
    lent.world.run()
    assert lent.said(Verdict)[-1].found is Intactness.DAMAGED
    assert len(entries(lent.decode)) == 1
    assert [m.retry for m in lent.said(Failed)] == [True]
    lent.world.freeze_reads = False
    lent.world.run()
    assert lent.world.clean


def test_pages_that_go_while_they_are_hashed_are_not_judged(lent: Split) -> None:
    """The loan has ended and the cache was emptied: the pages may be another's by the time they are
    hashed."""
    engine, ledger, late = lent.decode.engine, lent.decode.leader.worker.ledger, list[Any]()
    digest, engine.digest = engine.digest, late.append  # type: ignore[method-assign]
    lent.decode.leader.step(MessageReceived(Boot(P), doubt(lent)), lent.world.now)
    lent.world.run()
    lent.decode.leader.step(
        MessageReceived(lent.world.GATEWAY, Abort(doubt(lent).key, "gone")), lent.world.now
    )
    lent.world.run()
    ledger.forget_cached()
    engine.pool[:] = 0
    for order in late:
        digest(order)
    lent.world.run()
    assert lent.said(Verdict)[-1].found is Intactness.GONE
    assert lent.decode.leader.worker.marks[Mark.DAMAGE_SHARED] == 0


def test_every_entry_of_decode_has_its_sums_though_nothing_is_lent() -> None:
    b = Split(mode=FetchBack.NEVER)
    b.conversation()
    found = entries(b.decode)
    assert len(found) == 8
    assert all(entry.sums for entry in found)
    assert sum(array.nbytes for entry in found for array in entry.sums.values()) == 8 * 4 * 8, (
        "four units of eight bytes a page"
    )


def test_a_room_that_came_back_into_pages_of_its_own_ends_with_the_page_that_it_was_copied_from() -> (
    None
):
    """Nobody knows whether the page was damaged before it was copied."""
    world = World()
    world.add("prefill", P, pages=40)
    decode = world.add("decode", D, pages=9, prefix_cache=True, host_bytes=1 << 20)
    world.run()
    for n in (1, 2):
        world.submit(submit(n, prompt(9, n), max_tokens=17))
    for _ in range(400):
        back = [
            room
            for room in decode.leader.worker.rooms.values()
            if room.copied and room.state is RoomState.RUNNING
        ]
        if back or not world.step():
            break
    (room,) = back
    assert not decode.leader.worker.ledger.chain(room.key)
    decode.leader.worker.condemn(room.copied[1:2])
    assert room.state is RoomState.ENDING
    world.run()
    for n in (1, 2):
        assert world.tokens(n) == expected(prompt(9, n), 17)
    assert world.clean
