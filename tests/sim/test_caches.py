"""What decode's prefix cache must hold: the book on histories made by hand, the good one and the
bad ones beside it."""

from types import SimpleNamespace

import msgspec
import pytest
from tests.sim.test_checkers import (
    DECODE,
    FULL,
    GATEWAY,
    PREFILL,
    PROMPT,
    SAMPLING,
    breaks,
    drawn,
    key,
    plan,
    violate,
)

from baton.core.agreement import Fetch, Hold, Inspect, Keep, Resume, RowOrder, StepResult
from baton.core.effects import Issue, Send
from baton.core.ids import (
    BlockIndex,
    CheckpointName,
    GroupName,
    Page,
    Rank,
    Stamp,
    TokenId,
    TokenIndex,
)
from baton.core.memory.state import DType, Full, Group, StateSpec, StateTable, Unit, Window
from baton.core.messages import Admitted, BlockRun, Limits, Received, Ticket, Tokens
from baton.dev.sim.caches import CacheBook
from baton.dev.sim.loans import Loans
from baton.dev.sim.watched import Watched

TABLE = StateTable(
    1,
    4,
    (Group(FULL, Unit.PAGE, Full()),),
    (StateSpec("kv", FULL, (0,), ("k", "v"), 1, 4, DType.F32),),
)
# nine and ten tokens; the first eight are the same
FIRST, SECOND = (*PROMPT, 1, 2, 3, 4), (*PROMPT, 1, 2, 3, 9, 9)
LIMITS = Limits(9, (), (), 1000)


def ticket(number, prompt, salt=""):
    tokens = tuple(map(TokenId, prompt))
    return Ticket(
        key(number),
        Stamp(number),
        GATEWAY,
        PREFILL,
        DECODE,
        tokens,
        (),
        SAMPLING,
        LIMITS,
        cache_salt=salt,
    )


class History:
    """What a leader does, turn by turn; room 1 comes first and leaves pages 5 and 6."""

    def __init__(self, *, salt="", wrong=(), on=True, table=TABLE, local=False):
        """local: whether room 2 is computed here"""
        second = ticket(2, SECOND, salt)
        if local:
            second = msgspec.structs.replace(second, prefill=DECODE)
        tickets = {t.key: t for t in (ticket(1, FIRST), second, ticket(3, FIRST))}
        heap = SimpleNamespace(now=0)
        self.flips: dict[int, int] = {}
        self.world = SimpleNamespace(tainted=set(), loans=Loans(tickets, violate), heap=heap)
        self.collective = SimpleNamespace(
            boot=DECODE,
            inherited={},
            ranks=1,
            flipped=lambda pages: next(
                (t for g, p in pages.items() if (t := self.flips.get(p)) is not None), None
            ),
            world=self.world,
            known=lambda k: [100 * int(k.room, 16) + p for p in range(20)],
            differs=lambda group, page, stamps: ["decode-0/1"] if page in wrong else [],
        )
        self.book = CacheBook(
            "decode-0", table, 1, self.collective, tickets, violate, on=on, verify_ms=1000
        )

    def turn(self, *effects, cached):
        self.book.acts(list(effects), {(FULL, page) for page in cached})

    def admit(self, number, pages, *, shared=0, cached=()):
        given = Hold(key(number), {FULL: tuple(map(Page, pages))}, {}, {FULL: shared})
        self.turn(
            Send(PREFILL, Admitted(key(number))), Issue(plan(1, hold=(given,))), cached=cached
        )

    def fetch(self, number, start, end):
        run = BlockRun(
            BlockIndex(start), BlockIndex(end), tuple(Page(p) for p in range(start, end))
        )
        order = Fetch(1, None, (), key(number), PREFILL, 9, {FULL: run}, (), 100)
        self.turn(Issue(plan(2, fetch=(order,))), cached=self.cached)

    def commit(self, number):
        self.turn(Issue(plan(3, commit=(key(number),))), cached=self.cached)
        self.book.committed([key(number)])

    @property
    def cached(self):
        return [page for _, page in self.book._at]

    def first(self):
        """Room 1 is committed, and ends."""
        self.admit(1, (5, 6, 7))
        self.fetch(1, 0, 3)
        self.commit(1)
        self.turn(Send(PREFILL, Received(key(1))), cached=(5, 6))
        self.turn(Issue(plan(4, drop=(key(1),))), cached=(5, 6))
        return self


def test_a_room_begins_with_what_is_cached_and_fetches_the_rest():
    history = History().first()
    history.admit(2, (5, 6, 8), shared=2, cached=(5, 6))
    assert history.collective.inherited[key(2)] == list(range(100, 108)), "as room 1 had it"
    assert history.book.hits == 2
    history.fetch(2, 2, 3)
    history.commit(2)


@pytest.mark.parametrize(
    ("pages", "shared"), [((5, 8, 9), 1), ((8, 9, 10), 0), ((6, 5, 8), 2), ((5, 6, 7), 3)]
)
def test_a_room_begins_with_all_that_is_cached_and_nothing_else(pages, shared):
    with breaks("cache_begins"):
        History().first().admit(2, pages, shared=shared, cached=(5, 6))


def test_nothing_is_shared_between_salts():
    history = History(salt="another").first()
    history.admit(2, (1, 2, 3), cached=(5, 6))
    with breaks("cache_begins"):
        History(salt="another").first().admit(2, (5, 6, 8), shared=2, cached=(5, 6))


def test_nothing_is_cached_before_the_commit():
    history = History()
    with breaks("cache_exact"):
        history.admit(1, (5, 6, 7), cached=(5, 6))
    history = History()
    history.admit(1, (5, 6, 7))
    with breaks("cache_begins"):
        history.admit(2, (5, 6, 8), shared=2)


def test_a_page_that_is_given_anew_is_cached_no_more():
    history = History().first()
    history.admit(3, (5, 6, 9), shared=2, cached=(5, 6))
    for cached in ((5, 6), ()):
        with breaks("cache_exact"):
            again = History().first()
            again.admit(2, (5, 6, 8), shared=2, cached=(5, 6))
            again.turn(Issue(plan(5, hold=(Hold(key(2), {FULL: (Page(6),)}),))), cached=cached)
    history = History().first()
    history.admit(2, (5, 6, 8), shared=2, cached=(5, 6))
    history.turn(Issue(plan(5, hold=(Hold(key(2), {FULL: (Page(6),)}),))), cached=(5,))
    history.admit(3, (5, 2, 3), shared=1, cached=(5,))


def test_pages_of_generated_tokens_are_cached_when_they_are_complete():
    history = History()
    history.admit(1, (5, 6, 7))
    history.fetch(1, 0, 3)
    history.commit(1)
    history.turn(Send(PREFILL, Received(key(1))), cached=(5, 6))
    history.turn(Send(GATEWAY, Tokens(key(1), 0, drawn(1, 2, 3), None)), cached=(5, 6))
    with breaks("cache_exact"):
        history.turn(Send(GATEWAY, Tokens(key(1), 3, drawn(4), None)), cached=(5, 6))
    assert history.cached == [5, 6, 7], "twelve tokens are computed now: the last one drawn is not"


def test_a_page_enters_with_the_right_bytes_on_every_rank():
    with breaks("cached_right"):
        History(wrong=(6,)).first()
    history = History(wrong=(6,))
    history.world.tainted.add(key(1))
    history.first()
    history.admit(2, (5, 6, 8), shared=2, cached=(5, 6))
    assert key(2) in history.world.tainted, "nothing promises that it is right"


@pytest.mark.parametrize(("start", "end"), [(1, 3), (0, 3)])
def test_what_is_cached_is_not_fetched(start, end):
    history = History().first()
    history.admit(2, (5, 6, 8), shared=2, cached=(5, 6))
    with breaks("fetches_lacking"):
        history.fetch(2, start, end)


def test_what_is_not_cached_is_fetched():
    history = History().first()
    history.admit(2, (5, 6, 8), shared=2, cached=(5, 6))
    with breaks("fetches_lacking"):
        history.commit(2)


def test_what_a_second_room_brings_again_stays_its_own():
    history = History()
    for number, pages in ((1, (5, 6, 7)), (3, (8, 9, 10))):
        history.admit(number, pages)
        history.fetch(number, 0, 3)
        history.commit(number)
    history.turn(Send(PREFILL, Received(key(1))), cached=(5, 6))
    history.turn(Send(PREFILL, Received(key(3))), cached=(5, 6))
    history.turn(Send(GATEWAY, Tokens(key(3), 0, drawn(1, 2, 3, 4), None)), cached=(5, 6))


def test_a_room_that_was_away_leaves_nothing():
    history = History()
    history.admit(1, (5, 6, 7))
    history.fetch(1, 0, 3)
    history.commit(1)
    history.turn(Send(PREFILL, Received(key(1))), cached=(5, 6))
    history.turn(Issue(plan(5, vacate=(key(1),))), cached=(5, 6))
    history.turn(
        Issue(plan(6, hold=(Hold(key(1), {FULL: tuple(map(Page, (1, 2, 3)))}),))), cached=(5, 6)
    )
    history.turn(Send(GATEWAY, Tokens(key(1), 0, drawn(1, 2, 3, 4), None)), cached=(5, 6))


def test_cleared_pools_hold_nothing():
    history = History().first()
    with breaks("cache_exact"):
        history.turn(Issue(plan(5, clear=(FULL,))), cached=(5, 6))
    history = History().first()
    history.turn(Issue(plan(5, clear=(FULL,))), cached=())
    history.admit(3, (1, 2, 3))


@pytest.mark.parametrize("off", ["no seals", "a window"])
def test_where_nothing_may_be_cached_nothing_is(off):
    window = msgspec.structs.replace(TABLE, groups=(Group(FULL, Unit.PAGE, Window(6)),))
    history = History(on=off != "no seals", table=TABLE if off == "no seals" else window)
    history.admit(1, (5, 6, 7))
    with breaks("cache_exact"):
        history.turn(Send(PREFILL, Received(key(1))), cached=(5,))


def test_an_order_that_ends_after_a_later_one_takes_nothing_back():
    history = History().first()
    at_rest, heap = history.book.at_rest, history.world.heap
    kept = next(iter(history.book._kept.values()))
    for number, heap.now in ((1, 100), (2, 200)):
        order = Inspect(number, (0,), {FULL: (Page(5),)})
        at_rest.ordered(plan(number, inspect=(order,)), {(FULL, 5): kept})
    at_rest.answered(Rank(0), [2], ())
    assert kept.verified == 200
    at_rest.answered(Rank(0), [1], ())
    assert kept.verified == 200


def test_each_step_is_judged_by_what_is_cached_then_and_before_the_next_is_taken():
    """A room begins with a page, and in the same turn of the pump a report comes that it is
    damaged."""
    cached, judged = [(FULL, 5)], []

    def step(event, now):
        if event == "report":
            cached.clear()
        return [event]

    core = Watched(
        SimpleNamespace(step=step, next_wake=lambda: None),
        lambda event: judged.append(("before", event, list(cached))),
        lambda event, effects: judged.append((effects, list(cached))),
    )
    assert [core.step(event, 7) for event in ("ticket", "report")] == [["ticket"], ["report"]]
    assert judged == [
        ("before", "ticket", [(FULL, 5)]),
        (["ticket"], [(FULL, 5)]),
        ("before", "report", [(FULL, 5)]),
        (["report"], []),
    ]


def test_what_of_an_offer_is_lacking():
    history = History().first()
    history.admit(2, (5, 6, 8), shared=2, cached=(5, 6))

    def run(start, end):
        return {FULL: BlockRun(BlockIndex(start), BlockIndex(end), ())}

    assert not history.book.lacks(key(2), run(0, 2))
    assert history.book.lacks(key(2), run(1, 3))
    assert not history.book.lacks(key(2), {})


PASSING = msgspec.structs.replace(
    TABLE, groups=(*TABLE.groups, Group(GroupName("window"), Unit.PAGE, Window(6)))
)
NAME = CheckpointName(7)


def kept():
    """Room 1 is kept, and over; of what it has, pages 5 and 6 are cached."""
    history = History(table=PASSING, local=True)
    history.admit(1, (5, 6, 7))
    history.fetch(1, 0, 3)
    history.turn(Send(PREFILL, Received(key(1))), cached=(5, 6))
    order = Keep(1, NAME, key(1), 9)
    history.turn(Issue(plan(4, keep=(order,), drop=(key(1),))), cached=(5, 6))
    return history


def resumes(history, pages, *, shared, cached, resume=True):
    given = Hold(key(2), {FULL: tuple(map(Page, pages))}, {}, {FULL: shared})
    back = (Resume(2, NAME, key(2), 9),) if resume else ()
    history.turn(Issue(plan(5, hold=(given,), resume=back)), cached=cached)


def test_a_prompt_that_is_computed_where_state_passes_goes_on_above_its_checkpoint_alone():
    resumes(kept(), (5, 6, 8), shared=2, cached=(5, 6))
    resumes(kept(), (1, 2, 3), shared=0, cached=(5, 6), resume=False)
    for pages, shared, resume in (
        ((5, 6, 8), 2, False),
        ((5, 8, 9), 1, True),
        ((1, 2, 3), 0, True),
    ):
        with breaks("cache_begins"):
            resumes(kept(), pages, shared=shared, cached=(5, 6), resume=resume)


def test_it_goes_on_above_no_page_that_is_cached_no_more():
    history = kept()
    history.turn(Issue(plan(5, clear=(FULL,))), cached=())
    with breaks("cache_begins"):
        resumes(history, (5, 6, 8), shared=2, cached=())


def test_a_room_whose_checkpoint_does_not_come_back_begins_anew_in_the_same_plan():
    history = kept()
    resumes(history, (5, 6, 8), shared=2, cached=(5, 6))
    given = Hold(key(2), {FULL: tuple(map(Page, (1, 2, 3)))}, {}, {FULL: 0})
    history.turn(Issue(plan(6, vacate=(key(2),), hold=(given,))), cached=(5, 6))
    compute(history, cached=(5, 6, 1, 2))


def compute(history, *, cached):
    """All of room 2 in one step."""
    row = RowOrder(key(2), 0, SECOND, {}, len(SECOND), None, TokenIndex(0))
    before = history.cached
    history.turn(Issue(plan(7, batch=(row,))), cached=before)
    history.book.stepped([StepResult(7, (SimpleNamespace(key=key(2), failed=None),))])
    history.turn(cached=cached)


@pytest.mark.parametrize("twins", [(1, 2), (1,), ()])
def test_it_may_bring_again_what_is_cached_and_others_begin_with_what_was_there(twins):
    history = kept()
    resumes(history, (1, 2, 3), shared=0, cached=(5, 6), resume=False)
    compute(history, cached=(5, 6, *twins))
    history.admit(3, (5, 6, 9), shared=2, cached=(5, 6, *twins))


def test_the_page_that_is_not_complete_never_enters():
    history = kept()
    resumes(history, (1, 2, 3), shared=0, cached=(5, 6), resume=False)
    with breaks("cache_exact"):
        compute(history, cached=(5, 6, 1, 2, 3))


def test_where_all_state_lasts_nothing_is_brought_again():
    history = History(local=True).first()
    history.admit(2, (5, 6, 8), shared=2, cached=(5, 6))
    with breaks("cache_begins"):
        History(local=True).first().admit(2, (1, 2, 3), cached=(5, 6))
