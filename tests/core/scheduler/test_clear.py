"""Clear: every group of the state table is zeroed on every rank, by plan, and only while nobody
holds a page."""

from typing import Any

from msgspec.structs import replace
from tests.core.build import KV, manifest, settings, submit, ticket
from tests.core.driven import T0, Driven, report_of
from tests.core.world import World, expected

from baton.core.effects import Issue, Send
from baton.core.events import GatewayConnected, MessageReceived, RankReported
from baton.core.ids import Boot, GroupName, Micros, Rank
from baton.core.memory.state import DType, Full, Group, StateSpec, StateTable, Unit, Whole, Window
from baton.core.messages import Clear, LedgerView
from baton.core.rank.rank import RankCore
from baton.core.rank.rank_effects import ClearPools
from baton.core.scheduler.leader import Leader

NOW, GATEWAY = Micros(1), Boot(1)
WINDOW, SLOT = GroupName("window"), GroupName("slot")
TABLE = StateTable(
    2,
    4,
    (
        Group(KV, Unit.PAGE, Full()),
        Group(WINDOW, Unit.PAGE, Window(8)),
        Group(SLOT, Unit.SLOT, Whole()),
    ),
    (
        StateSpec("kv", KV, (0, 1), ("k", "v"), 2, 4, DType.F32),
        StateSpec("swa", WINDOW, (0, 1), ("k", "v"), 2, 4, DType.F32),
        StateSpec("delta", SLOT, (0,), ("s",), 2, 4, DType.F32),
    ),
)
GROUPS = (KV, WINDOW, SLOT)


class Bench:
    """A unified leader with one rank, over a table of several groups."""

    def __init__(self) -> None:
        worker = replace(manifest("unified", 2), table=TABLE)
        self.leader: Any = Driven(Leader(worker, settings(), dict.fromkeys(GROUPS, 16)))
        self.rank = RankCore(
            rank=Rank(0), boot=Boot(2), placements=[worker.placement(0)], seal=True
        )
        self.leader.step(GatewayConnected(GATEWAY), NOW)
        self.views: list[LedgerView] = []
        self.cleared: list[tuple[GroupName, ...]] = []

    def turn(self, *, report: bool = True) -> None:
        for effect in self.leader.effects():
            match effect:
                case Issue():
                    self.cleared += [
                        e.groups
                        for e in self.rank.step(effect.plan, T0)
                        if isinstance(e, ClearPools)
                    ]
                case Send(message=LedgerView() as view):
                    self.views.append(view)
                case _:
                    pass
        if report and (said := report_of(self.rank)) is not None:
            self.leader.step(RankReported(said), NOW)
            self.turn()


def test_every_group_of_the_table_is_cleared_and_said_once_ranks_have_done_it() -> None:
    bench = Bench()
    bench.leader.step(MessageReceived(GATEWAY, Clear(7)), NOW)
    bench.turn(report=False)
    assert bench.cleared == [GROUPS]
    assert bench.views == [], "no rank has said that it applied the plan"
    bench.turn()
    assert [(v.question, v.cleared) for v in bench.views] == [(7, GROUPS)]
    bench.turn()
    assert len(bench.views) == 1


def test_nothing_is_cleared_while_a_room_is_open() -> None:
    bench = Bench()
    bench.leader.step(MessageReceived(GATEWAY, ticket(prefill=2, decode=2)), NOW)
    bench.leader.step(MessageReceived(GATEWAY, Clear(7)), NOW)
    bench.turn()
    assert bench.cleared == []
    assert [(v.question, v.cleared, len(v.rooms)) for v in bench.views] == [(7, (), 1)]


def test_a_service_whose_pools_were_cleared_answers_the_same() -> None:
    prompt = tuple(range(1, 12))
    world = World()
    world.add("prefill", 2)
    world.add("decode", 3)
    world.run()
    world.submit(submit(1, prompt, max_tokens=5))
    world.run()
    assert any(node.engine.pool.any() for node in world.nodes.values())
    question = world.front.ask_clear()
    world.run()
    views = world.front.ledger(question)
    assert views is not None
    assert {v.role: v.cleared for v in views} == {"prefill": (KV,), "decode": (KV,)}
    assert not any(node.engine.pool.any() for node in world.nodes.values())
    world.submit(submit(2, prompt, max_tokens=5))
    world.run()
    assert world.tokens(2) == expected(prompt, 5)
