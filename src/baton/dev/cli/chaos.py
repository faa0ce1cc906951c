"""`baton chaos`: hurts the processes, the memory and the network of a service while clients ask."""

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from baton.cli import options as opt
from baton.core.errors import ConfigError

Kinds = Annotated[
    str,
    typer.Option(
        metavar="LIST",
        help="What is done: kill, stop, restart, corrupt, clock, partition, delay, loss, "
        "bandwidth.",
    ),
]
Victims = Annotated[str, typer.Option(metavar="LIST", help="To whom: prefill, decode, gateway.")]
Leaving = Annotated[
    float, typer.Option(min=0, max=1, help="Share of requests that are left at a random moment.")
]
Slow = Annotated[
    float,
    typer.Option(min=0, max=1, help="Share of requests whose client reads nothing for seconds."),
]


def chaos(
    context: typer.Context,
    model: opt.Model = opt.DEFAULT_MODEL,
    minutes: Annotated[float, typer.Option(help="How long.")] = 1.0,
    gateways: Annotated[int, typer.Option(min=1, help="Gateways.")] = 1,
    prefill: Annotated[int, typer.Option(min=1, help="Prefill workers.")] = 2,
    decode: Annotated[int, typer.Option(min=1, help="Decode workers.")] = 2,
    clients: Annotated[int, typer.Option(min=1, help="Clients, each with one request.")] = 4,
    leaving: Leaving = 0.0,
    slow: Slow = 0.0,
    seed: Annotated[int, typer.Option(help="Of requests and faults.")] = 1,
    kinds: Kinds = "kill,stop,restart",
    victims: Victims = "prefill,decode,gateway",
    record: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Keep what all processes record (prompts too, as ids), for 'baton replay-log'. "
            "It is kept in any case if there is a complaint.",
        ),
    ] = None,
    json: Annotated[str | None, typer.Option(metavar="FILE", help="Write the report.")] = None,
) -> None:
    """Start a service of MODEL, kill, stop and restart its processes one at a time while clients
    ask, damage their memory, hurt their network or set their clock, and compare every answer, token
    for token, with what the unhurt service says.

    Further flags are those of 'baton serve'. The exit code is 1 if there is a complaint.
    """
    from baton.cli.models import ensure
    from baton.dev.chaos.clients import Habits
    from baton.dev.chaos.history import CORRUPT
    from baton.dev.chaos.nemesis import KINDS, VICTIMS
    from baton.dev.chaos.run import ChaosSettings, run, sentence

    if json is not None and not Path(json).absolute().parent.is_dir():
        raise ConfigError(f"--json {json}: no such directory")
    if leaving + slow > 1:
        raise ConfigError(f"--leaving {leaving:g} and --slow {slow:g} are more than all requests")
    what, whom = _listed("--kinds", kinds, KINDS), _listed("--victims", victims, VICTIMS)
    if CORRUPT in what and whom == ("gateway",):
        raise ConfigError("--kinds corrupt: a gateway has no pools; add --victims prefill,decode")
    flags = tuple(context.args)
    if model.startswith("-"):  # no MODEL was given, and the first unknown flag stands in its place
        model, flags = opt.DEFAULT_MODEL, (model, *flags)
    report = run(
        ChaosSettings(
            model=str(ensure(model)),
            seconds=60 * minutes,
            gateways=gateways,
            prefill=prefill,
            decode=decode,
            clients=clients,
            seed=seed,
            habits=Habits(leaving, slow),
            kinds=what,
            victims=whom,
            flags=flags,
            record=record,
        )
    )
    typer.echo("\n".join(sentence(report)))
    if json is not None:
        Path(json).write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    raise typer.Exit(bool(report.complaints))


def _listed(flag: str, said: str, known: Collection[str]) -> tuple[str, ...]:
    names = tuple(said.split(","))
    for name in names:
        if name not in known:
            raise ConfigError(f"{flag}: {name!r} is none of {', '.join(known)}")
    return names
