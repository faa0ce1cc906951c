"""Times what the core does between two steps: gateway, leader and rank as they are shipped, with an
engine that takes no time of its own."""

import time
from collections.abc import Iterator
from statistics import median

import numpy as np

from baton.core.ids import TokenId
from baton.dev.fleet.fleet import Fleet, FleetRequest, FleetSettings
from baton.dev.fleet.profile import (
    HostTimes,
    MachineProfile,
    StepLimits,
    StepTimes,
    WireTimes,
    WorkerMemory,
)
from baton.dev.profiling.least_squares import MeasuredStep, not_negative

ROWS = (1, 8, 32)  # answers that are generated at once
PROMPT, ANSWER = 32, 100  # tokens
ROUNDS = 3
BLANK = MachineProfile(
    name="engine that takes a millisecond of no real time",
    steps=StepTimes(tokens_us=((1, 1_000.0),), pair_us=0.0, row_us=0.0, context_us=0.0),
    wire=WireTimes(bytes_per_s=1e12, read_us=0.0, message_us=0.0),
    memory=WorkerMemory(page_tokens=16, pages=4_096, token_bytes=16),
    limits=StepLimits(step_tokens=4_096, max_rooms=64),
)


def measured_turns() -> list[MeasuredStep]:
    """Return the median time of the core from step to step, for several numbers of answers."""
    return [
        MeasuredStep(rows=rows, us=median(_turn_us(rows) for _ in range(ROUNDS))) for rows in ROWS
    ]


def fit_turns(turns: list[MeasuredStep]) -> HostTimes:
    """Return the times that describe turns best."""
    columns = np.array([[1.0, turn.rows] for turn in turns], dtype=np.float64)
    turn_us, row_us = not_negative(columns, np.array([turn.us for turn in turns])).tolist()
    return HostTimes(turn_us=turn_us, row_us=row_us)


def _turn_us(rows: int) -> float:
    fleet = Fleet(("unified",), BLANK, FleetSettings(most_steps=1, prefix_cache=False))
    began = time.perf_counter()
    fleet.serve(_requests(rows))
    spent = time.perf_counter() - began
    (worker,) = fleet.workers.values()
    return 1e6 * spent / worker.engine.steps


def _requests(count: int) -> Iterator[FleetRequest]:
    return (FleetRequest(0, (TokenId(n + 1),) * PROMPT, ANSWER) for n in range(count))
