"""`baton doctor`."""

from typing import TYPE_CHECKING, Annotated

import typer

from baton.cli.flags import Given, with_flags
from baton.ports.fabric_settings import FabricSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from baton.cli.doctor.finding import Finding

STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}


@with_flags(FabricSettings, only=("fabric_device", "nixl_backend", "nixl_param"))
def doctor(
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document on stdout, for machines.")
    ] = False,
    port: Annotated[int, typer.Option(help="Port on which a service is to listen.")] = 8000,
    *,
    given: Given,
) -> None:
    """Say what is installed, try every fabric, and look at memory, limits and cores, with a remedy
    for what is wrong.

    Exit code 1 when something does not work, 0 otherwise, warnings or not.
    """
    from baton.cli.doctor.finding import State

    found = list(_examine(port, given.make(FabricSettings)))
    if as_json:
        _write_json(found)
    else:
        _print(found)
    raise typer.Exit(1 if any(f.state is State.PROBLEM for f in found) else 0)


def _examine(port: int, settings: FabricSettings) -> "Iterator[Finding]":
    from rich.console import Console

    from baton.cli.doctor import fabrics, installed, machine

    console = Console(stderr=True)
    with console.status("looking at the machine") as status:
        yield from installed.packages(installed.required())
        yield installed.trial()
        yield installed.accelerators()
        yield from machine.machine()
        yield listening(port)
        status.update("trying fabrics")
        yield from fabrics.fabrics(settings)


def listening(port: int) -> "Finding":
    """Check whether a service can listen on the port."""
    from baton.cli.doctor.finding import ok, warning
    from baton.cli.ports import free_port
    from baton.core.errors import ConfigError

    try:
        free_port("127.0.0.1", port)
    except ConfigError as error:
        return warning(
            "machine", f"port {port}", str(error).partition(";")[0], "serve with another --port"
        )
    return ok("machine", f"port {port}", "free")


def _print(found: "Iterable[Finding]") -> None:
    from rich.console import Console
    from rich.text import Text

    console, area = Console(highlight=False, soft_wrap=True), ""
    for f in found:
        if f.area != area:
            area = f.area
            console.print(Text(area, style="bold"))
        state = f.state.value
        console.print(Text.assemble("  ", (f"{state:8}", STYLES[state]), f"{f.what:16} {f.said}"))
        if f.remedy:
            console.print(Text(f"{'':27}-> {f.remedy}", style="dim" if state == "ok" else ""))


def _write_json(found: "list[Finding]") -> None:
    import msgspec

    worst = next(
        (s for s in ("problem", "warning") if any(f.state.value == s for f in found)), "ok"
    )
    document = msgspec.json.encode({"state": worst, "findings": found})
    typer.echo(msgspec.json.format(document, indent=1).decode())
