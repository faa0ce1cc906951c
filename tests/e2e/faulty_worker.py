"""A worker whose fabric lies: the production composition root with another port.

python -m tests.e2e.faulty_worker FAULTS.json WORKER-ARGUMENTS...
"""

import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import typer
from tests.faults import Faults, FaultyFabric

from baton.adapters.fabrics import Parts
from baton.cli import compose_worker, processes
from baton.ports.fabric import Fabric
from baton.shell.settings import WorkerSettings


def main() -> None:
    """Run it."""
    faults = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Faults)

    def make(name: str, parts: Parts) -> Fabric:
        return FaultyFabric(compose_worker.PRODUCTION.fabric(name, parts), faults, wake=parts.wake, clock=parts.clock)

    def run(settings: WorkerSettings) -> None:
        compose_worker.run_worker(settings, replace(compose_worker.PRODUCTION, fabric=make))

    processes.run_worker = run
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(processes.worker)
    app(sys.argv[2:])


if __name__ == "__main__":
    main()
