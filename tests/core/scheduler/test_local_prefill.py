"""Prompts that a decode worker computes itself: the same tokens, the same cache, and nothing is
fetched for them."""

from itertools import pairwise

import pytest
from msgspec.structs import replace
from tests.core.build import KV, submit
from tests.core.world import World, expected

from baton.core.door import Finish
from baton.core.ids import Boot
from baton.core.messages import Offer, Ticket
from baton.core.scheduler.room import RoomState

P, D = Boot(2), Boot(3)
HERE, THERE = (D, D), (P, D)


def world(**limits: float) -> World:
    found = World(local_prefill=True)
    found.add("prefill", P, prefix_cache=True)
    found.add("decode", D, **({"prefix_cache": True} | limits))
    found.run()
    return found


def ask(world: World, number: int, prompt: tuple[int, ...], pair: tuple[Boot, Boot]) -> None:
    world.submit(replace(submit(number, prompt, max_tokens=6), pair=pair))


def prompt(length: int, salt: int = 0) -> tuple[int, ...]:
    return tuple((7 * i + salt) % 500 for i in range(length))


def cached(world: World, number: int) -> int:
    return sum(getattr(h, "cached", 0) for h in world.heard[submit(number).request])


@pytest.mark.parametrize("length", [1, 4, 5, 16, 23])
@pytest.mark.parametrize("step_tokens", [3, 64])
def test_tokens_are_right_and_nothing_is_offered(length: int, step_tokens: int) -> None:
    w = world(step_tokens=step_tokens)
    ask(w, 1, prompt(length), HERE)
    w.run()
    assert w.tokens() == expected(prompt(length), 6)
    assert isinstance(w.end(), Finish)
    assert not [m for _, _, m in w.log if isinstance(m, Offer)]
    assert [to for _, to, m in w.log if isinstance(m, Ticket)] == [D], "prefill hears nothing of it"
    assert w.clean


def test_both_kinds_of_prompts_use_one_cache() -> None:
    """What was fetched is not computed again, and what was computed is not fetched."""
    w = world()
    turns = [prompt(21)]
    for number, pair in enumerate((THERE, HERE, THERE, HERE), start=1):
        ask(w, number, turns[-1], pair)
        w.run()
        said = w.tokens(number)
        assert said == expected(turns[-1], 6), f"turn {number}"
        turns.append((*turns[-1], *said, 9, 9, 9))
    for number, (before, _) in enumerate(pairwise(turns[:-1]), start=2):
        if number in (2, 4):  # computed here: all but the last token drawn was in this cache
            assert cached(w, number) == (len(before) + 5) // 4 * 4
    assert w.clean


def test_they_run_in_one_step_with_rooms_that_generate() -> None:
    w = world(step_tokens=4)
    for number, pair in enumerate((THERE, HERE, HERE, THERE), start=1):
        ask(w, number, prompt(11 + number, number), pair)
    w.run()
    for number in range(1, 5):
        assert w.tokens(number) == expected(prompt(11 + number, number), 6)
    assert w.clean


def test_a_prompt_that_is_fetched_follows_one_that_is_computed_here() -> None:
    w = world(step_tokens=4)
    node = w.nodes[D]
    ask(w, 1, prompt(20), HERE)
    ask(w, 2, (*prompt(20), 3, 4, 5), THERE)
    w.run()
    assert w.tokens(1) == expected(prompt(20), 6)
    assert w.tokens(2) == expected((*prompt(20), 3, 4, 5), 6)
    assert node.leader.worker.ledger.view()[KV]["cached"]
    assert w.clean


def test_it_goes_on_when_its_prefill_workers_are_lost() -> None:
    """Nothing of it is theirs."""
    w = world(step_tokens=4)
    w.hold = lambda source, target, message: source == D and target == World.GATEWAY
    ask(w, 1, prompt(19), HERE)
    w.run()
    w.lose(P)
    w.hold = lambda source, target, message: False
    w.release()
    w.run()
    assert w.tokens() == expected(prompt(19), 6)
    assert isinstance(w.end(), Finish)
    assert w.clean


def test_a_client_may_leave_while_it_computes() -> None:
    w = world(step_tokens=2)
    seen = []
    node = w.nodes[D]
    compute = node.engine.compute

    def leave(batch):
        seen.append({room.state for room in node.leader.worker.rooms.values()})
        if len(seen) == 3:
            w.cancel(1)
        compute(batch)

    node.engine.compute = leave
    ask(w, 1, prompt(20), HERE)
    w.run()
    assert {RoomState.COMPUTING} in seen
    assert len(seen) < 10, "it did not go on"
    assert w.clean
