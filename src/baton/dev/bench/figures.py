"""The figures of a run, computed from its outcomes: pure functions.

sent ──TTFT──▶ first token ──ITL──▶ token ──ITL──▶ ... last token        TPOT = (last - first) / (tokens - 1)
  └──────────────────────────── E2E ─────────────────────────┘
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

import msgspec
import numpy as np

from baton.core.errors import ConfigError
from baton.dev.bench.client import RequestOutcome

PERCENTILES = (50, 90, 99)


class Spread(msgspec.Struct, frozen=True):
    """A distribution of times, in milliseconds. Percentiles are interpolated linearly between the
    two nearest ranks."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


def spread(seconds: Sequence[float]) -> Spread:
    """Return the distribution of any number of times in seconds; all zero for none."""
    if not seconds:
        return Spread(0.0, 0.0, 0.0, 0.0, 0.0)
    values = 1e3 * np.asarray(seconds, dtype=np.float64)
    p50, p90, p99 = np.percentile(values, PERCENTILES)
    return Spread(float(values.mean()), float(p50), float(p90), float(p99), float(values.max()))


def ttft(o: RequestOutcome) -> float:
    """Return the seconds from sending to the first token."""
    return o.times[0] - o.sent


def tpot(o: RequestOutcome) -> float:
    """Return the mean seconds per token after the first; 0 for an answer of one token."""
    return (o.times[-1] - o.times[0]) / (o.output_tokens - 1) if o.output_tokens > 1 else 0.0


def e2el(o: RequestOutcome) -> float:
    """Return the seconds from sending to the last token."""
    return o.times[-1] - o.sent


def stall(o: RequestOutcome) -> float:
    """Return the longest time between two tokens, in seconds; 0 for an answer of one token."""
    return max((b - a for a, b in pairwise(o.times)), default=0.0)


MEASURES: Mapping[str, Callable[[RequestOutcome], float]] = MappingProxyType(
    {"ttft": ttft, "tpot": tpot, "e2el": e2el, "stall": stall}
)
Slos = Mapping[str, float]  # measure -> milliseconds at most


def parse_slos(
    texts: Sequence[str], *, flag: str = "--goodput", measures: Sequence[str] = tuple(MEASURES)
) -> dict[str, float]:
    """Read SLOs such as `ttft:200 tpot:50`, separated by blanks or commas.

    flag: which errors name
    measures: which may be limited

    Raises:
        ConfigError: a text is not an SLO
    """
    slos: dict[str, float] = {}
    for pair in " ".join(texts).replace(",", " ").split():
        name, _, limit = pair.partition(":")
        if name not in measures:
            raise ConfigError(
                f"{flag} {pair}: give NAME:MILLISECONDS with NAME among {', '.join(measures)}"
            )
        try:
            slos[name] = float(limit)
        except ValueError:
            raise ConfigError(f"{flag} {pair}: {limit!r} is no number of milliseconds") from None
        if not slos[name] > 0:
            raise ConfigError(f"{flag} {pair}: the limit must be above 0")
    return slos


def is_good(outcome: RequestOutcome, slos: Slos) -> bool:
    """Whether a request succeeded within every limit."""
    return not outcome.failure and all(
        1e3 * MEASURES[name](outcome) <= limit for name, limit in slos.items()
    )


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one run. Rates are per second of the time from the first request's sending to
    the last one's end.

    `late_ms` is how long after its time a request was sent: if it is not small, the client was the
    bottleneck. `good` is the number of requests within the SLOs, None without SLOs. `refused_ms` is
    how long requests waited until they were refused for lack of capacity (429 and 503).
    """

    duration_s: float
    completed: int
    failures: dict[str, int]
    input_tokens: int
    output_tokens: int
    request_throughput: float
    output_throughput: float
    total_token_throughput: float
    good: int | None
    goodput: float | None
    ttft_ms: Spread
    tpot_ms: Spread
    itl_ms: Spread
    e2el_ms: Spread
    stall_ms: Spread
    late_ms: Spread
    refused_ms: Spread


def summarize(outcomes: Sequence[RequestOutcome], slos: Slos) -> Summary:
    """Return the figures of one run. Latencies are those of requests that succeeded."""
    fine = [o for o in outcomes if not o.failure]
    duration = max((o.ended for o in outcomes), default=0.0) - min(
        (o.sent for o in outcomes), default=0.0
    )
    read, written = sum(o.prompt_tokens for o in fine), sum(o.output_tokens for o in fine)
    good = sum(is_good(o, slos) for o in fine) if slos else None

    def rate(count: int) -> float:
        return count / duration if duration > 0 else 0.0

    return Summary(
        duration_s=duration,
        completed=len(fine),
        failures=dict(Counter(o.failure for o in outcomes if o.failure).most_common()),
        input_tokens=read,
        output_tokens=written,
        request_throughput=rate(len(fine)),
        output_throughput=rate(written),
        total_token_throughput=rate(read + written),
        good=good,
        goodput=None if good is None else rate(good),
        ttft_ms=spread([ttft(o) for o in fine]),
        tpot_ms=spread([tpot(o) for o in fine if o.output_tokens > 1]),
        itl_ms=spread([b - a for o in fine for a, b in pairwise(o.times)]),
        e2el_ms=spread([e2el(o) for o in fine]),
        stall_ms=spread([stall(o) for o in fine if len(o.times) > 1]),
        late_ms=spread([max(0.0, o.sent - o.due) for o in outcomes]),
        refused_ms=spread([o.ended - o.sent for o in outcomes if o.refused]),
    )
