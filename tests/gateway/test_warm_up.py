"""A pair is ready when a request of our own has gone through it."""

from itertools import count

import pytest

from baton.core.door import Fail, Finish, RequestId
from baton.core.errors import Overloaded
from baton.core.ids import Boot
from baton.core.messages import FailCode, FinishReason
from baton.gateway.door import Capacity
from baton.gateway.warm_up import GENERATED, WarmUp

ONE, TWO = (Boot(1), Boot(2)), (Boot(1), Boot(3))
ROOM = Capacity(max_model_len=8192, pool_tokens=8192)


class Rig:
    def __init__(self) -> None:
        numbers = count(1)
        self.submitted, self.hear, self.pauses, self.full = [], None, [], False
        self.warm_up = WarmUp(submit=self.submit, next_request=lambda: RequestId(next(numbers)), later=self.pauses.append)

    def submit(self, submit, hear) -> None:
        if self.full:
            raise Overloaded("full")
        self.submitted.append(submit)
        self.hear = hear

    def answer(self, fail: bool = False) -> None:
        submitted, self.submitted = self.submitted, []
        for s in submitted:
            ends = Fail(s.request, FailCode.HANDOFF_FAILED, "torn") if fail else Finish(s.request, FinishReason.LENGTH)
            self.hear(ends)

    def ready(self, *pairs) -> bool:
        return self.warm_up.judge(pairs).ready


@pytest.fixture
def rig():
    return Rig()


def test_ready_only_after_every_request_has_ended_well(rig):
    rig.warm_up.look([ONE], ROOM)
    first, *rest = rig.submitted
    assert rest
    assert not rig.ready(ONE)
    rig.hear(Finish(first.request, FinishReason.LENGTH))
    assert not rig.ready(ONE)
    rig.submitted.remove(first)
    rig.answer()
    assert rig.ready(ONE)
    rig.warm_up.look([ONE], ROOM)
    assert rig.submitted == [], "a warm pair is left alone"


def test_a_new_pair_is_warmed_up_too_while_the_old_one_serves(rig):
    rig.warm_up.look([ONE], ROOM)
    rig.answer()
    rig.warm_up.look([ONE, TWO], ROOM)
    assert len(rig.submitted) >= 2
    assert rig.ready(ONE, TWO)
    assert not rig.ready(TWO), "the old one is gone and the new one not shown to work"
    rig.answer()
    assert rig.ready(TWO)


def test_a_pair_that_came_back_is_another_pair(rig):
    for pairs in ([ONE], [], [ONE]):
        rig.warm_up.look(pairs, ROOM)
        was_cold = not rig.ready(*pairs)
        assert was_cold
        rig.answer() if pairs else None


def test_a_failure_is_said_and_tried_again_after_a_pause(rig):
    rig.warm_up.look([ONE], ROOM)
    rig.answer(fail=True)
    assert "torn" in rig.warm_up.judge([ONE]).why
    rig.warm_up.look([ONE], ROOM)
    assert (rig.submitted, len(rig.pauses)) == ([], 1)
    rig.warm_up.resume()
    rig.warm_up.look([ONE], ROOM)
    rig.answer()
    assert rig.ready(ONE)


def test_a_full_queue_is_a_failure_like_others(rig):
    rig.full = True
    rig.warm_up.look([ONE], ROOM)
    assert "full" in rig.warm_up.judge([ONE]).why
    assert len(rig.pauses) == 1


def test_requests_fit_into_the_smallest_service(rig):
    rig.warm_up.look([ONE], Capacity(max_model_len=16, pool_tokens=100))
    assert {len(s.prompt) + GENERATED <= 16 for s in rig.submitted} == {True}
