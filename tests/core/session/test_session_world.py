"""Seeded runs of two processes over bad cables (lossy.py holds the oracle)."""

import random

import pytest

from baton.core.ids import Micros
from baton.core.session.session import SessionLimits

from .lossy import SECOND, Faults, World

ONE, TWICE, BOTH = ((0, 1),), ((0, 1), (0, 1)), ((0, 1), (1, 0))
SMALL = SessionLimits(window=16, pack=3, burst=4, ack_every=4, buffer=64)


def swarm(chance: random.Random) -> Faults:
    """Some of the faults, so that none hides the others."""

    def some(most: float) -> float:
        return chance.choice((0.0, 0.0, chance.random() * most))

    def times(most: int) -> int:
        return chance.choice((0, 0, chance.randint(1, most)))

    return Faults(
        loss=some(0.6),
        repeat=some(0.5),
        old=some(0.3),
        delay_us=chance.choice((0, 2_000, 500_000, 2_000_000)),
        cuts=times(3),
        one_way_cuts=times(3),
        reconnects=times(5),
        restarts=(times(2), times(2)),
        most_said=chance.choice((3, 30, 150)),
    )


@pytest.mark.parametrize(
    "seed", [*range(60), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(60, 1000))]
)
def test_a_hostile_world_and_a_healed_one(seed: int) -> None:
    chance = random.Random(seed)
    cables = chance.choice((ONE, ONE, TWICE, BOTH))
    world = World(seed, swarm(chance), cables, chance.choice((SMALL, SessionLimits())))
    world.plan_faults(20 * SECOND)
    world.run(20 * SECOND)
    world.heal()
    world.run(32 * SECOND)  # frames under way, silence, redial

    a, b = world.nodes
    assert a.up.keys() == {b.boot}, "whoever is gone is lost, whoever is there is up"
    assert b.up.keys() == {a.boot}
    number = a.up[b.boot]
    assert b.up[a.boot] == number

    for side in (0, 1):
        world.say(side, 40)
    world.run(34 * SECOND)
    for us, them in ((a, b), (b, a)):
        assert us.up == {them.boot: number}, "a healed world loses nobody"
        assert them.heard[us.boot, number] == us.said[them.boot, number] >= 40
        assert not us.sessions._sessions[them.boot].stream._kept, "everything said is acknowledged"


@pytest.mark.parametrize("seed", range(15))
def test_nobody_is_lost_to_loss_repetition_delay_and_frames_of_long_ago(seed: int) -> None:
    faults = Faults(loss=0.1, repeat=0.3, old=0.3, delay_us=100_000, reconnects=4, most_said=50)
    world = World(seed, faults, (ONE, TWICE, BOTH)[seed % 3], SessionLimits())
    world.plan_faults(15 * SECOND)
    world.run(18 * SECOND)
    a, b = world.nodes
    assert (a.lost, b.lost) == ([], [])
    assert a.up == {b.boot: 1}
    for us, them in ((a, b), (b, a)):
        assert them.heard[us.boot, 1] == us.said[them.boot, 1] > 0


def test_a_long_backlog_catches_up_after_a_cut() -> None:
    world = World(1, Faults(), ONE, SessionLimits())
    world.run(SECOND)
    world.cut_until = dict.fromkeys(world.cut_until, 3 * SECOND)
    world.say(0, 5000)
    world.run(3 * SECOND + 900_000)
    a, b = world.nodes
    assert a.lost == b.lost == []
    assert b.heard[a.boot, 1] == 5000


def test_a_ping_pong_takes_two_frames_a_round() -> None:
    world = World(1, Faults(delay_us=0), ONE, SessionLimits())
    world.run(100_000)
    a, b = world.nodes
    before = world.frames
    for round_ in range(100):
        world.say(round_ % 2, 1)
        world.run(world.now + 1_000)
    assert world.frames - before <= 100 + 1
    world.run(world.now + 20_000)
    assert not a.sessions._sessions[b.boot].stream._kept
    assert not b.sessions._sessions[a.boot].stream._kept


def test_a_restarted_listener_is_lost_before_the_new_one_is_up() -> None:
    world = World(1, Faults(), ONE, SessionLimits())
    world.run(SECOND)
    world.at(0, "restart", 1)
    world.run(2 * SECOND)
    a, b = world.nodes
    assert [e.boot for e in a.lost] == world.dead
    assert a.up.keys() == {b.boot}, "found by its answer, without waiting for silence"


def test_a_restarted_listener_is_told_apart_from_the_one_expected() -> None:
    world = World(1, Faults(), ONE, SessionLimits(), named=True)
    world.run(SECOND)
    world.at(0, "restart", 1)
    world.run(9 * SECOND)
    a, b = world.nodes
    assert [e.boot for e in a.lost] == world.dead
    assert a.up == b.up == {}
    assert len(a.wrong) == 1, "said once, not at every knock"
    assert f"{b.boot:x}" in a.wrong[0].why
    assert f"{world.dead[0]:x}" in a.wrong[0].why


def test_an_idle_pair_says_little_and_never_spins() -> None:
    world = World(1, Faults(), ONE, SessionLimits(beat=Micros(500_000)))
    world.run(SECOND)
    before = world.frames
    world.run(11 * SECOND)
    assert 30 <= world.frames - before <= 50
    assert world.nodes[0].lost == []
