"""One child process: it dies with its parent, is watched through descriptors, and writes lines."""

import os
import signal
import subprocess
from collections.abc import Iterator
from itertools import islice
from typing import Protocol

import msgspec

from baton.shell.leash import leashed

LONGEST_LINE = 64 << 10
MOST_READS = 64  # of output in a row: a program that writes all the time must leave time for others


class Program(msgspec.Struct, frozen=True):
    """A command, and what it reads on standard input.

    `name` is for people. Programs are stopped in ascending order of `ends`; programs with equal
    `ends` are stopped together. The program inherits `descriptors`.
    """

    name: str
    argv: tuple[str, ...]
    ends: int
    document: bytes = b""
    descriptors: tuple[int, ...] = ()


def start(program: Program, *, output: int | None = None) -> subprocess.Popen[bytes]:
    """Start a process that dies with the calling thread.

    `output` goes to subprocess as stdout; None inherits ours.
    """
    # The input is in memory and not in a pipe: writing to a pipe blocks if the program reads late.
    document = os.memfd_create("baton-settings")
    with open(document, "wb+") as file:
        file.write(program.document)
        file.seek(0)
        # A process group of its own: Ctrl-C at the terminal reaches only the parent, which then
        # stops its children in order.
        return subprocess.Popen(
            leashed(program.argv),
            stdin=file,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            process_group=0,
            pass_fds=program.descriptors,
        )


class Running(Protocol):
    """A running program, in a process of this machine (`Child`) or of another one.

    Attributes:
        ended: a descriptor that polls readable when the program has ended
        output: a descriptor that polls readable when it has written something (to stdout or
            stderr), and at its end
        talking: False when the output has been closed, which may be before the program ends
    """

    ended: int
    output: int
    talking: bool

    @property
    def pid(self) -> int:
        """The process id; 0 = it is not known yet."""
        ...

    def lines(self) -> Iterator[str]:
        """Yield the lines completed since the last call, some megabytes at most."""
        ...

    def signal(self, signum: signal.Signals) -> None:
        """Send a signal; has no effect on a program that has ended and is not reaped yet."""
        ...

    def reap(self) -> tuple[int, list[str]]:
        """Collect a program that has ended: (exit code, negative for a signal; its last lines).

        Closes the descriptors.
        """
        ...


class Child:
    """Implements Running with a process of this machine, which dies with the thread that made it.

    Long lines are cut.
    """

    def __init__(self, program: Program) -> None:
        self._process = start(program, output=subprocess.PIPE)
        assert self._process.stdout is not None
        self.program = program
        self.output = self._process.stdout.fileno()
        self.ended = os.pidfd_open(self._process.pid)
        self.talking = True
        self._rest = b""
        os.set_blocking(self.output, False)

    @property
    def pid(self) -> int:
        """The process id; it does not change when the program replaces the leash."""
        return self._process.pid

    def lines(self) -> Iterator[str]:
        for chunk in islice(iter(self._read, b""), MOST_READS):
            *whole, self._rest = (self._rest + chunk).split(b"\n")
            for line in whole:
                yield line.decode(errors="replace").rstrip()
            if len(self._rest) > LONGEST_LINE:
                yield self._last_line()

    def _read(self) -> bytes:
        try:
            chunk = os.read(self.output, LONGEST_LINE)
        except BlockingIOError:
            return b""
        self.talking = bool(chunk)
        return chunk

    def _last_line(self) -> str:
        line, self._rest = self._rest.decode(errors="replace").rstrip(), b""
        return line

    def signal(self, signum: signal.Signals) -> None:
        signal.pidfd_send_signal(self.ended, signum)

    def reap(self) -> tuple[int, list[str]]:
        code = self._process.wait()
        said = [*self.lines(), *([self._last_line()] if self._rest else [])]
        assert self._process.stdout is not None
        self._process.stdout.close()
        os.close(self.ended)
        return code, said
