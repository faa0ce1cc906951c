"""One child process: started on a leash, watched by descriptors, its output read in lines."""

import os
import signal
import subprocess
from collections.abc import Iterator
from itertools import islice

import msgspec

from baton.shell.leash import leashed

LONGEST_LINE = 64 << 10
MOST_READS = 64  # in a row, so that a program that never stops talking leaves time for the others


class Program(msgspec.Struct, frozen=True):
    """What to run, and what it reads on its standard input.

    `name` is for people; programs are asked to end in the order of `ends`, equal ones together.
    """

    name: str
    argv: tuple[str, ...]
    ends: int
    document: bytes = b""


def start(program: Program, *, output: int | None = None) -> subprocess.Popen[bytes]:
    """A process that dies with the thread that starts it. `output`: as subprocess takes it; None = where ours goes."""
    # In memory and not in a pipe, which a program that reads late would leave us writing to.
    document = os.memfd_create("baton-settings")
    with open(document, "wb+") as file:
        file.write(program.document)
        file.seek(0)
        # A group of its own: Ctrl-C at the terminal reaches this process alone, which then ends its children in order.
        return subprocess.Popen(
            leashed(program.argv),
            stdin=file,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            process_group=0,
        )


class Child:
    """A running program. It dies with the thread that made it.

    Attributes:
        pidfd: polls readable when the process has ended
        output: polls readable when it has said something (stdout and stderr together), and at its end
        talking: False when the output has been closed, which may be before the process ends
    """

    def __init__(self, program: Program) -> None:
        self._process = start(program, output=subprocess.PIPE)
        assert self._process.stdout is not None
        self.program = program
        self.output = self._process.stdout.fileno()
        self.pidfd = os.pidfd_open(self._process.pid)
        self.talking = True
        self._rest = b""
        os.set_blocking(self.output, False)

    @property
    def pid(self) -> int:
        """The process's number; stays when the leash has been replaced by the program."""
        return self._process.pid

    def lines(self) -> Iterator[str]:
        """Complete lines said since the last call, up to some megabytes; a line that grows too long is cut."""
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
        """Send a signal; one that has ended already does not mind until it is reaped."""
        signal.pidfd_send_signal(self.pidfd, signum)

    def reap(self) -> tuple[int, list[str]]:
        """After the end: (exit code, negative for a signal; what it said last). Closes the descriptors."""
        code = self._process.wait()
        said = [*self.lines(), *([self._last_line()] if self._rest else [])]
        assert self._process.stdout is not None
        self._process.stdout.close()
        os.close(self.pidfd)
        return code, said
