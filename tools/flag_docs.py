"""Writes docs/flags.md from the command line itself; `--check` fails where the page is out of
date."""

import sys
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from baton.cli.main import commands
from document import write_or_check

PAGE = Path(__file__).parents[1] / "docs" / "flags.md"
HEAD = """# Flags

Every command and flag, written by `tools/flag_docs.py` from the command line itself. Where vLLM or SGLang have a flag of
the same meaning, its name is taken too; names of one line are the same flag.

`--config FILE` reads a TOML file whose keys are names of flags without the dashes; a key that is no flag is refused with the
nearest that is:

```toml
model = "/models/llama"
port = 8080
kv-memory = "8GiB"
api-key-file = ["/etc/baton/keys"]
```

`baton serve`, `gateway` and `worker` also read each of their flags from the environment. The variable has the first name of the
flag, in capitals: `BATON_KV_MEMORY` is `--kv-memory`. Of a flag that may be repeated, it holds all values, with spaces between;
of a flag without a value, `true` or `false`. `BATON_MODEL` is MODEL, `BATON_CONFIG` is `--config`. The command line wins over the
environment, the environment over the file, and the file over the default. A variable that is empty counts as not set, and one
that names no flag is ignored.
"""


def page() -> str:
    """The whole page."""
    return (
        "\n".join([HEAD, *_command(typer.main.get_command(commands("")), ("baton",))]).rstrip()
        + "\n"
    )


def _command(command: Any, path: tuple[str, ...]) -> list[str]:
    lines = [
        f"## {' '.join(path)}",
        "",
        (command.help or "").strip().split("\n\n")[0].replace("\n", " "),
        "",
    ]
    rows = [_row(p) for p in command.params if not p.hidden]
    if rows:
        lines += ["| flag | default | meaning |", "|---|---|---|", *rows, ""]
    for name, sub in sorted(getattr(command, "commands", {}).items()):
        lines += _command(sub, (*path, name))
    return lines


def _row(parameter: Any) -> str:
    names = (
        parameter.opts
        if parameter.param_type_name == "option"
        else [parameter.metavar or str(parameter.name).upper()]
    )
    shown = ", ".join(f"`{name}`" for name in (*names, *parameter.secondary_opts))
    meaning = " ".join((parameter.help or "").split())
    return f"| {shown} | {_default(parameter)} | {meaning} |".replace("||", "| |")


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    value = parameter.default
    if value is None or value is False or callable(value):
        return ""
    return f"`{value.value if isinstance(value, Enum) else value}`"


if __name__ == "__main__":
    sys.exit(
        write_or_check(PAGE, lambda _: page(), "Write docs/flags.md from the command line itself.")
    )
