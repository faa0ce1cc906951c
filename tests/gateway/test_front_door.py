"""The gateway's pump on its loop, over a front that a test scripts."""

import asyncio
import os

from baton.core.door import Cancel, Emit, Finish, RequestId, Submit
from baton.core.gateway.request import Say
from baton.core.ids import Micros, TokenIndex
from baton.core.messages import FinishReason, Limits, Sampling
from baton.gateway.front_door import FrontDoor

from .fake_door import drawn

SAMPLING, LIMITS = Sampling(0.0, 1.0, 0, 1, None), Limits(9, (), (), 1000)


class Front:
    """Says what it is told to say, whatever has been cancelled meanwhile: that was under way
    already."""

    def __init__(self) -> None:
        self.says: list[Say] = []
        self.cancelled: list[RequestId] = []

    def step(self, event, now):
        if isinstance(event, Cancel):
            self.cancelled.append(event.request)
            return []
        return self.says if event.submit.request == 2 else []

    def next_wake(self) -> None:
        return None

    def name_of(self, boot) -> str:
        raise AssertionError("nobody has a ticket")

    def held(self, room) -> bool:
        return False


class Lines:
    def receive(self):
        return []

    def flush(self) -> None:
        pass

    def timer(self) -> None:
        return None

    def close(self) -> None:
        pass


class Entropy:
    def bits(self, count: int) -> int:
        return 7


class Clock:
    def now(self) -> Micros:
        return Micros(0)


def emit(request: int, index: int = 0) -> Say:
    return Say(Emit(RequestId(request), TokenIndex(index), (drawn(65),)))


def test_after_a_cancel_nothing_is_heard_even_of_what_was_said_in_the_same_turn():
    async def scenario():
        front, heard = Front(), []
        reader, writer = os.pipe()
        door = FrontDoor(
            core=front, front=front, lines=Lines(), fileno=reader, clock=Clock(), entropy=Entropy()
        )

        def hear(what):
            heard.append(what.request)
            if what.request == 1:
                door.cancel(Cancel(RequestId(2), "another choice of the request failed"))

        front.says = [
            emit(1),
            emit(2),
            Say(Finish(RequestId(2), FinishReason.STOP)),
            emit(3),
            emit(1, 1),
        ]
        for request in (1, 2):
            door.submit(Submit(RequestId(request), (), SAMPLING, LIMITS), hear)
        await asyncio.sleep(0)
        assert heard == [1, 1]
        assert front.cancelled == [2, 2]
        door.close()
        os.close(reader)
        os.close(writer)

    asyncio.run(scenario())
