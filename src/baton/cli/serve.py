"""`baton serve`: a whole service on one machine, a gateway and its workers as supervised processes."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import typer

from baton.cli import given
from baton.cli import layout_options as layout_opt
from baton.cli import options as opt
from baton.cli.api_keys import read_keys
from baton.cli.processes import BATON, gateway_flags, worker_flags
from baton.shell import settings as default
from baton.shell.settings import GatewaySettings, Role, WorkerSettings
from baton.shell.threads import Share, available_cores, divide, together, warning


def serve(
    model: opt.Model = opt.DEFAULT_MODEL,
    model_path: opt.ModelPath = None,
    host: opt.Host = "127.0.0.1",
    port: opt.Port = 8000,
    prefill: layout_opt.Prefill = 1,
    decode: layout_opt.Decode = 1,
    tp: layout_opt.TensorParallel = 1,
    pp: layout_opt.PipelineParallel = 1,
    prefill_tp: layout_opt.PrefillTensorParallel = None,
    prefill_pp: layout_opt.PrefillPipelineParallel = None,
    decode_tp: layout_opt.DecodeTensorParallel = None,
    decode_pp: layout_opt.DecodePipelineParallel = None,
    role: layout_opt.LayoutRole = layout_opt.Layout.SPLIT,
    threads: opt.Threads = None,
    dtype: opt.DType = "auto",
    index_dtype: opt.IndexDType = "auto",
    max_model_len: opt.MaxModelLen = None,
    max_batched_tokens: opt.MaxBatchedTokens = opt.DEFAULT_BATCHED_TOKENS,
    max_num_seqs: opt.MaxNumSeqs = opt.DEFAULT_NUM_SEQS,
    block_size: opt.BlockSize = opt.DEFAULT_BLOCK_TOKENS,
    page_size: opt.PageSize = opt.DEFAULT_PAGE_TOKENS,
    prefill_page_size: layout_opt.PrefillPageSize = None,
    decode_page_size: layout_opt.DecodePageSize = None,
    kv_pages: opt.KvPages = None,
    kv_memory: opt.KvMemory = None,
    host_kv_memory: opt.HostKvMemory = opt.DEFAULT_HOST_KV_MEMORY,
    fabric: opt.Fabric = "auto",
    fabric_device: opt.FabricDevice = None,
    nixl_backend: opt.NixlBackend = opt.DEFAULT_FABRIC.nixl_backend,
    nixl_param: opt.NixlParam = None,
    mooncake_protocol: opt.MooncakeProtocol = opt.DEFAULT_FABRIC.mooncake_protocol,
    tcp_streams: opt.TcpStreams = opt.DEFAULT_FABRIC.tcp_streams,
    seal: opt.Seal = opt.Switch.ON,
    prefill_ahead: opt.PrefillAhead = default.PREFILL_AHEAD,
    enable_prefix_caching: opt.PrefixCaching = True,
    fetch_back: opt.FetchBackMode = opt.DEFAULT_FETCH_BACK,
    handoff_timeout: opt.HandoffTimeout = default.HANDOFF_TIMEOUT_S,
    fetch_timeout: opt.FetchTimeout = default.FETCH_TIMEOUT_S,
    generation_config: opt.GenerationConfig = default.GENERATION_CONFIG,
    override_generation_config: opt.OverrideGenerationConfig = None,
    cache_verify_interval: opt.CacheVerifyInterval = default.CACHE_VERIFY_INTERVAL_S,
    watchdog_timeout: opt.Watchdog = opt.DEFAULT_WATCHDOG,
    watchdog_first_timeout: opt.WatchdogFirst = opt.DEFAULT_WATCHDOG_FIRST,
    served_model_name: opt.ServedModelName = None,
    api_key: opt.ApiKeys = None,
    api_key_file: opt.ApiKeyFiles = None,
    skip_server_warmup: opt.SkipWarmUp = False,
    request_timeout: opt.RequestTimeout = default.REQUEST_TIMEOUT_S,
    queue_timeout: opt.QueueTimeout = default.QUEUE_TIMEOUT_S,
    max_queued: opt.MaxQueued = default.MAX_QUEUED,
    shutdown_timeout: opt.ShutdownTimeout = default.SHUTDOWN_TIMEOUT_S,
    control: opt.ServeControl = None,
    secret: opt.Secret = None,
    log_level: opt.Level = opt.LogLevel.INFO,
    log_format: opt.Format = opt.LogFormat.CONSOLE,
    record: opt.RecordDirectory = None,
    config: opt.Config = None,
) -> None:
    """Serve MODEL on this machine: prompts computed in one process, tokens generated in another."""
    from baton.cli.models import ensure, locate
    from baton.cli.own_address import own_address
    from baton.cli.ports import free_port
    from baton.cli.record import prepare_directory

    model = given.one_model(model, model_path)
    port, address = free_port(host, port), control or f"tcp://127.0.0.1:{free_port('127.0.0.1', 0)}"
    work = given.Work(
        dtype=dtype,
        index_dtype=index_dtype,
        max_model_len=max_model_len,
        max_batched_tokens=max_batched_tokens,
        max_num_seqs=max_num_seqs,
        prefill_ahead=prefill_ahead,
        watchdog_s=watchdog_timeout,
        watchdog_first_s=watchdog_first_timeout,
    )
    memory = given.Memory(
        block_size=block_size,
        page_size=page_size,
        kv_pages=kv_pages,
        kv_memory=kv_memory,
        host_kv_memory=host_kv_memory,
        fabric=fabric,
        seal=seal,
        prefix_caching=enable_prefix_caching,
        fetch_back=fetch_back,
        handoff_timeout_s=handoff_timeout,
        fetch_timeout_s=fetch_timeout,
        cache_verify_interval_s=cache_verify_interval,
        fabric_settings=given.fabric_settings(
            host=own_address((address,)),
            device=fabric_device,
            backend=nixl_backend,
            params=nixl_param or (),
            protocol=mooncake_protocol,
            streams=tcp_streams,
        ),
    )
    crew = Crew(
        roles=(Role.UNIFIED,) if role is layout_opt.Layout.UNIFIED else (Role.PREFILL,) * prefill + (Role.DECODE,) * decode,
        page_sizes={Role.PREFILL: prefill_page_size, Role.DECODE: decode_page_size},
        layouts={
            Role.UNIFIED: given.Parallel(tp, pp),
            Role.PREFILL: given.Parallel(prefill_tp or tp, prefill_pp or pp),
            Role.DECODE: given.Parallel(decode_tp or tp, decode_pp or pp),
        },
        threads=threads,
    )
    service = given.Service(
        model=str(locate(model)),
        served_model_name=served_model_name or model,
        gateways=(address,),
        secret=None if secret is None else os.path.abspath(secret),
        log_level=log_level,
        log_format=log_format,
        record=None if record is None else os.path.abspath(record),
    )
    workers = plan_workers(service, work, memory, crew, cores=available_cores())
    keys = Keys(given=tuple(api_key or ()), files=tuple(os.path.abspath(f) for f in api_key_file or ()))
    sampling = given.sampling(generation_config, override_generation_config)
    edge = given.Edge(
        request_timeout_s=request_timeout,
        queue_timeout_s=queue_timeout,
        max_queued=max_queued,
        shutdown_timeout_s=shutdown_timeout,
    )
    front = plan_gateway(service, work, edge, sampling, host=host, port=port, keys=keys, warms_up=not skip_server_warmup)
    if service.record is not None:
        prepare_directory(service.record, ["gateway", *(w.name for w in workers)])
    directory = str(ensure(model))  # known only now for a model that had to be fetched
    front = msgspec.structs.replace(front, model=directory)
    workers = tuple(msgspec.structs.replace(w, model=directory) for w in workers)
    raise typer.Exit(supervise(front, workers))


class Crew(msgspec.Struct, frozen=True, kw_only=True):
    """Which workers there are, as given on the command line."""

    roles: tuple[Role, ...]
    page_sizes: Mapping[Role, int | None]
    layouts: Mapping[Role, given.Parallel] = {}
    threads: int | None


def plan_workers(
    service: given.Service, work: given.Work, memory: given.Memory, crew: Crew, *, cores: Sequence[int]
) -> tuple[WorkerSettings, ...]:
    """The settings of every worker, the machine's cores divided among them; fabrics and control listen on one address.

    Raises:
        ConfigError: a value that cannot be
    """
    from baton.cli.own_address import control_at

    bind = control_at(memory.fabric_settings.host)
    layouts = [crew.layouts.get(role, given.Parallel()) for role in crew.roles]
    ranks = [layout.tp * layout.pp for layout in layouts]
    shares = iter(divide(cores, workers=sum(ranks), threads=crew.threads))
    generating = sum(role is not Role.PREFILL for role in crew.roles)
    seen: Counter[Role] = Counter()
    workers = []
    for role, layout, count in zip(crew.roles, layouts, ranks, strict=True):
        share = together([next(shares) for _ in range(count)])
        page_size = crew.page_sizes.get(role)
        own = memory if page_size is None else msgspec.structs.replace(memory, page_size=page_size)
        name = f"{role.value}-{seen[role]}"
        settings = given.worker_settings(service, work, own, role=role, name=name, bind=bind, share=share, parallel=layout)
        if settings.host_kv_bytes is None and role is not Role.PREFILL:
            settings = msgspec.structs.replace(settings, host_kv_sharers=settings.host_kv_sharers * generating)
        workers.append(settings)
        seen[role] += 1
    return tuple(workers)


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    """API keys, as given on the command line."""

    given: tuple[str, ...]
    files: tuple[str, ...]


def plan_gateway(
    service: given.Service,
    work: given.Work,
    edge: given.Edge,
    sampling: given.Sampling,
    *,
    host: str,
    port: int,
    keys: Keys,
    warms_up: bool,
) -> GatewaySettings:
    """The gateway's settings. Raises ConfigError."""
    read_keys(keys.given, keys.files)
    return GatewaySettings(
        host=host,
        port=port,
        control=service.gateways[0],
        model=service.model,
        served_model_name=service.served_model_name,
        max_model_len=work.max_model_len,
        secret=service.secret,
        api_keys=keys.given,
        api_key_files=keys.files,
        warms_up=warms_up,
        request_timeout_s=edge.request_timeout_s,
        queue_timeout_s=edge.queue_timeout_s,
        max_queued=edge.max_queued,
        generation_config=sampling.generation_config,
        override_generation_config=sampling.override_generation_config,
        shutdown_timeout_s=edge.shutdown_timeout_s,
        log_level=service.log_level.value,
        log_format=service.log_format.value,
        record=service.record,
    )


def supervise(front: GatewaySettings, workers: Sequence[WorkerSettings]) -> int:
    """Run them all until a signal; returns the exit code. Raises ConfigError: one of them cannot start."""
    from baton.cli.narrate import Narrator, greeting
    from baton.cli.ports import readiness_of
    from baton.cli.preflight import require_startable
    from baton.shell.child import Program
    from baton.shell.supervisor import Patience, Supervisor

    require_startable(workers)
    slow = warning([Share(w.cores, w.threads * w.ranks_here) for w in workers], cores=len(available_cores()))
    narrator = Narrator(greeting(front, workers), warning=slow)
    programs = [
        Program("gateway", (*BATON, "gateway", *gateway_flags(front)), ends=0),  # its open streams end while there are workers
        *(Program(w.name, (*BATON, "worker", *worker_flags(w)), ends=1) for w in workers),
    ]
    patience = Patience(requests_s=front.shutdown_timeout_s)
    return Supervisor(programs, probe=readiness_of(front.host, front.port), tell=narrator, patience=patience).run()
