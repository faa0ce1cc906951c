"""`baton models`, and what MODEL on a command line means."""

from pathlib import Path
from typing import Annotated

import typer

from baton.core.errors import ConfigError

app = typer.Typer(help="Models that are at hand.")

TRIAL = "smollm2"


def trial_directory() -> Path:
    """Where the trial model lies once pulled: in the user's cache."""
    from baton.engine.trial import default_directory

    return default_directory()


def is_complete(directory: Path) -> bool:
    """Whether a checkpoint lies there; its config is written last."""
    return (directory / "config.json").is_file()


def locate(model: str) -> Path:
    """The absolute directory that MODEL names, whether or not anything is there."""
    return trial_directory() if model == TRIAL else Path(model).expanduser().absolute()


def require(model: str) -> None:
    """That there is a checkpoint.

    Raises:
        ConfigError: there is none; says what to do
    """
    directory = locate(model)
    if is_complete(directory):
        return
    if model == TRIAL:
        raise ConfigError(f"the trial model is not here yet; fetch it with: baton models pull {TRIAL}")
    if not directory.is_dir():
        raise ConfigError(f"model {model!r}: no such directory; give the directory of a checkpoint, or '{TRIAL}'")
    raise ConfigError(f"model {model!r}: the directory has no config.json, so it holds no checkpoint")


def ensure(model: str) -> None:
    """As `require`; the trial model is fetched where it is not here yet."""
    if model == TRIAL and not is_complete(trial_directory()):
        fetch_trial(trial_directory())
    require(model)


@app.command("list")
def show() -> None:
    """List the models that can be named, and where they lie."""
    directory = trial_directory()
    where = str(directory) if is_complete(directory) else f"not here yet: baton models pull {TRIAL}"
    typer.echo(f"{TRIAL}  SmolLM2-135M-Instruct, 4-bit weights dequantised  {where}")


@app.command("pull")
def pull(model: Annotated[str, typer.Argument(help=f"There is one: {TRIAL}.")] = TRIAL) -> None:
    """Fetch a model into the user's cache and convert it once."""
    if model != TRIAL:
        raise ConfigError(f"model {model!r} cannot be pulled; there is {TRIAL}")
    directory = trial_directory()
    if not is_complete(directory):
        fetch_trial(directory)
    typer.echo(f"{TRIAL} is at {directory}")


def fetch_trial(directory: Path) -> None:
    """Fetch and convert the trial model, showing what is done. Raises ConfigError."""
    from baton.cli.narrate import Steps
    from baton.engine.trial import pull_smollm2

    with Steps() as step:
        pull_smollm2(directory, step)
