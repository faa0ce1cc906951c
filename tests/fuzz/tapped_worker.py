"""A worker that writes down every frame that it sends and receives: the production composition root
with another port.

python -m tests.fuzz.tapped_worker FRAMES WORKER-ARGUMENTS...

Each frame stands in the file behind its length, 4 bytes.
"""

import struct
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.e2e.worker_program import baton_worker

from baton.adapters.secret import Secret
from baton.cli import compose_worker, logs
from baton.core.ids import Link
from baton.ports.control import Control
from baton.shell.settings import WorkerSettings

MOST = 8 << 20  # bytes that are written down
LENGTH = struct.Struct("!I")


class Tap:
    """Implements Control around another one."""

    def __init__(self, inner: Control, path: Path) -> None:
        self._inner, self._file = inner, path.open("ab", buffering=0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _note(self, frame: bytes) -> None:
        if self._file.tell() < MOST:
            self._file.write(LENGTH.pack(len(frame)) + frame)

    def send(self, link: Link, frame: bytes) -> bool:
        self._note(frame)
        return self._inner.send(link, frame)

    def receive(self) -> list[tuple[Link, bytes]]:
        found = self._inner.receive()
        for _, frame in found:
            self._note(frame)
        return found


def frames_of(path: Path) -> list[bytes]:
    """All whole frames of a file, each once, in order."""
    raw, at, found = path.read_bytes(), 0, dict[bytes, None]()
    while at + LENGTH.size <= len(raw):
        (length,) = LENGTH.unpack_from(raw, at)
        at += LENGTH.size
        if at + length <= len(raw):
            found[raw[at : at + length]] = None
        at += length
    return list(found)


def main() -> None:
    """Run it."""
    path = Path(sys.argv[1])

    def control(bind: str | None, secret: Secret | None) -> Control:
        return Tap(compose_worker.PRODUCTION.control(bind, secret), path)  # type: ignore[return-value]

    def run(settings: WorkerSettings) -> None:
        logs.configure(settings.log_level, settings.log_format)
        compose_worker.run_worker(settings, replace(compose_worker.PRODUCTION, control=control))

    baton_worker(run, sys.argv[2:])


if __name__ == "__main__":
    main()
