"""`baton serve --on ray`: the same service, with each process in an actor of a Ray cluster."""

import importlib.util
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from baton.adapters.secret import draw_secret, load_secret
from baton.adapters.zmq_control import is_loopback
from baton.cli import node
from baton.cli.ending import complain
from baton.cli.engines import ENGINES
from baton.cli.flags import Given
from baton.cli.narrate import Narrator, greeting
from baton.cli.own_address import LOOPBACK, control_at
from baton.cli.ports import free_port, readiness_of
from baton.cli.processes import gateway_settings, names_of
from baton.core.errors import ConfigError
from baton.launch.fitting import fitting_cpus
from baton.ports.fabric_settings import FabricSettings
from baton.shell.child import Program
from baton.shell.gateway_settings import GatewaySettings
from baton.shell.settings import Role, WorkerSettings
from baton.shell.supervisor import Patience, Supervisor
from baton.shell.vllm_settings import VllmSettings

if TYPE_CHECKING:
    from baton.cli.serve import ServeSettings
    from baton.launch.cluster import Demand, RayCluster
    from baton.launch.run import Document

REPEAT_S = 10.0


def serve_on_ray(service: "ServeSettings", given: Given, model: str) -> int:
    """Serve MODEL on a Ray cluster until a signal; returns the exit code.

    Raises:
        ConfigError: a setting cannot work, or Ray is not installed
        PeerError: there is no cluster, or it has no room
    """
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("--on ray: Ray is not installed; pip install 'baton-llm[ray]'")
    if service.gateways > 1:
        raise ConfigError(
            f"--gateways {service.gateways}: with --on ray there is one gateway; leave the flag out"
        )
    if given.get("record") is not None:
        raise ConfigError("--on ray: --record does not work there, as each node has its own disk")
    # Ray tells its makers which clusters exist, unless the user has decided about that.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from baton.launch.cluster import RayCluster

    say = _Once()
    with RayCluster(service.ray.ray_address, say) as cluster:
        front, workers = plan(service, given, model, cluster)
        secret = secret_for(given.get("secret"), front.control)
        where = cluster.place(demands(service, workers))
        cluster.place_here("gateway")
        crew = ", ".join(f"{name} on {host}" for name, host in where.items())
        complain(f"gateway on {cluster.here} ({front.control}), {crew}", code=0)
        documents: dict[str, Document] = {
            "gateway": lambda _rank, _rendezvous: node.document(front, model, secret)
        }
        for worker in workers:
            process = ENGINES[service.engine].process(worker, service)
            documents[worker.name] = partial(rank_document, process, model, secret)
        kinds = {"gateway": 0} | {w.name: 1 for w in workers}
        programs = [
            Program(name, ("-P", "-m", "baton.cli.node", name), ends)
            for name, ends in kinds.items()
        ]
        return Supervisor(
            programs,
            probe=readiness_of(front.host, front.port, tls=front.tls),
            tell=Narrator(greeting(front, crew), warning=None),
            patience=Patience(requests_s=front.shutdown_timeout_s),
            start=lambda program: cluster.start(program, documents[program.name]),
        ).run()


def plan(
    service: "ServeSettings", given: Given, model: str, cluster: "RayCluster"
) -> tuple[GatewaySettings, tuple[WorkerSettings, ...]]:
    """Make the settings of every process, apart from what each node decides. Raises ConfigError."""
    from baton.cli.serve import plan_workers

    names = names_of(model, given)
    control = service.control or f"{control_at(cluster.here)[:-1]}{free_port(cluster.here, 0)}"
    front = gateway_settings(given, **names, control=control, secret=None)
    shared = given.make(
        WorkerSettings,
        **names,
        gateways=(front.control,),
        role=Role.UNIFIED,
        name="worker",
        bind=control_at(LOOPBACK),  # each node decides its own
        secret=None,
        threads=1,
        fabric_settings=given.make(FabricSettings, host=LOOPBACK),
    )
    threads = given.get("threads")
    if threads is None and service.ray.ray_cpus is not None:
        threads = max(1, int(service.ray.ray_cpus))
    workers = plan_workers(service, shared, cores=(0,), threads=threads or 1)
    if threads is None:
        threads = fitting_cpus(cluster.cpus_of_nodes(), [w.tp * w.pp for w in workers])
    return front, tuple(msgspec.structs.replace(w, cores=(), threads=threads) for w in workers)


def demands(service: "ServeSettings", workers: Sequence[WorkerSettings]) -> "list[Demand]":
    """Return what each worker takes of its node."""
    from baton.launch.cluster import Demand

    engine, said = ENGINES[service.engine], service.ray
    found = []
    for worker in workers:
        seats, ranks = engine.seats(worker), worker.tp * worker.pp
        cpus = worker.threads if said.ray_cpus is None else said.ray_cpus
        each = ranks // seats
        found.append(Demand(worker.name, seats, cpus * each, said.ray_gpus * each))
    return found


def secret_for(file: str | None, control: str) -> str | None:
    """Return the secret of the service: the user's, or off loopback a new one; else None.

    Raises:
        ConfigError: the file is missing, readable by others, or no secret
    """
    if file is not None:
        load_secret(Path(file))
        return Path(file).read_text(encoding="ascii").strip()
    return None if is_loopback(control) else draw_secret()


def rank_document(
    worker: WorkerSettings | VllmSettings,
    model: str,
    secret: str | None,
    rank: int,
    rendezvous: str | None,
) -> bytes:
    """Return what one rank of a worker reads; no `rendezvous` = it is the only one."""
    if rendezvous is not None:
        worker = msgspec.structs.replace(worker, rank=rank, rendezvous=rendezvous)
    return node.document(worker, model, secret)


class _Once:
    """Says what is waited for: when it changes, and again now and then."""

    def __init__(self) -> None:
        self._said, self._again_at = "", 0.0

    def __call__(self, what: str) -> None:
        now = time.monotonic()
        if what != self._said or now >= self._again_at:
            self._said, self._again_at = what, now + REPEAT_S
            complain(what, code=0)
