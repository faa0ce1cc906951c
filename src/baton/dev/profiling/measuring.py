"""Measures one worker on this machine, and fits a profile to what was found."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from baton.core.errors import ConfigError
from baton.core.memory.state import DType
from baton.dev.fleet.profile import MachineProfile, StepLimits, WorkerMemory
from baton.dev.profiling.core_turns import fit_turns, measured_turns
from baton.dev.profiling.engine_steps import B, TimedModel, medians, shapes, timed
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

POSITIONS, SEQUENCES = 1_024, 17  # of the pool that steps are timed in
DIGESTS = 5  # the least of so many counts
FRESH = "steps that were not fitted"


class ProfileOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be measured, and how.

    Attributes:
        name: of the profile
        pool_bytes: of a worker's pool
        seconds: for which steps are timed
    """

    name: str
    path: Path
    dtype: DType
    threads: int
    limits: StepLimits
    pool_bytes: int
    fabric: str
    message_us: float
    seconds: float


def measured_profile(order: ProfileOrder) -> MachineProfile:
    """Measure, and return the profile.

    Raises:
        ConfigError: the model, the fabric or the pool does not fit
    """
    raw = measured_reads(order.fabric)
    with _model(order) as model:
        memory = _memory(order.pool_bytes, model.token_bytes)
        wanted = shapes(min(order.limits.step_tokens, POSITIONS), POSITIONS)
        steps = medians(list(timed(model, wanted, seconds=order.seconds)))
        reads = [_with_hashes(model, read) for read in raw]
    turns = measured_turns()
    fitted = fit_steps([step for shape, step in steps.items() if not shape.held_back])
    wire = fit_reads(reads, message_us=order.message_us)
    fresh = [step for shape, step in steps.items() if shape.held_back]
    return MachineProfile(
        name=order.name,
        steps=fitted,
        wire=wire,
        memory=memory,
        limits=order.limits,
        host=fit_turns(turns),
        fit={
            **step_errors(fitted, [s for shape, s in steps.items() if not shape.held_back]),
            FRESH: quality([foretold(fitted, step) for step in fresh], [s.us for s in fresh]),
            "reads": read_errors(wire, reads),
        },
    )


@contextmanager
def _model(order: ProfileOrder) -> Iterator[TimedModel]:
    model = TimedModel(
        order.path,
        order.dtype,
        threads=order.threads,
        step_tokens=order.limits.step_tokens,
        positions=POSITIONS,
        rows=SEQUENCES,
    )
    try:
        yield model
    finally:
        model.close()


def _memory(pool_bytes: int, token_bytes: int) -> WorkerMemory:
    pages = pool_bytes // (token_bytes * B)
    if pages < 1:
        raise ConfigError(
            f"--kv-memory of {pool_bytes} bytes: a page takes {token_bytes * B}; give more"
        )
    return WorkerMemory(page_tokens=B, pages=pages, token_bytes=token_bytes)


def _with_hashes(model: TimedModel, read: MeasuredRead) -> MeasuredRead:
    """Add the time in which what was read is verified."""
    blocks = max(1, read.nbytes // (model.token_bytes * B))
    hashed = min(model.digest_us(blocks) for _ in range(DIGESTS))
    return MeasuredRead(read.nbytes, read.us + hashed)
