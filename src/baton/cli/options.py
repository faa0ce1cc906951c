"""Command-line parameters beside settings: the model, and the configuration file."""

import os
from typing import Annotated

import typer

from baton.cli.config_file import load
from baton.cli.flags import variable_of
from baton.core.errors import ConfigError
from baton.ports.flag import ENGINE, PROCESSES

DEFAULT_MODEL = "smollm2"
VARIABLE = variable_of("model")

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Checkpoint directory, GGUF file, Hugging Face id, or 'smollm2'.",
        envvar=VARIABLE,
    ),
]
ModelPath = Annotated[
    str | None,
    typer.Option(
        "--model-path",
        "--model",
        metavar="MODEL",
        help="The same as MODEL.",
        envvar=VARIABLE,
        rich_help_panel=ENGINE,
    ),
]
Config = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="TOML file; keys are names of flags, and flags given here win.",
        envvar=variable_of("config"),
        callback=load,
        is_eager=True,
        rich_help_panel=PROCESSES,
    ),
]


def one_model(argument: str, option: str | None) -> str:
    """Return MODEL from the argument or the option.

    Both also take it from the environment; there it gives way to the one on the command line.

    Raises:
        ConfigError: both are given, and they differ
    """
    if option is not None and os.environ.get(VARIABLE) in (argument, option):
        return option if argument == os.environ[VARIABLE] else argument
    if option is not None and argument not in (DEFAULT_MODEL, option):
        raise ConfigError(f"MODEL is {argument!r} and --model-path {option!r}; give one of them")
    return argument if option is None else option
