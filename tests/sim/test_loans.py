"""State that is fetched back: the books on histories made by hand, the good one and the bad ones
beside it."""

from types import SimpleNamespace

import numpy as np
import pytest
from tests.sim.test_caches import FIRST, SECOND, History, ticket
from tests.sim.test_checkers import (
    DECODE,
    FULL,
    PAGE,
    PEER,
    PREFILL,
    PROMPT,
    SLOT,
    Pools,
    again,
    asks,
    books,
    breaks,
    computed,
    into,
    key,
    plan,
    row,
    violate,
)

from baton.core.agreement import Hold
from baton.core.effects import Issue, Send
from baton.core.ids import BlockIndex, Page, Seq
from baton.core.messages import BlockRun, Ended, Loan, Returned
from baton.core.work import Batch, Row
from baton.dev.sim.loans import Lent, Loans

GATEWAY = 99


def run(start, end, *pages):
    return {FULL: BlockRun(BlockIndex(start), BlockIndex(end), tuple(map(Page, pages)))}


# ---- which pages are lent -----------------------------------------------------------------------


def lends(history, runs, number=2):
    history.turn(Send(PREFILL, Loan(key(number), runs, ())), cached=history.cached)
    return history.world.loans


def test_what_is_cached_of_a_rooms_tokens_may_be_lent():
    loans = lends(History().first(), run(1, 2, 6))
    assert loans.lent[key(2)].blocks == {1: (104, 105, 106, 107)}, "as room 1 had it"
    assert not loans.lent[key(2)].tainted


@pytest.mark.parametrize(
    "runs", [run(0, 2, 6, 5), run(0, 3, 5, 6, 7), run(0, 2, 5, 9), run(1, 2, 5), run(0, 2, 5)]
)
def test_nothing_else_may(runs):
    with breaks("lends_cached"):
        lends(History().first(), runs)


def test_nor_to_another_salt():
    with breaks("lends_cached"):
        lends(History(salt="another").first(), run(0, 2, 5, 6))


def test_an_answer_with_nothing_lends_nothing():
    assert lends(History(), {}).lent == {}


def test_what_was_computed_from_damaged_memory_is_lent_as_such():
    history = History()
    history.world.tainted.add(key(1))
    assert lends(history.first(), run(0, 2, 5, 6)).lent[key(2)].tainted


# ---- how long -----------------------------------------------------------------------------------

LOST = "lost"


@pytest.mark.parametrize(
    "over", [None, Returned(key(2)), Ended(key(2)), LOST, Returned(key(3)), Ended(key(3))]
)
def test_a_lent_page_is_given_to_nobody_until_it_is_returned_or_its_room_has_ended(over):
    history = History().first()
    history.admit(2, (5, 6, 8), shared=2, cached=(5, 6))
    loans = lends(history, run(0, 2, 5, 6))
    if over == LOST:
        loans.lost(DECODE, PREFILL)
    elif isinstance(over, Returned):
        loans.heard(DECODE, over)
    elif over is not None:
        history.turn(Send(GATEWAY, over), cached=history.cached)

    def give():
        history.turn(Issue(plan(5, hold=(Hold(key(2), {FULL: (Page(6),)}),))), cached=(5,))

    if over is None or getattr(over, "key", key(2)) != key(2):
        with breaks("lent_pinned"):
            give()
    else:
        give()


def test_another_worker_may_do_with_its_pages_what_it_likes():
    tickets = {t.key: t for t in (ticket(1, FIRST), ticket(2, SECOND))}
    loans = Loans(tickets, violate)
    loans.lends(DECODE, key(2), frozenset({(FULL, 5)}), Lent({}, False))
    loans.given(DECODE + 1, (FULL, 5), key(1))
    loans.given(DECODE, (FULL, 6), key(1))
    loans.lost(DECODE, GATEWAY)
    with breaks("lent_pinned"):
        loans.given(DECODE, (FULL, 5), key(1))


def test_open_loans_are_pinned_beside_open_rooms():
    history = History().first()
    history.admit(2, (5, 6, 8), shared=2, cached=(5, 6))
    history.book.pinned(2)
    lends(history, run(1, 2, 6))  # whoever pins a page pins those before it
    history.book.pinned(4)
    history.book.pinned(7)  # of rooms that were dropped
    with breaks("lent_pinned"):
        history.book.pinned(3)
    history.world.loans.heard(DECODE, Returned(key(2)))
    history.book.pinned(2)


# ---- what is made of it -------------------------------------------------------------------------


def test_a_room_computes_when_nothing_is_read_into_its_pages():
    found = books(Pools())
    found.read_began(7, PEER, into(0))
    with breaks("computes_alone"):
        found.applied(plan(2, batch=(row(key(), 0),)))
    found.applied(plan(3, batch=(row(key(2), 0),)))
    found.read_quiet(7)
    found.applied(plan(4, batch=(row(key(), 0),)))


def fetched_back(*, tainted=False, wrong=False):
    """Room 2 has page 3, into which the first page of decode's was read, and offers it."""
    engine, _ = computed()
    k = asks(engine, 2, PROMPT)
    stamps = (11, 13, 17, 19)
    engine.world.loans = Loans(engine.world.tickets, violate)
    engine.world.loans.lends(DECODE, k, frozenset(), Lent({0: stamps}, tainted))
    engine.given(FULL, 3)
    held = engine._rows.block(FULL, stamps) ^ wrong
    engine.sim_pools[FULL].raw[3 * PAGE : 4 * PAGE] = held.to_bytes(PAGE, "little")
    return engine, k


BOTH = {SLOT: BlockRun(BlockIndex(0), BlockIndex(1), (Page(0),))}


def test_what_was_fetched_back_is_offered_and_serves_others_as_decode_had_it():
    engine, k = fetched_back()
    engine.collective.offered(k, run(0, 1, 3) | BOTH)
    engine.reuses(asks(engine, 3, PROMPT), FULL, 0, 3)
    assert engine.world.tainted == set()
    engine.given(FULL, 3)
    with breaks("right_reuse"):
        engine.reuses(key(3), FULL, 0, 3)  # its life is over


def test_bytes_that_decode_had_not_are_wrong():
    engine, k = fetched_back(wrong=True)
    engine.collective.offered(k, run(0, 1, 3) | BOTH)
    with breaks("right_reuse"):
        engine.reuses(asks(engine, 3, PROMPT), FULL, 0, 3)


def test_damage_goes_with_it():
    engine, k = fetched_back(tainted=True, wrong=True)
    engine.collective.offered(k, run(0, 1, 3) | BOTH)
    assert engine.world.tainted == {k}
    engine.reuses(asks(engine, 3, PROMPT), FULL, 0, 3)


def test_what_nobody_has_computed_is_not_offered():
    engine, k = fetched_back()
    engine.collective.offered(key(), run(0, 2, 2, 1) | BOTH)  # as it computed them
    with breaks("nothing_skipped"):
        engine.collective.offered(k, run(1, 2, 3) | BOTH)  # another block than the one that is lent
    with breaks("nothing_skipped"):
        engine.collective.offered(asks(engine, 4, PROMPT), run(0, 1, 3) | BOTH)  # to another room


def test_a_room_begins_behind_what_was_computed_or_fetched_back():
    def rest(engine, k):
        lists = {FULL: np.array([3, 0], dtype=np.int32), SLOT: np.array([0], dtype=np.int32)}
        engine._groups = engine.placement.table.groups[:1]
        engine.placement = SimpleNamespace(
            table=SimpleNamespace(
                groups=engine.placement.table.groups[:1],
                block_tokens=4,
                group=engine.placement.table.group,
            ),
            block_bytes=engine.placement.block_bytes,
            blocks_per_page=engine.placement.blocks_per_page,
            pp=1,
            tp=1,
        )
        again(engine, Batch(Seq(2), (Row(k, 4, PROMPT[4:], lists, {}, len(PROMPT), None),)))

    engine, k = fetched_back()
    with breaks("nothing_skipped"):
        rest(engine, k)
    engine, k = fetched_back()
    engine.collective.offered(k, run(0, 1, 3) | BOTH)
    rest(engine, k)
    assert engine.collective.stamps[k][:4] == [11, 13, 17, 19]
    engine, k = fetched_back(wrong=True)
    engine.collective.offered(k, run(0, 1, 3) | BOTH)
    with breaks("right_bytes"):
        rest(engine, k)
