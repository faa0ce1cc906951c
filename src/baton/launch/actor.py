"""The actor that holds one process of the service on a node.

    driver (run.py) ──prepare, start, signal──▶ ProcessActor ──leash──▶ process
                    ◀───────lines, exit code───             ◀──output──

The kernel kills the process when the thread that started it ends (shell/leash.py). So the process
ends with its actor, however the actor ends. Ray calls methods on threads that come and go;
therefore one thread of the actor, which lives as long as the actor, starts all processes.
"""

import os
import select
import signal
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import msgspec
import ray

from baton import __version__
from baton.launch.raylet import Raylet
from baton.shell.child import Child, Program

HOLD_S = 5.0  # longest time that `follow` waits for news
CALLS = 4  # at the same time: `follow`, and a signal or a new start beside it


class Prepared(msgspec.Struct, frozen=True):
    """What the driver must know before it starts a process.

    Attributes:
        version: of the Baton that is installed there
        host: the node's address
        port: free on loopback
    """

    version: str
    host: str
    port: int


class _Held:
    """One process of the actor."""

    def __init__(self, child: Child) -> None:
        self.pid = child.pid
        self._child = child
        self._code: int | None = None
        self._looking, self._reaping = threading.Lock(), threading.Lock()

    def look(self, hold_s: float) -> tuple[list[str], int | None]:
        """Wait for news; returns new lines, and the exit code once the process has ended."""
        with self._looking:
            if self._code is not None:
                return [], self._code
            news = select.poll()
            news.register(self._child.ended, select.POLLIN)
            if self._child.talking:
                news.register(self._child.output, select.POLLIN)
            ready = {fd for fd, _ in news.poll(hold_s * 1000)}
            lines = list(self._child.lines())
            if self._child.ended in ready:
                with self._reaping:
                    self._code, last = self._child.reap()
                lines += last
            return lines, self._code

    def signal(self, signum: signal.Signals) -> None:
        with self._reaping:  # the descriptor of a reaped process may belong to something else
            if self._code is None:
                self._child.signal(signum)

    def end(self) -> None:
        self.signal(signal.SIGKILL)
        while self.look(HOLD_S)[1] is None:
            pass


class ProcessActor:
    """Holds at most one process at a time. Ray runs it; every method may be called from a thread
    of its own."""

    def __init__(self) -> None:
        self._starter = ThreadPoolExecutor(1)
        self._held: _Held | None = None
        self._starting = threading.Lock()
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()

    def prepare(self) -> Prepared:
        """Return what the driver must know before it starts a process here."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            host = ray.util.get_node_ip_address()
            return Prepared(__version__, host, int(probe.getsockname()[1]))

    def start(self, name: str, arguments: tuple[str, ...], document: bytes) -> int:
        """Start a process with this node's Python; returns its id. One that still runs is killed.

        The process reads `document` from standard input. An actor must not get it when it is
        created: Ray keeps the arguments of a creation in its control plane.
        """
        with self._starting:
            if self._held is not None:
                self._held.end()
            program = Program(name, (sys.executable, *arguments), 0, document)
            self._held = _Held(self._starter.submit(Child, program).result())
            return self._held.pid

    def follow(self) -> tuple[list[str], int | None]:
        """Wait for news of the process; returns new lines, and the exit code once it has ended."""
        assert self._held is not None
        return self._held.look(HOLD_S)

    def signal(self, signum: int) -> None:
        """Send the process a signal; has no effect if there is none."""
        if self._held is not None:
            self._held.signal(signal.Signals(signum))


def _end_with(raylet: int) -> None:
    """End this process when Ray's daemon of this node ends; Ray itself may take longer."""
    try:
        Raylet(raylet).wait()
    finally:
        os._exit(1)
