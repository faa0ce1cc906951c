"""GET /metrics: the counters of this gateway and of its workers, in Prometheus' format.

Of several gateways behind one port, each can answer: what gateways count has the label `gateway`.
Names that begin with `vllm:` have the same meaning as in vLLM; `baton:` names are our own
(docs/metrics.md lists all). Workers have no HTTP port; the gateway asks them at each scrape.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

import msgspec
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from baton import __version__
from baton.core.messages import LedgerView
from baton.core.scheduler.room import AWAITS_TURN
from baton.core.statistics import BOUNDS_US, CacheTally, RankTally, Spent
from baton.gateway.counts import GatewayCounts
from baton.gateway.door import LedgerReport
from baton.gateway.scaling import RoleDemand
from baton.gateway.scaling_watch import Autoscaling
from baton.gateway.tally import Histogram

CONTENT_TYPE = CONTENT_TYPE_LATEST
WORKER = ("worker", "role")
QUEUED, ENDING = "queued", "ending"  # states of rooms (docs/architecture.md)
FINISHED = ("stop", "length", "abort")
HISTOGRAMS = (
    ("vllm:time_to_first_token_seconds", "Time to the first token.", "first"),
    ("vllm:inter_token_latency_seconds", "Time between tokens.", "between"),
    (
        "vllm:request_time_per_output_token_seconds",
        "A request's mean time between tokens.",
        "per_token",
    ),
    ("vllm:e2e_request_latency_seconds", "Time to the last token.", "whole"),
    ("vllm:request_queue_time_seconds", "Time until its prompt begins to be computed.", "queue"),
    ("vllm:request_prefill_time_seconds", "From then to its first token.", "prefill"),
    ("vllm:request_decode_time_seconds", "From its first token to its last.", "decode"),
    ("vllm:request_inference_time_seconds", "Of prefill and decode together.", "inference"),
    ("vllm:request_prompt_tokens", "Prompt tokens of a request.", "prompts"),
    ("vllm:request_generation_tokens", "Generated tokens of a request.", "answers"),
)
GAVE_WAY = ("offloaded", "recompute")  # events
CACHE_COUNTERS = {
    "saved_bytes": "Bytes of cached state that rooms have begun with.",
    "borrowed_tokens": "Prompt tokens whose state prefill fetched back from a decode worker.",
    "borrowed_bytes": "Bytes of that state.",
    "lent_tokens": "Tokens that a decode worker offered to a prefill worker.",
    "verified_pages": "Cached pages that were hashed where they lie.",
    "damaged_pages": "Cached pages that were found changed by that.",
}
RANK_COUNTERS = {
    "reads": "Reads of another worker's state that were begun.",
    "read_bytes": "Bytes of those reads.",
    "reads_failed": "Reads that ended otherwise than well.",
    "blocks_right": "Blocks whose state matched their seals.",
    "blocks_wrong": "Blocks whose state differed from their seals, and was read again.",
}


class Metrics:
    """The metrics page of a gateway; it owns the registry.

    Args:
        own: completes a report to the counts of this gateway
        scaling: returns how many workers the load asks for
        several: whether it is one of several
    """

    def __init__(
        self,
        own: Callable[[LedgerReport], GatewayCounts],
        scaling: Callable[[], Autoscaling],
        *,
        model: str,
        several: bool = False,
    ) -> None:
        self._own, self._scaling, self._model = own, scaling, model
        self._report = LedgerReport((), (), 0)
        self._gateways: list[tuple[tuple[str, ...], GatewayCounts]] = []
        self._which = ("gateway",) if several else ()
        self._registry = CollectorRegistry()
        self._registry.register(self)
        if not several:
            ProcessCollector(registry=self._registry)

    def describe(self) -> Sequence[Metric]:
        """Return nothing: metrics are named only when they are collected."""
        return ()

    def scrape(self, report: LedgerReport, others: Sequence[GatewayCounts] = ()) -> bytes:
        """Make the page; `report` has the workers' answers, `others` are other gateways."""
        self._report = report
        gateways = sorted((self._own(report), *others), key=lambda counts: counts.name)
        self._gateways = [((counts.name,) if self._which else (), counts) for counts in gateways]
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield all metric families, for the registry."""
        yield _gauge(
            "baton:build_info", "The version that runs.", ("version",), [((__version__,), 1)]
        )
        yield from self._requests()
        yield from self._places()
        yield from self._gateway()
        yield from self._workers()

    # ---- requests, in vLLM's words --------------------------------------------------------------

    def _requests(self) -> Iterator[Metric]:
        named = ("model_name", *self._which)
        counted = [((self._model, *which), counts.tally) for which, counts in self._gateways]
        yield _counter(
            "vllm:prompt_tokens",
            "Prompt tokens processed.",
            named,
            [(labels, tally.prompt_tokens) for labels, tally in counted],
        )
        yield _counter(
            "vllm:generation_tokens",
            "Tokens generated.",
            named,
            [(labels, tally.generated_tokens) for labels, tally in counted],
        )
        yield _counter(
            "vllm:request_success",
            "Requests that ended well.",
            (*named, "finished_reason"),
            [
                ((*labels, reason), tally.finished.get(reason, 0))
                for labels, tally in counted
                for reason in FINISHED
            ],
        )
        yield _counter(
            "baton:request_failures",
            "Requests that ended with an error.",
            (*named, "code"),
            [
                ((*labels, code), count)
                for labels, tally in counted
                for code, count in sorted(tally.failed.items())
            ],
        )
        for name, text, field in HISTOGRAMS:
            family = HistogramMetricFamily(name, text, labels=named)
            for labels, tally in counted:
                histogram: Histogram = getattr(tally, field)
                buckets = _classes(histogram.bounds, histogram.counts)
                family.add_metric(labels, buckets, histogram.total)
            yield family

    def _places(self) -> Iterator[Metric]:
        """Count running and waiting rooms; a room waits while no worker holds memory for it."""
        states: dict[str, set[str]] = {}
        for view in self._report.workers:
            for room in view.rooms:
                states.setdefault(room.room, set()).add(room.state)
        waits = {room: AWAITS_TURN in seen or seen == {QUEUED} for room, seen in states.items()}
        waiting = sum(waits.values())
        running = sum(bool(s - {QUEUED, ENDING}) and not waits[r] for r, s in states.items())
        waiting += sum(counts.report.queue.length for _, counts in self._gateways)
        named, model = ("model_name",), (self._model,)
        yield _gauge(
            "vllm:num_requests_running", "Requests being computed.", named, [(model, running)]
        )
        yield _gauge(
            "vllm:num_requests_waiting",
            "Requests that wait for memory or their turn, at the gateway or at a worker.",
            named,
            [(model, waiting)],
        )
        usage = [((self._model, view.name), _usage(view)) for view in self._report.workers]
        yield _gauge(
            "vllm:kv_cache_usage_perc", "Pages in use; 1 is all.", ("model_name", "engine"), usage
        )
        gave_way = sum(
            v.counters.events.get(event, 0) for v in self._report.workers for event in GAVE_WAY
        )
        yield _counter(
            "vllm:num_preemptions",
            "Running requests that gave way for want of pages.",
            named,
            [(model, gave_way)],
        )

        yield from self._prefix_cache()
        yield from self._speculation()

    def _speculation(self) -> Iterator[Metric]:
        """Count drafts, with vLLM's names."""
        named, views = ("model_name", "engine"), self._report.workers
        for name, text, counts in (
            ("drafts", "Rows of a step with drafts.", [v.speculation.drafts for v in views]),
            ("draft_tokens", "Tokens drafted.", [v.speculation.tokens for v in views]),
            (
                "accepted_tokens",
                "Drafts that were what was drawn.",
                [sum(v.speculation.accepted) for v in views],
            ),
        ):
            samples = [
                ((self._model, v.name), float(n)) for v, n in zip(views, counts, strict=True)
            ]
            yield _counter(f"vllm:spec_decode_num_{name}", text, named, samples)
        yield _counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "The same, by their place in a row of drafts.",
            (*named, "position"),
            [
                ((self._model, v.name, str(at)), float(n))
                for v in views
                for at, n in enumerate(v.speculation.accepted)
            ],
        )

    def _prefix_cache(self) -> Iterator[Metric]:
        """Count queries and hits of the prefix cache, in tokens as in vLLM."""
        named = ("model_name", "engine")
        for field, text in (
            ("queries", "Prompt tokens that were looked up."),
            ("hits", "Prompt tokens that were cached."),
        ):
            samples = [
                ((self._model, v.name), float(getattr(v.counters.cache, field)))
                for v in self._report.workers
            ]
            yield _counter(f"vllm:prefix_cache_{field}", text, named, samples)

    # ---- ours -----------------------------------------------------------------------------------

    def _gateway(self) -> Iterator[Metric]:
        report, gateways, which = self._report, self._gateways, self._which
        yield _gauge(
            "baton:open_requests",
            "Requests not ended, and rooms not closed.",
            which,
            [(labels, counts.report.open_requests) for labels, counts in gateways],
        )
        yield _gauge(
            "baton:pairs",
            "Pairs of workers that requests can be given to.",
            which,
            [(labels, counts.report.pairs) for labels, counts in gateways],
        )
        yield _gauge(
            "baton:known_cached_pages",
            "Cached pages of workers that requests are routed by.",
            which,
            [(labels, counts.report.known_pages) for labels, counts in gateways],
        )
        up = [((view.name, view.role), 1) for view in report.workers] + [
            ((name, ""), 0) for name in report.missing
        ]
        yield _gauge("baton:worker_up", "Whether a registered worker answered in time.", WORKER, up)
        yield _counter(
            "baton:gateway_events",
            "Rare branches of the gateway's request logic.",
            (*which, "event"),
            [
                ((*labels, name), count)
                for labels, counts in gateways
                for name, count in sorted(counts.report.events.items())
            ],
        )
        credits = [
            ((worker, g), n)
            for worker, c in report.credits.items()
            for g, n in c.free_pages.items()
        ]
        yield _gauge(
            "baton:credit_free_pages",
            "Free pages, as a worker last stated unasked.",
            ("worker", "group"),
            credits,
        )
        for name, text in (
            ("waiting", "Rooms that wait"),
            ("running", "Rooms that hold memory"),
            ("free_rooms", "Rooms that may still run at once"),
        ):
            samples = [((w,), int(getattr(c, name))) for w, c in report.credits.items()]
            yield _gauge(
                f"baton:credit_{name}",
                f"{text}, as a worker last stated unasked.",
                ("worker",),
                samples,
            )
        yield from self._queues()
        yield from self._wanted()

    def _wanted(self) -> Iterator[Metric]:
        """State what the load asks of each role that has a worker."""
        found: dict[str, RoleDemand | None] = msgspec.structs.asdict(self._scaling())
        asked = {role: demand for role, demand in found.items() if demand is not None}
        for name, field, text in (
            ("baton:workers", "workers", "Workers that take requests."),
            ("baton:wanted_workers", "wanted", "Workers that the load asks for."),
            (
                "baton:demanded_workers",
                "demand",
                "Workers that would do this work, with none to spare.",
            ),
        ):
            samples = [((role,), float(getattr(d, field))) for role, d in asked.items()]
            yield _gauge(name, text, ("role",), samples)

    def _queues(self) -> Iterator[Metric]:
        which = self._which
        queues = [(labels, counts.report.queue) for labels, counts in self._gateways]
        yield _gauge(
            "baton:queue_length",
            "Requests that wait at the gateway.",
            which,
            [(labels, queue.length) for labels, queue in queues],
        )
        yield _gauge(
            "baton:queue_oldest_seconds",
            "How long the oldest of them has waited.",
            which,
            [(labels, queue.oldest_ms / 1000) for labels, queue in queues],
        )
        waited = HistogramMetricFamily(
            "baton:queue_seconds",
            "How long requests waited at the gateway for their turn.",
            labels=which,
        )
        for labels, queue in queues:
            waited.add_metric(labels, _spent_classes(queue.waited), queue.waited.total_us / 1e6)
        yield waited
        yield _counter(
            "baton:refusals",
            "Requests sent away for want of capacity, by reason.",
            (*which, "reason"),
            [
                ((*labels, reason), count)
                for labels, queue in queues
                for reason, count in sorted(queue.refused.items())
            ],
        )

    def _workers(self) -> Iterator[Metric]:
        views = self._report.workers
        pages = [
            (_who(v, str(g), s), n)
            for v in views
            for g, states in v.pages.items()
            for s, n in states.items()
            if s != "total"
        ]
        yield _gauge("baton:pages", "Pages of a pool by state.", (*WORKER, "group", "state"), pages)
        host = [(_who(v, state), n) for v in views for state, n in v.host.items()]
        yield _gauge(
            "baton:host_memory_bytes",
            "Host memory for requests that gave way, or for ends of prompts, fullest rank.",
            (*WORKER, "state"),
            host,
        )
        copies = [(_who(v), v.copies) for v in views]
        yield _gauge(
            "baton:host_copies",
            "States of requests that gave way in host memory, all ranks.",
            WORKER,
            copies,
        )
        rooms = [
            (_who(v, state), n)
            for v in views
            for state, n in Counter(r.state for r in v.rooms).items()
        ]
        yield _gauge("baton:rooms", "Rooms by state.", (*WORKER, "state"), rooms)
        yield _gauge(
            "baton:reads_under_way",
            "Reads that have not ended.",
            WORKER,
            [(_who(v), v.reads) for v in views],
        )
        yield _counter(
            "baton:epochs", "Tickets taken.", WORKER, [(_who(v), v.counters.epochs) for v in views]
        )
        failures = [(_who(v, code), n) for v in views for code, n in v.counters.failures.items()]
        yield _counter(
            "baton:epoch_failures", "Epochs that ended badly, by code.", (*WORKER, "code"), failures
        )
        events = [(_who(v, event), n) for v in views for event, n in v.counters.events.items()]
        yield _counter(
            "baton:events", "Rare branches of a worker's request logic.", (*WORKER, "event"), events
        )
        evicted = [(_who(v), v.counters.cache.evicted) for v in views]
        yield _counter(
            "baton:prefix_cache_evictions",
            "Cached pages that were given up for others.",
            WORKER,
            evicted,
        )
        for field, text in CACHE_COUNTERS.items():
            yield _counter(
                f"baton:prefix_cache_{field}",
                text,
                WORKER,
                [(_who(v), _of(v.counters.cache, field)) for v in views],
            )
        pins = [(_who(v), v.pins) for v in views]
        yield _gauge(
            "baton:prefix_cache_pins",
            "Pins of rooms, and of prefill workers that read, on cached pages.",
            WORKER,
            pins,
        )
        for field, text in RANK_COUNTERS.items():
            yield _counter(
                f"baton:{field}",
                text,
                WORKER,
                [(_who(v), _of(v.counters.ranks, field)) for v in views],
            )
        phases = HistogramMetricFamily(
            "baton:phase_seconds", "How long rooms were in a state.", labels=(*WORKER, "state")
        )
        for view in views:
            for state, spent in view.counters.spent.items():
                phases.add_metric(_who(view, state), _spent_classes(spent), spent.total_us / 1e6)
        yield phases


Sample = tuple[tuple[str, ...], float]


def _gauge(name: str, text: str, labels: Sequence[str], samples: Sequence[Sample]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def _counter(name: str, text: str, labels: Sequence[str], samples: Sequence[Sample]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def _classes(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Make Prometheus' buckets, which are cumulative."""
    return list(zip([*(str(b) for b in bounds), "+Inf"], accumulate(counts), strict=True))


def _spent_classes(spent: Spent) -> list[tuple[str, float]]:
    return _classes([us / 1e6 for us in BOUNDS_US], spent.counts)


def _who(view: LedgerView, *more: str) -> tuple[str, ...]:
    return (view.name, view.role, *more)


def _of(tally: RankTally | CacheTally, field: str) -> int:
    return int(getattr(tally, field))


def _usage(view: LedgerView) -> float:
    """Return the share of pages in use in the fullest
    group; cached pages without a user are not."""
    groups = [states for states in view.pages.values() if states.get("total")]
    return max(
        (1 - (states["free"] + states.get("cached", 0)) / states["total"] for states in groups),
        default=0.0,
    )
