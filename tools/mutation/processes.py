"""Children of this process, so many at a time: each runs a function and says lines of JSON.

A child is forked from a process that has loaded the libraries and nothing of Baton. It ends at its
limit of processor time, which a loaded machine does not shorten, and at a far larger one of time on
the clock, for those that wait for ever.
"""

import json
import os
import resource
import selectors
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

MEMORY_BYTES = 8 << 30
PATIENCE = 6  # of time on the clock to time of the processor
EXTRA_S = 60.0
Say = Callable[[Any], None]


@dataclass(frozen=True)
class Job:
    """What a child is to do. `cpu_s`: its limit."""

    name: str
    work: Callable[[Say], None]
    cpu_s: float


@dataclass(frozen=True)
class Ended:
    """What a child said, and how it ended: exit code, or the negative number of a signal; `late`:
    we ended it."""

    said: list[Any]
    code: int
    late: bool
    seconds: float

    @property
    def out_of_time(self) -> bool:
        """Whether it would have gone on."""
        return self.late or -self.code in (signal.SIGXCPU, signal.SIGPROF)


@dataclass
class _Child:
    job: Job
    pid: int
    began: float
    output: bytearray = field(default_factory=bytearray)
    late: bool = False


class Pool:
    """Runs jobs; more may be added while others run."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._waiting: deque[Job] = deque()
        self._children: dict[int, _Child] = {}
        self._selector = selectors.DefaultSelector()

    def add(self, job: Job, *, first: bool = False) -> None:
        """Run this one too."""
        (self._waiting.appendleft if first else self._waiting.append)(job)

    def results(self) -> Iterator[tuple[Job, Ended]]:
        """As they end, until none is left."""
        while self._waiting or self._children:
            while self._waiting and len(self._children) < self._jobs:
                self._start(self._waiting.popleft())
            for key, _ in self._selector.select(timeout=1.0):
                chunk = os.read(key.fd, 1 << 16)
                child = self._children[key.fd]
                child.output += chunk
                if not chunk:
                    yield child.job, self._reap(key.fd)
            self._end_late()

    def close(self) -> None:
        """End whatever still runs."""
        for child in self._children.values():
            os.killpg(child.pid, signal.SIGKILL)
        for fd in list(self._children):
            self._reap(fd)

    def _start(self, job: Job) -> None:
        output, said = os.pipe()
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            os.close(output)
            _be_child(job, said)
        os.close(said)
        _lead_group(pid)
        self._children[output] = _Child(job, pid, time.monotonic())
        self._selector.register(output, selectors.EVENT_READ)

    def _end_late(self) -> None:
        for child in self._children.values():
            if (
                not child.late
                and time.monotonic() > child.began + child.job.cpu_s * PATIENCE + EXTRA_S
            ):
                child.late = True
                os.killpg(child.pid, signal.SIGKILL)

    def _reap(self, fd: int) -> Ended:
        child = self._children.pop(fd)
        self._selector.unregister(fd)
        os.close(fd)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        # its own children; the group's number is its own until it is waited for
        os.killpg(child.pid, signal.SIGKILL)
        _, status = os.waitpid(child.pid, 0)
        lines = bytes(child.output).split(b"\n")[:-1]  # without what it could not finish
        return Ended(
            [json.loads(line) for line in lines],
            os.waitstatus_to_exitcode(status),
            child.late,
            time.monotonic() - child.began,
        )


def _lead_group(pid: int) -> None:
    """Parent and child both say so: whoever comes first, neither goes on without."""
    with suppress(ProcessLookupError, PermissionError):
        os.setpgid(pid, pid)


def _be_child(job: Job, said: int) -> NoReturn:
    code = 70

    def say(word: Any) -> None:
        _write(said, json.dumps(word).encode() + b"\n")

    try:
        _lead_group(os.getpid())
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nowhere, standard)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        seconds = int(job.cpu_s) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
        job.work(say)
        code = 0
    except BaseException as error:  # noqa: BLE001 - top of a process: its parent hears of it
        say({"error": f"{type(error).__name__}: {error}"[:300]})
    finally:
        os._exit(code)


def _write(fd: int, line: bytes) -> None:
    while line:
        line = line[os.write(fd, line) :]
