"""The command `baton`. Heavy imports stay inside the commands, so that `--help` answers at once.

Commands that test and measure Baton are in `baton.dev`; they are imported only if one of them, or
the help, is wanted.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Annotated

import typer
from typer.exceptions import TyperException

from baton import __version__
from baton.cli import chat, models, operate, plan_memory, processes, secret, serve, trace
from baton.cli.deploy import command as deploy
from baton.cli.doctor import command as doctor
from baton.cli.elsewhere import instead_of
from baton.cli.ending import exit_code, prepare
from baton.core.errors import ConfigError

SERVING: Mapping[str, Callable[..., None]] = {
    "serve": serve.serve,
    "worker": processes.worker,
    "gateway": processes.gateway,
    "chat": chat.chat,
    "status": operate.status,
    "trace": trace.trace,
    "drain": operate.drain,
    "role": operate.role,
    "doctor": doctor.doctor,
    "plan-memory": plan_memory.plan_memory,
}
GROUPS = {"deploy": deploy.app, "models": models.app, "secret": secret.app}


def version() -> None:
    """Print the version."""
    typer.echo(f"baton {__version__}")


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


def _common(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    """Serves large language models with prefill and decode apart."""


def commands(wanted: str) -> typer.Typer:
    """Return all commands; those of `baton.dev` only if `wanted` is not one of the others."""
    app = typer.Typer(
        name="baton",
        help="Serves large language models with prefill and decode apart.",
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_common)
    for name, command in {**SERVING, "version": version}.items():
        app.command(name)(command)
    for name, group in GROUPS.items():
        app.add_typer(group, name=name)
    if wanted not in SERVING and wanted not in GROUPS:
        from baton.dev.cli.commands import add

        add(app)
    return app


def run(argv: list[str]) -> int:
    """Run one command line; returns the exit code."""

    def command() -> object:
        try:
            app = commands(argv[0] if argv else "")
            return app(argv or ["--help"], prog_name="baton", standalone_mode=False)
        except TyperException as e:
            raise ConfigError(instead_of(e.format_message())) from e

    return exit_code(command)


def main() -> None:
    """Entry point of the command."""
    sys.exit(prepare() or run(sys.argv[1:]))


if __name__ == "__main__":
    main()
