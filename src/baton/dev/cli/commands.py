"""The commands that test and measure Baton."""

import typer

from baton.dev.cli import bench, chaos, fabric, plan, replay_log
from baton.dev.cli.simulation import command as simulation


def add(app: typer.Typer) -> None:
    """Add them to the `baton` command."""
    app.command("replay-log")(replay_log.replay_log)
    more = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command("chaos", context_settings=more)(chaos.chaos)
    app.add_typer(bench.app, name="bench")
    app.add_typer(fabric.app, name="fabric")
    app.add_typer(plan.app, name="plan")
    app.add_typer(simulation.app, name="sim")
