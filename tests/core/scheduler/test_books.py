"""What a worker says of itself to whoever asks."""

from tests.core.build import submit
from tests.core.world import World

from baton.core.messages import Offer
from baton.core.scheduler.room import RoomState


def test_the_age_of_a_room_is_told_in_milliseconds() -> None:
    world = World()
    world.add("prefill", 2)
    world.add("decode", 3)
    world.run()
    world.hold = lambda source, target, message: isinstance(message, Offer)
    world.submit(submit(1))
    world.advance(3_000)
    question = world.front.ask_ledger()
    world.run()
    told = {
        view.role: [(room.state, room.age_ms) for room in view.rooms]
        for view in world.front.ledger(question)
    }
    assert told == {"prefill": [(RoomState.OFFERED, 3_000)], "decode": [(RoomState.QUEUED, 3_000)]}
