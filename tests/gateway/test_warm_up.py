"""A pair is ready when a request of our own has gone through it."""

from itertools import count

import pytest

from baton.core.door import Fail, Finish, RequestId
from baton.core.ids import Boot
from baton.core.messages import FailCode, FinishReason
from baton.gateway.door import Capacity
from baton.gateway.warm_up import GENERATED, PROMPT_TOKENS, WarmUp

ONE, TWO = (Boot(1), Boot(2)), (Boot(1), Boot(3))
ROOM = Capacity(max_model_len=8192, pool_tokens=8192)


class Rig:
    def __init__(self) -> None:
        numbers = count(1)
        self.submitted, self.hear, self.pauses = [], None, []
        self.warm_up = WarmUp(
            submit=self.submit,
            next_request=lambda: RequestId(next(numbers)),
            later=self.pauses.append,
        )

    def submit(self, submit, hear) -> None:
        self.submitted.append(submit)
        self.hear = hear

    def look(self, *pairs) -> None:
        self.warm_up.look(pairs, ROOM)

    def answer(self, fail: bool = False) -> None:
        """The one request that is open ends."""
        (s,) = self.submitted
        self.submitted = []
        self.hear(
            Fail(s.request, FailCode.HANDOFF_FAILED, "torn")
            if fail
            else Finish(s.request, FinishReason.LENGTH)
        )

    def warm(self, *pairs) -> list:
        """Which pairs are tried, until nothing is asked any more."""
        tried = []
        self.look(*pairs)
        while self.submitted:
            tried.append(self.submitted[0].pair)
            self.answer()
            self.look(*pairs)
        return tried

    def ready(self, *pairs) -> bool:
        return self.warm_up.judge(pairs).ready


@pytest.fixture
def rig():
    return Rig()


def test_ready_only_after_every_request_has_ended_well(rig):
    rig.look(ONE)
    assert not rig.ready(ONE)
    rig.answer()
    rig.look(ONE)
    assert not rig.ready(ONE)
    rig.answer()
    assert rig.ready(ONE)
    assert rig.warm(ONE) == [], "a warm pair is left alone"


def test_every_pair_is_tried_by_itself_one_request_at_a_time(rig):
    """`answer` fails where two are open: with pools that hold one request they would wait for each
    other."""
    pairs = [(Boot(p), Boot(d)) for p in (1, 2) for d in (3, 4)]
    tried = rig.warm(*pairs)
    assert sorted({*tried}) == pairs
    assert len(tried) == len(PROMPT_TOKENS) * len(pairs)


def test_a_new_pair_is_warmed_up_too_while_the_old_one_serves(rig):
    rig.warm(ONE)
    rig.look(ONE, TWO)
    assert rig.ready(ONE, TWO)
    assert not rig.ready(TWO), "the old one is gone and the new one not shown to work"
    rig.answer()
    assert {*rig.warm(ONE, TWO)} == {TWO}
    assert rig.ready(TWO)


def test_a_pair_that_came_back_is_another_pair(rig):
    for pairs in ([ONE], [], [ONE]):
        rig.look(*pairs)
        assert not rig.ready(*pairs)
        if pairs:
            rig.answer()
            rig.warm(*pairs)


def test_a_pair_that_goes_while_it_is_tried_is_not_warm(rig):
    rig.look(ONE)
    rig.answer()
    rig.look(TWO)
    assert [s.pair for s in rig.submitted] == [TWO]
    rig.answer()
    assert not rig.ready(ONE, TWO)


def test_a_failure_is_said_and_tried_again_after_a_pause(rig):
    rig.look(ONE)
    rig.answer(fail=True)
    assert "torn" in rig.warm_up.judge([ONE]).why
    rig.look(ONE)
    assert (rig.submitted, len(rig.pauses)) == ([], 1)
    rig.warm_up.resume()
    assert {*rig.warm(ONE)} == {ONE}
    assert rig.ready(ONE)


def test_a_pair_that_cannot_hand_over_keeps_no_other_from_being_ready(rig):
    for _ in range(2):
        rig.look(ONE, TWO)
        failed = rig.submitted[0].pair == ONE
        rig.answer(fail=failed)
        rig.warm_up.resume()
    rig.look(ONE, TWO)
    assert rig.submitted[0].pair == TWO
    rig.answer()
    assert rig.ready(ONE, TWO)


def test_requests_fit_into_the_smallest_service(rig):
    rig.warm_up.look([ONE], Capacity(max_model_len=16, pool_tokens=100))
    assert {len(s.prompt) + GENERATED <= 16 for s in rig.submitted} == {True}
