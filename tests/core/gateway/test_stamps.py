"""Which of two requests came first: said alike by all workers, by two gateways too, and by one that
has just started."""

from types import SimpleNamespace

import msgspec
import pytest
from tests.core.build import GREEDY, KV, key, limits, manifest, settings, submit
from tests.core.driven import Driven
from tests.core.gateway.test_credits import credits
from tests.core.gateway.test_front import Bench, D, P

from baton.core.effects import Send
from baton.core.events import GatewayConnected, MessageReceived, TimerDue
from baton.core.gateway.stamps import Stamps
from baton.core.ids import Boot, Micros, Stamp
from baton.core.messages import Credits, FailCode, Failed, Paired, Register, Ticket
from baton.core.scheduler.leader import Leader
from baton.core.scheduler.preemption import _turn
from baton.core.scheduler.room import RoomState
from baton.core.scheduler.rooms import Rooms

ONE, OTHER = Boot(8), Boot(9)  # gateways
T0 = Micros(0)


def ticket(number: int, stamp: int, gateway: Boot = ONE) -> Ticket:
    return Ticket(key(number), Stamp(stamp), gateway, P, D, (1, 2, 3), (), GREEDY, limits())


def stamps(done: list[object]) -> list[int]:
    return [
        d[1].stamp for d in done if isinstance(d, tuple) and isinstance(d[1], Ticket) and d[0] == P
    ]


def test_the_next_stamp_is_above_all_that_were_given_or_heard():
    clock = Stamps()
    assert [clock.next(), clock.next()] == [1, 2]
    clock.heard(Stamp(7))
    clock.heard(Stamp(3))
    assert clock.next() == 8


def test_a_gateway_that_starts_goes_on_behind_what_its_workers_have_seen():
    bench = Bench()
    for boot, role, seen in ((P, "prefill", 40), (D, "decode", 41)):
        bench.front.step(
            MessageReceived(
                boot, Register(role, f"tcp://{boot}", manifest(role, boot), Stamp(seen))
            ),
            T0,
        )
    bench.front.step(MessageReceived(D, Paired(P, "shm")), T0)
    bench.front.submit(submit(1), T0)
    assert stamps(bench.did()) == [42]


def test_who_waited_without_workers_is_stamped_when_it_begins_and_in_the_order_in_which_it_came():
    bench = Bench()
    bench.front.submit(submit(1), T0)
    bench.front.submit(submit(2), T0)
    for boot, role, seen in ((P, "prefill", 40), (D, "decode", 41)):
        bench.front.step(
            MessageReceived(
                boot, Register(role, f"tcp://{boot}", manifest(role, boot), Stamp(seen))
            ),
            T0,
        )
    bench.front.step(MessageReceived(D, Paired(P, "shm")), T0)
    assert stamps(bench.did()) == [42, 43]


def test_credits_tell_of_the_other_gateway_and_a_request_keeps_its_stamp_over_epochs():
    bench = Bench()
    bench.pair()
    bench.front.submit(submit(1), T0)
    (first,) = {d[1].key for d in bench.did() if isinstance(d[1], Ticket)}
    bench.say(P, credits(stamp=Stamp(30)))
    again = bench.say(D, Failed(first, FailCode.HANDOFF_FAILED, "a fault", True))
    assert stamps(again) == [1]
    bench.front.submit(submit(2), T0)
    assert stamps(bench.did()) == [31]


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_worker_says_the_highest_stamp_of_all_tickets_to_every_gateway(role):
    leader: Leader = {
        "prefill": lambda: Driven(Leader(manifest("prefill", P), settings(), {KV: 16})),
        "decode": lambda: Driven(Leader(manifest("decode", D), settings(), {KV: 16})),
    }[role]()
    leader.step(GatewayConnected(ONE), T0)
    leader.step(MessageReceived(ONE, ticket(1, 30)), T0)
    leader.step(MessageReceived(ONE, ticket(2, 20)), T0)
    leader.step(TimerDue(), Micros(20_000))
    said = [
        e.message
        for e in leader.effects()
        if isinstance(e, Send) and isinstance(e.message, Credits)
    ]
    assert [c.stamp for c in said] == [30]
    leader.step(GatewayConnected(OTHER), Micros(20_000))
    hello = [
        e.message
        for e in leader.effects()
        if isinstance(e, Send) and isinstance(e.message, Register)
    ]
    assert [r.stamp for r in hello] == [30], "before it can be used"


def test_of_two_with_one_stamp_every_worker_takes_the_same_first():
    """Whichever ticket came first to it."""
    first, second = ticket(1, 5, ONE), ticket(2, 5, OTHER)
    for arrived in ((first, second), (second, first)):
        rooms: Rooms = Rooms()
        for t in arrived:
            rooms.add(SimpleNamespace(key=t.key, state=RoomState.QUEUED, ticket=t, number=0))
        assert [r.ticket for r in rooms.in_state(RoomState.QUEUED)] == [first, second]
        assert [r.ticket for r in sorted(rooms.values(), key=_turn)] == [first, second]


def test_a_stamp_that_cannot_be_added_to_is_no_message():
    said = {
        "type": "credits",
        "number": 1,
        "worker": 2,
        "free_pages": {},
        "total_pages": {},
        "waiting": 0,
        "running": 0,
    }
    assert msgspec.convert(said | {"stamp": 2**53}, Credits).stamp == 2**53
    with pytest.raises(msgspec.ValidationError, match="stamp"):
        msgspec.convert(said | {"stamp": 2**53 + 1}, Credits)
