"""Whatever is said by the wrong party, or twice by the right one, changes nothing."""

from typing import Any, get_args

import pytest
from msgspec.structs import replace
from tests.core.build import drawn, key, manifest, submit, ticket
from tests.core.driven import DrivenFront
from tests.core.world import World, expected

from baton.core.door import Finish
from baton.core.events import GatewayConnected, MessageReceived
from baton.core.gateway.front import Front
from baton.core.gateway.questions import Questions
from baton.core.gateway.request import FrontSettings
from baton.core.handoff.fetch_back import FetchBack
from baton.core.ids import Boot, Micros, TokenIndex
from baton.core.marks import Mark
from baton.core.messages import (
    Admitted,
    AnyMessage,
    AskCache,
    AskLedger,
    CacheChanged,
    Clear,
    Credits,
    Drain,
    Hello,
    HelloBack,
    Introduce,
    LedgerView,
    Paired,
    Progress,
    Refused,
    Register,
    ResetCache,
    Ticket,
    Tokens,
    Unpaired,
)
from baton.core.scheduler.pairs import Pairing
from baton.core.session.senders import RULES

P, D, OTHER_P, OTHER_D, STRANGER = Boot(2), Boot(3), Boot(4), Boot(5), Boot(99)
OF_ITSELF = (HelloBack, Paired, Unpaired)  # and names nobody; said by another it is that one's own
T0 = Micros(0)


def prompt(n: int) -> tuple[int, ...]:
    return tuple((7 * i + 1) % 997 for i in range(n))


def test_of_every_message_about_a_room_it_is_written_whose_it_is() -> None:
    about_rooms = {
        kind for kind in get_args(AnyMessage) if {"key", "room"} & set(kind.__struct_fields__)
    }
    orders = {Introduce, AskCache, AskLedger, Clear, ResetCache, Drain}
    assert about_rooms | orders | {Register, Hello, Credits, CacheChanged, Progress} == RULES.keys()


class Confused(World):
    """Before a message comes from its sender, everybody else has said the same."""

    def __init__(self) -> None:
        super().__init__()
        self.begins = False

    def _deliver(self, source: Boot, target: Boot, message: Any) -> None:
        if self.begins and type(message) in RULES:
            for other in {self.GATEWAY, STRANGER, *self.nodes} - {source, target}:
                super()._deliver(other, target, message)
        super()._deliver(source, target, message)


class Stammering(World):
    """Everything is said twice."""

    def _deliver(self, source: Boot, target: Boot, message: Any) -> None:
        super()._deliver(source, target, message)
        super()._deliver(source, target, message)


def served(world: World, **limits: Any) -> World:
    """Two pairs; three requests, the last of which goes on with what the first one was answered."""
    for boot, role in ((P, "prefill"), (D, "decode"), (OTHER_P, "prefill"), (OTHER_D, "decode")):
        world.add(
            role,
            boot,
            pages=40,
            prefix_cache=True,
            fetch_back=FetchBack.ALWAYS,
            step_tokens=6,
            **limits,
        )
    world.run()
    if isinstance(world, Confused):
        world.begins = True
    asked = {1: prompt(14), 2: prompt(9)[::-1]}
    for number, tokens in asked.items():
        world.submit(submit(number, tokens, max_tokens=7))
    world.run()
    for boot in (P, OTHER_P):
        world.front.ask_reset_cache(f"prefill-{boot}")
    world.run()
    asked[3] = (*asked[1], *expected(asked[1], 7), *prompt(5))
    world.submit(submit(3, asked[3], max_tokens=7))
    world.run()
    for number, tokens in asked.items():
        assert world.tokens(number) == expected(tokens, 7)
        assert isinstance(world.end(number), Finish)
    assert world.clean
    assert world.front.marks[Mark.NEW_EPOCH] == 0
    assert not any(len(node.leader.worker.epochs) for node in world.nodes.values())
    return world


def test_what_another_one_says_first_changes_nothing_and_is_counted() -> None:
    world = served(Confused())
    assert world.front.marks[Mark.WRONG_PARTY] > 10
    assert all(node.leader.worker.marks[Mark.WRONG_PARTY] > 0 for node in world.nodes.values())


def test_what_is_said_twice_changes_nothing() -> None:
    world = served(Stammering())
    assert world.front.marks[Mark.WRONG_PARTY] == 0
    assert sum(node.leader.worker.marks[Mark.BORROWED] for node in world.nodes.values()) == 1
    assert all(node.leader._books._counters().epochs <= 3 for node in world.nodes.values())


def test_a_ticket_said_twice_is_one_ticket_of_those_that_a_worker_has_heard() -> None:
    world = World()
    node = world.add("unified", 2)
    world.run()
    for _ in range(2):
        node.leader.step(MessageReceived(world.GATEWAY, ticket(prefill=2, decode=2)), Micros(1))
    assert len(node.leader.worker.rooms) == 1
    assert node.leader._books.news._tickets == {world.GATEWAY: 1}


def test_another_gateway_neither_opens_nor_ends_a_room() -> None:
    world = World()
    node = world.add("unified", 2)
    node.leader.step(GatewayConnected(Boot(7)), T0)
    mine = ticket(prefill=2, decode=2, gateway=1)
    node.leader.step(MessageReceived(Boot(7), mine), T0)
    assert not node.leader.worker.rooms
    node.leader.step(MessageReceived(Boot(1), mine), T0)
    node.leader.step(MessageReceived(Boot(7), replace(mine, key=key(1, 2), gateway=Boot(7))), T0)
    assert list(node.leader.worker.rooms) == [mine.key]
    assert node.leader.worker.marks[Mark.WRONG_PARTY] == 2


def fronted() -> Front:
    front = DrivenFront(Front(Boot(1), FrontSettings()))
    for boot, role in ((P, "prefill"), (D, "decode")):
        front.step(MessageReceived(boot, Register(role, f"tcp://{boot}", manifest(role, boot))), T0)
    return front


def test_a_worker_registers_as_itself_and_once() -> None:
    front = fronted()
    front.step(MessageReceived(P, Register("decode", None, manifest("decode", D))), T0)
    front.step(MessageReceived(D, Paired(P, "shm")), T0)
    front.submit(submit(1), T0)
    given = [e.message for e in front.effects() if isinstance(getattr(e, "message", None), Ticket)]
    assert len(given) == 2
    front.step(MessageReceived(D, Register("decode", None, manifest("decode", D))), T0)
    assert front.effects() == []
    assert front.router.get(D).open.keys() == {given[0].key}  # type: ignore[union-attr]
    assert front.marks[Mark.WRONG_PARTY] == 1


@pytest.mark.parametrize(("sender", "prefill"), [(P, D), (P, P), (STRANGER, P), (D, D)])
def test_a_pair_is_stated_by_its_decode_worker(sender: Boot, prefill: Boot) -> None:
    front = fronted()
    front.step(MessageReceived(sender, Paired(prefill, "shm")), T0)
    front.step(MessageReceived(sender, Unpaired(prefill, "why")), T0)
    assert front.usable_pairs() == []
    assert front.refusals() == []
    assert front.next_wake() is None


@pytest.mark.parametrize(("sender", "message"), [(P, Tokens), (D, Admitted)])
def test_each_side_of_a_pair_says_its_own_part(sender: Boot, message: type) -> None:
    front = fronted()
    front.step(MessageReceived(D, Paired(P, "shm")), T0)
    front.submit(submit(1), T0)
    at = front.requests.get(submit(1).request).key
    front.effects()
    said = Tokens(at, TokenIndex(0), (drawn(7),), None) if message is Tokens else Admitted(at)
    front.step(MessageReceived(sender, said), T0)
    assert bool(front.requests.get(submit(1).request).admitted) == (sender == D)
    assert front.marks[Mark.WRONG_PARTY] == (sender == P)


def test_the_books_of_a_worker_are_its_own_to_state() -> None:
    questions = Questions()
    asked = 7
    questions.ask(asked, {P: "p", D: "d"})
    view = LedgerView(asked, "p", "prefill", (), {}, 0, 0, (), True)
    questions.answered(D, view)
    assert questions.answers(asked) == []
    questions.answered(P, view)
    assert questions.answers(asked) == [view]


def test_only_a_gateway_orders() -> None:
    world = World()
    decode = world.add("decode", D).leader
    for message in (
        Introduce(P, "tcp://p", manifest("prefill", P)),
        Clear(1),
        ResetCache(2),
        AskLedger(3),
    ):
        decode.effects()
        decode.step(MessageReceived(P, message), T0)
        assert decode.effects() == []
    assert decode.worker.marks[Mark.WRONG_PARTY] == 4


def test_an_answer_to_no_question_pairs_nobody() -> None:
    world = World()
    decode = world.add("decode", D).leader
    decode.step(MessageReceived(world.GATEWAY, Introduce(P, "tcp://p", manifest("prefill", P))), T0)
    plan = decode.stage(Pairing).partners.find(P).plan.digest
    decode.step(MessageReceived(P, HelloBack(plan)), T0)
    assert decode.stage(Pairing).partners.paired() == []


def test_a_refusal_counts_as_an_answer_alone() -> None:
    world = World()
    prefill, decode = world.add("prefill", P).leader, world.add("decode", D).leader
    world.run()
    assert len(decode.stage(Pairing).partners.paired()) == 1
    decode.step(MessageReceived(P, Refused("another one was meant")), T0)
    assert len(decode.stage(Pairing).partners.paired()) == 1
    assert not prefill.worker.rooms


def test_credits_are_those_of_whoever_states_them() -> None:
    """One that were believed would be so until the worker's own count had come as far."""
    front = fronted()
    front.step(MessageReceived(P, Credits(1_000_000, D, {}, {}, 9, 9)), T0)
    assert front.credits() == {}
    front.step(MessageReceived(P, Credits(1, P, {}, {}, 0, 0)), T0)
    assert front.credits() == {"prefill": Credits(1, P, {}, {}, 0, 0)}
