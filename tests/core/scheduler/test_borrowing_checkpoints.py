"""A prefill worker of a model with a window and a slot asks decode for a checkpoint before anybody
hears of the prompt. Whatever comes back, or does not, the prompt is computed once and nothing is
left."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from tests.core.build import KV, B, key
from tests.core.scheduler.test_checkpointing import (
    DECODE,
    FIRST,
    GATEWAY,
    GROUPS,
    NEXT,
    NOW,
    SLOT,
    WINDOW,
    Bench,
)

from baton.core.events import TimerDue
from baton.core.handoff.fetch_back import FetchBack
from baton.core.handoff.leg_sums import leg_sums
from baton.core.ids import BlockIndex, Micros, Page, Rank
from baton.core.marks import Mark
from baton.core.memory.state import Full, extent_blocks
from baton.core.messages import Abort, Admitted, BlockRun, Borrow, Loan, Received, Returned
from baton.core.rank.rank_effects import Compute

HELD = 30  # positions of which decode has a checkpoint


def bench() -> Bench:
    # so few tokens a step that the window's pages do not reach the end of a loan before they move
    found = Bench(fetch_back=FetchBack.ALWAYS, step_tokens=B)
    found.run()
    return found


def said(found: Bench, kind: type) -> list[Any]:
    return [message for message in found.sent if isinstance(message, kind)]


def loan(found: Bench, number: int, start: int, length: int = HELD) -> Loan:
    """All state of that many positions, from a worker whose blocks all hold the same."""
    blocks = {}
    for group in GROUPS:
        due = extent_blocks(group.extent, length, B)
        first = start if isinstance(group.extent, Full) else due.start
        blocks[group.name] = BlockIndex(first), BlockIndex(due.end)
    runs = {
        g: BlockRun(a, z, tuple(Page(n) for n in range(3, 3 + z - a)))
        for g, (a, z) in blocks.items()
    }
    units = {g.name: len(found.leader.worker.manifest.placement(0).units(g.name)) for g in GROUPS}
    whole = {
        (Rank(0), g): np.full((z - a, 2 * units[g]), 77, dtype=np.uint64)
        for g, (a, z) in blocks.items()
    }
    sums = leg_sums(found.back, whole, blocks, {g: a for g, (a, _) in blocks.items()})
    return Loan(key(number), runs, sums, length)


def finish(found: Bench, number: int) -> None:
    found.run()
    found.hear(DECODE, Admitted(key(number)))
    found.hear(DECODE, Received(key(number)))
    found.run()
    found.close(number)
    assert found.leader.worker.ledger.clean
    assert all(not rank.kept() for rank in found.ranks)


def asked(found: Bench, number: int, tokens: Any) -> Borrow:
    found.ask(number, tokens)
    found.run(until=Compute)
    assert not found.offers(number), "decode hears of no page before it is known that they stay"
    return said(found, Borrow)[-1]


def test_a_prompt_goes_on_from_what_decode_lends() -> None:
    found = bench()
    borrow = asked(found, 1, NEXT)
    assert (borrow.start, borrow.known) == (0, 0)
    found.hear(DECODE, loan(found, 1, 0))
    finish(found, 1)
    assert sum(len(row.tokens) for row in found.rows) == len(NEXT) - HELD
    assert found.rows[0].start == HELD
    assert said(found, Returned) == [Returned(key(1))]
    assert found.marks[Mark.CHECKPOINT_BORROWED] == 1
    assert not found.orders("vacate")
    first, second, *_ = found.offers(1)
    assert not first.runs
    assert (second.runs[KV].start, second.runs[KV].end) == (0, HELD // B)
    # its end is kept, and what was borrowed is cached here
    assert asked(found, 2, (*NEXT, 5, 5)).known == len(NEXT)
    found.hear(DECODE, Loan(key(2), {}, ()))
    finish(found, 2)
    assert next(row.start for row in found.rows if row.key == key(2)) == len(NEXT)


def test_it_borrows_behind_the_pages_of_its_own_checkpoint() -> None:
    found = bench()
    asked(found, 1, FIRST)
    found.hear(DECODE, Loan(key(1), {}, ()))
    finish(found, 1)
    borrow = asked(found, 2, NEXT)
    assert (borrow.start, borrow.known) == (len(FIRST) // B, len(FIRST))
    found.hear(DECODE, loan(found, 2, borrow.start))
    finish(found, 2)
    assert next(row.start for row in found.rows if row.key == key(2)) == HELD
    assert (
        found.leader.worker.reuse.tally().borrowed_tokens == (HELD - len(FIRST) // B * B) // B * B
    )


def of_length(length: int) -> Any:
    return lambda found, start: loan(found, 2, start, length)


def without(group: str) -> Any:
    def spoilt(found: Bench, start: int) -> Loan:
        one = loan(found, 2, start)
        return replace(one, runs={g: run for g, run in one.runs.items() if g != group})

    return spoilt


def nothing(found: Bench, start: int) -> Loan:
    return Loan(key(2), {}, ())


def older(found: Bench, start: int) -> Loan:
    """What a worker of the protocol before says, which knows no length."""
    return replace(loan(found, 2, start), length=0)


def too_long(found: Bench, start: int) -> Loan:
    return replace(loan(found, 2, start), length=HELD + B)


@pytest.mark.parametrize(
    "spoilt",
    [
        *(nothing, older, too_long, of_length(len(NEXT)), of_length(len(NEXT) + 1)),
        *(without(KV), without(WINDOW), without(SLOT)),
    ],
)
@pytest.mark.parametrize("before", [0, len(FIRST)])
def test_what_is_of_no_use_costs_time_only(spoilt: Any, before: int) -> None:
    found = bench()
    if before:
        asked(found, 1, FIRST)
        found.hear(DECODE, Loan(key(1), {}, ()))
        finish(found, 1)
    borrow = asked(found, 2, NEXT)
    vacated = len(found.orders("vacate"))
    one = spoilt(found, borrow.start)
    found.hear(DECODE, one)
    finish(found, 2)
    assert found.orders("vacate")[vacated:] == [key(2)]
    assert found.rows[-1].start + len(found.rows[-1].tokens) == len(NEXT)
    assert min(row.start for row in found.rows if row.key == key(2)) == before
    assert len(said(found, Borrow)) == 1 + bool(before), "it is asked once"
    assert said(found, Returned) == [Returned(key(2))] * bool(one.runs)


def test_bytes_that_differ_are_computed_instead() -> None:
    found = bench()
    asked(found, 1, NEXT)
    right = found.read

    def wrong(r: int, copies: Any) -> None:
        right(r, copies)
        if r:
            for place in found.pools[r]:
                found.pools[r][place] = 78

    found.read = wrong  # type: ignore[method-assign]
    found.hear(DECODE, loan(found, 1, 0))
    finish(found, 1)
    assert found.rows[0].start == 0
    assert found.marks[Mark.BORROWED_IN_VAIN] == 1
    assert said(found, Returned) == [Returned(key(1))]


def test_no_answer_is_waited_for_no_longer_than_its_time() -> None:
    found = bench()
    asked(found, 1, NEXT)
    late = Micros(NOW + found.leader.worker.settings.answer_ms * 1000)
    found.leader.step(TimerDue(), late)
    found.perform()
    found.run()
    assert found.rows[0].start == 0
    found.hear(DECODE, loan(found, 1, 0))
    assert said(found, Returned) == [Returned(key(1))], "decode need not wait either"
    finish(found, 1)


@pytest.mark.parametrize("read", [False, True])
def test_a_room_that_ends_meanwhile_leaves_nothing(read: bool) -> None:
    found = bench()
    asked(found, 1, NEXT)
    if read:
        found.hear(DECODE, loan(found, 1, 0))
    found.hear(GATEWAY, Abort(key(1), "gone"))
    found.run()
    found.close(1)
    assert not found.rows
    assert found.leader.worker.ledger.clean
    assert all(not rank.kept() for rank in found.ranks)


def test_a_loan_of_less_than_what_is_here_is_not_read() -> None:
    found = bench()
    asked(found, 1, NEXT)
    found.hear(DECODE, Loan(key(1), {}, ()))
    finish(found, 1)
    borrow = asked(found, 2, (*NEXT, 5, 5))
    found.hear(DECODE, loan(found, 2, borrow.start, len(NEXT)))
    finish(found, 2)
    assert not found.marks[Mark.BORROWED]
    assert next(row.start for row in found.rows if row.key == key(2)) == len(NEXT)
