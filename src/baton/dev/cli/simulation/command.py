"""`baton sim`: runs of the shipped code in simulated worlds."""

import os
from pathlib import Path
from typing import Annotated

import typer

SEEDS = 200
FOREVER = 1 << 40
SHRINK_RUNS = 400
KEEP = Path("sim-failures")
CODES_HELP = (
    "Exit codes: 0 fine, 1 a rare branch was never taken (--require-marks), 2 bad usage, 3 "
    "an unsafe run, 4 a run that did not"
    " end well in time, 5 the code under test raised or ended its process, 6 a seed whose "
    "second run was another, 130"
    " interrupted. Of several the gravest: 3, 5, 4, 6."
)

app = typer.Typer(
    help="Run the shipped code in simulated worlds, each from a seed, with faults of all "
    f"kinds.\n\n{CODES_HELP}",
    invoke_without_command=True,
)

MANY, ONE, FOUND = "Many seeds", "One seed", "What is found"


@app.callback()
def simulate(
    context: typer.Context,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="How many.",
            show_default=f"{SEEDS}, or as --seconds allow",
            rich_help_panel=MANY,
        ),
    ] = None,
    first: Annotated[
        int,
        typer.Option("--from", min=0, metavar="S", help="The first seed.", rich_help_panel=MANY),
    ] = 0,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0.1, metavar="T", help="Begin no more after this time.", rich_help_panel=MANY
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="J", help="Processes.", show_default="the cores", rich_help_panel=MANY
        ),
    ] = None,
    guests: Annotated[
        bool,
        typer.Option(
            "--guests",
            help="Run worlds in which all workers are guests of simulated vLLM engines.",
        ),
    ] = False,
    require_marks: Annotated[
        bool,
        typer.Option(
            "--require-marks",
            help="Fail if a rare branch of the core was never taken.",
            rich_help_panel=MANY,
        ),
    ] = False,
    check_determinism: Annotated[
        int,
        typer.Option(
            min=0, metavar="K", help="Run K of the seeds twice and compare.", rich_help_panel=MANY
        ),
    ] = 0,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="S", help="Run this one and tell its story.", rich_help_panel=ONE
        ),
    ] = None,
    planted: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Run the code with this planted bug, which must be found.",
            rich_help_panel=FOUND,
        ),
    ] = None,
    list_planted: Annotated[
        bool, typer.Option("--list-planted", help="List the planted bugs.", rich_help_panel=FOUND)
    ] = False,
    shrink: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Runs spent to make a failing one small, for 3 at most; 0: none.",
            rich_help_panel=FOUND,
        ),
    ] = SHRINK_RUNS,
    keep: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="Where failing runs are kept, for 'baton sim replay'.",
            rich_help_panel=FOUND,
        ),
    ] = KEEP,
    json: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the summary there, as JSON.", rich_help_panel=FOUND
        ),
    ] = None,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet", help="Print one line, and what was violated.", rich_help_panel=FOUND
        ),
    ] = False,
) -> None:
    """Options of the runs; with a sub-command, nothing."""
    if context.invoked_subcommand is not None:
        return
    if list_planted:
        raise typer.Exit(_list_planted())
    if seed is not None:
        from baton.dev.cli.simulation.one import simulate_one

        raise typer.Exit(
            simulate_one(seed, planted=planted, guests=guests, keep=keep, shrink_runs=shrink)
        )
    from baton.dev.cli.simulation.many import Orders, simulate_many

    count = seeds or (SEEDS if seconds is None else FOREVER)
    orders = Orders(
        seeds=range(first, first + count),
        seconds=seconds,
        jobs=jobs or len(os.sched_getaffinity(0)),
        planted=planted,
        guests=guests,
        twice=check_determinism,
        require_marks=require_marks,
        shrink_runs=shrink,
        keep=keep,
        json=json,
        quiet=quiet,
    )
    raise typer.Exit(simulate_many(orders))


@app.command("replay")
def replay(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Kept by 'baton sim' when a run failed.")
    ],
) -> None:
    """Run again what failed, and tell its story. Exit codes as of 'baton sim'."""
    from baton.dev.cli.simulation.one import replay_kept

    raise typer.Exit(replay_kept(file))


def _list_planted() -> int:
    from baton.dev.cli.simulation.planted import bank

    for plant in bank():
        typer.echo(f"{plant.name:<28} {plant.models}")
    return 0
