"""The loads, and what the plan says of them."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from baton.dev.bench.workload import TraceRow
from baton.dev.fleet.fleet import FleetSettings
from baton.dev.fleet.profile import MachineProfile
from baton.dev.fleet.served_request import ServedRequest
from baton.dev.planning.division import Division
from baton.dev.planning.judging import ServedDivision, is_met, judge
from baton.dev.planning.plan import DividedRun, planned_load
from baton.dev.planning.resampling import Resampling
from baton.dev.planning.traffic import MixPart, PoissonMix

# both have two workers
LAYOUTS = MappingProxyType({"split": Division(1, 1), "unified": Division(unified=2)})
MIXES: Mapping[str, tuple[MixPart, ...]] = MappingProxyType(
    {
        "short chat": (MixPart(128, 64),),
        "long prompts": (MixPart(768, 32),),
        "mixed": (MixPart(128, 16), MixPart(512, 64)),
    }
)
RANGE_RATIO = 0.25
TTFT_SCALE, TPOT_SCALE = 5.0, 2.0  # SLOs are so many times what an idle worker takes
ENOUGH, TRIED, HALVINGS = 0.9, 200, 5  # of the search for what the workers carry
SEED = 11  # none that anything else is drawn from
DRAWS, DRAWN_FROM = 30, 1_000  # of a load whose verdict is asked for, and their first seed


class HeldOutLoad(msgspec.Struct, frozen=True, kw_only=True):
    """One load.

    Attributes:
        fraction: of the rate that the workers carry by the plan
        rate: requests a second
    """

    mix: str
    fraction: float
    rate: float
    slos: dict[str, float]
    rows: tuple[TraceRow, ...]

    def __str__(self) -> str:
        return f"{self.mix}, {self.rate:.2f} a second"


def mix_of(name: str, *, rate: float, count: int) -> PoissonMix:
    """Return a mix at a rate."""
    return PoissonMix(parts=MIXES[name], rate=rate, count=count, range_ratio=RANGE_RATIO)


def planned(
    profile: MachineProfile, rows: Sequence[TraceRow], layout: str, *, cores: int | None
) -> ServedDivision:
    """Return what becomes of requests by the plan. Nothing is cached: no two prompts are alike.

    cores: of the machine that all processes share; None as if they did not
    """
    return _served(profile, [rows], layout, cores=cores)


def planned_verdict(profile: MachineProfile, load: HeldOutLoad, *, cores: int | None) -> str:
    """Return which layout is better under a load by the plan: of many draws of it, since the few
    requests of one leave chance a large part."""
    mix = mix_of(load.mix, rate=load.rate, count=len(load.rows))
    traffic = [mix.rows(DRAWN_FROM + number) for number in range(DRAWS)]
    return verdict_of(
        {name: _served(profile, traffic, name, cores=cores).served for name in LAYOUTS}, load.slos
    )


def verdict_of(by_layout: Mapping[str, Sequence[ServedRequest]], slos: Mapping[str, float]) -> str:
    """Return which layout is better, as a plan judges that."""
    divided = [
        ServedDivision(
            division=LAYOUTS[name], served=tuple(by_layout[name]), busy={}, handed_over=0
        )
        for name in ("unified", "split")
    ]
    return judge(divided, slos, Resampling(len(divided[0].served), 0)).advice.value


def _served(
    profile: MachineProfile,
    traffic: Sequence[Sequence[TraceRow]],
    layout: str,
    *,
    cores: int | None,
) -> ServedDivision:
    load = planned_load(profile, traffic, FleetSettings(prefix_cache=False, cores=cores))
    return load.serve(DividedRun(1.0, LAYOUTS[layout]))


def slos_of(profile: MachineProfile, name: str) -> dict[str, float]:
    """Return limits in milliseconds, from the plan of requests that come one at a time."""
    rows = mix_of(name, rate=0.01, count=20).rows(SEED)
    served = planned(profile, rows, "unified", cores=None).served
    firsts = sorted(one.ttft_us or 0 for one in served)
    each = sorted(one.tpot_us for one in served)
    middle = len(served) // 2
    return {
        "ttft": float(round(TTFT_SCALE * firsts[middle] / 1e3)),
        "tpot": float(round(TPOT_SCALE * each[middle] / 1e3)),
    }


def carried(
    profile: MachineProfile, name: str, slos: Mapping[str, float], *, tried: int = TRIED
) -> float:
    """Return the highest rate at which the better of the layouts meets the SLOs for ENOUGH of the
    requests, by the plan."""

    def enough(rate: float) -> bool:
        rows = mix_of(name, rate=rate, count=tried).rows(SEED + 1)
        divided = (planned(profile, rows, layout, cores=None).served for layout in LAYOUTS)
        return any(sum(is_met(one, slos) for one in served) >= ENOUGH * tried for served in divided)

    low = 0.05
    while enough(2 * low):
        low *= 2
    high = 2 * low
    for _ in range(HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if enough(middle) else (low, middle)
    return low


def held_out(
    profile: MachineProfile,
    names: Sequence[str],
    fractions: Sequence[float],
    *,
    seconds: float,
    tried: int = TRIED,
) -> list[HeldOutLoad]:
    """Return every fraction of what the workers carry of each mix, for so many seconds.

    tried: requests with which it is found out what they carry
    """
    loads = []
    for number, name in enumerate(names):
        slos = slos_of(profile, name)
        most = carried(profile, name, slos, tried=tried)
        for place, fraction in enumerate(fractions):
            rate = fraction * most
            mix = mix_of(name, rate=rate, count=max(4, round(rate * seconds)))
            rows = mix.rows(SEED + 100 * (number + 1) + place)
            loads.append(
                HeldOutLoad(mix=name, fraction=fraction, rate=rate, slos=slos, rows=tuple(rows))
            )
    return loads
