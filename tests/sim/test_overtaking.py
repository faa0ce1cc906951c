"""The judge of the order of requests: on a right history, and on every wrong one beside it."""

import pytest
from tests.core.build import GREEDY, key, limits, manifest

from baton.core.effects import Send
from baton.core.ids import Boot, Stamp
from baton.core.messages import Credits, Register, Ticket
from baton.dev.sim.overtaking import BOUND_US, Overtaking

P, D, ONE, OTHER = Boot(1), Boot(2), Boot(8), Boot(9)


class Broken(Exception):
    pass


class History:
    """Two gateways and a prefill worker."""

    def __init__(self, *, timely: bool = False) -> None:
        self.now = 0
        self.judge = Overtaking(self._violate, lambda: self.now, timely=timely)

    def _violate(self, invariant: str, detail: str) -> None:
        raise Broken(invariant)

    def gives(self, number: int, stamp: int, gateway: Boot = ONE, epoch: int = 1) -> None:
        """A request begins and comes to the worker."""
        ticket = Ticket(key(number, epoch), Stamp(stamp), gateway, P, D, (1,), (), GREEDY, limits())
        self.judge.begins(gateway, "g", [Send(P, ticket), Send(D, ticket)])
        self.judge.heard(P, ticket)

    def says(self, stamp: int, to: Boot) -> None:
        """The worker states its credits, and they come."""
        self.judge.acts(P, "p", [])
        credits = Credits(1, Boot(2), {}, {}, 0, 0, stamp=Stamp(stamp))
        self.judge.acts(P, "p", [Send(to, credits)])
        self.judge.told(to, credits)
        self.judge.begins(to, "g", [])


def test_a_right_order():
    history = History(timely=True)
    history.gives(1, 1)
    history.says(1, OTHER)
    history.gives(2, 2, OTHER)
    history.gives(3, 2, ONE)  # the other one's place is behind it, and it has not heard of it
    history.now += BOUND_US // 2
    history.gives(1, 1, epoch=2)


def test_a_request_before_what_its_gateway_was_told_of():
    history = History()
    history.gives(1, 4)
    history.says(4, OTHER)
    with pytest.raises(Broken, match="one_order"):
        history.gives(2, 4, OTHER)


def test_what_is_told_when_a_worker_comes_counts():
    history = History()
    history.judge.told(OTHER, Register("p", None, manifest("prefill", P), Stamp(4)))
    history.judge.begins(OTHER, "g", [])
    with pytest.raises(Broken, match="one_order"):
        history.gives(2, 4, OTHER)


@pytest.mark.parametrize("said", [3, 5])
def test_a_worker_that_says_another_stamp_than_it_has_seen(said):
    history = History()
    history.gives(1, 4)
    with pytest.raises(Broken, match="one_order"):
        history.says(said, OTHER)


def test_another_place_in_another_epoch():
    history = History()
    history.gives(1, 4)
    with pytest.raises(Broken, match="one_order"):
        history.gives(1, 5, epoch=2)


def test_one_place_for_two_requests():
    history = History()
    history.gives(1, 4)
    with pytest.raises(Broken, match="one_order"):
        history.gives(2, 4)


@pytest.mark.parametrize(
    ("timely", "later", "wrong"),
    [(True, BOUND_US + 1, True), (True, BOUND_US, False), (False, BOUND_US + 1, False)],
)
def test_a_request_before_one_that_came_long_before_it(timely, later, wrong):
    history = History(timely=timely)
    history.gives(1, 4)
    history.now += later
    if wrong:
        with pytest.raises(Broken, match="one_order"):
            history.gives(2, 3, OTHER)
    else:
        history.gives(2, 3, OTHER)
