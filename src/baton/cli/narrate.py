"""Shows the operator a service's start and run: a status line on a terminal, else plain lines."""

import json
import shlex
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.status import Status

from baton.cli.ports import url_of
from baton.shell.gateway_settings import GatewaySettings
from baton.shell.settings import WorkerSettings
from baton.shell.supervisor import (
    Died,
    Event,
    GaveUp,
    Killed,
    LineWritten,
    NotReady,
    Ready,
    Started,
    Stopping,
)

SPEAK_AFTER_S = 2.0  # quicker starts are not commented
REPEAT_EVERY_S = 10.0


class Narrator:
    """Shows the supervisor's events on stderr, and the greeting of a ready service on stdout."""

    def __init__(self, greeting: str, *, warning: str | None) -> None:
        self._greeting = greeting
        self._out, self._log = (
            Console(highlight=False, soft_wrap=True),
            Console(stderr=True, highlight=False, soft_wrap=True),
        )
        self._status: Status | None = None
        self._began = self._spoke_at = time.monotonic()
        self._spoken = ""
        if warning is not None:
            self._line(f"baton: warning: {escape(warning)}")

    def __call__(self, event: Event) -> None:
        """Show one event."""
        match event:
            case LineWritten():
                self._line(f"[dim]{escape(event.name)} |[/dim] {escape(event.line)}")
            case NotReady():
                self._waiting(event.why)
            case Ready():
                self._clear()
                self._out.print(
                    escape(f"Ready after {time.monotonic() - self._began:.1f} s: {self._greeting}")
                )
            case Died():
                self._line(
                    f"baton: {escape(event.name)} {escape(event.how)}; it starts again "
                    f"in {event.again_in_s:.1f} s"
                )
            case GaveUp():
                self._clear()
                print(f"baton: {event.name}: {event.why}", file=sys.stderr, flush=True)
            case Stopping():
                self._clear()
            case Killed():
                self._line(
                    f"baton: {escape(event.name)} did not end within {event.waited_s:.1f} s "
                    "of SIGTERM; it is killed"
                )
            case Started():
                pass

    def _waiting(self, why: str) -> None:
        now = time.monotonic()
        took = now - self._began
        if took < SPEAK_AFTER_S:
            return
        if self._log.is_terminal:
            line = f"starting, {took:.0f} s: {escape(why)}"
            if self._status is None:
                self._status = self._log.status(line)
                self._status.start()
            self._status.update(line)
        elif why != self._spoken or now - self._spoke_at >= REPEAT_EVERY_S:
            self._spoken, self._spoke_at = why, now
            self._line(f"baton: starting, {took:.0f} s: {escape(why)}")

    def _line(self, markup: str) -> None:
        self._log.print(markup)

    def _clear(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None


class Steps:
    """Shows the steps of long work in this process: a
    bar on a terminal, else a line for each step."""

    def __init__(self) -> None:
        console = Console(stderr=True, highlight=False)
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
        )
        self._progress = (
            Progress(*columns, console=console, transient=True) if console.is_terminal else None
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, doing: str) -> None:
        """Show the next step."""
        if self._progress is None:
            print(f"baton: {doing}", file=sys.stderr, flush=True)
            return
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(doing, total=None)


def on_cores(workers: Sequence[WorkerSettings]) -> str:
    """Say which worker is on which cores."""
    return ", ".join(f"{w.name} on cores {','.join(map(str, w.cores))}" for w in workers)


def greeting(front: GatewaySettings, crew: str) -> str:
    """Make the greeting: what is served, by which workers (`crew`), and a request to try."""
    url, name = url_of(front.host, front.port, tls=front.tls), front.served_model_name
    key = " -H 'Authorization: Bearer YOUR_KEY'" if front.api_keys or front.api_key_files else ""
    ask = json.dumps(
        {
            "model": name,
            "messages": [{"role": "user", "content": "What is a relay race?"}],
            "stream": True,
        }
    )
    curl = f"curl -N {url}/v1/chat/completions{key} -H 'Content-Type: application/json'"
    return (
        f"{name} at {url}/v1 ({crew})\n\n  {curl} \\\n    -d {shlex.quote(ask)}\n\nCtrl-C ends it."
    )
