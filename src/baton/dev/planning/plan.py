"""Serves the same requests with every division of the workers, under every load."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from baton.core.gateway.request import DECODE, PREFILL, UNIFIED
from baton.dev.bench.workload import TraceRow
from baton.dev.fleet.fleet import Fleet, FleetSettings
from baton.dev.fleet.profile import MachineProfile, WorkerMemory
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
MOST_PAGE_TOKENS = 512  # and at most so large,
LEAST_PAGES = 256  # and a pool has at least so many


class DividedRun(msgspec.Struct, frozen=True):
    """One run of a plan: a division under a load, a multiple of the rate of the requests."""

    load: float
    division: Division


class LoadResult(msgspec.Struct, frozen=True, kw_only=True):
    """All divisions under one load.

    Attributes:
        rate: requests a second
    """

    load: float
    rate: float
    divisions: tuple[DivisionResult, ...]
    verdict: PlanVerdict


class WorkerPlan:
    """The runs of a plan, and what has come of them."""

    def __init__(
        self,
        profile: MachineProfile,
        traffic: Sequence[Sequence[TraceRow]],
        settings: FleetSettings,
        *,
        slos: Slos,
        length_scale: float = 1.0,
        seed: int = 0,
    ) -> None:
        """traffic: one trace, or a mix drawn from several seeds
        length_scale: of the traces, which their lengths have already"""
        self.profile = coarse(profile, traffic)
        self._traffic, self._settings = traffic, settings
        self._slos, self._length_scale, self._seed = slos, length_scale, seed

    @property
    def requests(self) -> int:
        """The requests that each division serves."""
        return sum(len(rows) for rows in self._traffic)

    @property
    def runs(self) -> int:
        """The runs in which each division does so."""
        return len(self._traffic)

    def judged(
        self, loads: Sequence[float], divisions: Sequence[Division]
    ) -> Iterator[DividedRun | LoadResult]:
        """Make all runs. Yields each before it is made, and the result of each load after its last
        one."""
        drawn = Resampling(self.requests, self._seed)
        rate = self.requests / max(1e-9, sum(span_s(rows) for rows in self._traffic))
        for load in loads:
            divided = []
            for division in divisions:
                yield DividedRun(load, division)
                divided.append(self._serve(division, load))
            yield LoadResult(
                load=load,
                rate=rate * load,
                divisions=tuple(
                    result_of(one, self._slos, drawn, rate=rate * load) for one in divided
                ),
                verdict=judge(divided, self._slos, drawn),
            )

    def _serve(self, division: Division, load: float) -> ServedDivision:
        served, handed_over, elapsed = [], 0, 0
        busy = dict.fromkeys((PREFILL, DECODE, UNIFIED), 0.0)
        for rows in self._traffic:
            with _without_collection():
                fleet = Fleet(division.roles, self.profile, self._settings)
                served += fleet.serve(requests(rows, length_scale=self._length_scale, load=load))
            handed_over += fleet.network.nbytes
            elapsed += fleet.clock.now
            for worker in fleet.workers.values():
                busy[worker.role] += worker.engine.busy_us
        return ServedDivision(
            division=division,
            served=served,
            busy={
                role: us / (elapsed * division.roles.count(role))
                for role, us in busy.items()
                if role in division.roles
            },
            handed_over=handed_over,
        )


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
        ),
    )


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
