"""A worker that leaves a copy of its pool behind when it ends: the production composition root with
another port.

python -m tests.e2e.spying_worker COPY WORKER-ARGUMENTS...
"""

import ctypes
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.e2e.worker_program import baton_worker

from baton.adapters.fabrics import FabricParts
from baton.cli import compose_worker
from baton.core.ids import GroupName
from baton.ports.fabric import Fabric, Pool
from baton.shell.settings import WorkerSettings


class Spy:
    """A fabric that remembers the pools and copies the first one on `close`."""

    def __init__(self, inner: Fabric, copy: Path) -> None:
        self._inner, self._copy = inner, copy
        self._pool: Pool | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def expose(self, pools: Mapping[GroupName, Pool]) -> bytes:
        self._pool = next(iter(pools.values()))
        return self._inner.expose(pools)

    def close(self) -> None:
        if self._pool is not None:
            self._copy.write_bytes(ctypes.string_at(self._pool.address, self._pool.nbytes))
            self._pool = None
        self._inner.close()


def main() -> None:
    """Run it."""
    copy = Path(sys.argv[1])

    def make(name: str, parts: FabricParts) -> Fabric:
        return Spy(compose_worker.PRODUCTION.fabric(name, parts), copy)  # type: ignore[return-value]

    def run(settings: WorkerSettings) -> None:
        compose_worker.run_worker(settings, replace(compose_worker.PRODUCTION, fabric=make))

    baton_worker(run, sys.argv[2:])


if __name__ == "__main__":
    main()
