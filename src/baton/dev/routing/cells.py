"""The cells of a comparison of routing policies: a trace, a number of workers and a load, under one
policy."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from baton.core.errors import ConfigError
from baton.core.gateway.request import FrontSettings
from baton.core.ids import TokenId
from baton.dev.bench.workload import MOONCAKE_BLOCK, Item, Shape, file_items
from baton.dev.fleet.fleet import Fleet, FleetRequest, FleetSettings
from baton.dev.fleet.profile import (
    MachineProfile,
    StepLimits,
    StepTimes,
    WireTimes,
    WorkerMemory,
    in_proportion,
)
from baton.dev.fleet.served_request import ServedRequest

# A worker of the traces' scale: 10,000 tokens/s where attention costs nothing, 100 us for 40,000
# pairs, and a million tokens of cache.
TOKEN_US, PAIR_US, STEP_US = 100.0, 0.0025, 2_000
STEP_TOKENS, CACHED_TOKENS = 8_192, 1_024_000
MESSAGE_US = 200
STATE_BYTES = 16  # of a token, which nobody reads
UNBOUNDED, DAYS_MS = 1 << 30, 36_000_000
# workers at which a trace is served at its own rate; others are given a rate that is in proportion
BASE_WORKERS = 8


class Cell(msgspec.Struct, frozen=True, order=True):
    """One run.

    Attributes:
        load: the rate of arrivals, as a multiple of the trace's own for BASE_WORKERS workers
    """

    trace: str
    workers: int
    load: float
    policy: str


class CellResult(msgspec.Struct, frozen=True):
    """What came of a run. Times in seconds.

    Attributes:
        hits: the share of prompt tokens that was cached
        busy: the share of time for which workers computed
        refused: requests that were not served
        late: the share of requests whose first token took longer than ten times what the prompt
            takes on an idle worker that has nothing of it cached, or that were refused
    """

    cell: Cell
    requests: int
    mean: float
    p50: float
    p90: float
    p99: float
    hits: float
    busy: float
    refused: int
    late: float


def trace_items(path: Path, scale: int) -> list[Item]:
    """Return the requests of a Mooncake trace, with all lengths divided by `scale`.

    Raises:
        ConfigError: the file cannot be read, or the scale does not divide a block of the trace
    """
    if scale < 1 or MOONCAKE_BLOCK % scale:
        raise ConfigError(f"--length-scale {scale}: it must divide {MOONCAKE_BLOCK}")
    items = file_items(
        "mooncake", path, None, Shape(seed=0, low=0, high=1 << 30, length_scale=1 / scale)
    )
    if any(item.at_s is None for item in items):
        raise ConfigError(f"--dataset-path {path}: the requests of a trace need timestamps")
    return items


def measure(cell: Cell, items: Sequence[Item], scale: int) -> CellResult:
    """Serve a trace."""
    factor = BASE_WORKERS / (cell.workers * cell.load)
    fleet = Fleet(["unified"] * cell.workers, machine(scale), settings(cell.policy))
    fleet.serve(_asked(item, factor) for item in items)
    tallies = [worker.leader.worker.reuse.tally() for worker in fleet.workers.values()]
    times = sorted(s.ttft_us / 1e6 for s in fleet.served if s.ttft_us is not None)
    many, done = len(fleet.served), len(times)
    assert times, "somebody is served"

    busy = sum(worker.engine.busy_us for worker in fleet.workers.values())

    def percentile(share: float) -> float:
        return round(times[min(done - 1, int(done * share))], 4)

    return CellResult(
        cell=cell,
        requests=many,
        mean=round(sum(times) / done, 4),
        p50=percentile(0.5),
        p90=percentile(0.9),
        p99=percentile(0.99),
        hits=round(sum(t.hits for t in tallies) / max(1, sum(t.queries for t in tallies)), 4),
        busy=round(busy / (cell.workers * fleet.clock.now), 4),
        refused=many - done,
        late=round(sum(_late(s, scale) for s in fleet.served) / many, 4),
    )


def settings(policy: str) -> FleetSettings:
    """Return how a fleet is run: with a gateway that refuses nobody."""
    front = FrontSettings(
        max_requests=UNBOUNDED, max_queued=UNBOUNDED, queue_ms=DAYS_MS, routing_policy=policy
    )
    return FleetSettings(front=front, deadline_ms=DAYS_MS)


def machine(scale: int) -> MachineProfile:
    """Return a worker whose tokens stand for `scale` tokens each."""
    return MachineProfile(
        name="traces",
        steps=StepTimes(
            tokens_us=in_proportion(STEP_US, TOKEN_US * scale),
            pair_us=PAIR_US * scale * scale,
            row_us=0.0,
            context_us=0.0,
        ),
        wire=WireTimes(bytes_per_s=1e12, read_us=0.0, message_us=MESSAGE_US),
        memory=WorkerMemory(
            page_tokens=MOONCAKE_BLOCK // scale,
            pages=CACHED_TOKENS // MOONCAKE_BLOCK,
            token_bytes=STATE_BYTES,
        ),
        limits=StepLimits(step_tokens=STEP_TOKENS // scale, max_rooms=1 << 20),
    )


def _asked(item: Item, factor: float) -> FleetRequest:
    """Return a request that is answered with one token."""
    assert item.at_s is not None, "a trace has times"
    assert not isinstance(item.prompt, str), "a trace has token ids"
    return FleetRequest(round(item.at_s * factor * 1e6), tuple(map(TokenId, item.prompt)), 1)


def _late(served: ServedRequest, scale: int) -> bool:
    times, tokens = machine(scale).steps, served.prompt_tokens
    alone = times.of_tokens(tokens) + times.pair_us * tokens * tokens / 2
    return served.ttft_us is None or served.ttft_us > 10 * alone


def grid(
    traces: Sequence[str], workers: Sequence[int], loads: Sequence[float], policies: Sequence[str]
) -> Iterator[Cell]:
    """Yield all cells, those that are to be compared one after the other."""
    for trace in traces:
        for n in workers:
            for load in loads:
                for policy in policies:
                    yield Cell(trace, n, load, policy)
