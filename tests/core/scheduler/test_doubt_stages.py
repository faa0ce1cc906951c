"""Doubts where pipeline stages hold different groups: a stage without a layer of the doubted one
has no sums to compare."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from tests.core.build import KV, drawn, key, manifest, settings, ticket
from tests.core.driven import T0, Driven, report_of

from baton.core.effects import Issue, Send
from baton.core.events import GatewayConnected, MessageReceived, RankReported
from baton.core.handoff.plan import pair
from baton.core.ids import BlockIndex, Boot, GroupName, Micros, Rank
from baton.core.memory.state import DType, Full, Group, StateSpec, StateTable, Unit
from baton.core.messages import Doubt, Failed, Hello, Intactness, Verdict
from baton.core.rank.rank import RankCore
from baton.core.rank.rank_effects import Compute, Digest
from baton.core.scheduler.leader import Leader
from baton.core.work import BatchDone, DigestDone, RowDone

NOW, GATEWAY, P, D = Micros(1), Boot(1), Boot(2), Boot(3)
INDEX = GroupName("index")
TABLE = StateTable(
    2,
    4,
    (Group(KV, Unit.PAGE, Full()), Group(INDEX, Unit.PAGE, Full())),
    (
        StateSpec("kv", KV, (0, 1), ("k", "v"), 2, 4, DType.F32),
        StateSpec("index", INDEX, (1,), ("k",), 1, 4, DType.F32),
    ),
)


class Bench:
    """A prefill leader with two stages, of which the first has no layer of group `index`."""

    def __init__(self) -> None:
        one = replace(manifest("prefill", P), table=TABLE)
        ranks = (one.ranks[0], replace(one.ranks[0], boot=Boot(20), rank=1, pp_rank=1))
        worker, target = (
            replace(one, pp=2, ranks=ranks),
            replace(manifest("decode", D), table=TABLE),
        )
        self.placements = [worker.placement(0), worker.placement(1)]
        self.leader: Any = Driven(
            Leader(worker, replace(settings(), pids=(1, 2), prefix_cache=True), {KV: 16, INDEX: 16})
        )
        self.ranks = [
            RankCore(rank=Rank(r), boot=ranks[r].boot, placements=self.placements, seal=True)
            for r in (0, 1)
        ]
        self.said: list[Verdict] = []
        self.failed: list[Failed] = []
        self.damaged = False
        self.leader.step(GatewayConnected(GATEWAY), NOW)
        self.leader.step(
            MessageReceived(D, Hello(target, pair(self.placements, [target.placement(0)]).digest)),
            NOW,
        )

    def sums(self, rank: int, group: GroupName, blocks: int, *, wrong: bool = False) -> np.ndarray:
        return np.full(
            (blocks, len(self.placements[rank].units(group))), 7 + wrong, dtype=np.uint64
        )

    def run(self) -> None:
        """Until nobody has anything to say."""
        while effects := self.leader.effects():
            self.said += [
                e.message for e in effects if isinstance(e, Send) and isinstance(e.message, Verdict)
            ]
            self.failed += [
                e.message for e in effects if isinstance(e, Send) and isinstance(e.message, Failed)
            ]
            for plan in [e.plan for e in effects if isinstance(e, Issue)]:
                for r, rank in enumerate(self.ranks):
                    for effect in rank.step(plan, T0):
                        self.perform(r, rank, effect)
                    if (report := report_of(rank)) is not None:
                        self.leader.step(RankReported(report), NOW)

    def perform(self, r: int, rank: RankCore, effect: object) -> None:
        match effect:
            case Compute(batch=batch):
                rows = [
                    RowDone(
                        row.key,
                        drawn(1) if r else None,
                        {g: self.sums(r, g, b - a) for g, (a, b) in row.final.items()},
                    )
                    for row in batch.rows
                ]
                rank.step(BatchDone(batch.seq, tuple(rows)), T0)
            case Digest(order=order):
                rank.step(
                    DigestDone(
                        order.job,
                        self.sums(r, order.group, len(order.slots), wrong=self.damaged and r == 1),
                    ),
                    T0,
                )
            case _:
                raise AssertionError(effect)


@pytest.mark.parametrize("group", [KV, INDEX])
@pytest.mark.parametrize(
    ("damaged", "found"), [(False, Intactness.INTACT), (True, Intactness.DAMAGED)]
)
def test_a_doubt_is_judged_by_the_stages_that_hold_the_group(
    group: GroupName, damaged: bool, found: Intactness
) -> None:
    bench = Bench()
    asked = ticket(1, length=9)
    bench.leader.step(MessageReceived(GATEWAY, asked), NOW)
    bench.run()
    assert bench.leader.worker.ledger.view()[group]["shared"] == 2
    bench.damaged = damaged
    bench.leader.step(MessageReceived(D, Doubt(asked.key, 1, group, (BlockIndex(1),))), NOW)
    bench.run()
    assert [verdict.found for verdict in bench.said] == [found]
    assert ["(ranks [1])" in failed.detail for failed in bench.failed] == [True] * damaged, (
        "the other rank's memory is whole"
    )
    assert bench.leader.worker.ledger.view()[group]["cached"] == (1 if damaged else 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"key": key(77)},
        {"group": GroupName("other"), "blocks": (BlockIndex(0),)},
        {"blocks": (BlockIndex(1), BlockIndex(99))},
        {"blocks": (BlockIndex(-1),)},
    ],
)
def test_a_doubt_about_what_is_not_there_is_answered_and_nothing_is_hashed(
    changes: dict[str, Any],
) -> None:
    """Whoever asks waits for the answer, whatever it is."""
    bench = Bench()
    asked = ticket(1, length=9)
    bench.leader.step(MessageReceived(GATEWAY, asked), NOW)
    bench.run()
    bench.damaged = True
    doubt = replace(Doubt(asked.key, 1, KV, (BlockIndex(1),)), **changes)
    bench.leader.step(MessageReceived(D, doubt), NOW)
    bench.run()
    assert bench.said == [Verdict(doubt.key, doubt.leg, doubt.group, doubt.blocks, Intactness.GONE)]
    assert bench.failed == []
