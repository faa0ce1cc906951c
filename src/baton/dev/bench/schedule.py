"""When requests are sent: a pure function of rate and seed."""

import math
import random
from collections.abc import Sequence

from baton.core.errors import ConfigError
from baton.dev.bench.workload import Item


def arrivals(count: int, *, rate: float, burstiness: float, seed: int) -> list[float]:
    """Return the seconds from the start at which each request is due, ascending, the first at 0.

    rate: requests per second; infinity sends all at once
    burstiness: shape of the gamma-distributed gaps between requests, whose mean is 1 / rate; 1 is a
        Poisson process, less is burstier, more is steadier

    Raises:
        ConfigError: rate or burstiness is out of range
    """
    if not rate > 0:
        raise ConfigError(f"--request-rate {rate}: it must be above 0, or inf")
    if not burstiness > 0 or math.isinf(burstiness):
        raise ConfigError(f"--burstiness {burstiness}: it must be above 0 and finite")
    if math.isinf(rate):
        return [0.0] * count
    chance, at, due = random.Random(f"arrivals {seed}"), 0.0, []
    for _ in range(count):
        due.append(at)
        at += chance.gammavariate(burstiness, 1 / (rate * burstiness))
    return due


def traced(items: Sequence[Item]) -> list[float] | None:
    """Return the arrivals of a trace, in order and from 0 on; None if the trace does not have all
    of them."""
    times = [item.at_s for item in items if item.at_s is not None]
    return sorted(max(0.0, t) for t in times) if len(times) == len(items) else None
