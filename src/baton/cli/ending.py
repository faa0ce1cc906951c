"""How every process of Baton starts and ends.

Exit codes: 0 success, 1 a failure, 2 a setting that cannot work (one line on stderr says which),
130 interrupted.
"""

import faulthandler
import os
import signal
import sys
from collections.abc import Callable

from baton.core.errors import BatonError, Bug, ConfigError


def prepare() -> int:
    """Prepare the process; returns an exit code, 0 = continue."""
    from baton.cli.kernel_cache import provide_cache

    provide_home()
    faulthandler.enable()  # a crash in a library writes the stacks of all threads
    # Mooncake reads it when it loads, and writes a dozen lines otherwise.
    os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
    # llguidance raises and catches thousands of errors while it builds some schemas. With a
    # backtrace, which RUST_BACKTRACE=1 asks for, each takes a millisecond.
    os.environ.setdefault("RUST_LIB_BACKTRACE", "0")
    try:
        note = provide_cache()
    except ConfigError as e:
        return complain(str(e), code=2)
    if note is not None:
        complain(f"warning: {note}", code=0)
    return 0


def provide_home() -> None:
    """Make sure that there is a home directory, be it one that cannot be written.

    A user whom the system does not know has none, unless HOME names it. Then it is that of such a
    user in a container.
    """
    if not os.path.isabs(os.path.expanduser("~")):
        os.environ["HOME"] = "/"


def answer_quit() -> None:
    """From now on, SIGQUIT writes the stacks of all threads to stderr and changes nothing else."""
    stderr = 2  # the descriptor, as what stands for sys.stderr need not have one
    faulthandler.register(signal.SIGQUIT, file=stderr)


def exit_code(action: Callable[[], object]) -> int:
    """Run `action`; returns the exit code. A `Bug` or an unexpected exception gives a traceback."""
    try:
        code = action()
    except ConfigError as e:
        return complain(str(e), code=2)
    except Bug:
        raise
    except BatonError as e:
        return complain(str(e), code=1)
    return code if isinstance(code, int) else 0


def complain(why: str, *, code: int) -> int:
    """Write one line to stderr; returns `code`."""
    print(f"baton: {' '.join(why.split())}", file=sys.stderr, flush=True)
    return code
