"""One run, told: from a seed, or from a failing run that was kept."""

from pathlib import Path

from rich.console import Console

from baton.core.errors import ConfigError
from baton.dev.cli.simulation.found import Keeper
from baton.dev.cli.simulation.planted import parts_of
from baton.dev.cli.simulation.report import CODES, NOT_DETERMINISTIC
from baton.dev.cli.simulation.telling import tell
from baton.dev.sim.regression import decoded
from baton.dev.sim.run import be_silent, run
from baton.dev.sim.tally import Violated


def simulate_one(
    seed: int, *, planted: str | None, guests: bool, keep: Path, shrink_runs: int
) -> int:
    """Run a seed and tell the run. A failing run is shrunk and kept. Returns the exit code.

    Raises:
        ConfigError: there is no such planted bug, or a file cannot be written
    """
    be_silent()
    console = _console()
    outcome = run(seed, parts=parts_of(planted, guests=guests), story=True)
    tell(outcome, console)
    if outcome.invariant:
        keeper = Keeper(keep, planted, guests=guests, runs=shrink_runs, console=console)
        keeper.keep([Violated(seed, outcome.invariant, outcome.kind, outcome.detail)])
        if keeper.differing:
            console.print("[red]not deterministic[/red]: a second run did not show it")
            return NOT_DETERMINISTIC
    return CODES[outcome.kind]


def replay_kept(file: Path) -> int:
    """Run what was kept, and tell the run. Returns the exit code.

    Raises:
        ConfigError: the file cannot be read
    """
    try:
        kept = decoded(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    be_silent()
    console = _console()
    parts = parts_of(kept.planted, guests=kept.guests)
    outcome = run(script=kept.script, parts=parts, story=True)
    tell(outcome, console)
    for drift in kept.drifted(outcome.labels):
        console.print(f"[yellow]from another version of the simulator:[/yellow] {drift}")
    if outcome.invariant != kept.invariant:
        console.print(
            f"[yellow]when it was kept it broke {kept.invariant}; now it does not[/yellow]"
        )
    return CODES[outcome.kind]


def _console() -> Console:
    return Console(highlight=False, soft_wrap=True)
