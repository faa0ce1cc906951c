"""A second worker's engine on this machine, in a process of its own, which computes whenever it is
told to: so what two workers cost each other is measured.

measuring.py ──"go" and "stop", one a line──▶ python -m baton.dev.profiling.companion
"""

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from baton.core.memory.state import DType
from baton.dev.profiling.engine_steps import StepShape, TimedModel

READY, GO, STOP = "ready\n", "go\n", "stop\n"
POSITIONS = 512
# what it computes again and again, one after the other
STEPS = (StepShape(rows=4, context=256), StepShape(128, 128))


class Companion:
    """The process, as seen from that which measures."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def tell(self, word: str) -> None:
        """Let it begin or stop to compute."""
        assert self._process.stdin is not None, "it was opened"
        self._process.stdin.write(word)
        self._process.stdin.flush()


@contextmanager
def companion(path: Path, dtype: DType, *, threads: int) -> Iterator[Companion]:
    """Run one until the context ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, str(path), dtype.value, str(threads)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None, "it was opened"
    try:
        while process.stdout.readline() not in (READY, ""):
            pass  # what its libraries say
        yield Companion(process)
    finally:
        process.communicate()  # closes its input, and it ends


def main(path: str, dtype: str, threads: str) -> None:
    """Compute when told to, until the input ends."""
    # nobody reads what is written after READY
    quiet = structlog.make_filtering_bound_logger(logging.WARNING)
    structlog.configure(wrapper_class=quiet)
    model = TimedModel(
        Path(path), DType(dtype), threads=int(threads), step_tokens=128, positions=POSITIONS, rows=5
    )
    for shape in STEPS:
        model.step_us(shape)
    going, ended = threading.Event(), threading.Event()

    def read() -> None:
        for word in sys.stdin:
            (going.set if word == GO else going.clear)()
        ended.set()
        going.set()

    threading.Thread(target=read, daemon=True).start()
    sys.stdout.write(READY)
    sys.stdout.flush()
    while not ended.is_set():
        going.wait()
        for shape in STEPS:
            model.step_us(shape)
    model.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
