"""What is asked of a service over several loads."""

from baton.dev.bench.sweep import Plan, loads, maker
from baton.dev.bench.workload import Shape

LOADS = loads([64, 128], [1, 8], [])


def plan(seed=0):
    shape = Shape(seed=seed, low=100, high=20_000)
    return Plan(
        make=maker("random", None, output_len=4, range_ratio=0.0, shape=shape),
        loads=LOADS,
        count=6,
        warm_ups=2,
        burstiness=1.0,
        seed=seed,
        keep_times=False,
    )


def test_no_prompt_of_a_load_was_asked_before():
    """Otherwise a service with a prefix cache would answer the later loads from it."""
    asked = plan()
    prompts = [item.prompt for load in LOADS for item in asked.items(load)]
    prompts += [item.prompt for length in (64, 128) for item in asked.warm_up(length)]
    prompts += [item.prompt for item in asked.make(64, 5, "idle")]
    assert len(set(prompts)) == len(prompts) == 4 * 6 + 2 * 2 + 5


def test_two_services_are_asked_the_same():
    assert [plan().items(load) for load in LOADS] == [plan().items(load) for load in LOADS]
    assert plan().items(LOADS[0]) != plan(1).items(LOADS[0])
