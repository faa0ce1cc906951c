"""Processes that begin with everything imported: forks of a server that has imported torch, instead
of seconds of imports each.

They run the same `main`, with the same arguments, as a process started by a command does; a few
tests go on starting the command itself. (The workers of nursery.py are forked below the command
line, because their ranks must be too.)
"""

import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path

from baton.shell.leash import follow

IMPORTED = (
    "pytest",  # the main module of a test run, which each child imports again
    "torch",
    "baton.cli.main",
    "baton.cli.compose_gateway",
    "baton.cli.compose_worker",
    "baton.engine.attention.cpu",
    "baton.engine.digest",
    "baton.engine.engine",
    "baton.engine.models",
    "baton.engine.cpu_ops",
    "baton.gateway.app",
    "baton.gateway.serve",
    "uvicorn.protocols.http.httptools_impl",
    "tests.e2e.forks",
    "tests.e2e.warm",
)


@cache
def _server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*IMPORTED])
    return context


def _enter(module: str, arguments: list[str], log: Path) -> None:
    follow(os.getppid())  # the server, which ends with the test run
    os.setsid()
    said = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.close(said)
    sys.argv = [module, *arguments]
    importlib.import_module(module).main()


class Child:
    """A forked process, with those verbs of subprocess.Popen that tests use."""

    def __init__(self, module: str, arguments: list[str], log: Path) -> None:
        self._name = module
        self._process = _server().Process(target=_enter, args=(module, arguments, log), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired(self._name, timeout or 0.0)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
