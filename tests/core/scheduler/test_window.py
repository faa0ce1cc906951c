"""Workers whose model has a window: what their rows are given while the window passes over prompt
and answer, and what stays."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.core.build import KV, drawn, limits, manifest, settings, ticket
from tests.core.driven import T0, Driven, report_of

from baton.core.effects import Issue
from baton.core.events import GatewayConnected, MessageReceived, RankReported
from baton.core.handoff.plan import pair
from baton.core.ids import Boot, GroupName, Micros, Rank
from baton.core.memory.state import (
    DType,
    Full,
    Group,
    StateSpec,
    StateTable,
    Unit,
    Window,
    extent_blocks,
)
from baton.core.messages import Hello
from baton.core.rank.rank import RankCore
from baton.core.rank.rank_effects import Compute
from baton.core.scheduler.leader import Leader
from baton.core.work import Batch, BatchDone, Row, RowDone

NOW, GATEWAY, B = Micros(1), Boot(1), 4
WINDOW = GroupName("window")


def table(window: int) -> StateTable:
    specs = tuple(
        StateSpec(n, g, (i,), ("k", "v"), 1, 4, DType.F32)
        for i, (n, g) in enumerate((("kv", KV), ("swa", WINDOW)))
    )
    return StateTable(
        2, B, (Group(KV, Unit.PAGE, Full()), Group(WINDOW, Unit.PAGE, Window(window))), specs
    )


class Bench:
    """A leader with one rank whose engine computes nothing."""

    def __init__(
        self, window: int, *, page_blocks: int, step: int, pages: int, role: str = "unified"
    ) -> None:
        worker = replace(manifest(role, 2), table=table(window), page_blocks=page_blocks)
        self.leader: Any = Driven(
            Leader(worker, settings(step_tokens=step), {KV: 64, WINDOW: pages})
        )
        self.rank = RankCore(
            rank=Rank(0), boot=Boot(2), placements=[worker.placement(0)], seal=True
        )
        self.window, self.k, self.units = (
            window,
            page_blocks,
            {g: len(worker.placement(0).units(g)) for g in (KV, WINDOW)},
        )
        self.leader.step(GatewayConnected(GATEWAY), NOW)
        self.decode = Boot(2)
        if role == "prefill":
            self.decode, target = (
                Boot(3),
                replace(worker, role="decode", ranks=manifest("decode", 3).ranks),
            )
            plan = pair([worker.placement(0)], [target.placement(0)])
            self.leader.step(MessageReceived(self.decode, Hello(target, plan.digest)), NOW)
        self.rows: list[Row] = []

    def serve(self, prompt: int, answer: int) -> None:
        asked = replace(
            ticket(prefill=2, decode=self.decode), prompt=(5,) * prompt, limits=limits(answer)
        )
        self.leader.step(MessageReceived(GATEWAY, asked), NOW)
        while batch := self._turn():
            self.rows += batch.rows
            self.rank.step(BatchDone(batch.seq, tuple(self._done(row) for row in batch.rows)), T0)

    def _done(self, row: Row) -> RowDone:
        sums = {
            g: np.zeros((past - first, self.units[g]), np.uint64)
            for g, (first, past) in row.final.items()
        }
        return RowDone(row.key, drawn(7) if row.draw is not None else None, sums)

    def _turn(self) -> Batch | None:
        """Until a batch is to be computed, or nothing moves."""
        while True:
            effects = [
                e
                for issue in self.leader.effects()
                if isinstance(issue, Issue)
                for e in self.rank.step(issue.plan, T0)
            ]
            self.leader.worker.ledger.audit()
            if computes := [e.batch for e in effects if isinstance(e, Compute)]:
                return computes[0]
            if (report := report_of(self.rank)) is None:
                return None
            self.leader.step(RankReported(report), NOW)


SIZES = st.integers(1, 20)


@examples(max_examples=60, deadline=None)
@given(SIZES, st.integers(1, 3), SIZES, st.integers(1, 60), st.integers(1, 40))
def test_a_row_holds_what_it_looks_back_on_where_it_was_written_and_little_else(
    window: int, page_blocks: int, step: int, prompt: int, answer: int
) -> None:
    enough = -(-(window - 1 + step + B * page_blocks - 1) // (B * page_blocks)) + 1
    bench = Bench(window, page_blocks=page_blocks, step=step, pages=enough)
    bench.serve(prompt, answer)
    assert sum(len(row.tokens) for row in bench.rows) == prompt + answer - 1
    lay: dict[int, int] = {}
    for row in bench.rows:
        begin, past = row.begins.get(WINDOW, 0), row.start + len(row.tokens)
        slots = [
            int(page) * page_blocks + j for page in row.pages[WINDOW] for j in range(page_blocks)
        ]
        here = dict(enumerate(slots, begin))
        looked = range(max(0, row.start - window + 1) // B, -(-past // B))
        assert set(looked) <= here.keys()
        for block in looked:
            if block in lay and block * B < row.start:
                assert here[block] == lay[block], "a block that was written lies where it did"
        lay |= here
        assert len(row.pages[KV]) * B * page_blocks >= past
        assert not row.begins.get(KV)
        if len(row.tokens) == 1 and row.start >= prompt:  # decoding
            first = max(0, row.start - window + 1) // (B * page_blocks)
            assert len(row.pages[WINDOW]) == -(-past // (B * page_blocks)) - first
    assert bench.leader.worker.ledger.clean


@examples(max_examples=60, deadline=None)
@given(SIZES, st.integers(1, 3), SIZES, st.integers(1, 60))
def test_of_a_prompt_that_is_computed_prefill_keeps_what_is_handed_over_and_nothing_else(
    window: int, page_blocks: int, step: int, prompt: int
) -> None:
    bench = Bench(window, page_blocks=page_blocks, step=step, pages=64, role="prefill")
    bench.serve(prompt, answer=2)
    (room,) = bench.leader.worker.rooms.values()
    due = extent_blocks(Window(window), prompt, B)
    first, past = due.start // page_blocks, -(-due.end // page_blocks)
    assert len(bench.leader.worker.ledger.held(room.key)[WINDOW]) == past - first
    assert bench.leader.worker.ledger.begins(room.key)[WINDOW] == first
