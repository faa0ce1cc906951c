"""What a service does under more load than it can serve: who is served, who is refused and how
soon, and when it is itself again.

    tools/overload.py --seconds 60 --factor 3 -- --request-timeout 20 --max-num-seqs 8

Starts a `baton serve` with the flags behind `--`. Idle: single requests, one after the other.
Capacity: as many at once as `--clients`, each sending its next request when the last is answered;
how fast answers end while all of them are at it. Then requests come by a Poisson process at
`--factor` times that rate, whatever becomes of the earlier ones; after that single requests again,
until the first token comes as soon as at idle.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from baton.dev.bench.client import RequestOutcome, Target
from baton.dev.bench.figures import Spread, spread, ttft
from baton.dev.bench.load import SendSchedule, drive
from baton.dev.bench.schedule import arrivals
from baton.dev.bench.service import serving
from baton.dev.bench.workload import Item, Shape, random_items

IDLE = 7
BACK = 1.5  # times the idle time to the first token, and
BACK_S = 0.01  # so much more, is as good as idle
PATIENCE_S = 60.0


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked. Lengths in tokens; they are spread evenly by a half."""

    prompt: int
    answer: int
    clients: int
    factor: float
    seconds: float
    capacity_requests: int
    token_ids: tuple[int, int] = (100, 20_000)


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it.

    Attributes:
        capacity: requests a second served, refused, failed: requests of the load; failed ones by
        what went wrong
        unsaid: refusals without Retry-After
        slowest_s: from sending to the end of the slowest request that was served
        back_s: from the end of the load until a single request's first token came as soon as at
            idle; None if it never did
        late_ms: how long after its time a request was sent; large: this client was the bottleneck
        open_requests: requests that the gateway had not ended at last
        clean: whether every worker's books were clean at last
        events: rare branches that workers took, all of them together
        failures: attempts that ended badly at workers, by code
        queue: what the gateway counted of refusals, by reason
    """

    idle_ttft_ms: float
    capacity: float
    offered: float
    served: int
    refused: int
    failed: dict[str, int]
    unsaid: int
    refused_ms: Spread
    ttft_ms: Spread
    slowest_s: float
    back_s: float | None
    late_ms: Spread
    clean: bool
    open_requests: int
    events: dict[str, int]
    failures: dict[str, int]
    queue: dict[str, int]


def measure(target: Target, load: Load) -> Found:
    """Do it all, against a service that does nothing else."""
    low, high = load.token_ids
    shape = Shape(seed=1, low=low, high=high)

    def items(count: int) -> list[Item]:
        return random_items(
            count, input_len=load.prompt, output_len=load.answer, range_ratio=0.5, shape=shape
        )

    def alone(count: int) -> list[RequestOutcome]:
        single = random_items(
            count, input_len=load.prompt, output_len=4, range_ratio=0.0, shape=shape
        )
        return drive(
            target, single, SendSchedule((0.0,) * count, 1), warm_up=(), tell=lambda _: None
        )

    idle_s = statistics.median(ttft(o) for o in alone(IDLE)[2:])
    closed = drive(
        target,
        items(load.capacity_requests),
        SendSchedule((0.0,) * load.capacity_requests, load.clients),
        warm_up=(),
        tell=lambda _: None,
    )
    capacity = steady_rate([o.ended for o in closed if not o.failure], load.clients)
    count = max(1, round(load.factor * capacity * load.seconds))
    due = arrivals(count, rate=load.factor * capacity, burstiness=1.0, seed=1)
    outcomes, back_s = _flood(target, items(count), due, alone=lambda: alone(1)[0], idle_s=idle_s)
    served = [o for o in outcomes if not o.failure]
    refused = [o for o in outcomes if o.refused]
    failed = [o.failure for o in outcomes if o.failure and not o.refused]
    books, metrics = _books(target)
    return Found(
        idle_ttft_ms=1e3 * idle_s,
        capacity=capacity,
        offered=count / due[-1] if due[-1] else 0.0,
        served=len(served),
        refused=len(refused),
        failed={kind: failed.count(kind) for kind in sorted(set(failed))},
        unsaid=sum(o.retry_after_s is None for o in refused),
        refused_ms=spread([o.ended - o.sent for o in refused]),
        ttft_ms=spread([ttft(o) for o in served]),
        slowest_s=max((o.ended - o.sent for o in served), default=0.0),
        back_s=back_s,
        late_ms=spread([o.sent - o.due for o in outcomes]),
        clean=books["clean"],
        open_requests=books["open_requests"],
        events=_summed(metrics, "baton:events_total", "event"),
        failures=_summed(metrics, "baton:epoch_failures_total", "code"),
        queue=_summed(metrics, "baton:refusals_total", "reason"),
    )


def steady_rate(ends: Sequence[float], clients: int) -> float:
    """Ends a second of a closed loop, without its beginning and its end, when not all clients have
    a request under way."""
    middle = sorted(ends)[clients - 1 : len(ends) - clients + 1]
    return (len(middle) - 1) / (middle[-1] - middle[0])


def _flood(
    target: Target,
    items: Sequence[Item],
    due: Sequence[float],
    *,
    alone: Callable[[], RequestOutcome],
    idle_s: float,
) -> tuple[list[RequestOutcome], float | None]:
    """The load, and from its end on single requests beside what is left of it."""
    with ThreadPoolExecutor(1) as pool:
        flood = pool.submit(
            drive, target, items, SendSchedule(tuple(due)), warm_up=(), tell=lambda _: None
        )
        time.sleep(due[-1])
        end = time.perf_counter()
        back_s = None
        while back_s is None and time.perf_counter() < end + PATIENCE_S:
            probe = alone()
            if not probe.failure and ttft(probe) <= BACK * idle_s + BACK_S:
                back_s = probe.sent - end
            time.sleep(0.1)
        return flood.result(), back_s


def _books(target: Target) -> tuple[dict[str, object], str]:
    """/debug/ledger when all has ended, or as it is after a while; and /metrics."""
    until = time.monotonic() + PATIENCE_S
    while True:
        books = httpx.get(f"{target.base_url}/debug/ledger").json()
        if books["clean"] or time.monotonic() > until:
            return books, httpx.get(f"{target.base_url}/metrics").text
        time.sleep(0.2)


def _summed(metrics: str, name: str, label: str) -> dict[str, int]:
    """A counter's values by one of its labels, over all others."""
    found: dict[str, int] = {}
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name == name:
                found[sample.labels[label]] = found.get(sample.labels[label], 0) + int(sample.value)
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--factor", type=float, default=3.0)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--answer", type=int, default=64)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--capacity-requests", type=int, default=64)
    parser.add_argument("--json", type=Path)
    parser.add_argument("flags", nargs="*", help="of baton serve")
    args = parser.parse_args()
    load = Load(
        prompt=args.prompt,
        answer=args.answer,
        clients=args.clients,
        factor=args.factor,
        seconds=args.seconds,
        capacity_requests=args.capacity_requests,
    )
    with serving(*args.flags) as service:
        target = Target(
            base_url=f"http://127.0.0.1:{service.port}", endpoint="/v1/completions", model="bench"
        )
        found = measure(target, load)
    text = json.dumps(
        msgspec.to_builtins({"flags": args.flags, "load": load, "found": found}), indent=1
    )
    print(text)
    if args.json is not None:
        args.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
