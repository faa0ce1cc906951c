"""The progress of a simulation: a bar on a terminal, a line now and then elsewhere."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from baton.dev.sim.tally import Tally

LINE_EVERY_S = 30.0


class ProgressWatch:
    """Shows a growing tally, by seeds or, if a time limit ends it, by time."""

    def __init__(self, seeds: int, seconds: float | None, *, quiet: bool) -> None:
        self._seeds, self._seconds, self._quiet = seeds, seconds, quiet
        self._began = self._spoke = time.monotonic()
        console = Console(stderr=True, highlight=False)
        columns = (BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        self._bar = (
            Progress(*columns, console=console, transient=True)
            if console.is_terminal and not quiet
            else None
        )
        self._task = self._bar.add_task("starting", total=1.0) if self._bar is not None else None

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, tally: Tally) -> None:
        """The tally has grown."""
        now = time.monotonic()
        took = now - self._began
        said = (
            f"{tally.seeds:,} seeds, {tally.seeds / max(took, 1e-3):.1f}/s, "
            f"{len(tally.violations)} violations"
        )
        if self._bar is not None and self._task is not None:
            done = max(
                tally.seeds / self._seeds,
                took / self._seconds if self._seconds is not None else 0.0,
            )
            self._bar.update(self._task, completed=min(done, 1.0), description=said)
        elif not self._quiet and now - self._spoke >= LINE_EVERY_S:
            self._spoke = now
            print(f"baton: {said}", file=sys.stderr, flush=True)
