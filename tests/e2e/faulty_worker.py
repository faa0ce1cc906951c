"""A worker whose fabric lies: the production composition root with another port.

python -m tests.e2e.faulty_worker FAULTS.json WORKER-ARGUMENTS...

The file is read again when it has changed, before each read: what a test orders holds from its next
request on.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
from tests.e2e.worker_program import baton_worker
from tests.faults import Faults, FaultyFabric

from baton.adapters.fabrics import FabricParts
from baton.cli import compose_worker
from baton.ports.fabric import Fabric
from baton.shell.settings import WorkerSettings

FETCH_MS = 2_000  # deadline of a read; one that hangs is waited for so long


def main() -> None:
    """Run it."""
    path, seen = Path(sys.argv[1]), (0, 0)

    def look(fabric: FaultyFabric) -> None:
        nonlocal seen
        found = os.stat(path)
        if (now := (found.st_ino, found.st_mtime_ns)) != seen:
            seen = now
            fabric.order(msgspec.json.decode(path.read_bytes(), type=Faults))

    def make(name: str, parts: FabricParts) -> Fabric:
        inner = compose_worker.PRODUCTION.fabric(name, parts)
        return FaultyFabric(inner, Faults(()), wake=parts.wake, clock=parts.clock, look=look)

    def run(settings: WorkerSettings) -> None:
        ports = replace(compose_worker.PRODUCTION, fabric=make)
        compose_worker.run_worker(
            msgspec.structs.replace(settings, fetch_timeout_s=FETCH_MS / 1000), ports
        )

    baton_worker(run, sys.argv[2:])


if __name__ == "__main__":
    main()
