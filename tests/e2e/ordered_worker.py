"""A worker to which a test can do things while it runs: the production composition root with other
ports.

python -m tests.e2e.ordered_worker ORDERS.json STALL_MS WORKER-ARGUMENTS...

The file is read again whenever it has changed, before each frame: what a test orders holds from its
next request on.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
from tests.e2e.worker_program import baton_worker
from tests.late import LateControl
from tests.late import Rule as MessageRule
from tests.source_pages import PageRule, SourcePages

from baton.adapters.clock import MonotonicClock
from baton.adapters.fabrics import FabricParts
from baton.adapters.secret import Secret
from baton.cli import compose_worker, logs
from baton.ports.control import Control
from baton.ports.fabric import Fabric
from baton.shell.settings import WorkerSettings


class Orders(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that is to go wrong."""

    messages: tuple[MessageRule, ...] = ()
    pages: PageRule | None = None


def give(path: Path, orders: Orders) -> None:
    """Order something, at once as a whole."""
    fresh = path.with_suffix(".new")
    fresh.write_bytes(msgspec.json.encode(orders))
    fresh.replace(path)


def main() -> None:
    """Run it."""
    path, stall_ms = Path(sys.argv[1]), int(sys.argv[2])
    pages, seen = SourcePages(), (0, 0)
    late: LateControl

    def look() -> None:
        nonlocal seen
        found = os.stat(path)
        if (now := (found.st_ino, found.st_mtime_ns)) != seen:
            seen = now
            orders = msgspec.json.decode(path.read_bytes(), type=Orders)
            late.order(orders.messages)
            pages.order(orders.pages)

    def control(bind: str | None, secret: Secret | None) -> Control:
        nonlocal late
        late = LateControl(
            compose_worker.PRODUCTION.control(bind, secret),
            clock=MonotonicClock(),
            look=look,
            heed=pages.heed,
        )
        return late

    def fabric(name: str, parts: FabricParts) -> Fabric:
        return pages.fabric(compose_worker.PRODUCTION.fabric(name, parts))

    def run(settings: WorkerSettings) -> None:
        logs.configure(settings.log_level, settings.log_format)
        ports = replace(compose_worker.PRODUCTION, control=control, fabric=fabric)
        compose_worker.run_worker(
            msgspec.structs.replace(settings, handoff_timeout_s=stall_ms / 1000), ports
        )

    baton_worker(run, sys.argv[3:])


if __name__ == "__main__":
    main()
