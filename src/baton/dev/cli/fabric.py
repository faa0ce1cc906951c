"""`baton fabric`: what the installed data planes promise, and whether they keep it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from baton.cli.flags import Given, with_flags
from baton.core.errors import ConfigError
from baton.ports.fabric_settings import FabricSettings

if TYPE_CHECKING:
    from baton.dev.contract.checks import CheckResult
    from baton.dev.contract.measure import Measured
    from baton.ports.fabric import Capabilities

app = typer.Typer(help="Data planes: shm, nixl, mooncake, tcp.")

Name = Annotated[
    str,
    typer.Argument(
        metavar="FABRIC", help="shm, nixl, mooncake or tcp.", show_default="all that work here"
    ),
]
Json = Annotated[
    str | None, typer.Option("--json", metavar="FILE", help="Write the report to a file as well.")
]
Memory = Annotated[
    str,
    typer.Option(
        metavar="host|cuda:N",
        help="Memory of all pools; a device needs a fabric that reaches devices.",
    ),
]
BAR = 40


@app.command("list")
def show() -> None:
    """List the fabrics and what keeps them from working here."""
    from baton.adapters.fabrics import available

    for name, obstacle in available().items():
        typer.echo(f"{name:9} {obstacle or 'works here'}")


@app.command("check")
@with_flags(FabricSettings)
def check(name: Name = "all", memory: Memory = "host", json: Json = None, *, given: Given) -> None:
    """Hold an installed fabric to its contract, between processes of this machine, and report what
    it can do."""
    from baton.adapters.fabrics import available, build
    from baton.adapters.pools import make_pool
    from baton.core.ids import Boot
    from baton.core.memory.kinds import HOST, memory_named
    from baton.dev.contract.checks import run_all
    from baton.dev.contract.measure import measure
    from baton.dev.contract.peer import WallClock

    if not __debug__:
        raise ConfigError("the checks are assertions: run without -O")
    settings, where = given.make(FabricSettings), memory_named(memory)
    names = (
        [fabric for fabric, obstacle in available().items() if not obstacle]
        if name == "all"
        else [name]
    )
    make_pool(where, 1 << 20, what=f"--memory {memory}").close()  # is there such memory?
    if json is not None and not Path(json).absolute().parent.is_dir():
        raise ConfigError(f"--json {json}: no such directory")
    reports: dict[str, object] = {}
    well = True
    for fabric in names:
        probe = build(fabric, Boot(1), 0, wake=lambda: None, clock=WallClock(), settings=settings)
        capabilities = probe.capabilities
        probe.close()
        if where != HOST and not capabilities.device_memory:
            if name == "all":
                typer.echo(f"{fabric}: skipped, it only reaches host memory")
                continue
            raise ConfigError(f"--memory {memory}: {fabric} only reaches host memory; try nixl")
        verdicts = []
        typer.echo(f"{fabric}: the contract")
        for verdict in run_all(fabric, settings, where):
            typer.echo(_line(verdict))
            verdicts.append(verdict)
        well &= not any(verdict.broken for verdict in verdicts)
        measured = measure(fabric, settings, where)
        _print(fabric, capabilities, measured)
        reports[fabric] = {
            "capabilities": capabilities,
            "settings": settings,
            "memory": where,
            "checks": {verdict.check.name: verdict.broken or "kept" for verdict in verdicts},
            "measured": measured,
        }
    if json is not None:
        Path(json).write_bytes(msgspec.json.format(msgspec.json.encode(reports)))
    raise typer.Exit(0 if well else 1)


def _line(verdict: "CheckResult") -> str:
    number, sentence = verdict.check.name.split("_")[0], verdict.check.sentence
    return f"  {number.upper():5} {'BROKEN' if verdict.broken else 'kept  '} {sentence}" + (
        f"\n               {verdict.broken}" if verdict.broken else ""
    )


def _print(fabric: str, capabilities: "Capabilities", m: "Measured") -> None:
    typer.echo(f"{fabric}: what it declares")
    for field in msgspec.structs.fields(capabilities):
        typer.echo(f"  {field.name.replace('_', ' '):22} {getattr(capabilities, field.name)}")
    typer.echo(f"{fabric}: what was measured here, between two processes")
    typer.echo(
        f"  connect {m.connect_ms:.1f} ms, first read {m.first_read_ms:.2f} ms, later ones "
        f"{m.small_read_us:.0f} us (64 bytes)"
    )
    typer.echo(f"  cancel of a read of 64 MiB: ended after {m.cancel_ms:.1f} ms")
    typer.echo(f"  source stands still, deadline 0.2 s: {m.stopped}")
    typer.echo(f"  source killed: {m.dead}")
    typer.echo(f"  source restarted: {m.restart}")
    typer.echo(f"  smallest efficient range (half the best rate): {m.efficient_bytes} bytes")
    best = max(rate.gb_per_s for rate in m.rates)
    typer.echo(f"  {'bytes a range':>13} {'ranges':>6} {'us a range':>10} {'GB/s':>6}")
    for rate in m.rates:
        bar = "█" * round(BAR * rate.gb_per_s / best)
        typer.echo(
            f"  {rate.range_bytes:>13} {rate.ranges:>6} {rate.us_per_range:>10.1f} "
            f"{rate.gb_per_s:>6.2f} {bar}"
        )
