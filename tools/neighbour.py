"""Times decode steps beside a process that is always busy: what waiting threads do to the neighbour
and to themselves.

    python -m tools.neighbour --rounds 3

The engine has the trial model in bfloat16. With two threads, the one that comes first to the end of a
parallel region waits for the other one: it spins for a while (GOMP_SPINCOUNT turns), or it sleeps at
once (OMP_WAIT_POLICY=passive). The neighbour is a loop on one of the same cores. All ways are
measured in turns. A step's milliseconds are medians; `p90` is of all steps of the rounds; the
neighbour's share is its progress, as a share of what it does in the same time with the core to
itself.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType

from tools.peers.case import Case
from tools.peers.turns import PeerProcess

from baton.cli.models import TRIAL, ensure
from baton.shell.threads import available_cores

# prints how often it has gone round whenever it reads a line
LOOP = """
import os, select, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
rounds = 0
while True:
    for _ in range(100_000):
        rounds += 1
    if select.select([sys.stdin], [], [], 0)[0]:
        if not sys.stdin.readline():
            break
        print(rounds, flush=True)
"""
WAYS: Mapping[str, tuple[int, Mapping[str, str]]] = MappingProxyType(
    {
        "1 thread": (1, {}),
        "2 threads, as libgomp has it": (2, {}),
        "2 threads, spin 1,000": (2, {"GOMP_SPINCOUNT": "1000"}),
        "2 threads, spin 10,000": (2, {"GOMP_SPINCOUNT": "10000"}),
        "2 threads, spin 100,000": (2, {"GOMP_SPINCOUNT": "100000"}),
        "2 threads, passive": (2, {"OMP_WAIT_POLICY": "passive"}),
    }
)
CASES = (Case("decode", 1, 128), Case("decode", 8, 128))


class Neighbour:
    """A busy process on one core."""

    def __init__(self, core: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", LOOP, str(core)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def rounds(self) -> int:
        """Return how often it has gone round."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


def engine(way: str, model: str, cores: Sequence[int]) -> PeerProcess:
    """Start the engine in one of the ways."""
    threads, waits = WAYS[way]
    said = {"model": model, "threads": threads, "dtype": "bfloat16"}
    log = Path(tempfile.gettempdir()) / f"neighbour-{way}.log"
    return PeerProcess("baton", said, cores=cores[:threads], log=log, waits=waits)


def share(
    neighbour: Neighbour, peer: PeerProcess, case: Case, seed: int
) -> tuple[list[float], float]:
    """Measure a case beside the neighbour: seconds of its steps, and how fast the neighbour was
    meanwhile, in rounds a second."""
    began, before = time.monotonic(), neighbour.rounds()
    steps = peer.measure(case, seed)
    return steps, (neighbour.rounds() - before) / (time.monotonic() - began)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    cores = available_cores()[:2]
    model = str(ensure(TRIAL))
    quiet: dict[tuple[str, Case], list[float]] = defaultdict(list)
    beside: dict[tuple[str, Case], list[float]] = defaultdict(list)
    speeds: dict[tuple[str, Case], list[float]] = defaultdict(list)
    with ExitStack() as stack:
        peers = {way: engine(way, model, cores) for way in WAYS}
        for peer in peers.values():
            stack.callback(peer.close)
            peer.wait_ready()
        for number in range(args.rounds + 1):  # the first one warms everything up
            for case in CASES:
                for way, peer in peers.items():
                    found = peer.measure(case, number)
                    quiet[way, case] += found if number else []
        neighbour = Neighbour(cores[0])
        stack.callback(neighbour.close)
        time.sleep(1)
        before = neighbour.rounds()
        time.sleep(5)
        alone = (neighbour.rounds() - before) / 5
        for number in range(args.rounds):
            for case in CASES:
                for way, peer in peers.items():
                    found, speed = share(neighbour, peer, case, number)
                    beside[way, case] += found
                    speeds[way, case].append(speed / alone)
    print("| step | engine | alone, p50 / p90 | beside, p50 / p90 | ratio | neighbour's share |")
    print("|---|---|---|---|---|---|")
    for case in CASES:
        for way in WAYS:
            one, other = sorted(quiet[way, case]), sorted(beside[way, case])
            middle, slowed = statistics.median(one), statistics.median(other)
            print(
                f"| {case.name} | {way} | {1e3 * middle:.1f} / {1e3 * one[len(one) * 9 // 10]:.1f} "
                f"| {1e3 * slowed:.1f} / {1e3 * other[len(other) * 9 // 10]:.1f} "
                f"| {slowed / middle:.2f} | {statistics.median(speeds[way, case]):.0%} |"
            )


if __name__ == "__main__":
    main()
