"""Starts the other ranks of a worker on this machine, as processes that end with this one."""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from typing import Protocol

from baton.cli.child import program
from baton.core.errors import ConfigError, PeerError
from baton.shell.child import Program, start
from baton.shell.settings import WorkerSettings
from baton.shell.supervisor import MISCONFIGURED

PATIENCE_S = 3.0  # after they were told to end
# the first one ends a rank that loads, and the second one that runs: it would drain at the first
ENDING = (signal.SIGTERM, signal.SIGINT)


class Crew(Protocol):
    """Started ranks."""

    def filenos(self) -> tuple[int, ...]:
        """Descriptors that are readable when a rank has ended."""
        ...

    def look(self) -> None:
        """Check the ranks.

        Raises:
            ConfigError, PeerError: a rank has ended, and a worker ends with any of its ranks
        """
        ...

    def tell(self) -> None:
        """Have the ranks end now, whether they load or run."""
        ...

    def close(self) -> None:
        """Wait for the ranks to end, and kill those that do not."""
        ...


def start_ranks(settings: Mapping[int, WorkerSettings]) -> Crew:
    """Start ranks, each with its own settings."""
    return Processes(
        {rank: program(f"{own.name}-rank{rank}", own) for rank, own in settings.items()}
    )


class Processes:
    """Implements Crew with processes, which inherit our output."""

    def __init__(self, programs: Mapping[int, Program]) -> None:
        self._processes = {rank: start(each) for rank, each in programs.items()}
        self._pidfds = {rank: os.pidfd_open(p.pid) for rank, p in self._processes.items()}

    def filenos(self) -> tuple[int, ...]:
        return tuple(self._pidfds.values())

    def look(self) -> None:
        for rank, fd in self._pidfds.items():
            if select.select([fd], [], [], 0)[0]:
                code = self._processes[rank].wait()
                how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
                why = f"rank {rank} of this worker ended ({how}); a worker ends with its ranks"
                raise ConfigError(why) if code == MISCONFIGURED else PeerError(why)

    def tell(self) -> None:
        for fd in self._pidfds.values():
            with contextlib.suppress(ProcessLookupError):  # it has ended, and `look` has reaped it
                for number in ENDING:
                    signal.pidfd_send_signal(fd, number)

    def close(self) -> None:
        until = time.monotonic() + PATIENCE_S
        for rank, process in self._processes.items():
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(self._pidfds.pop(rank))
