"""Work that shares cores: against a count in small steps of time, and in fleets."""

import random
from functools import partial

import msgspec
import pytest
from tests.fleet.build import mix, one, profile, rest, serve, split, times

from baton.core.ids import TokenId
from baton.dev.fleet.fleet import FleetRequest
from baton.dev.fleet.profile import HostTimes
from baton.dev.fleet.shared_cores import SharedCores
from baton.dev.fleet.virtual_clock import VirtualClock

TICK = 2.0  # microseconds of the count


def counted(works, cores, host):
    """When each of (at, us, is a step) ends, by counting in ticks."""
    left = [us for _, us, _ in works]
    ends, queue, now = {}, [], 0.0
    came = set()
    while len(ends) < len(works):
        for number, (at, _, step) in enumerate(works):
            if at <= now and number not in came:
                came.add(number)
                if not step:
                    queue.append(number)
        steps = [n for n in came if works[n][2] and n not in ends]
        running = [*steps, *queue[:1]]
        wanted = len(steps) * host.threads + len(queue[:1])
        speed = min(1.0, cores / wanted) if wanted else 1.0
        others = max(0, min(len(steps), cores // host.threads) - 1)
        for number in running:
            slower = 1 + host.contention * others if works[number][2] else 1.0
            left[number] -= TICK * speed / slower
        now += TICK
        for number in running:
            if left[number] <= 0:
                ends[number] = now
                if number in queue:
                    queue.remove(number)
    return [ends[n] for n in range(len(works))]


@pytest.mark.parametrize("seed", range(12))
def test_work_ends_as_it_does_by_the_tick(seed):
    chance = random.Random(seed)
    host = HostTimes(threads=chance.choice([1, 1, 2]), contention=chance.choice([0.0, 0.4]))
    cores = chance.choice([1, 2, 4])
    works = [
        (chance.randrange(0, 4000, 2), chance.uniform(50, 3000), chance.random() < 0.6)
        for _ in range(9)
    ]
    clock = VirtualClock()
    shared, ends = SharedCores(cores, host, clock), {}
    for number, (at, us, step) in enumerate(works):
        begin = shared.step if step else shared.serve
        clock.at(at, begin, us, partial(lambda n: ends.update({n: clock.now}), number))
    while clock.advance():
        pass
    expected = counted(sorted(works, key=lambda w: w[0]), cores, host)
    found = [ends[n] for n in sorted(range(len(works)), key=lambda n: works[n][0])]
    assert found == pytest.approx(expected, abs=20 * TICK)


def hosted(**times):
    return msgspec.structs.replace(profile(), host=HostTimes(**times))


@pytest.mark.parametrize("roles", [("unified",), ("unified", "unified"), split(1, 1)])
def test_with_cores_for_all_and_no_contention_nothing_changes(roles):
    requests = mix(20, rate=4, prompt=300, answer=30)
    _, alone = serve(roles, requests, profile())
    fleet, served = serve(roles, requests, profile(), cores=3)
    for a, b in zip(times(alone), times(served), strict=True):
        assert a == pytest.approx(b, abs=100)  # whole microseconds of each step
    rest(fleet)
    assert all(worker.leader.worker.ledger.clean for worker in fleet.workers.values())


def pair():
    """Two equal requests at once, one for each of two workers."""
    return [FleetRequest(0, (TokenId(n + 1),) * 1500, 2) for n in range(2)]


def test_two_workers_on_one_core_take_twice_as_long():
    two = ("unified", "unified")
    _, own = serve(two, pair(), profile())
    _, shared = serve(two, pair(), profile(), cores=1)
    for a, b in zip(own, shared, strict=True):
        assert b.ttft_us == pytest.approx(2 * a.ttft_us, rel=0.02)


def test_workers_that_compute_at_once_slow_each_other_down():
    two, machine = ("unified", "unified"), hosted(contention=0.3)
    _, own = serve(two, pair(), machine)
    _, shared = serve(two, pair(), machine, cores=2)
    for a, b in zip(own, shared, strict=True):
        assert b.ttft_us == pytest.approx(1.3 * a.ttft_us, rel=0.02)
    _, (single,) = serve(two, pair()[:1], machine, cores=2)
    assert single.ttft_us == pytest.approx(own[0].ttft_us, abs=10)


def test_the_work_for_clients_comes_before_and_after_the_workers():
    _, (own,) = serve(("unified",), one(200, 5), profile())
    _, (shared,) = serve(
        ("unified",), one(200, 5), hosted(request_us=7_000.0, reply_us=900.0), cores=2
    )
    assert shared.ttft_us == pytest.approx(own.ttft_us + 7_900, abs=5)
    assert shared.last - shared.first == pytest.approx(own.last - own.first, abs=20)


def test_the_work_for_clients_takes_time_from_the_only_core():
    _, (own,) = serve(("unified",), one(200, 21), profile())
    _, (shared,) = serve(("unified",), one(200, 21), hosted(reply_us=900.0), cores=1)
    # while a token is sent, the next step has half of the core
    assert shared.tpot_us == pytest.approx(own.tpot_us + 900, rel=0.05)
