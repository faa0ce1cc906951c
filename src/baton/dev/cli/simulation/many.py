"""Many seeds: runs them in processes, watches them, and sums them up."""

import time
from contextlib import suppress
from pathlib import Path

import msgspec
from rich.console import Console

from baton.core.errors import ConfigError
from baton.dev.cli.simulation.found import Keeper
from baton.dev.cli.simulation.planted import expected, parts_of
from baton.dev.cli.simulation.progress import ProgressWatch
from baton.dev.cli.simulation.report import SimulationReport, show, show_findings
from baton.dev.cli.simulation.workers import run_seeds
from baton.dev.sim.tally import Tally

OTHER_HASH_SEED = "1"  # the first runs have random ones


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be run, as the command line says."""

    seeds: range
    seconds: float | None
    jobs: int
    planted: str | None
    guests: bool  # whether workers are guests of vLLM engines
    twice: int  # seeds that are run a second time
    require_marks: bool
    shrink_runs: int
    keep: Path
    json: Path | None
    quiet: bool


def simulate_many(orders: Orders) -> int:
    """Run the seeds, print the result and write it. Returns the exit code.

    Raises:
        ConfigError: an order cannot be carried out
        BatonError: the simulating processes cannot start
    """
    parts_of(
        orders.planted, guests=orders.guests
    )  # raises, before anything starts, if there is no such bug
    tally, began = Tally(), time.monotonic()
    interrupted = _run(orders, tally, began)
    took = time.monotonic() - began
    differing = [] if interrupted else _differing(orders, tally)
    report = SimulationReport.of(
        tally,
        first=orders.seeds.start,
        seconds=took,
        jobs=orders.jobs,
        interrupted=interrupted,
        planted=orders.planted,
        expected=expected(orders.planted),
        differing=differing,
    )
    console = Console(highlight=False, soft_wrap=True)
    if orders.quiet:
        show_findings(report, console)
    else:
        show(report, tally, console)
    if orders.require_marks and report.never_hit:
        console.print(f"[red]never taken[/red], though required: {', '.join(report.never_hit)}")
    if orders.json is not None:
        _write(orders.json, report)
    if not interrupted:
        _keep(orders, tally, console)
    return report.exit_code(require_marks=orders.require_marks)


def _keep(orders: Orders, tally: Tally, console: Console) -> None:
    keeper = Keeper(
        orders.keep,
        orders.planted,
        guests=orders.guests,
        runs=orders.shrink_runs,
        console=console,
    )
    with suppress(KeyboardInterrupt):
        keeper.keep(tally.first_of_each())
    for seed in keeper.differing:
        console.print(
            f"[red]seed {seed}: not deterministic[/red]: what it did in another "
            "process it does not do here"
        )


def _run(orders: Orders, tally: Tally, began: float) -> bool:
    """Run all seeds and add them to the tally. Returns whether it was interrupted."""
    until = None if orders.seconds is None else began + orders.seconds
    with (
        suppress(KeyboardInterrupt),
        ProgressWatch(len(orders.seeds), orders.seconds, quiet=orders.quiet) as watch,
    ):
        for outcome in run_seeds(
            orders.seeds,
            jobs=orders.jobs,
            planted=orders.planted,
            guests=orders.guests,
            until=until,
        ):
            tally.add(outcome)
            watch(tally)
        return False
    return True


def _differing(orders: Orders, tally: Tally) -> list[int]:
    """Return those seeds of a sample whose run in another process was different."""
    seeds = sorted(tally.traces)
    step = max(1, len(seeds) // max(1, orders.twice))
    sample = seeds[::step][: orders.twice]
    again = run_seeds(
        sample,
        jobs=orders.jobs,
        planted=orders.planted,
        guests=orders.guests,
        hash_seed=OTHER_HASH_SEED,
    )
    return sorted(outcome.seed for outcome in again if outcome.trace != tally.traces[outcome.seed])


def _write(file: Path, report: SimulationReport) -> None:
    try:
        file.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    except OSError as error:
        raise ConfigError(f"--json {file}: {error.strerror}") from error
