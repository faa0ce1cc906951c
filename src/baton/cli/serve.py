"""`baton serve`: a whole service on one machine, a gateway and its workers as supervised
processes."""

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

import msgspec
import typer

from baton.cli import options as opt
from baton.cli.engines import ENGINES
from baton.cli.flags import Given, with_flags
from baton.cli.processes import gateway_settings, names_of
from baton.core.errors import ConfigError
from baton.launch.settings import RaySettings
from baton.ports.fabric_settings import FabricSettings
from baton.ports.flag import (
    ENGINE,
    MEMORY,
    ONE_OR_MORE,
    PROCESSES,
    Flag,
    NumberLimits,
    require_limits,
)
from baton.ports.written import path, words
from baton.shell.gateway_settings import GatewaySettings, Shared
from baton.shell.settings import Role, WorkerSettings
from baton.shell.threads import CpuShare, available_cores, divide, together, warning

LAST_PORT = 65_535
DEMO_VERIFY_S = 1.0  # --cache-verify-interval at most, with --demo


class ServeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What `baton serve` itself decides; it also takes the flags of the processes that it
    starts."""

    prefill: Annotated[int, Flag("Number of prefill workers.", PROCESSES, limits=ONE_OR_MORE)] = 1
    decode: Annotated[int, Flag("Number of decode workers.", PROCESSES, limits=ONE_OR_MORE)] = 1
    gateways: Annotated[
        int,
        Flag("Number of gateways, all behind --port.", PROCESSES, limits=NumberLimits(1, 64)),
    ] = 1
    role: Annotated[
        Literal["split", "unified"],
        Flag("split; or unified: one worker does both (the baseline).", PROCESSES),
    ] = "split"
    engine: Annotated[
        Literal["baton", "vllm"],
        Flag("What computes: Baton itself, or vLLM with Baton's connector.", ENGINE),
    ] = "baton"
    vllm_args: Annotated[
        tuple[str, ...],
        Flag(
            "With --engine vllm: more flags of 'vllm serve', e.g. '--block-size 32'.",
            ENGINE,
            read=words,
            default="none",
            metavar="FLAGS",
        ),
    ] = ()
    prefill_tp: Annotated[
        int | None,
        Flag("For prefill workers alone.", PROCESSES, default="--tp", limits=ONE_OR_MORE),
    ] = None
    prefill_pp: Annotated[
        int | None,
        Flag("For prefill workers alone.", PROCESSES, default="--pp", limits=ONE_OR_MORE),
    ] = None
    decode_tp: Annotated[
        int | None, Flag("For decode workers alone.", PROCESSES, default="--tp", limits=ONE_OR_MORE)
    ] = None
    decode_pp: Annotated[
        int | None, Flag("For decode workers alone.", PROCESSES, default="--pp", limits=ONE_OR_MORE)
    ] = None
    prefill_page_size: Annotated[
        int | None, Flag("For prefill workers alone.", MEMORY, default="--page-size")
    ] = None
    decode_page_size: Annotated[
        int | None, Flag("For decode workers alone.", MEMORY, default="--page-size")
    ] = None
    on: Annotated[
        Literal["machine", "ray"],
        Flag("Where the processes run: on this machine, or on a Ray cluster.", PROCESSES),
    ] = "machine"
    ray: RaySettings = RaySettings()
    control: Annotated[
        str | None,
        Flag(
            "Address on which workers register. Each further gateway takes the next port.",
            PROCESSES,
            default="a free port of loopback; with --on ray of this node's address",
        ),
    ] = None
    record: Annotated[
        str | None,
        Flag(
            "Directory in which each process writes all that enters its core (prompts too, "
            "as ids), for 'baton replay-log'.",
            PROCESSES,
            read=path,
            metavar="DIR",
        ),
    ] = None

    demo: Annotated[
        bool,
        Flag(
            "The live page at / has buttons that kill and freeze workers, cut their connections "
            "and flip bits of their memory; on loopback only.",
            PROCESSES,
        ),
    ] = False

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles of the workers, in order."""
        if self.role == "unified":
            return (Role.UNIFIED,)
        return (Role.PREFILL,) * self.prefill + (Role.DECODE,) * self.decode

    def own(self, role: Role) -> dict[str, int]:
        """Return the settings that are particular to the workers of a role."""
        fields = {
            Role.PREFILL: {
                "tp": self.prefill_tp,
                "pp": self.prefill_pp,
                "page_tokens": self.prefill_page_size,
            },
            Role.DECODE: {
                "tp": self.decode_tp,
                "pp": self.decode_pp,
                "page_tokens": self.decode_page_size,
            },
        }.get(role, {})
        return {field: value for field, value in fields.items() if value is not None}

    def __post_init__(self) -> None:
        require_limits(self)


@with_flags(ServeSettings, GatewaySettings, WorkerSettings, by_hand=False, environment=True)
def serve(
    model: opt.Model = opt.DEFAULT_MODEL,
    model_path: opt.ModelPath = None,
    config: opt.Config = None,
    *,
    given: Given,
) -> None:
    """Serve MODEL on this machine: prompts computed in one process, tokens generated in another."""
    from baton.cli.models import ensure
    from baton.cli.record import prepare_directory

    model = opt.one_model(model, model_path)
    service = given.make(ServeSettings)
    ENGINES[service.engine].require(service, given)
    if service.demo:
        require_demo(service, given.get("host"))
    if service.on == "ray":
        from baton.cli.on_ray import serve_on_ray

        raise typer.Exit(serve_on_ray(service, given, model))
    gateways, workers = plan(given, model, cores=available_cores())
    if gateways[0].record is not None:
        prepare_directory(
            gateways[0].record, [*(g.name for g in gateways), *(w.name for w in workers)]
        )
    directory = str(ensure(model))  # a fetched model has a directory only now
    gateways = tuple(msgspec.structs.replace(g, model=directory) for g in gateways)
    workers = tuple(msgspec.structs.replace(w, model=directory) for w in workers)
    raise typer.Exit(supervise(gateways, workers, service))


def require_demo(service: ServeSettings, host: str) -> None:
    """Raise ConfigError if `--demo` would let others than the users of this machine break it."""
    from baton.cli.api_keys import on_loopback

    if service.on != "machine":
        raise ConfigError(
            f"--demo with --on {service.on}: it breaks processes of this machine only"
        )
    if not on_loopback(host):
        raise ConfigError(
            f"--demo with --host {host}: whoever reaches that address could kill workers; leave "
            "one of the two out"
        )


def plan(
    given: Given, model: str, *, cores: Sequence[int]
) -> tuple[tuple[GatewaySettings, ...], tuple[WorkerSettings, ...]]:
    """Make the settings of every process. Raises ConfigError.

    Fabrics and control listen on the same address.
    """
    from baton.cli.own_address import control_at, own_address

    service = given.make(ServeSettings)
    names = names_of(model, given)
    controls = control_addresses(service.control, service.gateways)
    front = gateway_settings(given, **names, control=controls[0])
    gateways: tuple[GatewaySettings, ...] = (front,)
    if service.gateways > 1:
        gateways = tuple(
            msgspec.structs.replace(front, name=f"gateway-{i}", control=control)
            for i, control in enumerate(controls)
        )
    host = own_address((front.control,))
    shared = given.make(
        WorkerSettings,
        **names,
        gateways=controls,
        role=Role.UNIFIED,
        name="worker",
        bind=control_at(host),
        threads=1,
        fabric_settings=given.make(FabricSettings, host=host),
    )
    if service.demo and shared.cache_verify_interval_s:
        # what the page damages is to be found before somebody asks for it
        interval = min(shared.cache_verify_interval_s, DEMO_VERIFY_S)
        shared = msgspec.structs.replace(shared, cache_verify_interval_s=interval)
    return gateways, plan_workers(service, shared, cores=cores, threads=given.get("threads"))


def control_addresses(said: str | None, gateways: int) -> tuple[str, ...]:
    """Return the address on which workers register with each gateway: free ports of loopback, or
    the one that is `said` and those with the next ports.

    Raises:
        ConfigError: several gateways are wanted, and the port that is said has no next ones
    """
    from baton.cli.ports import free_ports

    if said is None:
        return tuple(f"tcp://127.0.0.1:{port}" for port in free_ports("127.0.0.1", gateways))
    if gateways == 1:
        return (said,)
    head, _, port = said.rpartition(":")
    if not (port.isdecimal() and int(port) > 0 and int(port) + gateways - 1 <= LAST_PORT):
        raise ConfigError(
            f"--control {said}: each of {gateways} gateways takes a port from this one on, up to "
            f"{LAST_PORT}; name a port, e.g. tcp://127.0.0.1:5555"
        )
    return tuple(f"{head}:{int(port) + i}" for i in range(gateways))


def plan_workers(
    service: ServeSettings, shared: WorkerSettings, *, cores: Sequence[int], threads: int | None
) -> tuple[WorkerSettings, ...]:
    """Make the settings of every worker, and divide the machine's cores among their ranks.

    Args:
        shared: settings that all workers have in common
        threads: threads of each rank; None = as many as it has cores

    Raises:
        ConfigError: a value is invalid
    """
    workers = [
        msgspec.structs.replace(shared, role=role, **service.own(role)) for role in service.roles
    ]
    shares = iter(divide(cores, workers=sum(w.tp * w.pp for w in workers), threads=threads))
    computing = sum(role is Role.PREFILL for role in service.roles)
    generating = len(service.roles) - computing
    seen: Counter[Role] = Counter()
    planned = []
    events = shared.kv_events.for_workers(len(workers))
    for rank, worker in enumerate(workers):
        share = together([next(shares) for _ in range(worker.tp * worker.pp)])
        memory = worker.host_kv_memory
        if memory.nbytes is None:
            sharers = computing if worker.role is Role.PREFILL else generating
            memory = msgspec.structs.replace(memory, sharers=memory.sharers * sharers)
        name = f"{worker.role.value}-{seen[worker.role]}"
        seen[worker.role] += 1
        planned.append(
            msgspec.structs.replace(
                worker,
                name=name,
                cores=share.cores,
                threads=share.threads,
                host_kv_memory=memory,
                kv_events=events[rank],
                kv_events_rank=rank,
            )
        )
    return tuple(planned)


def supervise(
    gateways: Sequence[GatewaySettings], workers: Sequence[WorkerSettings], service: ServeSettings
) -> int:
    """Run all processes until a signal; returns the exit code.

    The socket for clients is bound here and stays open while gateways start again.

    Raises:
        ConfigError: one of them cannot start
    """
    from baton.cli.child import program
    from baton.cli.narrate import Narrator, greeting, on_cores
    from baton.cli.ports import readiness_of
    from baton.shell.listener import BACKLOG, bound
    from baton.shell.supervisor import Event, Patience, Stopping, Supervisor

    engine = ENGINES[service.engine]
    engine.require_startable(workers)
    slow = warning(
        [CpuShare(w.cores, w.threads * w.ranks_here) for w in workers], cores=len(available_cores())
    )
    front = gateways[0]
    narrator = Narrator(greeting(front, on_cores(workers)), warning=slow)
    probe = readiness_of(front.host, front.port, tls=front.tls)
    patience = Patience(requests_s=front.shutdown_timeout_s)
    with ExitStack() as stack:
        listener = stack.enter_context(bound(front.host, front.port))
        listener.listen(BACKLOG)
        counts = None
        if len(gateways) > 1:
            counts = stack.enter_context(TemporaryDirectory(prefix="baton-"))
        shared = Shared(listener=listener.fileno(), counts=counts, demo=service.demo)
        # Gateways stop first, so that their open streams can finish while there are workers.
        programs = [
            *(
                program(
                    g.name,
                    msgspec.structs.replace(g, shared=shared),
                    ends=0,
                    descriptors=(shared.listener,),
                )
                for g in gateways
            ),
            *(program(w.name, engine.process(w, service), ends=1) for w in workers),
        ]

        def tell(event: Event) -> None:
            if isinstance(event, Stopping):
                listener.close()  # clients are refused and do not wait for nobody
            narrator(event)

        return Supervisor(programs, probe=probe, tell=tell, patience=patience).run()
