"""`baton worker` and `baton gateway`: the processes of a service, one by one."""

from typing import Any

import msgspec

from baton.cli import options as opt
from baton.cli.ending import answer_quit
from baton.cli.flags import Given, with_flags
from baton.ports.fabric_settings import FabricSettings
from baton.shell.gateway_settings import GatewaySettings
from baton.shell.settings import WorkerSettings
from baton.shell.threads import available_cores, divide, pin


@with_flags(WorkerSettings, environment=True)
def worker(
    model: opt.Model = opt.DEFAULT_MODEL,
    model_path: opt.ModelPath = None,
    config: opt.Config = None,
    *,
    given: Given,
) -> None:
    """Run one worker; it registers with every gateway named."""
    from baton.cli.models import require
    from baton.cli.own_address import reached_at

    model = opt.one_model(model, model_path)
    host, bind = reached_at(
        given.get("gateway"), host=given.get("fabric_host"), bind=given.get("bind")
    )
    settings = given.make(
        WorkerSettings,
        **names_of(model, given),
        name=given.get("name") or given.get("role").value,
        bind=bind,
        threads=given.get("threads", 1),
        fabric_settings=given.make(FabricSettings, host=host),
    )
    if given.get("threads") is None:
        cores = len(settings.cores or available_cores())
        settings = msgspec.structs.replace(settings, threads=max(1, cores // settings.ranks_here))
    require(model)
    run_worker(settings)


@with_flags(GatewaySettings, environment=True)
def gateway(
    model: opt.Model = opt.DEFAULT_MODEL,
    model_path: opt.ModelPath = None,
    config: opt.Config = None,
    *,
    given: Given,
) -> None:
    """Run the HTTP front; workers register with it."""
    from baton.cli.models import require

    model = opt.one_model(model, model_path)
    settings = gateway_settings(given, **names_of(model, given))
    require(model)
    run_gateway(settings)


def names_of(model: str, given: Given) -> dict[str, Any]:
    """Return the fields with the model and the name that clients use."""
    from baton.cli.models import locate

    return {
        "model": str(locate(model)),
        "served_model_name": given.get("served_model_name") or model,
    }


def gateway_settings(given: Given, **decided: Any) -> GatewaySettings:
    """Make the gateway's settings, with a port that is free now.

    Raises:
        ConfigError: a value, a file of keys, of TLS or of sampling defaults is invalid
    """
    from baton.cli.api_keys import read_keys
    from baton.cli.ports import free_port
    from baton.gateway.tls import server_context

    port = free_port(given.get("host"), given.get("port"))
    settings = given.make(GatewaySettings, **decided, port=port)
    read_keys(settings.api_keys, settings.api_key_files)
    server_context(settings.tls)
    if settings.generation_config != "auto" or settings.override_generation_config is not None:
        from baton.gateway import (
            generation_config as files,
        )  # imported only now: it takes a quarter of a second

        files.require_source(settings.generation_config)
        if settings.override_generation_config is not None:
            files.parse_override(settings.override_generation_config)
    return settings


def run_worker(settings: WorkerSettings) -> None:
    """Pin the process, then load and run the worker:
    compute libraries count the cores at import."""
    pin(rank_cores(settings)[0])
    from baton.cli.compose_worker import run_worker as compose
    from baton.cli.logs import configure
    from baton.cli.preflight import require_startable

    answer_quit()
    configure(settings.log_level, settings.log_format)
    require_startable([settings])
    compose(settings)


def run_gateway(settings: GatewaySettings) -> None:
    """Load and run the gateway; its modules are imported only now."""
    from baton.cli.compose_gateway import run_gateway as compose
    from baton.cli.logs import configure

    answer_quit()
    configure(settings.log_level, settings.log_format)
    compose(settings)


def rank_cores(settings: WorkerSettings) -> tuple[tuple[int, ...], ...]:
    """Return the logical CPUs of each rank on this
    machine, this process first; empty = not pinned."""
    if settings.rank is not None or not settings.cores:
        return (settings.cores,) * settings.ranks_here
    return tuple(
        share.cores
        for share in divide(settings.cores, workers=settings.ranks_here, threads=settings.threads)
    )
