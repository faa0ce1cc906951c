"""Worlds in which all workers are guests of simulated vLLM engines: without faults every request
ends well, with faults nothing is violated, and a seed is always the same run."""

from collections import Counter
from functools import cache

import pytest
from tests.sim.hash_seeds import traces

from baton.core.door import Finish
from baton.dev.sim.guests.blocks import BlockPool
from baton.dev.sim.guests.draw import draw_guests
from baton.dev.sim.parts import GUESTS
from baton.dev.sim.run import be_silent, run
from baton.dev.sim.tape import Tape
from baton.dev.sim.world import World

SEEDS = range(30)


@pytest.fixture(autouse=True)
def silence():
    be_silent()


def test_the_calm_world_has_one_engine_of_each_role_and_all_its_requests_end_well():
    world = World(Tape(script={}), GUESTS)
    world.run()
    assert [(w.role, w.tp) for w in world.draw.workers] == [("prefill", 1), ("decode", 1)]
    assert world.draw.clean
    assert all(isinstance(client.end, Finish) for client in world.people.clients)
    assert world.marks["commit"] == len(world.people.clients), "each was handed over"


@pytest.mark.parametrize("seed", range(8))
def test_without_faults_every_request_ends_well(seed):
    world = World(Tape(seed=seed), GUESTS, calm=True)
    world.run()
    assert all(isinstance(client.end, Finish) for client in world.people.clients)
    assert not world.all_faults


def test_with_faults_nothing_is_violated():
    broken = {o.seed: (o.invariant, o.detail) for o in _runs() if o.invariant}
    assert not broken


@pytest.mark.parametrize(
    "seed",
    [
        146,
        209,
        922,
        961,
        1627,
        1646,
        2964,
        3471,
        7708,
        8348,
        14400,
        17821,
        23776,
        34686,
        40823,
        46557,
        48015,
        59463,
    ],
)
def test_what_was_found_once_does_not_come_back(seed):
    """A damaged page that is found again because vLLM hears of it too late; a notice that comes to
    an engine after its request has ended; pages that an engine is not told of, as no room is left;
    a page that is damaged before anybody has offered it, and sealed so; an answer of one token that
    fails on decode before its end is heard from prefill. What was wrong with the simulation: a request
    that met a damaged page at each attempt, an engine's message that came after its end had been
    noticed, and a block that was given out again while it waited to be sealed."""
    outcome = run(seed, parts=GUESTS)
    assert (outcome.invariant, outcome.detail) == ("", "")


def test_the_worlds_reach_what_is_rare():
    marks = Counter()
    for outcome in _runs():
        marks.update({name for name in outcome.marks if name.startswith("vllm: ")})
    assert set(marks) == {
        "vllm: prefill: preempted",
        "vllm: prefill: begins with cached blocks",
        "vllm: decode: preempted",
        "vllm: decode: begins with cached blocks",
        "vllm: decode: loads",
        "vllm: decode: a load fails",
        "vllm: decode: a load ends after its request",
    }


def test_the_worlds_are_of_many_kinds():
    """Both ranks of wide engines, short pools, and requests that come late."""
    draws = [draw_guests(Tape(seed=seed)) for seed in range(200)]
    assert {w.tp for draw in draws for w in draw.workers} == {1, 2}
    assert {draw.guests.short for draw in draws} == {False, True}
    assert any(draw.clean for draw in draws)
    assert any(draw.faults.http_late for draw in draws)
    assert any(draw.faults.crashes for draw in draws)


def test_a_seed_is_the_same_run_in_another_process_with_another_hash_seed():
    assert traces(7, "GUESTS") == {f"{run(7, parts=GUESTS).trace}\n"}


@cache
def _runs():
    return [run(seed, parts=GUESTS) for seed in SEEDS]


# ---- the blocks of a simulated vLLM ----------------------------------------------------------------


def test_a_block_that_was_given_back_is_found_until_it_is_taken_again():
    pool = BlockPool(2)
    (block,) = pool.take(1)
    pool.know(block, ("", (1, 2)))
    pool.give_back([block])
    assert pool.find(("", (1, 2))) == block
    assert pool.find(("another tenant", (1, 2))) is None
    pool.take(2)
    assert pool.find(("", (1, 2))) is None


def test_a_shared_block_is_free_when_nobody_uses_it_any_more():
    pool = BlockPool(2)
    blocks = pool.take(1)
    pool.know(blocks[0], ("", (1, 2)))
    pool.share(blocks)
    pool.give_back(blocks)
    assert (pool.free, pool.used) == (1, {blocks[0]: 1})
    pool.give_back(blocks)
    assert (pool.free, pool.used) == (2, {})


def test_blocks_without_known_content_are_taken_first_then_the_oldest():
    pool = BlockPool(3)
    first, second, third = pool.take(3)
    pool.know(first, ("", (1,)))
    pool.know(second, ("", (2,)))
    pool.give_back([second])
    pool.give_back([first])
    pool.give_back([third])
    assert pool.take(3) == [third, second, first]
