"""State that decode has cached comes back to prefill: only the rest is computed, and whatever goes
wrong, all of it is."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from tests.core.build import KV, B, submit
from tests.core.driven import T0
from tests.core.world import Node, World, expected

from baton.core.door import Fail, Finish
from baton.core.errors import Bug
from baton.core.events import MessageReceived
from baton.core.handoff.fetch_back import FetchBack
from baton.core.ids import BlockIndex, Boot, Page
from baton.core.marks import Mark
from baton.core.messages import Admitted, Borrow, Hello, Loan, Returned, Ticket
from baton.core.rank.rank_effects import Read
from baton.core.scheduler.borrowing import Borrowing
from baton.core.scheduler.room import RoomState
from baton.core.work import Batch, ReadOutcome, Released

P, D = 2, 3


def prompt(n: int, salt: int = 0) -> tuple[int, ...]:
    return tuple((7 * i + 13 * salt + 1) % 997 for i in range(n))


class Split:
    """A prefill and a decode worker with their caches on, what prefill computes, and what it
    reads."""

    def __init__(
        self,
        *,
        source: int = 1,
        target: int = 1,
        mode: FetchBack = FetchBack.ALWAYS,
        pages: int = 60,
        **changes: Any,
    ) -> None:
        self.world = World()
        common: dict[str, Any] = {"prefix_cache": True, "fetch_back": mode, "stall_ms": 60_000}
        p, d = changes.pop("prefill", {}), changes.pop("decode", {})
        self.prefill = self.world.add(
            "prefill", P, pages=p.pop("pages", pages), page_blocks=source, **common | p
        )
        self.decode = self.world.add(
            "decode", D, pages=d.pop("pages", pages), page_blocks=target, **common | d
        )
        self.world.run()
        self.rows: list[tuple[int, int]] = []  # first position and tokens of what prefill computed
        self.back: list[Read] = []  # what prefill read
        self.spoils: Any = lambda read, node: ReadOutcome.OK
        self.world.on_landed = self._landed
        compute = self.prefill.engine.compute

        def watched(batch: Batch) -> None:
            self.rows.extend((row.start, len(row.tokens)) for row in batch.rows)
            compute(batch)

        self.prefill.engine.compute = watched  # type: ignore[method-assign]

    def _landed(self, read: Read, node: Node) -> ReadOutcome:
        if node is not self.prefill:
            return ReadOutcome.OK
        self.back.append(read)
        found: ReadOutcome = self.spoils(read, node)
        return found

    @property
    def leader(self) -> Any:
        found = self.prefill.leader
        return found

    def begin(self, number: int, tokens: tuple[int, ...], count: int = 5) -> None:
        self.world.submit(submit(number, tokens, max_tokens=count))

    def ask(self, number: int, tokens: tuple[int, ...], count: int = 5) -> list[tuple[int, int]]:
        """One request to its end, with the right tokens; what prefill computed for it."""
        self.rows.clear()
        self.begin(number, tokens, count)
        self.world.run()
        self.ended_well(number, tokens, count)
        return list(self.rows)

    def ended_well(self, number: int, tokens: tuple[int, ...], count: int = 5) -> None:
        assert self.world.tokens(number) == expected(tokens, count)
        assert isinstance(self.world.end(number), Finish)
        assert self.world.clean

    def forget(self) -> None:
        """Prefill's cache is emptied."""
        self.world.front.ask_reset_cache(f"prefill-{P}")
        self.world.run()

    def conversation(self, count: int = 12) -> tuple[int, ...]:
        """Decode holds a first turn, and prefill nothing; the next turn's prompt: 21 + 12 tokens
        that it has, and 6 more."""
        first = prompt(21)
        self.ask(1, first, count)
        self.forget()
        return (*first, *expected(first, count), *prompt(6, 9))

    def blocks_back(self) -> int:
        size = self.prefill.engine.placement.block_bytes(KV)
        return sum(int(c.nbytes.sum()) for read in self.back for c in read.copies) // size

    def said(self, kind: type) -> list[Any]:
        return [m for _, _, m in self.world.log if isinstance(m, kind)]

    def cached(self, number: int) -> int:
        return sum(getattr(h, "cached", 0) for h in self.world.heard[submit(number).request])


@pytest.mark.parametrize(("source", "target"), [(1, 1), (2, 1), (1, 2), (3, 2), (2, 3)])
def test_a_conversation_comes_back_and_only_the_rest_is_computed(source: int, target: int) -> None:
    b = Split(source=source, target=target)
    nextturn = b.conversation()
    # positions of whole pages that decode has: the last token drawn is in none
    held = 32 // (target * B) * target * B
    assert b.ask(2, nextturn) == [(held, len(nextturn) - held)]
    assert b.blocks_back() == held // B, "each byte once, and no other"
    assert b.cached(2) == held
    tally = b.leader.worker.reuse.tally()
    size = b.prefill.engine.placement.block_bytes(KV)
    assert (tally.borrowed_tokens, tally.borrowed_bytes, tally.hits) == (held, held // B * size, 0)
    assert b.decode.leader.worker.reuse.tally().lent_tokens == held
    assert b.leader.worker.marks[Mark.BORROWED] == 1
    again = b.ask(3, nextturn)
    page = source * B
    assert again == [(38 // page * page, 39 - 38 // page * page)], (
        "what came back is cached here too"
    )
    assert len(b.said(Borrow)) == 2, "for the first turn, and for the second"
    assert b.said(Returned) == [Returned(b.said(Borrow)[1].key)]


def test_what_came_back_is_offered_with_the_sums_it_had() -> None:
    """Whoever lacks it reads it from prefill, and finds that it matches: here decode itself, which
    has lost it meanwhile."""
    b = Split()
    nextturn = reading(b)
    b.world.front.ask_reset_cache(f"decode-{D}")
    b.world.freeze_reads = False
    b.world.run()
    assert b.rows == [(32, 7)]
    b.ended_well(2, nextturn)
    reads = []
    b.world.on_landed = lambda read, node: reads.append(node) or ReadOutcome.OK  # type: ignore[func-returns-value]
    assert b.ask(3, nextturn) == [(36, 3)]
    b.world.front.ask_reset_cache(f"decode-{D}")
    b.world.run()
    assert b.ask(4, nextturn) == [(36, 3)]
    assert b.decode in reads
    assert b.decode.leader.worker.marks[Mark.READ_AGAIN] == 0


def test_prefill_adds_to_what_it_has_itself() -> None:
    b = Split()
    nextturn = b.conversation()
    b.ask(2, nextturn[:13])
    assert b.leader.worker.marks[Mark.BORROWED] == 1
    assert b.ask(3, nextturn) == [(32, 7)]
    assert b.cached(3) == 32
    second = b.said(Loan)[-1]
    assert second.runs[KV].start == 3, "twelve tokens are here"


def test_the_last_token_is_computed_whatever_decode_has() -> None:
    b = Split()
    b.conversation()
    first = prompt(21)
    whole = (*first, *expected(first, 12))[:24]
    assert b.ask(2, whole) == [(20, 4)]


@pytest.mark.parametrize("where", ["prefill", "decode"])
@pytest.mark.parametrize("off", [{"fetch_back": FetchBack.NEVER}, {"prefix_cache": False}])
def test_nothing_is_asked_where_either_side_has_it_switched_off(
    where: str, off: dict[str, Any]
) -> None:
    b = Split(**{where: dict(off)})
    nextturn = b.conversation()
    assert b.ask(2, nextturn) == [(0, len(nextturn))]
    assert b.said(Borrow) == []
    (hello,) = b.said(Hello)
    assert (hello.lends is None) == (where == "decode")


def test_what_decode_has_not_is_computed() -> None:
    b = Split()
    assert b.ask(1, prompt(21)) == [(0, 21)]
    assert b.ask(2, prompt(21, 5)) == [(0, 21)]
    assert b.leader.worker.marks[Mark.NOTHING_LENT] == 2
    assert [loan.runs for loan in b.said(Loan)] == [{}, {}]


def test_less_than_a_page_is_not_asked_for() -> None:
    b = Split(source=2)
    b.ask(1, prompt(8))
    assert b.said(Borrow) == []


def test_where_computing_is_cheaper_decode_is_not_asked() -> None:
    b = Split(mode=FetchBack.AUTO)
    nextturn = b.conversation()
    asked = len(b.said(Borrow))
    b.leader.worker.prefill.saw(1e12, 0, 1)
    assert b.ask(2, nextturn) == [(0, len(nextturn))]
    assert len(b.said(Borrow)) == asked
    assert b.leader.worker.marks[Mark.NOT_WORTH_IT] == 1


def test_where_too_little_is_lent_it_is_given_back_unread() -> None:
    """Asking pays for all that is lacking, and reading does not for what is there."""
    b = Split(mode=FetchBack.AUTO)
    b.conversation()
    # 10,200 tokens in 1.1 s; 2 ms are 19 of them
    b.leader.worker.prefill.saw(10_000, 0, 1_000_000)
    tokens = (*prompt(12), *prompt(24, 3))
    assert b.ask(2, tokens) == [(0, 36)]
    assert b.back == []
    assert b.leader.worker.marks[Mark.NOT_WORTH_IT] == 1
    assert len(b.said(Loan)[-1].runs[KV].pages) == 3
    assert b.said(Returned)[-1] == Returned(b.said(Loan)[-1].key)


def test_what_is_here_already_does_not_count_as_lent() -> None:
    b = Split(mode=FetchBack.AUTO)
    nextturn = b.conversation()
    b.ask(2, nextturn[:13])
    # fewer than about 20 tokens are computed faster
    b.leader.worker.prefill.saw(10_000, 0, 1_000_000)
    b.back.clear()
    assert b.ask(3, (*nextturn[:20], *prompt(24, 3))) == [(12, 32)]
    assert b.back == []
    (lent,) = b.said(Loan)[-1].runs.values()
    assert (lent.start, lent.end) == (3, 5)


def test_steps_and_reads_are_measured() -> None:
    b = Split(mode=FetchBack.AUTO)
    before = b.leader.worker.prefill.cost.time(0, 1)
    b.begin(1, prompt(21))
    b.world.run()
    assert b.leader.worker.prefill.cost.time(0, 1) < before, (
        "time stands still here: it has computed 21 tokens in no time"
    )
    assert b.leader.worker.prefill.under_way == []


def test_a_read_counts_for_as_long_as_it_took() -> None:
    b = Split()
    reading(b)
    pace = b.leader.stage(Borrowing).pace.read
    before = pace.time(1)
    b.world.advance(1_000)
    b.world.freeze_reads = False
    b.world.run()
    assert b.leader.worker.marks[Mark.BORROWED] == 1
    assert pace.time(1) > 50 * before, (
        "a second, where reading ten megabytes in ten milliseconds was supposed"
    )


def test_who_begins_alike_waits_until_it_is_here_and_asks_for_the_rest() -> None:
    b = Split()
    nextturn = reading(b)
    b.begin(3, (*nextturn, 1, 2, 3))
    b.world.run()
    assert [r.state for r in b.leader.worker.rooms.values()] == [
        RoomState.BORROWING,
        RoomState.QUEUED,
    ]
    b.world.freeze_reads = False
    b.world.run()
    assert b.rows == [(32, 7), (36, 6)]
    assert [borrow.start for borrow in b.said(Borrow)[1:]] == [0, 9]
    b.ended_well(2, nextturn)
    b.ended_well(3, (*nextturn, 1, 2, 3))


# ---- what goes wrong ----------------------------------------------------------------------------


def test_without_an_answer_in_time_all_is_computed_and_the_loan_goes_back() -> None:
    b = Split()
    nextturn = b.conversation()
    b.rows.clear()
    b.world.hold = lambda source, target, message: isinstance(message, Loan)
    b.begin(2, nextturn)
    b.world.advance(999)
    assert [r.state for r in b.leader.worker.rooms.values()] == [RoomState.BORROWING]
    assert b.decode.leader.worker.ledger.pins > 0
    b.world.advance(2)
    assert b.rows == [(0, len(nextturn))]
    assert b.leader.worker.marks[Mark.NOT_ANSWERED] == 1
    b.world.release()
    b.world.run()
    assert b.leader.worker.marks[Mark.LOAN_TOO_LATE] == 1
    b.ended_well(2, nextturn)


def spoil(read: Read, node: Node) -> ReadOutcome:
    """A bit differs."""
    node.engine.pool[int(read.copies[0].target[0])] ^= 1
    return ReadOutcome.OK


@pytest.mark.parametrize(
    "spoils", [spoil, lambda read, node: ReadOutcome.FAILED], ids=["differs", "fails"]
)
def test_what_does_not_come_back_whole_is_computed(spoils: Any) -> None:
    b = Split()
    nextturn = b.conversation()
    b.spoils = spoils
    assert b.ask(2, nextturn) == [(0, len(nextturn))]
    assert len(b.back) == 1, "it is not tried again"
    assert b.leader.worker.marks[Mark.BORROWED_IN_VAIN] == 1
    assert b.cached(2) == 0
    assert b.leader.worker.reuse.tally().borrowed_tokens == 0
    b.spoils = lambda read, node: ReadOutcome.OK
    b.forget()
    assert b.ask(3, nextturn) == [(36, 3)], (
        "the next one may succeed: decode has the second turn too"
    )


def test_nothing_is_computed_into_pages_that_a_lost_read_may_still_write() -> None:
    b = Split()
    nextturn = b.conversation()
    b.rows.clear()
    b.spoils = lambda read, node: ReadOutcome.UNKNOWN
    b.begin(2, nextturn)
    b.world.run()
    assert [r.state for r in b.leader.worker.rooms.values()] == [RoomState.BORROWING]
    assert b.rows == []
    (read,) = b.back
    b.spoils = lambda read, node: ReadOutcome.OK
    b.prefill.rank.step(Released(read.handle), T0)
    b.world.run()
    assert b.rows == [(0, len(nextturn))]
    b.ended_well(2, nextturn)


def test_blocks_that_prefill_was_asked_about_are_not_lent() -> None:
    b = Split()
    spoiled: list[Read] = []

    def twice(read: Read, node: Node) -> ReadOutcome:
        if node is b.decode and len(spoiled) < 3:
            spoiled.append(read)
            return spoil(read, node)
        return ReadOutcome.OK

    b.world.on_landed = twice
    b.ask(1, prompt(21))
    assert b.decode.leader.worker.marks[Mark.DOUBT] == 1
    b.forget()
    assert b.ask(2, prompt(21)) == [(0, 21)]
    assert b.said(Loan)[-1].runs == {}


@pytest.mark.parametrize(
    ("runs", "why"),
    [
        ((0, 7, 8), "a page too many"),
        ((1, 8, 7), "it begins elsewhere"),
        ((0, 11, 11), "the last token would not be computed"),
        ((0, 0, 0), "it is empty"),
    ],
)
def test_a_loan_that_cannot_be_is_not_read(runs: tuple[int, int, int], why: str) -> None:
    b = Split()
    nextturn = b.conversation()
    b.rows.clear()
    b.world.hold = lambda source, target, message: isinstance(message, Loan)
    b.begin(2, nextturn)
    b.world.run()
    (source, target, loan), b.world.held, b.world.hold = (
        b.world.held[0],
        [],
        lambda source, target, message: False,
    )
    start, end, pages = runs
    run = replace(
        loan.runs[KV],
        start=BlockIndex(start),
        end=BlockIndex(end),
        pages=tuple(map(Page, range(pages))),
    )
    b.world._send(source, target, replace(loan, runs={KV: run}))
    b.world.run()
    assert b.back == [], why
    assert b.leader.worker.marks[Mark.NOTHING_LENT] == 2, "as of the first turn"
    assert b.leader.worker.marks[Mark.BORROWED_IN_VAIN] == 0
    assert b.rows == [(0, len(nextturn))]
    b.ended_well(2, nextturn)


def test_a_question_before_its_ticket_is_answered_when_that_comes() -> None:
    b = Split()
    nextturn = b.conversation()
    b.rows.clear()
    b.world.hold = lambda source, target, message: target == D and isinstance(message, Ticket)
    b.begin(2, nextturn)
    b.world.run()
    assert b.decode.leader.worker.marks[Mark.EARLY_BORROW] == 1
    b.world.release()
    b.world.run()
    assert b.rows == [(32, 7)]
    b.ended_well(2, nextturn)


# ---- ends ---------------------------------------------------------------------------------------


def reading(b: Split) -> tuple[int, ...]:
    """A room whose read is under way."""
    nextturn = b.conversation()
    b.world.freeze_reads = True
    b.begin(2, nextturn)
    b.world.run()
    assert [r.state for r in b.leader.worker.rooms.values()] == [RoomState.BORROWING]
    assert b.prefill.reads
    b.rows.clear()
    return nextturn


def asking(b: Split) -> tuple[int, ...]:
    """A room that waits for an answer."""
    nextturn = b.conversation()
    b.world.hold = lambda source, target, message: isinstance(message, Loan)
    b.begin(2, nextturn)
    b.world.run()
    assert [r.state for r in b.leader.worker.rooms.values()] == [RoomState.BORROWING]
    b.rows.clear()
    return nextturn


STAGES = pytest.mark.parametrize("stage", [asking, reading])


def go_on(b: Split) -> None:
    b.world.freeze_reads = False
    b.world.release()
    b.world.advance(30_000)


@STAGES
def test_a_client_that_leaves_leaves_nothing_behind(stage: Any) -> None:
    b = Split()
    stage(b)
    b.world.cancel(2)
    b.world.run()
    go_on(b)
    assert b.rows == []
    assert b.world.clean
    assert b.decode.leader.worker.ledger.pins == 0


@STAGES
def test_the_death_of_decode_ends_the_room_and_the_pages_come_back(stage: Any) -> None:
    b = Split()
    stage(b)
    b.world.lose(D)
    go_on(b)
    assert isinstance(b.world.end(2), Fail)
    assert b.world.clean


@STAGES
def test_the_death_of_prefill_ends_its_loans(stage: Any) -> None:
    b = Split()
    stage(b)
    assert b.decode.leader.worker.ledger.pins > 0
    b.world.lose(P)
    go_on(b)
    assert b.world.clean


@STAGES
def test_an_older_request_that_needs_the_pages_is_let_through(stage: Any) -> None:
    """A room that borrows and is not admitted yet is withdrawn as any other."""
    b = Split(prefill={"pages": 14})
    nextturn, old = b.conversation(), prompt(24, 4)

    def holds(*, tickets: bool) -> Callable[[Boot, Boot, Any], bool]:
        kinds = (Admitted, *([Loan] * (stage is asking)), *([Ticket] * tickets))
        return lambda source, target, message: target == P and isinstance(message, kinds)

    b.world.hold = holds(tickets=True)
    b.begin(3, old)
    b.world.run()
    held, b.world.held = b.world.held, []
    b.world.hold, b.world.freeze_reads = holds(tickets=False), True
    b.begin(2, nextturn)
    b.world.run()
    assert [r.state for r in b.leader.worker.rooms.values()] == [RoomState.BORROWING]
    for source, target, message in held:
        b.world._send(source, target, message)
    b.world.run()
    b.world.freeze_reads = False
    b.world.release()
    b.world.run()
    assert b.leader.worker.marks[Mark.WITHDRAWN] == 1
    b.ended_well(3, old)
    b.ended_well(2, nextturn)


def test_a_deadline_passes_while_it_reads() -> None:
    b = Split()
    nextturn = b.conversation()
    b.world.freeze_reads = True
    b.world.submit(submit(2, nextturn, max_tokens=5, deadline_ms=500))
    b.world.advance(600)
    b.world.freeze_reads = False
    b.world.advance(30_000)
    assert isinstance(b.world.end(2), Fail)
    assert b.world.clean


def test_lent_pages_stay_while_they_are_read_and_go_afterwards() -> None:
    """Decode has no page to spare but those that are lent: who comes meanwhile waits."""
    b = Split(decode={"pages": 11, "max_rooms": 8})
    nextturn = reading(b)
    pinned = b.decode.leader.worker.ledger.pins
    assert pinned >= 8
    b.decode.leader.worker.ledger.audit()
    assert not b.decode.leader.worker.ledger.fits({KV: 4})
    b.world.freeze_reads = False
    b.world.run()
    b.ended_well(2, nextturn)
    assert b.decode.leader.worker.ledger.fits({KV: 11})


def test_a_second_loan_of_a_room_is_our_bug() -> None:
    b = Split()
    reading(b)
    (room,) = b.decode.leader.worker.rooms.values()
    with pytest.raises(Bug, match="a loan already"):
        b.decode.leader.worker.ledger.lend(room.key, ())


def test_a_lost_lender_is_forgotten_and_its_ranks_are_left() -> None:
    b = Split()
    b.conversation()
    assert Boot(D) in b.leader.stage(Borrowing)._lenders
    b.world.lose(D, at=P)
    b.world.run()
    assert not b.leader.stage(Borrowing)._lenders
    assert not b.prefill.rank.sources


def test_a_fabric_that_prefill_has_not_is_not_used() -> None:
    b = Split()
    (hello,) = b.said(Hello)
    assert hello.lends is not None
    b.world.lose(D, at=P)
    for lends in (
        replace(hello.lends, fabric="carrier pigeon"),
        replace(hello.lends, plan="another"),
    ):
        b.leader.step(MessageReceived(Boot(D), replace(hello, lends=lends)), b.world.now)
        assert not b.leader.stage(Borrowing)._lenders
    b.leader.step(MessageReceived(Boot(D), hello), b.world.now)
    assert b.leader.stage(Borrowing)._lenders


def test_only_who_borrowed_is_lent_to_and_returns_what_it_read() -> None:
    b = Split()
    nextturn = reading(b)
    [room] = b.leader.worker.rooms
    decode, other = b.decode.leader, Boot(9)
    lent = decode.worker.ledger.pins
    assert lent
    decode.step(MessageReceived(other, Returned(room)), b.world.now)
    assert decode.worker.ledger.pins == lent, "prefill still reads them"
    decode.step(MessageReceived(other, Borrow(room, BlockIndex(0))), b.world.now)
    b.world.run()
    assert not [m for _, target, m in b.world.log if target == other]
    b.world.freeze_reads = False
    b.world.run()
    b.ended_well(2, nextturn)
