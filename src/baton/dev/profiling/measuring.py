"""Measures one worker on this machine, and fits a profile to what was found."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import comb
from pathlib import Path
from statistics import median

import msgspec

from baton.core.errors import ConfigError
from baton.core.ids import GroupName
from baton.core.memory.state import DType, Full, Placement, Window
from baton.dev.fleet.profile import GroupMemory, MachineProfile, StepLimits, WorkerMemory
from baton.dev.profiling.companion import GO, STOP, companion
from baton.dev.profiling.core_turns import fit_turns, measured_turns
from baton.dev.profiling.engine_steps import (
    PADDED_TO,
    B,
    StepShape,
    TimedModel,
    counts,
    medians,
    shapes,
    timed,
)
from baton.dev.profiling.fabric_reads import measured_reads
from baton.dev.profiling.least_squares import (
    MeasuredRead,
    fit_reads,
    fit_steps,
    foretold,
    quality,
    read_errors,
    step_errors,
)

POSITIONS = 1_024  # of the longest sequence in steps that are timed
DIGESTS = 5  # the least of so many counts
# timed alone and beside a second worker, in turns
BESIDE = (
    *(StepShape(rows=rows, context=256) for rows in (1, 8, 32)),
    *(StepShape(tokens) for tokens in (64, 128)),
)
TURNS = 9
SURE = 0.01  # the chance that turns seem to differ which do not
FRESH = "steps that were not fitted"


class ProfileOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be measured, and how.

    Attributes:
        name: of the profile
        pools: returns the pages, or slots, that a worker has of each group; raises ConfigError if
            its memory is too small
        seconds: for which steps are timed
    """

    name: str
    path: Path
    dtype: DType
    threads: int
    limits: StepLimits
    pools: Callable[[Placement], Mapping[GroupName, int]]
    fabric: str
    message_us: float
    seconds: float


def measured_profile(order: ProfileOrder) -> MachineProfile:
    """Measure, and return the profile.

    Raises:
        ConfigError: the fabric or the pool does not fit, or all state of the model is in windows
    """
    raw = measured_reads(order.fabric)
    longest = min(order.limits.step_tokens, POSITIONS)
    wanted = shapes(longest, POSITIONS)
    with _model(order, wanted) as model:
        memory = memory_of(model.placement, order.pools(model.placement))
        steps = medians(list(timed(model, wanted, seconds=order.seconds)))
        reads = [_with_hashes(model, read) for read in raw]
        contention = _contention(model, order)
    turns = measured_turns()
    fitted = fit_steps(
        [step for shape, step in steps.items() if not shape.held_back],
        counts(longest),
        padded_to=PADDED_TO,
    )
    wire = fit_reads(reads, message_us=order.message_us)
    fresh = [step for shape, step in steps.items() if shape.held_back]
    return MachineProfile(
        name=order.name,
        steps=fitted,
        wire=wire,
        memory=memory,
        limits=order.limits,
        host=msgspec.structs.replace(
            fit_turns(turns), threads=order.threads, contention=contention
        ),
        fit={
            **step_errors(fitted, [s for shape, s in steps.items() if not shape.held_back]),
            FRESH: quality([foretold(fitted, step) for step in fresh], [s.us for s in fresh]),
            "reads": read_errors(wire, reads),
        },
    )


def _contention(model: TimedModel, order: ProfileOrder) -> float:
    """Return by which part of its time a step takes longer while a second worker computes; 0 where
    there are no cores for one."""
    if len(os.sched_getaffinity(0)) < 2 * order.threads:
        return 0.0
    turns: list[tuple[float, float]] = []
    with companion(order.path, order.dtype, threads=order.threads) as other:
        for shape in BESIDE:
            for turn in range(TURNS):
                us = {}
                for word in (STOP, GO) if turn % 2 == 0 else (GO, STOP):
                    other.tell(word)
                    us[word] = model.step_us(shape)
                turns.append((us[STOP], us[GO]))
    return slowdown(turns)


def slowdown(turns: Sequence[tuple[float, float]]) -> float:
    """Return by which part of its time a step takes longer beside another, the median of turns; 0
    where that does not stand out of the noise, by a sign test: it would make a plan prefer the
    division whose workers rest more.

    turns: pairs of a step's time alone and beside another
    """
    slower, count = sum(beside > alone for alone, beside in turns), len(turns)
    by_chance = sum(comb(count, n) for n in range(slower, count + 1)) / 2**count
    if by_chance > SURE:
        return 0.0
    return median(beside / alone for alone, beside in turns) - 1


@contextmanager
def _model(order: ProfileOrder, wanted: Sequence[StepShape]) -> Iterator[TimedModel]:
    model = TimedModel(
        order.path,
        order.dtype,
        threads=order.threads,
        step_tokens=order.limits.step_tokens,
        wanted=(*wanted, *BESIDE),
    )
    try:
        yield model
    finally:
        model.close()


def memory_of(placement: Placement, pools: Mapping[GroupName, int]) -> WorkerMemory:
    """Return what a worker's pools hold.

    placement: of its only rank, with pages of one block
    """
    groups = placement.table.groups
    full = [g.name for g in groups if isinstance(g.extent, Full)]
    if not full:
        raise ConfigError(
            f"a model whose state is {', '.join(g.name for g in groups)} alone: a profile needs a "
            "group with the state of all positions"
        )
    return WorkerMemory(
        page_tokens=B,
        pages=pools[full[0]],
        token_bytes=sum(placement.block_bytes(name) for name in full) // B,
        others=tuple(
            GroupMemory(
                name=group.name,
                window=group.extent.tokens if isinstance(group.extent, Window) else None,
                count=pools[group.name],
                nbytes=placement.block_bytes(group.name) // placement.block_positions(group.name),
            )
            for group in groups
            if group.name not in full
        ),
    )


def _with_hashes(model: TimedModel, read: MeasuredRead) -> MeasuredRead:
    """Add the time in which what was read is verified."""
    blocks = max(1, read.nbytes // (model.token_bytes * B))
    hashed = min(model.digest_us(blocks) for _ in range(DIGESTS))
    return MeasuredRead(read.nbytes, read.us + hashed)
