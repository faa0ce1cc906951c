"""The wall clock of a machine's processes, which jumps as it does when somebody sets the time.

A kernel has one wall clock for all its processes. So a library, libfaketime, stands before that of
C in the processes of one machine of a run: it adds a number of seconds, read from a file once a
second, to the wall clock, and leaves the monotonic clock alone. A wait until a time of day is as
long as the clock made it when it began.

The library shares a semaphore and a page among the processes. The first one would make them, and
leave them if it is killed, so they are made here, and go with the clock. A page of zeros says that
there is nothing to share.
"""

import ctypes
import os
import platform
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from uuid import uuid4

from baton.core.errors import ConfigError

WITHIN = Path("vendor", "libfaketime", "src", "libfaketime.so.1")  # the package
TELL = "import time; print(time.time(), time.monotonic())"
TRIED_S, MARGIN_S = 600.0, 60.0
SHARED = Path("/dev/shm")


class MachineClock:
    """Of the processes that are started with it.

    Attributes:
        prefix: of their command lines

    Args:
        file: says how far it is from the machine's; it is made, and written again

    Close it when no process lives by it any more.

    Raises:
        ConfigError: there is no libfaketime, or it does nothing here
    """

    KIND = "clock"

    def __init__(self, file: Path) -> None:
        self._file, self._library = file, _library()
        self._shared = f"baton_clock_{os.getpid()}_{uuid4().hex}"
        self.prefix = (
            "env",
            f"LD_PRELOAD={self._library}",
            f"FAKETIME_TIMESTAMP_FILE={file}",
            "FAKETIME_CACHE_DURATION=0",
            "FAKETIME_DONT_FAKE_MONOTONIC=1",
            f"FAKETIME_SHARED=/{self._shared} /{self._shared}",
        )
        self._share()
        try:
            self._try()
        except ConfigError:
            self.close()
            raise
        self.jump_to(0)

    def jump_to(self, ahead_s: float) -> None:
        """Let it be so far ahead of the machine's, or behind; processes see it within a second."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{ahead_s:+.0f}\n")
        new.replace(self._file)

    def is_clock_of(self, pid: int) -> bool:
        """Return whether a process lives by it."""
        of_process = Path("/proc", str(pid))
        try:
            environment = of_process.joinpath("environ").read_bytes().split(b"\0")
            return (
                f"FAKETIME_TIMESTAMP_FILE={self._file}".encode() in environment
                and str(self._library) in of_process.joinpath("maps").read_text()
            )
        except OSError:  # it has ended
            return False

    def close(self) -> None:
        """Remove what its processes have shared."""
        ctypes.CDLL(None).sem_unlink(f"/{self._shared}".encode())
        SHARED.joinpath(self._shared).unlink(missing_ok=True)

    def _share(self) -> None:
        descriptor = os.open(SHARED / self._shared, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        os.ftruncate(descriptor, os.sysconf("SC_PAGESIZE"))
        os.close(descriptor)
        libc = ctypes.CDLL(None)
        libc.sem_open.restype = ctypes.c_void_p
        semaphore = libc.sem_open(f"/{self._shared}".encode(), os.O_CREAT | os.O_EXCL, 0o600, 1)
        libc.sem_close(ctypes.c_void_p(semaphore))

    def _try(self) -> None:
        self.jump_to(TRIED_S)
        command = (*self.prefix, sys.executable, "-c", TELL)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said = done.stdout.split()
        ahead = [float(a) - b for a, b in zip(said, (time.time(), time.monotonic()), strict=False)]
        right = (TRIED_S, 0.0)
        if [abs(a - b) < MARGIN_S for a, b in zip(ahead, right, strict=False)] != [True, True]:
            raise ConfigError(
                f"{self._library} does not make a clock jump on this {platform.machine()}: "
                f"{done.stderr.strip() or said}; leave clock out of --kinds"
            )


def _library() -> Path:
    package = find_spec("libfaketime")
    if package is None or package.origin is None:
        raise ConfigError(
            "no libfaketime here, which makes a clock jump: pip install libfaketime, or leave "
            "clock out of --kinds"
        )
    return Path(package.origin).parent / WITHIN
