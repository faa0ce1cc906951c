"""Plans: where splitting must win it does, and where it must not it does not."""

import msgspec
import pytest
from tests.fleet.build import profile

from baton.dev.fleet.fleet import FleetSettings
from baton.dev.fleet.profile import GroupMemory
from baton.dev.planning.division import Division, divisions
from baton.dev.planning.judging import Advice, ServedDivision
from baton.dev.planning.plan import (
    LoadResult,
    coarse,
    fewest_workers,
    judged,
    planned_load,
)
from baton.dev.planning.show import enough
from baton.dev.planning.traffic import mix_of


def planned(machine, slos, *, inputs, outputs, rate, count=150, workers=(2,), loads=(1.0,)):
    mix = mix_of(inputs, outputs, rate=rate, count=count, burstiness=1.0, range_ratio=0.2)
    planned = planned_load(machine, [mix.rows(0), mix.rows(1)], FleetSettings())
    return list(judged(planned, loads, {n: divisions(n) for n in workers}, slos))


def verdict_of(news):
    (result,) = [one for one in news if isinstance(one, LoadResult)]
    return result.verdict


def test_splitting_wins_where_long_prompts_hold_up_answers():
    """A prompt takes 160 ms, and answers must not wait for one: a unified worker has one
    in most steps."""
    news = planned(profile(), {"tpot": 20.0, "ttft": 3000.0}, inputs=[1500], outputs=[40], rate=4.5)
    verdict = verdict_of(news)
    assert (verdict.advice, verdict.best) == (Advice.SPLIT, Division(1, 1))
    assert verdict.advantage.low > 0.1


def test_unified_workers_win_where_prompts_are_nearly_all_of_the_work():
    """Both workers of a unified service compute prompts, and one of a split one."""
    news = planned(profile(), {"ttft": 1000.0}, inputs=[1500], outputs=[2], rate=8.0)
    verdict = verdict_of(news)
    assert (verdict.advice, verdict.best) == (Advice.UNIFIED, Division(unified=2))


def test_where_there_is_little_to_do_it_makes_no_difference():
    news = planned(
        profile(), {"ttft": 2000.0, "tpot": 100.0}, inputs=[300], outputs=[20], rate=0.5, count=40
    )
    assert verdict_of(news).advice is Advice.NOISE


def test_one_seed_gives_one_plan_and_each_load_its_result():
    def once():
        return planned(
            profile(),
            {"ttft": 500.0},
            inputs=[400],
            outputs=[10],
            rate=8.0,
            count=40,
            workers=(3,),
            loads=(0.5, 2.0),
        )

    news = once()
    assert news == once()
    assert [type(one) for one in news] == ([ServedDivision] * 3 + [LoadResult]) * 2
    low, high = (one for one in news if isinstance(one, LoadResult))
    assert high.rate == pytest.approx(4 * low.rate)
    assert [d.division for d in low.divisions] == divisions(3)
    assert all(d.requests == 80 and d.failed == 0 for d in low.divisions)


def test_busy_workers_are_so_for_a_part_of_the_time():
    news = planned(profile(), {"ttft": 500.0}, inputs=[400], outputs=[10], rate=2.0, count=40)
    (result,) = [one for one in news if isinstance(one, LoadResult)]
    for one in result.divisions:
        assert set(one.busy) == set(one.division.roles)
        assert all(0 < share <= 1 for share in one.busy.values())
        assert (one.handed_over > 0) is one.division.split


def test_pages_are_coarse_only_where_it_makes_no_difference():
    long = mix_of([16_000], [1], rate=1.0, count=9, burstiness=1.0, range_ratio=0.0).rows(0)
    short = mix_of([200], [1], rate=1.0, count=9, burstiness=1.0, range_ratio=0.0).rows(0)
    machine = profile(pages=40_000)
    assert coarse(machine, [short]).memory == machine.memory
    large = coarse(machine, [long]).memory
    assert (large.page_tokens, large.pages) == (512, 1250)
    assert coarse(profile(pages=300), [long]).memory.page_tokens == 16
    assert coarse(profile(pages=40_000, step_tokens=512), [long]).memory.page_tokens == 128


def test_pages_of_windows_become_fewer_as_they_get_larger():
    long = mix_of([16_000], [1], rate=1.0, count=9, burstiness=1.0, range_ratio=0.0).rows(0)
    machine = profile(pages=40_000)
    window = GroupMemory(name="window", window=1_024, count=800, nbytes=64)
    slot = GroupMemory(name="slot", window=None, count=7, nbytes=64)
    memory = msgspec.structs.replace(machine.memory, others=(window, slot))
    large = coarse(msgspec.structs.replace(machine, memory=memory), [long]).memory
    assert large.page_tokens == 128, "an eighth of the window"
    assert [other.count for other in large.others] == [100, 7]


def test_the_fewest_workers_that_are_enough_are_named():
    news = planned(
        profile(),
        {"ttft": 600.0, "tpot": 30.0},
        inputs=[800],
        outputs=[20],
        rate=8.0,
        count=80,
        workers=(1, 4, 2),
        loads=(1.0, 40.0),
    )
    results = [one for one in news if isinstance(one, LoadResult)]
    assert [(r.load, r.workers) for r in results] == [
        (load, n) for load in (1.0, 40.0) for n in (1, 4, 2)
    ]
    low, high = fewest_workers(results, 0.8)
    assert low.division is not None
    assert len(low.division.roles) == 2
    assert low.tried == (1, 2, 4)
    assert high.division is None
    assert "2 (" in enough(low, 0.8)
    assert "none of 1, 2, 4 workers" in enough(high, 0.8)
