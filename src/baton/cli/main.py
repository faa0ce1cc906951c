"""The command `baton`. Heavy imports stay inside the commands, so that `--help` answers at once."""

import sys
from typing import Annotated

import typer
from typer.exceptions import TyperException

from baton import __version__
from baton.cli import bench, chat, fabric, models, plan_memory, processes, replay_log, secret, serve
from baton.cli.doctor import command as doctor
from baton.cli.elsewhere import instead_of
from baton.cli.ending import exit_code, prepare
from baton.cli.simulation import command as simulation
from baton.core.errors import ConfigError

app = typer.Typer(
    name="baton",
    help="Serves large language models with prefill and decode apart.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("serve")(serve.serve)
app.command("worker")(processes.worker)
app.command("gateway")(processes.gateway)
app.command("chat")(chat.chat)
app.command("doctor")(doctor.doctor)
app.command("plan-memory")(plan_memory.plan_memory)
app.command("replay-log")(replay_log.replay_log)
app.add_typer(bench.app, name="bench")
app.add_typer(models.app, name="models")
app.add_typer(fabric.app, name="fabric")
app.add_typer(secret.app, name="secret")
app.add_typer(simulation.app, name="sim")


@app.command("version")
def version() -> None:
    """Print the version."""
    typer.echo(f"baton {__version__}")


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def _common(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Serves large language models with prefill and decode apart."""


def run(argv: list[str]) -> int:
    """Carry out one command line; returns the exit code."""

    def command() -> object:
        try:
            return app(argv or ["--help"], prog_name="baton", standalone_mode=False)
        except TyperException as e:
            raise ConfigError(instead_of(e.format_message())) from e

    return exit_code(command)


def main() -> None:
    """Entry point of the command."""
    sys.exit(prepare() or run(sys.argv[1:]))


if __name__ == "__main__":
    main()
