"""Makes one run of a plan in a process of its own, which reads a `RunOrder` and writes a
`ServedDivision`.

baton plan ──RunOrder──▶ python -m baton.dev.cli.plan_runner ──ServedDivision──▶ baton plan
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from baton.core.errors import BatonError
from baton.dev.planning.judging import ServedDivision
from baton.dev.planning.plan import DividedRun, Each, PlannedLoad
from baton.shell.leash import leashed

PROGRAM = (sys.executable, "-m", "baton.dev.cli.plan_runner")


class RunOrder(msgspec.Struct, frozen=True):
    """One run, and what it needs."""

    planned: PlannedLoad
    run: DividedRun


def in_processes(jobs: int) -> Each:
    """Return what makes so many runs at once."""

    def each(planned: PlannedLoad, runs: Sequence[DividedRun]) -> Iterator[ServedDivision]:
        with ThreadPoolExecutor(jobs) as threads:
            yield from threads.map(lambda run: _made(RunOrder(planned, run)), runs)

    return each


def _made(order: RunOrder) -> ServedDivision:
    """Have one run made.

    Raises:
        BatonError: the process failed
    """
    done = subprocess.run(
        leashed(PROGRAM), input=msgspec.json.encode(order), capture_output=True, check=False
    )
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise BatonError(f"a run of {order.run.division} failed: {' '.join(last)}")
    return msgspec.json.decode(done.stdout, type=ServedDivision)


if __name__ == "__main__":
    taken = msgspec.json.decode(sys.stdin.buffer.read(), type=RunOrder)
    sys.stdout.buffer.write(msgspec.json.encode(taken.planned.serve(taken.run)))
