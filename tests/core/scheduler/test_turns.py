"""Steps that one request has for itself, and who is told."""

from typing import Any

import msgspec
import pytest
from tests.core.build import submit
from tests.core.world import World, expected

from baton.core.door import RequestId
from baton.core.effects import AskDelivery, Issue
from baton.core.events import PeerLost
from baton.core.gateway.request import Request
from baton.core.ids import Boot, Key
from baton.core.messages import Ticket, Tokens, Trial
from baton.core.scheduler.batches import Batches
from baton.core.scheduler.turns import Turns

PROMPT = (1, 2, 3, 4, 5)


class Some:
    """As much of a room as a turn looks at."""

    def __init__(self, name: str, *, alone: bool) -> None:
        self.name, self.alone = name, alone
        self.ticket = msgspec.structs.replace(TICKET, alone_until=int(alone))

    def __repr__(self) -> str:
        return self.name


TICKET: Ticket


@pytest.fixture(autouse=True)
def _ticket() -> None:
    from tests.core.build import ticket

    global TICKET
    TICKET = ticket()


def names(lots: list[list[Any]]) -> list[list[str]]:
    return [[room.name for room in lot] for lot in lots]


def test_without_suspects_all_step_together() -> None:
    rooms = [Some("a", alone=False), Some("b", alone=False)]
    assert names(Turns().lots(rooms, flying=True)) == [["a", "b"]]


def test_suspects_and_the_others_take_turns_and_whoever_cannot_leaves_the_step_to_the_other() -> (
    None
):
    turns, rooms = (
        Turns(),
        [
            Some("a", alone=False),
            Some("s", alone=True),
            Some("t", alone=True),
            Some("b", alone=False),
        ],
    )
    assert names(turns.lots(rooms, flying=False)) == [["s"], ["t"], ["a", "b"]]
    turns.stepped(alone=True)
    assert names(turns.lots(rooms, flying=False)) == [["a", "b"], ["s"], ["t"]]
    turns.stepped(alone=False)
    assert names(turns.lots(rooms, flying=False)) == [["s"], ["t"], ["a", "b"]]


def test_a_suspect_waits_until_nothing_else_is_under_way_and_then_nobody_comes_before_it() -> None:
    turns, rooms = Turns(), [Some("a", alone=False), Some("s", alone=True)]
    assert turns.lots(rooms, flying=True) == []
    turns.stepped(alone=True)
    assert names(turns.lots(rooms, flying=True)) == [["a"]], "its turn is over"
    assert turns.lots(rooms[1:], flying=True) == []


@pytest.mark.parametrize("roles", [("prefill", "decode"), ("unified",)])
def test_a_suspect_is_computed_alone_to_its_bound_and_its_gateway_is_told_of_every_step(
    monkeypatch: pytest.MonkeyPatch, roles: tuple[str, ...]
) -> None:
    until = 3
    made = Request.ticket

    def suspected(self: Request, gateway: Boot, pair: Any, now: Any) -> Ticket:
        ticket = made(self, gateway, pair, now)
        return (
            msgspec.structs.replace(ticket, alone_until=until)
            if self.submit.request == 1
            else ticket
        )

    monkeypatch.setattr(Request, "ticket", suspected)
    world = World()
    for boot, role in enumerate(roles, start=2):
        world.add(role, boot, pages=32)
    world.run()
    batches: list[list[Key]] = []
    for node in world.nodes.values():
        step = node.leader.core.step

        def seen(event: Any, now: Any, step: Any = step) -> list[Any]:
            found: list[Any] = step(event, now)
            batches.extend(
                [row.key for row in e.plan.batch]
                for e in found
                if isinstance(e, Issue) and e.plan.batch
            )
            return found

        node.leader.core.step = seen
    for number in (1, 2, 3):
        world.submit(submit(number, PROMPT, max_tokens=6))
    keys = [world.front.key_of(RequestId(n)) for n in (1, 2, 3)]
    world.run()
    assert [world.tokens(n) for n in (1, 2, 3)] == [expected(PROMPT, 6)] * 3
    suspect = keys[0]
    with_it = [batch for batch in batches if suspect in batch]
    assert [batch == [suspect] for batch in with_it] == [True] * until + [False] * (6 - until)
    assert any(len(batch) == 3 for batch in batches), (
        "one that has gone on for long enough is like any other"
    )
    told = [m for _, _, m in world.log if isinstance(m, Trial)]
    assert [m.over for m in told] == [False, True] * until
    assert {m.key for m in told} == {suspect}
    assert sum(isinstance(m, Tokens) for _, _, m in world.log) > 0
    assert world.clean


@pytest.mark.parametrize("gone", [False, True])
def test_no_step_begins_before_the_gateway_has_heard_that_a_suspects_step_is_over(
    monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    """What a worker says last may be lost with it. If it ended in the next step, the suspect before
    would be taken for the one that did it."""
    made = Request.ticket

    def suspected(self: Request, gateway: Boot, pair: Any, now: Any) -> Ticket:
        return msgspec.structs.replace(made(self, gateway, pair, now), alone_until=3)

    monkeypatch.setattr(Request, "ticket", suspected)
    world = World()
    world.add("unified", 2, pages=32)
    world.run()
    world.hold = lambda source, target, message: isinstance(message, AskDelivery)
    for number in (1, 2):
        world.submit(submit(number, PROMPT, max_tokens=2))
    world.run()
    leader = world.nodes[Boot(2)].leader
    assert [m.over for _, _, m in world.log if isinstance(m, Trial)] == [False, True]
    assert leader.core.kept()["trials"] == 1
    if gone:
        leader.step(PeerLost(World.GATEWAY, "gone"), world.now)
    else:
        world.release()
        world.run()
        assert [world.tokens(n) for n in (1, 2)] == [expected(PROMPT, 2)] * 2
    assert "trials" not in leader.core.kept()


def test_nobody_waits_for_a_gateway_that_was_lost_during_a_suspects_step() -> None:
    ended: Batches[Any] = Batches(ranks=1, stages=1)
    suspect: Any = Some("s", alone=True)
    ended.trial = suspect
    ended.trial_ended(None)
    assert ended.lots([suspect]) == [[suspect]]
    ended.trial = suspect
    ended.trial_ended(Boot(1))
    assert ended.lots([suspect]) == []
    ended.heard(Boot(2))
    assert ended.lots([suspect]) == []
    ended.heard(Boot(1))
    assert ended.lots([suspect]) == [[suspect]]
