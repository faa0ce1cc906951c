"""Which division of workers serves requests best, with how much certainty: pure functions.

All divisions serve the same requests, so they are compared request by request.
"""

from collections.abc import Mapping, Sequence
from enum import Enum

import msgspec
import numpy as np

from baton.dev.fleet.served_request import ServedRequest
from baton.dev.planning.division import Division
from baton.dev.planning.resampling import DOUBT, Estimate, Resampling

MEASURES = ("ttft", "tpot", "e2el")
MARGIN = 0.01  # an advantage of a smaller share of requests is not worth two kinds of workers

Slos = Mapping[str, float]  # measure -> milliseconds at most


class DivisionResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one division. Times in milliseconds, of requests that were answered.

    Attributes:
        attained: the share of all requests that met every SLO
        goodput: such requests a second
        failed: requests that were refused or not answered to their end
        why: what was said to the first of these; empty if there is none
        busy: the share of time for which prefill workers (or unified ones), and decode workers,
            computed
        handed_over: bytes
    """

    division: Division
    requests: int
    failed: int
    why: str
    ttft_p50: Estimate
    ttft_p99: Estimate
    tpot_p50: Estimate
    tpot_p99: Estimate
    attained: Estimate
    goodput: Estimate
    busy: dict[str, float]
    handed_over: int


def times_of(served: ServedRequest) -> dict[str, float] | None:
    """Return the milliseconds of each measure; None if the request was not answered."""
    if served.failure or served.first is None or served.last is None:
        return None
    return {
        "ttft": (served.first - served.at) / 1e3,
        "tpot": served.tpot_us / 1e3,
        "e2el": (served.last - served.at) / 1e3,
    }


def is_met(served: ServedRequest, slos: Slos) -> bool:
    """Whether a request was answered within every limit."""
    times = times_of(served)
    return times is not None and all(times[name] <= limit for name, limit in slos.items())


class ServedDivision(msgspec.Struct, frozen=True, kw_only=True):
    """What a fleet of one division did with all requests, those of several seeds one after the
    other."""

    division: Division
    served: tuple[ServedRequest, ...]
    busy: dict[str, float]
    handed_over: int


def result_of(one: ServedDivision, slos: Slos, drawn: Resampling, *, rate: float) -> DivisionResult:
    """Return the figures of a division.

    rate: at which the requests came, a second
    """
    times = [times_of(served) for served in one.served]
    missing = dict.fromkeys(MEASURES, float("nan"))
    by_name = {
        name: np.array([(found or missing)[name] for found in times], dtype=np.float64)
        for name in ("ttft", "tpot")
    }
    attained = drawn.share([is_met(served, slos) for served in one.served])
    return DivisionResult(
        division=one.division,
        requests=len(one.served),
        failed=sum(found is None for found in times),
        why=next((served.failure for served in one.served if served.failure), ""),
        ttft_p50=drawn.percentile(by_name["ttft"], 0.5),
        ttft_p99=drawn.percentile(by_name["ttft"], 0.99),
        tpot_p50=drawn.percentile(by_name["tpot"], 0.5),
        tpot_p99=drawn.percentile(by_name["tpot"], 0.99),
        attained=attained,
        goodput=Estimate(attained.value * rate, attained.low * rate, attained.high * rate),
        busy=one.busy,
        handed_over=one.handed_over,
    )


class Advice(Enum):
    """What a plan comes to."""

    SPLIT = "split"
    UNIFIED = "unified"
    NOISE = "noise"  # no split is better than unified workers by more than chance
    NEITHER = "neither"  # nothing met the SLOs


class PlanVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The best division under one load.

    Attributes:
        best: what is recommended
        rival: the best split if unified workers are recommended, else the unified ones
        advantage: share of requests that meet the SLOs with the best split, less that share with
            unified workers; the interval is wide enough for all splits that were tried
        alike: further splits that are as good as the recommended one, as far as can be told
    """

    advice: Advice
    best: Division
    rival: Division | None
    advantage: Estimate
    alike: tuple[Division, ...] = ()


def judge(divided: Sequence[ServedDivision], slos: Slos, drawn: Resampling) -> PlanVerdict:
    """Compare the best split with unified workers, which are the first of the divisions."""
    unified, splits = divided[0].division, divided[1:]
    good = {d.division: [is_met(served, slos) for served in d.served] for d in divided}
    share = {division: sum(met) / len(met) for division, met in good.items()}
    none = Estimate(0.0, 0.0, 0.0)
    if not any(share.values()):
        return PlanVerdict(advice=Advice.NEITHER, best=unified, rival=None, advantage=none)
    if not splits:
        return PlanVerdict(advice=Advice.UNIFIED, best=unified, rival=None, advantage=none)
    # where several are equally good, that with the most even division
    best = max(
        (d.division for d in splits),
        key=lambda d: (share[d], -abs(d.prefill - d.decode), -d.prefill),
    )
    doubt = DOUBT / len(splits)  # the best of many is better than one by chance alone
    advantage = drawn.difference(good[best], good[unified], doubt=doubt)
    if advantage.low > 0 and advantage.value >= MARGIN:
        others = [d.division for d in splits if d.division != best]
        alike = tuple(
            d for d in others if drawn.difference(good[best], good[d], doubt=doubt).low <= 0
        )
        return PlanVerdict(
            advice=Advice.SPLIT, best=best, rival=unified, advantage=advantage, alike=alike
        )
    advice = Advice.UNIFIED if advantage.high < 0 else Advice.NOISE
    return PlanVerdict(advice=advice, best=unified, rival=best, advantage=advantage)


def sentence_of(verdict: PlanVerdict) -> str:
    """Return a verdict in words."""
    best, rival, by = verdict.best, verdict.rival, verdict.advantage
    if verdict.advice is Advice.NEITHER:
        return (
            "No verdict: no request meets the SLOs in any division; add workers, loosen the limits "
            "or lower the load."
        )
    if rival is None:
        return f"Do not disaggregate: {best} worker cannot be split."
    points = f"{100 * by.value:+.1f} points ({100 * by.low:+.1f} to {100 * by.high:+.1f})"
    if verdict.advice is Advice.SPLIT:
        alike = ", ".join(map(str, verdict.alike))
        return (
            f"Disaggregate: {best}, {best.prefill} prefill and {best.decode} decode. Compared with "
            f"{rival} workers, {points} of the requests meet the SLOs."
            f"{f' As good within the noise: {alike}.' if alike else ''}"
        )
    if verdict.advice is Advice.UNIFIED:
        return (
            f"Do not disaggregate: {best} workers. With the best split, {rival}, {points} of the "
            "requests meet the SLOs."
        )
    return (
        f"Within the noise: do not disaggregate. With the best split, {rival}, {points} of the "
        f"requests meet the SLOs compared with {best} workers, and one kind of worker is easier to "
        "run than two."
    )
