"""Starts a program that cannot outlive the process that started it.

    python leash.py PARENT program argument..

It is run by path and imports only the standard library, so it costs some tens of milliseconds. Then
the program replaces it; the kernel keeps the death signal over exec. The parent's process id is
compared after the signal is armed, so a parent that died earlier leaves no process behind either.
The kernel watches the *thread* that started us: start children from a thread that lives as long as
the process.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def leashed(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the command line that runs `argv` so that it dies with this process."""
    return (sys.executable, "-IS", __file__, str(os.getpid()), *argv)


def follow(parent: int) -> None:
    """Have the kernel kill this process when `parent`, its parent process, ends.

    Exits at once if the parent has ended already.

    Raises:
        OSError: the kernel refused
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    follow(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])
