"""`baton replay-log`: replays what a process recorded, compares every effect and checks the
invariants."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from baton.core.errors import ConfigError

if TYPE_CHECKING:
    from baton.trace.examine import Findings
    from baton.trace.log import Record

CHUNK_BYTES = 1 << 20
SLOW_BYTES = 8 << 20  # longer files get a progress bar


def replay_log(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Written by --record.")],
    until: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Stop after the N-th step.")
    ] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Print every step and its effects, one line each.")
    ] = False,
) -> None:
    """Feed what a process recorded to the same core again: every effect must be the same, and no
    invariant violated.

    Exit codes: 0 the same, 1 different or an invariant violated, 2 a file that cannot be read to
    its end.
    """
    from baton.trace.coding import Damaged
    from baton.trace.examine import examine

    with _opened(file) as raw, _Watch(file.stat().st_size, show=show) as watch:
        try:
            found = examine(_chunks(raw), until=until, watch=watch)
        except Damaged as error:
            raise ConfigError(f"{file}: {error}") from error
    raise typer.Exit(_tell(file, found))


def _opened(file: Path) -> BinaryIO:
    try:
        return file.open("rb")
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error


def _chunks(raw: BinaryIO) -> Iterator[bytes]:
    return iter(lambda: raw.read(CHUNK_BYTES), b"")


def _tell(file: Path, found: "Findings") -> int:
    """Print what was found. Returns the exit code."""
    from baton.trace.checks.all import CHECKS

    typer.echo(f"{file.name}: {found.whose}, {found.steps:,} steps")
    if found.difference is not None:
        typer.echo(f"different: {found.difference}")
    for violation in found.violations:
        typer.echo(f"violated: {violation}")
    if found.damage is not None:
        typer.echo(f"damaged: {found.damage}; what is before it was replayed")
    if found.difference is None:
        typer.echo(f"same effects in {found.same:,} steps")
    if not found.violations:
        typer.echo(f"{len(CHECKS)} invariants hold")
    if found.difference is not None or found.violations:
        return 1
    return 2 if found.damage is not None else 0


class _Watch:
    """Shows how far a long file has been read, or what is in it."""

    def __init__(self, size: int, *, show: bool) -> None:
        from rich.console import Console
        from rich.progress import Progress

        console = Console(stderr=True)
        wanted = console.is_terminal and not show and size >= SLOW_BYTES
        self._progress = Progress(console=console, transient=True) if wanted else None
        self._task = (
            self._progress.add_task("replaying", total=size) if self._progress is not None else None
        )
        self._show, self._number = show, 0

    def __enter__(self) -> "_Watch":
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, at: int, record: "Record") -> None:
        """A record has been taken; the file was read up to `at`."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=at)
        if self._show:
            self._print(record)

    def _print(self, record: "Record") -> None:
        from baton.trace.log import Step
        from baton.trace.show import line

        self._number += isinstance(record, Step)
        typer.echo(line(self._number, record))
