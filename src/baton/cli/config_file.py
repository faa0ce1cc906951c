"""`--config FILE`: a TOML file whose keys are names of flags. What the command line or the
environment says wins.

port = 8080                     # --port 8080
kv-memory = "2GiB"              # or kv_memory, as in Python
api-key-file = ["a", "b"]       # a flag that may be repeated
skip-server-warmup = true       # a flag without a value
"""

import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path

import typer
from typer.core import TyperArgument, TyperOption

from baton.core.errors import ConfigError

POSITIONAL = "model"  # the one argument that commands have


def load(context: typer.Context, file: str | None) -> str | None:
    """The option's callback: makes the file's values the command's defaults. Raises ConfigError."""
    if file is not None:
        context.default_map = dict(defaults(context, file, read(file)))
    return file


def read(file: str) -> Mapping[str, object]:
    """Read the file's keys and values. Raises ConfigError."""
    try:
        return tomllib.loads(Path(file).expanduser().read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {file}: cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"--config {file}: this is not TOML: {error}") from error


def defaults(
    context: typer.Context, file: str, values: Mapping[str, object]
) -> Mapping[str, object]:
    """Return parameter names and values, in the form of a command line.

    Raises:
        ConfigError: the message names the file and the key
    """
    found: dict[str, object] = {}
    known = {
        name.lstrip("-"): p
        for p in context.command.params
        for name in p.opts
        if name.startswith("--")
    }
    known |= {
        p.name: p
        for p in context.command.params
        if p.param_type_name == "argument" and p.name == POSITIONAL
    }
    for key, value in values.items():
        parameter = known.get(key.replace("_", "-"))
        if not isinstance(parameter, TyperOption | TyperArgument) or parameter.name == "config":
            near = get_close_matches(key.replace("_", "-"), known, n=1, cutoff=0.5)
            hint = (
                f"; did you mean {near[0]}?" if near else f"; there are {', '.join(sorted(known))}"
            )
            raise ConfigError(
                f"--config {file}: {key!r} is no flag of 'baton {context.info_name}'{hint}"
            )
        if parameter.name in found:
            raise ConfigError(
                f"--config {file}: {key!r} is given twice, under two names of the same flag"
            )
        found[parameter.name] = _spelled(f"--config {file}: {key}", value, parameter)
    return found


def _spelled(where: str, value: object, parameter: TyperOption | TyperArgument) -> object:
    if bool(getattr(parameter, "is_flag", False)) or isinstance(value, bool):
        if not (isinstance(value, bool) and getattr(parameter, "is_flag", False)):
            raise ConfigError(
                f"{where} = {value!r}: true and false are for flags without a "
                "value, and those take nothing else"
            )
        return value
    many = bool(getattr(parameter, "multiple", False))
    items = value if isinstance(value, list) else [value]
    if (isinstance(value, list) and not many) or not all(
        isinstance(i, str | int | float) for i in items
    ):
        raise ConfigError(
            f"{where} = {value!r}: it takes "
            f"{'text or a list of texts' if many else 'one text or number'}"
        )
    return [str(i) for i in items] if many else str(value)
