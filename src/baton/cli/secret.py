"""`baton secret`: the shared secret that encrypts control between machines."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="The shared secret of a service's processes.")


@app.callback()
def _group() -> None:
    """The shared secret of a service's processes."""


@app.command("new")
def new(
    file: Annotated[Path, typer.Argument(help="Where to write it; must not exist yet.")],
) -> None:
    """Draw a new secret and write it to FILE, readable by you alone."""
    from baton.adapters.secret import new_secret

    new_secret(file)
    typer.echo(f"wrote {file}; copy it to every machine of the service and name it with --secret")
