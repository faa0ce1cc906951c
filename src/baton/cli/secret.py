"""`baton secret`: the shared secret that encrypts control between machines, and keys of clients."""

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="The shared secret of a service's processes, and API keys of its clients.")


@app.callback()
def _group() -> None:
    """The shared secret of a service's processes, and API keys of its clients."""


@app.command("new")
def new(
    file: Annotated[Path, typer.Argument(help="Where to write it; must not exist yet.")],
) -> None:
    """Draw a new secret and write it to FILE, readable by you alone."""
    from baton.adapters.secret import new_secret

    new_secret(file)
    typer.echo(f"wrote {file}; copy it to every machine of the service and name it with --secret")


@app.command("identity")
def identity(
    name: Annotated[str, typer.Argument(help="Of the process; gateways share the name 'gateway'.")],
    members: Annotated[
        Path, typer.Option(help="File with the public keys of all; the new one is added.")
    ],
    file: Annotated[
        Path | None,
        typer.Option(help="Where to write it; must not exist yet.  [default: NAME.key]"),
    ] = None,
) -> None:
    """Draw an identity for one process, which can be revoked, instead of one secret for all."""
    from baton.adapters.identity import new_identity

    written = file if file is not None else Path(f"{name}.key")
    new_identity(name, written, members)
    typer.echo(
        f"wrote {written}, for --secret of this process alone, and its public key to {members}, "
        "for --members of every process; to revoke it, take its line out"
    )


@app.command("api-key")
def api_key(
    name: Annotated[
        str, typer.Option(help="What logs and refusals call its holder.", metavar="NAME")
    ] = "",
    max_concurrent: Annotated[
        int | None, typer.Option(help="Requests that may be open at once.", metavar="N")
    ] = None,
    requests_per_minute: Annotated[
        int | None, typer.Option(help="Requests that are accepted in a minute.", metavar="N")
    ] = None,
    hash_given: Annotated[
        bool, typer.Option("--hash", help="Read a key from standard input instead of drawing one.")
    ] = False,
) -> None:
    """Draw an API key. Stderr shows it, once; stdout gets the line for a gateway's --api-key-file,
    which holds its hash."""
    from baton.cli.api_keys import draw_key, make_key

    key = sys.stdin.readline().strip() if hash_given else draw_key()
    made = make_key(
        key, name=name, max_concurrent=max_concurrent, requests_per_minute=requests_per_minute
    )
    if not hash_given:
        typer.echo(f"the key, for the client, which is not shown again: {key}", err=True)
    typer.echo(made.line)
