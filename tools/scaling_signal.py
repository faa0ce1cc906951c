"""Follows the scaling signal (GET /autoscaling) on the virtual clock of `baton plan`, and compares
where it comes to rest with the fewest workers that meet the SLOs.

    python -m tools.scaling_signal --rates 1,2,4,8
    python -m tools.scaling_signal --rates 1,4,6,2 --changing --seconds 600

From one prefill and one decode worker, and from many, the signal is followed until it wants what is
there: each time a fleet serves the same mix for some minutes, and the next one has the workers that
were wanted at its end. For the same mix, splits are tried in the order of their number of workers,
until one meets the SLOs for most requests.

With --changing the rates follow each other in one run, and workers come and go as an autoscaler has
them that looks every 15 seconds (as Kubernetes' HorizontalPodAutoscaler does): a new one serves
after --start-s, one that is not wanted any more drains.
"""

import argparse
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
from rich.console import Console
from rich.table import Table

from baton.core.gateway.request import DECODE, PREFILL
from baton.core.ids import Boot, Micros
from baton.dev.fleet.fleet import Fleet, FleetSettings
from baton.dev.fleet.profile import (
    MachineProfile,
    StepLimits,
    StepTimes,
    WireTimes,
    WorkerMemory,
    in_proportion,
)
from baton.dev.planning.judging import is_met
from baton.dev.planning.traffic import MixPart, PoissonMix, requests
from baton.gateway.scaling import ScalingSignal, loads_of

# one core of an AMD EPYC with SmolLM2-135M in bfloat16 (docs/planning.md)
PROFILE = MachineProfile(
    name="SmolLM2-135M on one core",
    steps=StepTimes(
        tokens_us=in_proportion(12_500.0, 540.0), pair_us=0.05, row_us=220.0, context_us=0.5
    ),
    wire=WireTimes(bytes_per_s=2e9, read_us=500.0, message_us=200),
    memory=WorkerMemory(page_tokens=16, pages=4_000, token_bytes=23_040),
    limits=StepLimits(step_tokens=512, max_rooms=16),
)
SLOS = {"ttft": 1_500.0, "tpot": 30.0}
ENOUGH = 0.9
SECOND_US = 1_000_000
MOST_TURNS = 12

Split = tuple[int, int]  # prefill and decode workers
LOOKS_S = 15


class Phase(NamedTuple):
    """One rate of a load that changes.

    Attributes:
        ended: the workers at its end
        mean: workers, over its time
        met: share of its requests within the SLOs
    """

    rate: float
    ended: Split
    mean: float
    met: float


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


class Autoscaler:
    """Follows the signal while a fleet serves."""

    def __init__(self, fleet: Fleet, start_s: int) -> None:
        self._fleet, self._start_us = fleet, start_s * SECOND_US
        self._signal, self._starting = ScalingSignal(), dict.fromkeys((PREFILL, DECODE), 0)
        self.counts: list[Split] = []  # second by second

    def look(self, second: int) -> None:
        """Note what workers state, and follow it from time to time."""
        fleet, front = self._fleet, self._fleet.front
        loads = loads_of(front.workers(), front.credits())
        queued = front.queue(fleet.clock.now).length
        self._signal.sample(loads, queued=queued, at=fleet.clock.now / 1e6)
        there = {role: self._lasting(role) for role in (PREFILL, DECODE)}
        self.counts.append((len(there[PREFILL]), len(there[DECODE])))
        if second % LOOKS_S == 0:
            for role, demand in self._signal.wanted().items():
                more = demand.wanted - len(there[role]) - self._starting[role]
                for _ in range(more):
                    self._starting[role] += 1
                    fleet.clock.at(fleet.clock.now + self._start_us, self._start, role)
                for boot in there[role][len(there[role]) + more :] if more < 0 else ():
                    fleet.drain(boot)

    def _start(self, role: str) -> None:
        self._starting[role] -= 1
        self._fleet.add(role)

    def _lasting(self, role: str) -> list[Boot]:
        return [
            boot
            for boot, worker in self._fleet.workers.items()
            if worker.role == role and not worker.leader.worker.draining.on
        ]


def changing(mixes: Sequence[PoissonMix], seconds: int, start_s: int) -> list[Phase]:
    """Serve mixes one after the other, each for so long, beginning with one worker of each role."""
    rows = [
        msgspec.structs.replace(row, number=number, at_s=row.at_s + place * seconds)
        for number, (place, row) in enumerate(
            (place, row) for place, mix in enumerate(mixes) for row in mix.rows(place)
        )
        if row.at_s is not None and row.at_s < seconds
    ]
    fleet = fleet_of((1, 1))
    scaler = Autoscaler(fleet, start_s)
    for second in range(2, len(mixes) * seconds):
        fleet.clock.at(Micros(second * SECOND_US), scaler.look, second)
    served, phases = fleet.serve(requests(rows)), list[Phase]()
    for place, mix in enumerate(mixes):
        inside = [
            is_met(one, SLOS)
            for row, one in zip(rows, served, strict=True)
            if int(row.at_s // seconds) == place
        ]
        counts = scaler.counts[place * seconds : (place + 1) * seconds]
        mean = sum(map(sum, counts)) / len(counts)
        phases.append(Phase(mix.rate, counts[-1], mean, sum(inside) / len(inside)))
    return phases


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
    parser.add_argument("--seconds", type=int, default=700, help="of each fleet, or each rate")
    parser.add_argument(
        "--changing", action="store_true", help="rates follow each other in one run"
    )
    parser.add_argument("--start-s", type=int, default=20, help="until a new worker serves")
    parser.add_argument("--most", type=int, default=12, help="workers of a split that is tried")
    args = parser.parse_args()
    rates = [float(rate) for rate in args.rates.split(",")]
    mixes = [
        PoissonMix(
            parts=(MixPart(args.input_len, args.output_len),),
            rate=rate,
            count=round((1.2 if args.changing else 1) * rate * args.seconds),
            range_ratio=0.5,
        )
        for rate in rates
    ]
    Console().print(_changing(mixes, args) if args.changing else _resting(mixes, args))


def _resting(mixes: Sequence[PoissonMix], args: argparse.Namespace) -> Table:
    table = Table(
        "requests/s", "fewest", "met", "wanted, from 1:1", "met", "wanted, from 8:8", "met"
    )
    for mix in mixes:
        found = [fewest(mix, args.most), followed((1, 1), mix), followed((8, 8), mix)]
        cells = [
            cell
            for split, met in found
            for cell in ("-" if split is None else "{}:{}".format(*split), f"{met:.1%}")
        ]
        table.add_row(f"{mix.rate:g}", *cells)
        Console(stderr=True).print(mix.rate, cells)
    return table


def _changing(mixes: Sequence[PoissonMix], args: argparse.Namespace) -> Table:
    table = Table("requests/s", "fewest", "met", "workers at the end", "mean", "met")
    for mix, phase in zip(mixes, changing(mixes, args.seconds, args.start_s), strict=True):
        split, met = fewest(mix, args.most)
        shown = "-" if split is None else "{}:{}".format(*split)
        ended = "{}:{}".format(*phase.ended)
        table.add_row(
            f"{mix.rate:g}", shown, f"{met:.1%}", ended, f"{phase.mean:.1f}", f"{phase.met:.1%}"
        )
    return table


if __name__ == "__main__":
    main()
