"""The scaling signal: how many workers of each role the load asks for."""

import asyncio

import httpx
import pytest

from baton.core.ids import Boot, GroupName
from baton.core.messages import Credits
from baton.core.prefill_cost import Backlog
from baton.gateway.scaling import ScalingSignal, WorkerLoad

from .fake_door import FakeDoor
from .rig import served

KV = GroupName("kv")


def credits(
    *,
    used: int = 0,
    running: int = 0,
    free_rooms: int = 8,
    waiting: int = 0,
    backlog_us: int = 0,
    prompts: int = 0,
    draining: bool = False,
) -> Credits:
    return Credits(
        number=1,
        worker=Boot(2),
        free_pages={KV: 100 - used},
        total_pages={KV: 100},
        waiting=waiting,
        running=running,
        free_rooms=free_rooms,
        draining=draining,
        backlog=Backlog(prompts, prompts * 100, backlog_us),
    )


def prefill(*, busy: bool = True) -> WorkerLoad:
    return WorkerLoad("prefill", credits(backlog_us=1, prompts=1) if busy else credits())


def decode(**said: int) -> WorkerLoad:
    return WorkerLoad("decode", credits(**said))


def run(signal: ScalingSignal, *phases, queued: int = 0, start: int = 0):
    """Look once a second; a phase is (seconds, what the workers state at second n)."""
    at = start
    for seconds, loads in phases:
        for n in range(seconds):
            signal.sample(loads(n), queued=queued, at=float(at))
            at += 1
    return {role: d.wanted for role, d in signal.wanted().items()}


@pytest.mark.parametrize(
    ("of_ten", "workers", "wanted"),
    [(10, 1, 2), (10, 2, 3), (7, 1, 1), (7, 4, 4), (8, 4, 5), (10, 7, 10)],
)
def test_prefill_is_to_compute_seven_tenths_of_the_time(of_ten, workers, wanted):
    """Every worker computes so many of ten seconds."""
    found = run(
        ScalingSignal(), (60, lambda n: [prefill(busy=n % 10 < of_ten) for _ in range(workers)])
    )
    assert found == {"prefill": wanted}


def test_a_tenth_too_much_or_too_little_changes_nothing():
    assert run(ScalingSignal(), (400, lambda n: [decode(used=93)] * 3)) == {"decode": 3}
    assert run(ScalingSignal(), (400, lambda n: [decode(used=94)] * 3)) == {"decode": 4}
    assert run(ScalingSignal(), (400, lambda n: [decode(used=77)] * 3)) == {"decode": 3}
    assert run(ScalingSignal(), (400, lambda n: [decode(used=56)] * 3)) == {"decode": 2}


@pytest.mark.parametrize("running", [8, 4])
def test_places_are_bounded_as_memory_is(running):
    found = run(ScalingSignal(), (60, lambda n: [decode(running=running, free_rooms=0)]))
    assert found == {"decode": 2}


def test_only_pages_bound_a_prefill_worker():
    load = WorkerLoad("prefill", credits(running=9, free_rooms=0, backlog_us=0))
    assert run(ScalingSignal(), (60, lambda n: [load])) == {"prefill": 1}


def test_rooms_that_wait_for_pages_count_as_those_that_have_some():
    found = run(ScalingSignal(), (60, lambda n: [decode(used=80, running=4, waiting=4)]))
    assert found == {"decode": 2}


def test_the_queue_of_the_gateway_counts_where_it_waits():
    loads = [
        WorkerLoad("prefill", credits(backlog_us=3_000_000, prompts=1)),
        decode(used=20, running=2),
    ]
    assert run(ScalingSignal(), (60, lambda n: loads), queued=10) == {
        # 33 s of prompts within 30 s, beside what is computed: 2.1 / 0.7
        "prefill": 3,
        "decode": 1,
    }


def test_more_is_wanted_at_once_and_less_after_five_minutes():
    signal = ScalingSignal()
    idle, full = (lambda n: [decode(used=1)] * 2), (lambda n: [decode(used=100)] * 2)
    assert run(signal, (299, idle)) == {"decode": 2}, "it has not looked for long enough"
    assert run(signal, (2, idle), start=299) == {"decode": 1}
    assert run(signal, (30, full), start=301) == {"decode": 3}
    assert run(signal, (290, idle), start=331) == {"decode": 2}, "more was wanted a while ago"
    assert run(signal, (60, idle), start=621) == {"decode": 1}


def test_workers_that_have_said_nothing_count_and_those_that_drain_do_not():
    new, leaving = WorkerLoad("decode", None), decode(used=100, draining=True)
    signal = ScalingSignal()
    run(signal, (60, lambda n: [decode(used=90), new, leaving]))
    found = signal.wanted()["decode"]
    assert (found.workers, found.wanted, found.demand, found.shortest) == (2, 2, 0.9, "memory")


def test_a_role_without_workers_is_left_out_and_begins_anew():
    signal = ScalingSignal()
    run(signal, (60, lambda n: [decode(used=100)]))
    assert run(signal, (1, lambda n: []), start=60) == {}
    assert run(signal, (1, lambda n: [decode(used=1)]), start=61) == {"decode": 1}


def test_the_endpoint_and_the_metrics_say_the_same():
    door = FakeDoor()
    door.stated = [decode(used=100)]

    async def go():
        async with served(door) as (url, *_), httpx.AsyncClient(base_url=url) as http:
            while not (said := (await http.get("/autoscaling")).json()):
                await asyncio.sleep(0.01)
            return said, (await http.get("/metrics")).text

    said, page = asyncio.run(go())
    assert said == {"decode": {"workers": 1, "wanted": 2, "demand": 1.0, "shortest": "memory"}}
    assert 'baton:wanted_workers{role="decode"} 2.0' in page
    assert 'baton:workers{role="decode"} 1.0' in page
    assert 'role="prefill"' not in page
