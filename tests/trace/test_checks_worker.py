"""The checks over a worker's journal, against histories made by hand: good ones pass, and each bad
one is named."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.build import KV
from tests.trace.histories import (
    GATEWAY,
    GOOD,
    ONE,
    PREFILL,
    TWO,
    applies,
    asks,
    expect,
    fetch,
    hashes,
    hears,
    hold,
    issues,
    judged,
    key,
    last_offer,
    leader_parts,
    leads,
    plan,
    rank_parts,
    ranks,
    reads,
    reports,
    row,
    tells,
    ticket,
    vote,
)

from baton.core.agreement import Suspect, Vote
from baton.core.effects import Send
from baton.core.events import GuestComputes, PeerLost, ReadRefused, TimerDue
from baton.core.ids import Boot, Seq
from baton.core.memory.state import DType, Full, Group, StateSpec, StateTable, Unit, Whole, Window
from baton.core.messages import Close, Ended, Received
from baton.core.rank.rank_effects import Compute
from baton.core.work import Batch, BatchDone, DigestDone, ReadOutcome, Released, Row
from baton.core.work import ReadEnded as ReadEnd
from baton.trace.checks.commits import CommitAfterArrival, needed
from baton.trace.checks.landings import OneReadAByte, _overlap
from baton.trace.checks.pages import PageBooks
from baton.trace.checks.plans import NewestEpoch, PlanSequence
from baton.trace.checks.quiet import QuietIsTrue
from baton.trace.log import Raised, Step

ARRIVED = Vote.ARRIVED

# ---- plans --------------------------------------------------------------------------------------

PLANS = [
    ([issues(1), applies(1), issues(2), issues(3), applies(2), applies(3)], GOOD),
    ([issues(2)], "plan 2 was issued after plan 0"),
    ([issues(1), issues(1)], "plan 1 was issued after plan 1"),
    ([issues(1), issues(3)], "plan 3 was issued after plan 1"),
    ([issues(1), issues(2), applies(2)], "plan 2 was applied after plan 0"),
    ([applies(1)], "never issued"),
    ([issues(1, drop=[ONE]), applies(1, drop=[TWO])], "otherwise than issued"),
    ([issues(1), applies(1, Raised("Bug", "no"))], GOOD),
]


@pytest.mark.parametrize(("steps", "why"), PLANS)
def test_plan_sequence(steps: list[Step], why: str | None) -> None:
    expect(judged(PlanSequence(), leader_parts(), steps), why)


def test_a_rank_without_its_leader_is_judged_by_order_alone() -> None:
    assert judged(PlanSequence(), rank_parts(), [applies(1), applies(2)]) == []


OLD, NEW = key(1, 1), key(1, 2)
ENDS = hears(ticket(2), Send(GATEWAY, Ended(ONE)))
EPOCHS = [
    (
        [asks(1), issues(1, hold=[hold(OLD, 0)]), asks(1, epoch=2), issues(2, hold=[hold(NEW, 1)])],
        GOOD,
    ),
    ([asks(1, epoch=2), asks(1), issues(1, hold=[hold(NEW, 0)])], GOOD),
    (
        [asks(1), issues(1, hold=[hold(OLD, 0)]), asks(1, epoch=2), issues(2, batch=[row(OLD)])],
        "epoch 2 of that room",
    ),
    ([asks(1), asks(1, epoch=2), issues(1, commit=[OLD])], "a commit of"),
    ([asks(1), asks(1, epoch=2), issues(1, fetch=[fetch(1, OLD, 0, 1)])], "a fetch of"),
    ([asks(1), asks(1, epoch=2), issues(1, drop=[OLD], hold=[hold(OLD, 0)])], GOOD),
    ([asks(1, epoch=2), asks(1), issues(1, hold=[hold(OLD, 0)])], "epoch 2 of that room"),
    ([issues(1, hold=[hold(ONE, 0)])], "no ticket"),
    ([hears(ticket(1, decode=77)), issues(1, hold=[hold(ONE, 0)])], "no ticket"),
    # A Close while the room is open is somebody's mistake; it counts from the room's end on.
    ([asks(1), hears(Close(ONE.room)), issues(1, hold=[hold(ONE, 0)])], GOOD),
    ([asks(1), ENDS, hears(Close(ONE.room)), issues(1, hold=[hold(ONE, 0)])], "no ticket"),
    ([asks(1), hears(Close(ONE.room)), ENDS, issues(1, hold=[hold(ONE, 0)])], "no ticket"),
    ([asks(1), leads(PeerLost(GATEWAY, "x")), issues(1, batch=[row(ONE)])], "no ticket"),
]


@pytest.mark.parametrize(("steps", "why"), EPOCHS)
def test_newest_epoch(steps: list[Step], why: str | None) -> None:
    expect(judged(NewestEpoch(), leader_parts(), steps), why)


# ---- pages --------------------------------------------------------------------------------------

HELD = [issues(1, hold=[hold(ONE, 0, 1)])]
DROPPED = [*HELD, issues(2, drop=[ONE])]
QUIET = [
    *DROPPED,
    reports(0, 2, quiet=(ONE,)),
    reports(1, 2, Send(GATEWAY, Ended(ONE)), quiet=(ONE,)),
]
PAGES = [
    ([*QUIET, issues(3, hold=[hold(TWO, 1)])], GOOD),
    (
        [
            *DROPPED,
            reports(0, 2, quiet=(ONE,)),
            reports(1, 2, plan(3, hold=[hold(TWO, 0)]), quiet=(ONE,)),
        ],
        GOOD,
    ),
    ([*HELD, issues(2, hold=[hold(ONE, 2)], batch=[row(ONE, 11)])], GOOD),
    ([*HELD, issues(2, hold=[hold(TWO, 1)])], "and is open"),
    ([*HELD, issues(2, hold=[hold(ONE, 1)])], "and is open"),
    ([issues(1, hold=[hold(ONE, 3, 3)])], "and is open"),
    ([*DROPPED, issues(3, hold=[hold(TWO, 1)])], "not quiet on every rank"),
    (
        [*DROPPED, reports(0, 2, quiet=(ONE,)), issues(3, hold=[hold(TWO, 1)])],
        "not quiet on every rank",
    ),
    (
        [
            *DROPPED,
            reports(0, 2, quiet=(ONE,)),
            reports(0, 2, quiet=(ONE,)),
            issues(3, hold=[hold(TWO, 1)]),
        ],
        "not quiet",
    ),
    ([*DROPPED, reports(0, 1, quiet=(ONE,))], "without having been told"),
    ([*HELD, reports(0, 1, quiet=(ONE,))], "without having been told"),
    ([*DROPPED, hears(ticket(2), Send(GATEWAY, Ended(ONE)))], "were not quiet"),
    ([*HELD, hears(ticket(2), Send(GATEWAY, Ended(ONE)))], "were not quiet"),
    ([*DROPPED, issues(3, drop=[ONE])], "a second time"),
    ([*DROPPED, issues(3, hold=[hold(ONE, 5)])], "which was dropped"),
    ([issues(1, drop=[ONE], hold=[hold(ONE, 5)])], GOOD),
    ([*DROPPED, issues(3, batch=[row(ONE)])], "which was dropped"),
    ([*HELD, issues(2, drop=[ONE], batch=[row(ONE)])], "which was dropped"),
    ([*DROPPED, issues(3, fetch=[fetch(1, ONE, 0, 1)])], "holds nothing"),
    ([issues(1, fetch=[fetch(1, ONE, 0, 1)])], "holds nothing"),
    ([*HELD, issues(2, batch=[row(ONE, 4, 5)])], "up to position 9"),
    ([issues(1, hold=[hold(ONE, 8)])], "does not exist"),
    ([issues(1, hold=[hold(ONE, -1)])], "does not exist"),
]


@pytest.mark.parametrize(("steps", "why"), PAGES)
def test_page_books(steps: list[Step], why: str | None) -> None:
    expect(judged(PageBooks(), leader_parts(), steps), why)


# ---- commits ------------------------------------------------------------------------------------

ORDERED = [
    asks(1),
    issues(1, hold=[hold(ONE, 0, 1)], fetch=[fetch(1, ONE, 0, 1), fetch(2, ONE, 1, 2)]),
    last_offer(ONE),
]
BOTH = [reports(r, 1, ballots=(*vote(1, ARRIVED), *vote(2, ARRIVED))) for r in (0, 1)]
APPLIED = [reports(0, 2), reports(1, 2)]
BAD = Suspect(0, KV, (1,))
DIFFERS = reports(0, 1, ballots=(*vote(1, ARRIVED), *vote(2, Vote.DIFFERED, BAD)))
AGAIN = [*ORDERED, DIFFERS, BOTH[1]]
ONCE_MORE = [
    issues(2, fetch=[fetch(3, ONE, 1, 2, follows=2, only=(BAD,))]),
    *[reports(r, 2, ballots=vote(3, ARRIVED)) for r in (0, 1)],
]
COMMITS = [
    (
        [
            *ORDERED,
            *BOTH,
            issues(2, commit=[ONE]),
            *APPLIED,
            hears(ticket(9), Send(PREFILL, Received(ONE))),
        ],
        GOOD,
    ),
    ([last_offer(ONE), *ORDERED[:2], *BOTH, issues(2, commit=[ONE])], GOOD),
    ([*ORDERED, BOTH[0], issues(2, commit=[ONE])], "before 2 of its blocks"),
    (
        [*ORDERED, BOTH[0], reports(1, 1, ballots=vote(1, ARRIVED)), issues(2, commit=[ONE])],
        "before 1 of its blocks",
    ),
    (
        [
            *ORDERED,
            BOTH[0],
            reports(1, 1, ballots=(*vote(1, ARRIVED), *vote(2, Vote.FAILED))),
            issues(2, commit=[ONE]),
        ],
        "before 1",
    ),
    ([*ORDERED[:2], *BOTH, issues(2, commit=[ONE])], "without its record"),
    (
        [
            asks(1),
            issues(1, fetch=[fetch(1, ONE, 0, 1)]),
            last_offer(ONE),
            *BOTH,
            issues(2, commit=[ONE]),
        ],
        "before 1",
    ),
    ([asks(1), last_offer(ONE), issues(1, commit=[ONE])], "before 2"),
    (
        [
            asks(1),
            issues(1, hold=[hold(ONE, 0, 1, shared=2)]),
            last_offer(ONE),
            issues(2, commit=[ONE]),
        ],
        GOOD,
    ),
    (
        [
            asks(1),
            issues(1, hold=[hold(ONE, 0, 1, shared=1)]),
            last_offer(ONE),
            issues(2, commit=[ONE]),
        ],
        "before 1",
    ),
    ([issues(1, commit=[ONE])], "without a ticket"),
    ([*ORDERED, *BOTH, issues(2, batch=[row(ONE)])], "not committed"),
    (
        [*ORDERED, *BOTH, issues(2, commit=[ONE]), hears(ticket(9), Send(PREFILL, Received(ONE)))],
        "before its commit",
    ),
    (
        [*ORDERED, *BOTH, issues(2, commit=[ONE]), reports(0, 2, Send(PREFILL, Received(ONE)))],
        "before its commit",
    ),
    # the engine that it is a guest of computes the prompt itself
    ([asks(1), leads(GuestComputes(ONE), Send(PREFILL, Received(ONE)))], GOOD),
    ([asks(1), leads(GuestComputes(TWO), Send(PREFILL, Received(ONE)))], "before its commit"),
    (
        [*ORDERED, BOTH[0], reports(0, 1, ballots=vote(1, Vote.FAILED))],
        "voted FAILED on order 1 after ARRIVED",
    ),
    ([*AGAIN, *ONCE_MORE, issues(3, commit=[ONE])], GOOD),
    (
        [
            *AGAIN,
            issues(2, fetch=[fetch(3, ONE, 1, 2, follows=2, only=(BAD,))]),
            issues(3, commit=[ONE]),
        ],
        "before 1",
    ),
    (
        [*AGAIN, issues(2, fetch=[fetch(3, ONE, 1, 2, follows=2, only=(Suspect(1, KV, (0,)),))])],
        "other blocks once more",
    ),
    ([*AGAIN, issues(2, fetch=[fetch(3, ONE, 1, 2, follows=2)])], "other blocks once more"),
    (
        [*ORDERED, DIFFERS, issues(2, fetch=[fetch(3, ONE, 1, 2, follows=2, only=(BAD,))])],
        "not every rank",
    ),
]


@pytest.mark.parametrize(("steps", "why"), COMMITS)
def test_commit_after_arrival(steps: list[Step], why: str | None) -> None:
    expect(judged(CommitAfterArrival(), leader_parts(), steps), why)


def test_an_offer_of_another_worker_is_no_record() -> None:
    stranger = hears(last_offer(ONE).event.message, sender=Boot(77))
    expect(
        judged(
            CommitAfterArrival(),
            leader_parts(),
            [*ORDERED[:2], stranger, *BOTH, issues(2, commit=[ONE])],
        ),
        "record",
    )


@pytest.mark.parametrize("length", [1, 4, 5, 16, 17, 40])
def test_the_blocks_needed_are_those_of_the_state_table(length: int) -> None:
    groups = (
        Group("full", Unit.PAGE, Full()),
        Group("window", Unit.PAGE, Window(9)),
        Group("slot", Unit.SLOT, Whole()),
    )
    specs = tuple(StateSpec(g.name, g.name, (0,), ("k",), 1, 4, DType.F32) for g in groups)
    table = StateTable(1, 4, groups, specs)
    found = needed(table, length)
    assert {b for g, b in found if g == "full"} == {p // 4 for p in range(length)}
    assert {b for g, b in found if g == "window"} == {
        p // 4 for p in range(max(0, length - 8), length)
    }
    assert {b for g, b in found if g == "slot"} == {0}


# ---- quiet --------------------------------------------------------------------------------------


def ended(handle: int, outcome: ReadOutcome = ReadOutcome.OK) -> Step:
    return ranks(ReadEnd(handle, outcome, ""))


FETCHING = [applies(1, reads(1, 0, 1), hold=[hold(ONE, 0, 1)])]
GONE = [*FETCHING, applies(2, drop=[ONE])]
BATCH = Compute(Batch(Seq(1), (Row(ONE, 0, (1,), {}, {}, 1, None),)))
QUIETS = [
    ([*GONE, ended(1), tells(ONE), applies(3, reads(2, 0), hold=[hold(TWO, 0)])], GOOD),
    ([*GONE, tells(ONE)], "touched by read 1"),
    ([*GONE, ended(1, ReadOutcome.UNKNOWN), tells(ONE)], "touched by read 1"),
    ([*GONE, ended(1, ReadOutcome.UNKNOWN), ranks(Released(1)), tells(ONE)], GOOD),
    ([*GONE, ended(1, ReadOutcome.FAILED), tells(ONE)], GOOD),
    ([*FETCHING, ranks(ReadRefused(1, "x")), applies(2, drop=[ONE]), tells(ONE)], GOOD),
    (
        [
            *FETCHING,
            ranks(ReadEnd(1, ReadOutcome.OK, ""), hashes(4, 0, 1)),
            applies(2, drop=[ONE]),
            tells(ONE),
        ],
        "hash 4",
    ),
    (
        [
            applies(1, hashes(4, 0), hold=[hold(ONE, 0)], drop=[TWO]),
            ranks(DigestDone(4, None)),
            applies(2, drop=[ONE]),
            tells(ONE),
        ],
        GOOD,
    ),
    ([applies(1, BATCH, hold=[hold(ONE, 0)]), applies(2, drop=[ONE]), tells(ONE)], "batch 1"),
    (
        [
            applies(1, BATCH, hold=[hold(ONE, 0)]),
            applies(2, drop=[ONE]),
            ranks(BatchDone(Seq(1), ())),
            tells(ONE),
        ],
        GOOD,
    ),
    ([*FETCHING, ended(1), tells(ONE)], "not dropped"),
    ([*GONE, ended(1), applies(3, hold=[hold(TWO, 1)])], "has not said quiet"),
    ([applies(1, reads(1, 0))], "nobody"),
    ([applies(1, reads(1, 0, 2), hold=[hold(ONE, 0), hold(TWO, 2)])], "must be one room's"),
    ([applies(1, reads(1, 0, 2), hold=[hold(ONE, 0)])], "must be one room's"),
    ([*GONE, ranks(TimerDue(), reads(2, 0))], "which was dropped"),
]


@pytest.mark.parametrize(("steps", "why"), QUIETS)
def test_quiet_is_true(steps: list[Step], why: str | None) -> None:
    expect(judged(QuietIsTrue(), rank_parts(), steps), why)


# ---- landings -----------------------------------------------------------------------------------

INTO = applies(1, reads(1, 0, 1, 5))
LANDINGS = [
    ([INTO, applies(2, reads(2, 2, 3, 4)), applies(3, reads(3, 6))], GOOD),
    ([INTO, applies(2, reads(2, 4, 5))], "read 1 may still land"),
    ([INTO, applies(2, reads(2, 0))], "read 1 may still land"),
    ([INTO, applies(2, reads(2, 7, 1))], "read 1 may still land"),
    ([INTO, ended(1), applies(2, reads(2, 0))], GOOD),
    ([INTO, ended(1, ReadOutcome.FAILED), applies(2, reads(2, 0))], GOOD),
    ([INTO, ended(1, ReadOutcome.UNKNOWN), applies(2, reads(2, 0))], "read 1 may still land"),
    ([INTO, ended(1, ReadOutcome.UNKNOWN), ranks(Released(1)), applies(2, reads(2, 0))], GOOD),
    ([INTO, ranks(ReadRefused(1, "x")), applies(2, reads(2, 0))], GOOD),
]


@pytest.mark.parametrize(("steps", "why"), LANDINGS)
def test_one_read_a_byte(steps: list[Step], why: str | None) -> None:
    expect(judged(OneReadAByte(), rank_parts(), steps), why)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 4)), min_size=1),
    st.tuples(st.integers(0, 30), st.integers(1, 4)),
)
def test_ranges_meet_exactly_when_a_byte_is_common(
    several: list[tuple[int, int]], one: tuple[int, int]
) -> None:
    mine: set[int] = set()
    disjoint = [
        (s, n)
        for s, n in sorted(several)
        if not mine & set(range(s, s + n)) and not mine.update(range(s, s + n))
    ]
    spread = tuple(np.array(v) for v in zip(*((s, s + n) for s, n in disjoint), strict=True))
    single = np.array([one[0]]), np.array([sum(one)])
    assert (
        _overlap(spread, single)
        == _overlap(single, spread)
        == bool(mine & set(range(one[0], sum(one))))
    )
