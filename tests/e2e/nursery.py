"""Worker processes for tests without three seconds of imports each: forked from a process that has
done them.

    test ──{settings, log}──▶ nursery ──fork──▶ run_worker(settings)     a rank asks the nursery for the other ranks
         ◀──────pid───────────┘

What runs in the child is the shipped composition of a worker; only how its process came to be
differs. All children end with the nursery, and the nursery with the process that started it.
"""

import contextlib
import gc
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from tests.e2e.landings import watched
from tests.faults import Faults, FaultyFabric

from baton.cli.compose_rank import PRODUCTION, Ports
from baton.cli.ranks import ENDING
from baton.core.agreement import StepPlan
from baton.core.errors import BatonError
from baton.core.frames import Data
from baton.core.ids import Link
from baton.ports.control import Control
from baton.shell.leash import follow, leashed
from baton.shell.settings import WorkerSettings
from baton.wire.codec import decode, encode

START_S = 120.0
STACKS_S = 0.5  # for the stacks of a process that does not end


class Birth(msgspec.Struct, frozen=True):
    """What to run, and where its output goes; and what goes wrong in rank `victim`."""

    settings: WorkerSettings
    log: str
    victim: int | None = None
    faults: Faults | None = None  # of its fabric
    garbles: int | None = None  # the batch, counted from 1, of which it hears one row less
    # where all ranks leave copies of their pools: see tests/e2e/landings.py
    landings: str | None = None


class Nursery:
    """The process that forks, seen from the test."""

    def __init__(self, directory: Path) -> None:
        self.address = str(directory / "nursery")
        argv = leashed((sys.executable, "-m", "tests.e2e.nursery", self.address))
        self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
        until = time.monotonic() + START_S
        while not Path(self.address).exists():
            assert self._process.poll() is None, "the nursery ended"
            assert time.monotonic() < until, "the nursery did not open"
            time.sleep(0.02)

    def close(self) -> None:
        """End it, and whoever is left in it."""
        self._process.kill()
        self._process.wait()


class Ranks:
    """Implements cli.ranks.Crew, and holds a test's own workers: processes that a nursery has
    forked."""

    def __init__(self, address: str, births: Mapping[str, Birth]) -> None:
        self._pidfds: dict[str, int] = {}
        self.pids: dict[str, int] = {}
        for name, birth in births.items():
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
                s.connect(address)
                s.send(msgspec.json.encode(birth))
                pid = int(s.recv(64))
            self.pids[name], self._pidfds[name] = pid, os.pidfd_open(pid)

    def filenos(self) -> tuple[int, ...]:
        """See Crew."""
        return tuple(self._pidfds.values())

    def look(self) -> None:
        """See Crew."""
        for name, fd in self._pidfds.items():
            if select.select([fd], [], [], 0)[0]:
                raise BatonError(f"{name} has ended")

    def tell(self) -> None:
        """See Crew."""
        for fd in self._pidfds.values():
            with contextlib.suppress(ProcessLookupError):
                for number in ENDING:
                    signal.pidfd_send_signal(fd, number)

    def close(self) -> None:
        """See Crew. One that has to be killed is an error; its log has its stacks then."""
        slow = []
        until = time.monotonic() + 10
        for name, fd in self._pidfds.items():
            if not select.select([fd], [], [], max(0.0, until - time.monotonic()))[0]:
                slow.append(name)
                signal.pidfd_send_signal(fd, signal.SIGQUIT)
                select.select([fd], [], [], STACKS_S)
                signal.pidfd_send_signal(fd, signal.SIGKILL)
            os.close(fd)
        self._pidfds.clear()
        assert not slow, f"{slow} outlived SIGTERM"


def serve(address: str) -> None:
    """The nursery's loop."""
    from tests.e2e import warm  # noqa: F401

    from baton.cli import compose_worker  # noqa: F401  (all that a worker imports)

    gc.collect()
    gc.freeze()  # a collection in a child would copy every page of what all children share
    # nobody waits for the children; pidfds tell of their end
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(address)
        listening.listen()
        while True:
            asking, _ = listening.accept()
            birth = msgspec.json.decode(asking.recv(1 << 20), type=Birth)
            nursery = os.getpid()
            pid = os.fork()
            if pid == 0:
                listening.close()
                asking.close()
                _live(address, birth, nursery)
            asking.send(str(pid).encode())
            asking.close()


def _live(address: str, birth: Birth, nursery: int) -> None:
    """The child, to its end."""
    follow(nursery)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    out = os.open(birth.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    code = 1
    try:
        from baton.cli import compose_worker
        from baton.cli.ending import answer_quit
        from baton.cli.logs import configure

        answer_quit()

        def crew(settings: Mapping[int, WorkerSettings]) -> Ranks:
            return Ranks(
                address,
                {
                    str(rank): msgspec.structs.replace(birth, settings=own)
                    for rank, own in settings.items()
                },
            )

        configure(birth.settings.log_level, birth.settings.log_format)
        ports = replace(compose_worker.PRODUCTION, crew=crew)
        if birth.victim == birth.settings.own_rank:
            ports = _hurt(ports, birth)
        if birth.landings is not None:
            ports = replace(ports, fabric=watched(ports.fabric, Path(birth.landings)))
        compose_worker.run_worker(birth.settings, ports)
        code = 0
    except BaseException:  # noqa: BLE001 (top of the process)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _hurt(ports: Ports, birth: Birth) -> Ports:
    faults, garbles = birth.faults, birth.garbles
    if faults is not None:
        return replace(
            ports,
            fabric=lambda n, p: FaultyFabric(
                PRODUCTION.fabric(n, p), faults, wake=p.wake, clock=p.clock
            ),
        )
    assert garbles is not None
    return replace(
        ports, control=lambda bind, secret: Garbling(PRODUCTION.control(bind, secret), garbles)
    )


class Garbling:
    """A control plane that takes a row out of one batch on its way to this rank."""

    def __init__(self, inner: Control, garbles: int) -> None:
        self._inner, self._left, self._seen = inner, garbles, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def receive(self) -> list[tuple[Link, bytes]]:
        return [(link, self._garble(raw)) for link, raw in self._inner.receive()]

    def _garble(self, raw: bytes) -> bytes:
        frame = decode(raw)
        plan = frame.messages[0] if isinstance(frame, Data) else None  # a plan travels alone
        if not (isinstance(frame, Data) and isinstance(plan, StepPlan) and plan.batch):
            return raw
        if frame.number > self._seen:  # a frame that is said again was counted
            self._seen, self._left = frame.number, self._left - 1
        if self._left != 0 or frame.number != self._seen:
            return raw
        return encode(
            msgspec.structs.replace(
                frame, messages=(msgspec.structs.replace(plan, batch=plan.batch[:-1]),)
            )
        )


if __name__ == "__main__":
    serve(sys.argv[1])
