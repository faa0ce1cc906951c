"""`baton worker` with its flags, but another way to run it: for workers that a test hurts or watches."""

from collections.abc import Callable, Sequence

import typer

from baton.cli import processes
from baton.shell.settings import WorkerSettings


def baton_worker(run: Callable[[WorkerSettings], None], arguments: Sequence[str]) -> None:
    """Read the settings of these arguments, and run a worker of them."""
    processes.run_worker = run
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(processes.worker)
    app(arguments)
