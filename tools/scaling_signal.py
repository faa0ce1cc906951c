"""Follows the scaling signal (GET /autoscaling) on the virtual clock of `baton plan`, and compares
where it comes to rest with the fewest workers that meet the SLOs.

    python -m tools.scaling_signal --rates 1,2,4,8

From one prefill and one decode worker, and from many, the signal is followed until it wants what is
there: each time a fleet serves the same mix for some minutes, and the next one has the workers that
were wanted at its end. For the same mix, splits are tried in the order of their number of workers,
until one meets the SLOs for most requests.
"""

import argparse
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from baton.core.gateway.request import DECODE, PREFILL
from baton.core.ids import Micros
from baton.dev.fleet.fleet import Fleet, FleetSettings
from baton.dev.fleet.profile import MachineProfile, StepLimits, StepTimes, WireTimes, WorkerMemory
from baton.dev.planning.judging import is_met
from baton.dev.planning.traffic import MixPart, PoissonMix, requests
from baton.gateway.scaling import ScalingSignal, loads_of

# one core of an AMD EPYC with SmolLM2-135M in bfloat16 (docs/planning.md)
PROFILE = MachineProfile(
    name="SmolLM2-135M on one core",
    steps=StepTimes(step_us=12_500.0, token_us=540.0, pair_us=0.05, row_us=760.0, context_us=0.5),
    wire=WireTimes(bytes_per_s=2e9, read_us=500.0, message_us=200),
    memory=WorkerMemory(page_tokens=16, pages=4_000, token_bytes=23_040),
    limits=StepLimits(step_tokens=512, max_rooms=16),
)
SLOS = {"ttft": 1_500.0, "tpot": 30.0}
ENOUGH = 0.9
SECOND_US = 1_000_000
MOST_TURNS = 12

Split = tuple[int, int]  # prefill and decode workers


def fleet_of(split: Split) -> Fleet:
    """Return a fleet."""
    prefill, decode = split
    return Fleet((PREFILL,) * prefill + (DECODE,) * decode, PROFILE, FleetSettings())


def wanted_after(split: Split, mix: PoissonMix) -> tuple[Split, float]:
    """Return what is wanted when a split has served a mix, and the share within the SLOs."""
    fleet, signal = fleet_of(split), ScalingSignal()
    last: dict[str, int] = {}

    def look() -> None:
        front = fleet.front
        loads = loads_of(front.workers(), front.credits())
        queued = front.queue(fleet.clock.now).length
        signal.sample(loads, queued=queued, at=fleet.clock.now / 1e6)
        last.update({role: demand.wanted for role, demand in signal.wanted().items()})

    rows = mix.rows(0)
    for second in range(2, int(rows[-1].at_s)):
        fleet.clock.at(Micros(second * SECOND_US), look)
    served = fleet.serve(requests(rows))
    met = sum(is_met(one, SLOS) for one in served) / len(served)
    return (last[PREFILL], last[DECODE]), met


def followed(split: Split, mix: PoissonMix) -> tuple[Split, float]:
    """Return where the signal comes to rest, and the share within the SLOs there."""
    met = 0.0
    for _ in range(MOST_TURNS):
        wanted, met = wanted_after(split, mix)
        if wanted == split:
            break
        split = wanted
    return split, met


def splits(most: int) -> Iterator[Split]:
    """Yield splits, those of few workers first."""
    for total in range(2, most + 1):
        for prefill in range(1, total):
            yield prefill, total - prefill


def fewest(mix: PoissonMix, most: int) -> tuple[Split | None, float]:
    """Return the split of the fewest workers that meets the SLOs for ENOUGH of all requests; of
    those with as few, the one that meets them for most."""
    best: tuple[Split | None, float] = (None, 0.0)
    for split in splits(most):
        if best[0] is not None and sum(split) > sum(best[0]):
            break
        served = fleet_of(split).serve(requests(mix.rows(0)))
        met = sum(is_met(one, SLOS) for one in served) / len(served)
        if met >= ENOUGH and met > best[1]:
            best = split, met
    return best


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rates", default="1,2,4,8", help="requests a second")
    parser.add_argument("--input-len", type=int, default=384)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--seconds", type=int, default=700, help="of each fleet")
    parser.add_argument("--most", type=int, default=12, help="workers of a split that is tried")
    args = parser.parse_args()
    table = Table(
        "requests/s", "fewest", "met", "wanted, from 1:1", "met", "wanted, from 8:8", "met"
    )
    for rate in map(float, args.rates.split(",")):
        mix = PoissonMix(
            parts=(MixPart(args.input_len, args.output_len),),
            rate=rate,
            count=round(rate * args.seconds),
            range_ratio=0.5,
        )
        found = [fewest(mix, args.most), followed((1, 1), mix), followed((8, 8), mix)]
        cells = [
            cell
            for split, met in found
            for cell in ("-" if split is None else "{}:{}".format(*split), f"{met:.1%}")
        ]
        table.add_row(f"{rate:g}", *cells)
        Console(stderr=True).print(rate, cells)
    Console().print(table)


if __name__ == "__main__":
    main()
