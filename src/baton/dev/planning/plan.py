"""Serves the same requests with every division of the workers, under every load."""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec

from baton.dev.bench.workload import TraceRow
from baton.dev.fleet.fleet import Fleet, FleetSettings
from baton.dev.fleet.profile import GroupMemory, MachineProfile, WorkerMemory
from baton.dev.fleet.served_request import ServedRequest
from baton.dev.planning.division import Division
from baton.dev.planning.judging import (
    DivisionResult,
    PlanVerdict,
    ServedDivision,
    Slos,
    judge,
    result_of,
)
from baton.dev.planning.resampling import Resampling
from baton.dev.planning.traffic import requests, span_s

PAGES_OF_A_PROMPT = 16  # a page is at most such a part of the mean prompt,
PAGES_OF_A_STEP = 4  # at most such a part of a step, and no more than a last chunk,
MOST_PAGE_TOKENS = 512  # at most so large,
PAGES_OF_A_WINDOW = 8  # at most such a part of a window
LEAST_PAGES = 256  # and a pool of the state of all positions has at least so many


class DividedRun(msgspec.Struct, frozen=True):
    """One run of a plan: a division under a load, a multiple of the rate of the requests."""

    load: float
    division: Division


class LoadResult(msgspec.Struct, frozen=True, kw_only=True):
    """All divisions of a number of workers under one load.

    Attributes:
        rate: requests a second
    """

    workers: int
    load: float
    rate: float
    divisions: tuple[DivisionResult, ...]
    verdict: PlanVerdict


class PlannedLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What every division is asked, and how.

    Attributes:
        traffic: one trace, or a mix drawn from several seeds
        length_scale: of the traces, which their lengths have already
    """

    profile: MachineProfile
    traffic: tuple[tuple[TraceRow, ...], ...]
    settings: FleetSettings
    length_scale: float = 1.0

    @property
    def requests(self) -> int:
        """The requests that each division serves."""
        return sum(len(rows) for rows in self.traffic)

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.requests / max(1e-9, sum(span_s(rows) for rows in self.traffic))

    def serve(self, run: DividedRun) -> ServedDivision:
        """Make one run: serve all of the traffic with a division."""
        division, served, handed_over, elapsed = run.division, list[ServedRequest](), 0, 0
        busy = dict.fromkeys(dict.fromkeys(division.roles), 0.0)
        for rows in self.traffic:
            with _without_collection():
                fleet = Fleet(division.roles, self.profile, self.settings)
                asked = requests(rows, length_scale=self.length_scale, load=run.load)
                served += fleet.serve(asked)
            handed_over += fleet.network.nbytes
            elapsed += fleet.clock.now
            for worker in fleet.workers.values():
                busy[worker.role] += worker.engine.busy_us
        return ServedDivision(
            division=division,
            served=tuple(served),
            busy={r: us / (elapsed * division.roles.count(r)) for r, us in busy.items()},
            handed_over=handed_over,
        )


def planned_load(
    profile: MachineProfile,
    traffic: Sequence[Sequence[TraceRow]],
    settings: FleetSettings,
    *,
    length_scale: float = 1.0,
) -> PlannedLoad:
    """Return a load for workers of this profile, with pages as large as the load allows."""
    return PlannedLoad(
        profile=coarse(profile, traffic),
        traffic=tuple(map(tuple, traffic)),
        settings=settings,
        length_scale=length_scale,
    )


Each = Callable[[PlannedLoad, Sequence[DividedRun]], Iterator[ServedDivision]]


def one_by_one(planned: PlannedLoad, runs: Sequence[DividedRun]) -> Iterator[ServedDivision]:
    """Make runs in this process."""
    return map(planned.serve, runs)


def judged(
    planned: PlannedLoad,
    loads: Sequence[float],
    tried: Mapping[int, Sequence[Division]],
    slos: Slos,
    *,
    seed: int = 0,
    each: Each = one_by_one,
) -> Iterator[ServedDivision | LoadResult]:
    """Make all runs. Yields what came of each, and after the last one of a number of workers under
    a load the result of that.

    tried: divisions of each number of workers; the first is that of unified workers
    each: makes runs, and returns what came of them in their order
    """
    drawn = Resampling(planned.requests, seed)
    cases = [(load, workers) for load in loads for workers in tried]
    runs = [DividedRun(load, division) for load, workers in cases for division in tried[workers]]
    done = each(planned, runs)
    for load, workers in cases:
        divided = []
        for _ in tried[workers]:
            divided.append(next(done))
            yield divided[-1]
        rate = planned.rate * load
        yield LoadResult(
            workers=workers,
            load=load,
            rate=rate,
            divisions=tuple(result_of(one, slos, drawn, rate=rate) for one in divided),
            verdict=judge(divided, slos, drawn),
        )


class FewestWorkers(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest number of workers that is enough under one load.

    Attributes:
        rate: requests a second
        division: of these workers; None if no number that was tried is enough
        tried: the numbers of workers
    """

    rate: float
    division: Division | None
    tried: tuple[int, ...]


def fewest_workers(results: Sequence[LoadResult], attainment: float) -> list[FewestWorkers]:
    """Return the fewest workers for each load.

    attainment: the share of requests that must meet the SLOs, at the lower end of its interval too
    """
    found = []
    for rate in dict.fromkeys(result.rate for result in results):
        same = sorted((r for r in results if r.rate == rate), key=lambda r: r.workers)
        enough = (_enough(result, attainment) for result in same)
        division = next((d for d in enough if d is not None), None)
        tried = tuple(result.workers for result in same)
        found.append(FewestWorkers(rate=rate, division=division, tried=tried))
    return found


def _enough(result: LoadResult, attainment: float) -> Division | None:
    """Return a division that is enough, the recommended one if it is; None if none is."""
    good = [one for one in result.divisions if one.attained.low >= attainment]
    if not good:
        return None
    recommended = result.verdict.best
    if any(one.division == recommended for one in good):
        return recommended
    return max(good, key=lambda one: one.attained.value).division


def coarse(profile: MachineProfile, traffic: Sequence[Sequence[TraceRow]]) -> MachineProfile:
    """Return the profile with larger pages, as long as a page is a small part of a prompt and of
    the pool: the time of a run goes by pages, and so little memory makes no difference."""
    lengths = [row.input_tokens for rows in traffic for row in rows]
    memory = profile.memory
    most = min(
        MOST_PAGE_TOKENS,
        profile.limits.step_tokens / PAGES_OF_A_STEP,
        profile.last_chunk_tokens,
        sum(lengths) / len(lengths) / PAGES_OF_A_PROMPT,
        memory.pages * memory.page_tokens / LEAST_PAGES,
        *((window.window or 0) / PAGES_OF_A_WINDOW for window in memory.windows),
    )
    size = memory.page_tokens
    while 2 * size <= most:
        size *= 2
    return msgspec.structs.replace(
        profile,
        memory=WorkerMemory(
            page_tokens=size,
            pages=memory.pages * memory.page_tokens // size,
            token_bytes=memory.token_bytes,
            others=tuple(_coarse(other, memory.page_tokens, size) for other in memory.others),
        ),
    )


def _coarse(group: GroupMemory, before: int, after: int) -> GroupMemory:
    """Return a group with pages of `after` positions instead of `before`."""
    if group.window is None:
        return group
    return msgspec.structs.replace(group, count=max(1, group.count * before // after))


@contextmanager
def _without_collection() -> Iterator[None]:
    """Do not look for cycles of garbage meanwhile: a fleet makes none, and has millions of objects
    to look through."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()
