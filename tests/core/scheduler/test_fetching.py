"""What decode makes of offers that are not whole."""

from msgspec.structs import replace
from tests.core.build import KV, submit
from tests.core.world import World, expected

from baton.core.door import Finish
from baton.core.events import MessageReceived
from baton.core.ids import Boot
from baton.core.messages import Failed, Offer

P, D = Boot(2), Boot(3)
PROMPT = tuple(range(1, 10))


def test_where_a_block_was_never_offered_the_request_goes_on_in_another_epoch() -> None:
    world = World()
    world.add("prefill", P)
    world.add("decode", D)
    world.run()
    world.hold = lambda source, target, message: (
        isinstance(message, Offer) and message.record is not None
    )
    world.submit(submit(1, PROMPT))
    world.run()
    ((_, _, offer),) = world.held
    world.held, world.hold = [], lambda source, target, message: False
    run = offer.runs[KV]
    less = replace(offer, runs={KV: replace(run, end=run.end - 1, pages=run.pages[:-1])})
    world.nodes[D].leader.step(MessageReceived(P, less), world.now)
    world.run()
    (failed,) = [m for _, _, m in world.log if isinstance(m, Failed)]
    assert f"{{'{KV}': [{run.end - 1}]}}" in failed.detail, "it is said which one"
    assert world.tokens() == expected(PROMPT, 4)
    assert isinstance(world.end(), Finish)
    assert world.clean
