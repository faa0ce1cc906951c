"""A second worker's engine on this machine, in a process of its own, which computes whenever it is
told to: so what two workers cost each other is measured.

measuring.py ──"go" and "stop", one a line──▶ python -m baton.dev.profiling.companion
             ◀──the same word, when it does so──
"""

import logging
import queue
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
# what it computes again and again, one after the other
STEPS = (StepShape(rows=4, context=256), StepShape(128, 128))


class Companion:
    """The process, as seen from that which measures."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def tell(self, word: str) -> None:
        """Let it begin or stop to compute, and wait until it does."""
        assert self._process.stdin is not None, "it was opened"
        self._process.stdin.write(word)
        self._process.stdin.flush()
        self.hear(word)

    def hear(self, word: str) -> None:
        """Wait for a word, or for its end; its libraries say other things."""
        assert self._process.stdout is not None, "it was opened"
        while self._process.stdout.readline() not in (word, ""):
            pass


@contextmanager
def companion(path: Path, dtype: DType, *, threads: int) -> Iterator[Companion]:
    """Run one until the context ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, str(path), dtype.value, str(threads)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    found = Companion(process)
    try:
        found.hear(READY)
        yield found
    finally:
        process.communicate()  # closes its input, and it ends


def main(path: str, dtype: str, threads: str) -> None:
    """Compute when told to, until the input ends."""
    quiet = structlog.make_filtering_bound_logger(logging.WARNING)
    structlog.configure(wrapper_class=quiet)
    model = TimedModel(
        Path(path), DType(dtype), threads=int(threads), step_tokens=128, wanted=STEPS
    )
    for shape in STEPS:
        model.step_us(shape)
    words = queue.SimpleQueue[str | None]()

    def read() -> None:
        for word in sys.stdin:
            words.put(word)
        words.put(None)

    threading.Thread(target=read, daemon=True).start()
    _say(READY)
    while (word := words.get()) is not None:
        _say(word)
        while word == GO and words.empty():
            for shape in STEPS:
                model.step_us(shape)
    model.close()


def _say(word: str) -> None:
    sys.stdout.write(word)
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
