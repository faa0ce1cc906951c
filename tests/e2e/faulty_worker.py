"""A worker whose fabric lies: the production composition root with another port.

python -m tests.e2e.faulty_worker FAULTS.json WORKER-ARGUMENTS...
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import typer
from tests.faults import Faults, FaultyFabric

from baton.cli import compose_worker, processes
from baton.core.ids import Boot
from baton.ports.clock import Clock
from baton.ports.fabric import Fabric
from baton.shell.settings import WorkerSettings


def main() -> None:
    """Run it."""
    faults = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Faults)

    def make(name: str, boot: Boot, rank: int, wake: Callable[[], None], clock: Clock) -> Fabric:
        return FaultyFabric(compose_worker.PRODUCTION.fabric(name, boot, rank, wake, clock), faults, wake=wake, clock=clock)

    def run(settings: WorkerSettings) -> None:
        compose_worker.run_worker(settings, replace(compose_worker.PRODUCTION, fabric=make))

    processes.run_worker = run
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(processes.worker)
    app(sys.argv[2:])


if __name__ == "__main__":
    main()
