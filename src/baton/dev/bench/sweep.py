"""A workload under several loads, against one service or against both layouts with equal resources.

In a comparison each layout has the machine to itself while it is measured; the workload, its seed
and its schedule are the same. If no SLOs are given, they are measured on the idle unified service
with one request at a time, and multiplied by a factor.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import product
from pathlib import Path

import msgspec

from baton.core.errors import BatonError, ConfigError
from baton.dev.bench.client import RequestOutcome, Target
from baton.dev.bench.figures import Slos, spread, summarize, tpot, ttft
from baton.dev.bench.load import SendSchedule, Tell, drive
from baton.dev.bench.schedule import arrivals, traced
from baton.dev.bench.verdict import LoadPoint, Point
from baton.dev.bench.workload import READERS, Item, Shape, file_items, random_items

# arguments: prompt tokens, requests, and what they are for; a drawn prompt is of one purpose only
Make = Callable[[int | None, int, str], list[Item]]

IDLE_REQUESTS = 5  # sent one at a time to measure SLOs
REQUESTS_PER_CLIENT = 4  # if the number of requests is not given


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a service, and when, over all loads.

    Attributes:
        make: returns the first n requests of a workload with prompts of this many tokens (those of
            a file stay as they are). What is drawn differs by load, so that no prompt is cached
        count: requests of one load; None = some for each of its clients
        warm_ups: requests that are sent before and not counted
    """

    make: Make
    loads: tuple[LoadPoint, ...]
    count: int | None
    warm_ups: int
    burstiness: float
    seed: int
    keep_times: bool  # send at the times of the trace

    def items(self, load: LoadPoint) -> list[Item]:
        """Return the requests of one load."""
        count = self.count or max(8, REQUESTS_PER_CLIENT * (load.concurrency or 0))
        return self.make(load.prompt_tokens, count, str(load))

    def warm_up(self, length: int | None) -> list[Item]:
        """Return the requests that are sent before."""
        return self.make(length, self.warm_ups, "warm-up") if self.warm_ups else []

    def pace(self, load: LoadPoint, items: Sequence[Item]) -> SendSchedule:
        """Return when the requests of one load are sent."""
        times = traced(items) if self.keep_times else None
        rate = float("inf") if load.rate is None else load.rate
        due = times or arrivals(len(items), rate=rate, burstiness=self.burstiness, seed=self.seed)
        return SendSchedule(tuple(due), load.concurrency)


def maker(
    kind: str, path: Path | None, *, output_len: int, range_ratio: float, shape: Shape
) -> Make:
    """Return the workload for `--dataset-name`.

    Raises:
        ConfigError: name and path do not go together
    """
    if kind == "random" and path is not None:
        raise ConfigError(
            f"--dataset-path {path}: --dataset-name says what it is: {', '.join(READERS)}"
        )
    if kind != "random" and path is None:
        raise ConfigError(f"--dataset-name {kind} needs --dataset-path")

    def from_file(_: int | None, count: int, _purpose: str) -> list[Item]:
        assert path is not None
        return file_items(kind, path, count, shape)

    def drawn(input_len: int | None, count: int, purpose: str) -> list[Item]:
        assert input_len is not None
        return random_items(
            count,
            input_len=input_len,
            output_len=output_len,
            range_ratio=range_ratio,
            shape=shape,
            purpose=purpose,
        )

    return drawn if kind == "random" else from_file


# takes a label and the number of requests; the context yields what is told of each outcome
Watch = Callable[[str, int], AbstractContextManager[Tell]]


def loads(
    lengths: Sequence[int | None], concurrencies: Sequence[int], rates: Sequence[float]
) -> tuple[LoadPoint, ...]:
    """Return every combination of these limits. An empty list means that the load has no such
    limit.

    Raises:
        ConfigError: a length or rate is out of range
    """
    if any(length is not None and length < 1 for length in lengths):
        raise ConfigError(f"--random-input-len {lengths}: prompts have at least 1 token")
    if any(rate <= 0 for rate in rates):
        raise ConfigError(f"--request-rate {rates}: it must be above 0, or inf")
    limits: list[int | None] = [*concurrencies] or [None]
    paces: list[float | None] = [*rates] or [None]
    each = product(lengths, limits, paces)
    return tuple(LoadPoint(length, concurrency, rate) for length, concurrency, rate in each)


def measure(
    target: Target, plan: Plan, watch: Watch, *, label: str = ""
) -> Iterator[tuple[LoadPoint, list[RequestOutcome]]]:
    """Run all loads, one after the other, and yield their outcomes.

    Raises:
        BatonError: a warm-up request fails
    """
    for load in plan.loads:
        items = plan.items(load)
        with watch(f"{label}{load}", len(items)) as tell:
            warm_up = plan.warm_up(load.prompt_tokens)
            outcomes = drive(target, items, plan.pace(load, items), warm_up=warm_up, tell=tell)
        yield load, outcomes


def idle(target: Target, plan: Plan, watch: Watch) -> dict[int | None, list[RequestOutcome]]:
    """Send requests of each prompt length one at a time, to find out what an idle service can
    do."""
    found: dict[int | None, list[RequestOutcome]] = {}
    for length in dict.fromkeys(load.prompt_tokens for load in plan.loads):
        items = plan.make(length, IDLE_REQUESTS, "idle")
        with watch(f"unified, {LoadPoint(length, 1)}, for the SLOs", len(items)) as tell:
            pace = SendSchedule((0.0,) * len(items), 1)
            found[length] = drive(target, items, pace, warm_up=plan.warm_up(length), tell=tell)
    return found


def slos_of(outcomes: Sequence[RequestOutcome], scale: float) -> dict[str, float]:
    """Return SLOs in milliseconds: the medians of an idle service, times a factor.

    Raises:
        BatonError: no request succeeded
    """
    fine = [o for o in outcomes if not o.failure]
    if not fine:
        raise BatonError(
            f"no SLOs can be taken from the idle service: {outcomes[0].failure}: "
            f"{outcomes[0].detail}"
        )
    return {
        "ttft": scale * spread([ttft(o) for o in fine]).p50,
        "tpot": scale * spread([tpot(o) for o in fine]).p50,
    }


def compare(
    split: Mapping[LoadPoint, Sequence[RequestOutcome]],
    unified: Mapping[LoadPoint, Sequence[RequestOutcome]],
    slos: Mapping[LoadPoint, Slos],
) -> list[Point]:
    """Return both layouts' runs of the same loads, judged by the same SLOs."""
    return [
        Point(
            load,
            dict(slos[load]),
            summarize(split[load], slos[load]),
            summarize(unified[load], slos[load]),
        )
        for load in split
    ]
