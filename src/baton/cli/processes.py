"""`baton worker` and `baton gateway`: the processes of a service, one by one."""

import sys
from collections.abc import Mapping

from baton.cli import given
from baton.cli import layout_options as layout_opt
from baton.cli import options as opt
from baton.core.errors import ConfigError
from baton.shell import settings as default
from baton.shell.settings import GatewaySettings, Role, WorkerSettings
from baton.shell.threads import Share, available_cores, divide, pin

BATON = (sys.executable, "-P", "-m", "baton.cli.main")
CONTROL = "tcp://127.0.0.1:5555"


def worker(
    gateway: opt.Gateways,
    model: opt.Model = opt.DEFAULT_MODEL,
    model_path: opt.ModelPath = None,
    role: opt.WorkerRole = Role.UNIFIED,
    bind: opt.Bind = None,
    name: opt.Name = None,
    cores: opt.Cores = None,
    tp: layout_opt.TensorParallel = 1,
    pp: layout_opt.PipelineParallel = 1,
    nnodes: layout_opt.Nodes = 1,
    node_rank: layout_opt.NodeRank = 0,
    rendezvous: layout_opt.Rendezvous = None,
    rank: layout_opt.Rank = None,
    threads: opt.Threads = None,
    dtype: opt.DType = "auto",
    index_dtype: opt.IndexDType = "auto",
    max_model_len: opt.MaxModelLen = None,
    max_batched_tokens: opt.MaxBatchedTokens = opt.DEFAULT_BATCHED_TOKENS,
    max_num_seqs: opt.MaxNumSeqs = opt.DEFAULT_NUM_SEQS,
    block_size: opt.BlockSize = opt.DEFAULT_BLOCK_TOKENS,
    page_size: opt.PageSize = opt.DEFAULT_PAGE_TOKENS,
    kv_pages: opt.KvPages = None,
    kv_memory: opt.KvMemory = None,
    host_kv_memory: opt.HostKvMemory = opt.DEFAULT_HOST_KV_MEMORY,
    fabric: opt.Fabric = "auto",
    fabric_host: opt.OwnHost = None,
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
    cache_verify_interval: opt.CacheVerifyInterval = default.CACHE_VERIFY_INTERVAL_S,
    watchdog_timeout: opt.Watchdog = opt.DEFAULT_WATCHDOG,
    watchdog_first_timeout: opt.WatchdogFirst = opt.DEFAULT_WATCHDOG_FIRST,
    served_model_name: opt.ServedModelName = None,
    secret: opt.Secret = None,
    log_level: opt.Level = opt.LogLevel.INFO,
    log_format: opt.Format = opt.LogFormat.CONSOLE,
    record: opt.Record = None,
    config: opt.Config = None,
) -> None:
    """Run one worker; it registers with every gateway named."""
    from baton.cli.models import locate, require
    from baton.cli.own_address import reached_at

    model = given.one_model(model, model_path)
    host, address = reached_at(gateway, host=fabric_host, bind=bind)
    pinned = _cores(cores)
    parallel = given.Parallel(tp=tp, pp=pp, nnodes=nnodes, node_rank=node_rank, rendezvous=rendezvous, rank=rank)
    share = Share(pinned, threads if threads is not None else max(1, len(pinned or available_cores()) * nnodes // (tp * pp)))
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
            host=host,
            device=fabric_device,
            backend=nixl_backend,
            params=nixl_param or (),
            protocol=mooncake_protocol,
            streams=tcp_streams,
        ),
    )
    service = given.Service(
        model=str(locate(model)),
        served_model_name=served_model_name or model,
        gateways=tuple(gateway),
        secret=secret,
        log_level=log_level,
        log_format=log_format,
        record=record,
    )
    settings = given.worker_settings(
        service, work, memory, role=role, name=name or role.value, bind=address, share=share, parallel=parallel
    )
    require(model)
    run_worker(settings)


def gateway(
    model: opt.Model = opt.DEFAULT_MODEL,
    model_path: opt.ModelPath = None,
    control: opt.Control = CONTROL,
    host: opt.Host = "127.0.0.1",
    port: opt.Port = 8000,
    api_key: opt.ApiKeys = None,
    api_key_file: opt.ApiKeyFiles = None,
    skip_server_warmup: opt.SkipWarmUp = False,
    request_timeout: opt.RequestTimeout = default.REQUEST_TIMEOUT_S,
    queue_timeout: opt.QueueTimeout = default.QUEUE_TIMEOUT_S,
    max_queued: opt.MaxQueued = default.MAX_QUEUED,
    shutdown_timeout: opt.ShutdownTimeout = default.SHUTDOWN_TIMEOUT_S,
    max_model_len: opt.MaxModelLen = None,
    generation_config: opt.GenerationConfig = default.GENERATION_CONFIG,
    override_generation_config: opt.OverrideGenerationConfig = None,
    served_model_name: opt.ServedModelName = None,
    secret: opt.Secret = None,
    log_level: opt.Level = opt.LogLevel.INFO,
    log_format: opt.Format = opt.LogFormat.CONSOLE,
    record: opt.Record = None,
    config: opt.Config = None,
) -> None:
    """Run the HTTP front; workers register with it."""
    from baton.cli.models import locate, require
    from baton.cli.ports import free_port

    model = given.one_model(model, model_path)
    sampling = given.sampling(generation_config, override_generation_config)
    settings = GatewaySettings(
        host=host,
        port=free_port(host, port),
        control=control,
        model=str(locate(model)),
        served_model_name=served_model_name or model,
        max_model_len=max_model_len,
        secret=secret,
        api_keys=tuple(api_key or ()),
        api_key_files=tuple(api_key_file or ()),
        warms_up=not skip_server_warmup,
        request_timeout_s=request_timeout,
        queue_timeout_s=queue_timeout,
        max_queued=max_queued,
        generation_config=sampling.generation_config,
        override_generation_config=sampling.override_generation_config,
        shutdown_timeout_s=shutdown_timeout,
        log_level=log_level.value,
        log_format=log_format.value,
        record=record,
    )
    require(model)
    run_gateway(settings)


def run_worker(settings: WorkerSettings) -> None:
    """The worker's composition, loaded only now: pinned first, because compute libraries look at what they may use."""
    pin(rank_cores(settings)[0])
    from baton.cli.compose_worker import run_worker as compose
    from baton.cli.logs import configure
    from baton.cli.preflight import require_startable

    configure(settings.log_level, settings.log_format)
    require_startable([settings])
    compose(settings)


def run_gateway(settings: GatewaySettings) -> None:
    """The gateway's composition, loaded only now."""
    from baton.cli.compose_gateway import run_gateway as compose
    from baton.cli.logs import configure

    configure(settings.log_level, settings.log_format)
    compose(settings)


def _cores(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    numbers = text.split(",")
    if not all(n.strip().isdecimal() for n in numbers):
        raise ConfigError(f"--cores {text}: write numbers with commas between, e.g. 0,1")
    return tuple(int(n) for n in numbers)


def rank_cores(settings: WorkerSettings) -> tuple[tuple[int, ...], ...]:
    """Logical CPUs of each rank on this machine, of this process first; none = not pinned."""
    if settings.rank is not None or not settings.cores:
        return (settings.cores,) * settings.ranks_here
    return tuple(share.cores for share in divide(settings.cores, workers=settings.ranks_here, threads=settings.threads))


def worker_flags(settings: WorkerSettings) -> tuple[str, ...]:
    """The arguments of `baton worker` that lead to these settings."""
    own = settings.fabric_settings
    flags: dict[str, object | None] = {
        "--role": settings.role.value,
        "--bind": settings.bind,
        "--name": settings.name,
        "--cores": ",".join(map(str, settings.cores)) or None,
        "--threads": settings.threads,
        "--tp": settings.tp,
        "--pp": settings.pp,
        "--nnodes": settings.nnodes,
        "--node-rank": settings.node_rank,
        "--rendezvous": settings.rendezvous,
        "--rank": settings.rank,
        "--dtype": settings.dtype,
        "--index-dtype": settings.index_dtype,
        "--max-model-len": settings.max_model_len,
        "--max-num-batched-tokens": settings.max_batched_tokens,
        "--max-num-seqs": settings.max_num_seqs,
        "--served-model-name": settings.served_model_name,
        "--fabric": next(name for name, order in opt.FABRICS.items() if order == settings.fabrics),
        "--fabric-host": own.host,
        "--fabric-device": ",".join(own.devices) or None,
        "--nixl-backend": own.nixl_backend,
        "--mooncake-protocol": own.mooncake_protocol,
        "--tcp-streams": own.tcp_streams,
        "--page-size": settings.page_tokens,
        "--kv-pages": settings.kv_pages,
        "--kv-memory": settings.kv_bytes,
        "--host-kv-memory": f"auto/{settings.host_kv_sharers}" if settings.host_kv_bytes is None else settings.host_kv_bytes,
        "--prefill-ahead": settings.prefill_ahead,
        "--fetch-back": settings.fetch_back.value,
        "--handoff-timeout": settings.handoff_timeout_s,
        "--fetch-timeout": settings.fetch_timeout_s,
        "--cache-verify-interval": settings.cache_verify_interval_s,
        "--watchdog-timeout": settings.watchdog_ms / 1000,
        "--watchdog-first-timeout": settings.watchdog_first_ms / 1000,
        "--seal": (opt.Switch.ON if settings.seal else opt.Switch.OFF).value,
        "--secret": settings.secret,
        "--log-level": settings.log_level,
        "--log-format": settings.log_format,
        "--record": settings.record,
    }
    repeated = [f"--gateway={address}" for address in settings.gateways]
    repeated += [f"--nixl-param={key}={value}" for key, value in own.nixl_params.items()]
    repeated.append("--enable-prefix-caching" if settings.prefix_caching else "--no-enable-prefix-caching")
    return (settings.model, *repeated, *_spell(flags))


def gateway_flags(settings: GatewaySettings) -> tuple[str, ...]:
    """The arguments of `baton gateway` that lead to these settings."""
    flags: dict[str, object | None] = {
        "--control": settings.control,
        "--host": settings.host,
        "--port": settings.port,
        "--max-model-len": settings.max_model_len,
        "--request-timeout": settings.request_timeout_s,
        "--queue-timeout": settings.queue_timeout_s,
        "--max-queued-requests": settings.max_queued,
        "--generation-config": settings.generation_config,
        "--override-generation-config": settings.override_generation_config,
        "--shutdown-timeout": settings.shutdown_timeout_s,
        "--served-model-name": settings.served_model_name,
        "--secret": settings.secret,
        "--log-level": settings.log_level,
        "--log-format": settings.log_format,
        "--record": settings.record,
    }
    keys = (*(f"--api-key={key}" for key in settings.api_keys), *(f"--api-key-file={file}" for file in settings.api_key_files))
    switches = () if settings.warms_up else ("--skip-server-warmup",)
    return (settings.model, *keys, *switches, *_spell(flags))


def _spell(flags: Mapping[str, object | None]) -> tuple[str, ...]:
    return tuple(f"{flag}={value}" for flag, value in flags.items() if value is not None)
