"""What was given on the command line, gathered by concept, and the settings of a worker that follow from it."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from baton.cli.options import (
    DEFAULT_FABRIC,
    DEFAULT_HOST_KV_MEMORY,
    DEFAULT_KV_MEMORY,
    DEFAULT_MODEL,
    DTYPES,
    FABRICS,
    INDEX_DTYPES,
    LogFormat,
    LogLevel,
    Switch,
)
from baton.cli.sizes import parse_size
from baton.core.errors import ConfigError
from baton.core.fetch_back import FetchBack
from baton.ports.fabric_settings import FabricSettings
from baton.shell import settings as default
from baton.shell.settings import BLOCK_TOKENS, Role, WorkerSettings
from baton.shell.threads import Share

AUTO = re.compile(r"auto(?:/(\d{1,9}))?", re.ASCII)  # auto/3: for each of three workers on a machine
T = TypeVar("T")


def one_model(argument: str, option: str | None) -> str:
    """MODEL, however it was given. Raises ConfigError: twice, and differently."""
    if option is not None and argument not in (DEFAULT_MODEL, option):
        raise ConfigError(f"MODEL is {argument!r} and --model-path {option!r}; give one of them")
    return argument if option is None else option


class Parallel(msgspec.Struct, frozen=True):
    """How one worker is divided over ranks, as given on the command line."""

    tp: int = 1
    pp: int = 1
    nnodes: int = 1
    node_rank: int = 0
    rendezvous: str | None = None
    rank: int | None = None


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """How much is computed at once, and how long that may take, as given on the command line."""

    dtype: str
    index_dtype: str
    max_model_len: int | None
    max_batched_tokens: int
    max_num_seqs: int
    prefill_ahead: float = default.PREFILL_AHEAD
    watchdog_s: float = default.WATCHDOG_MS / 1000
    watchdog_first_s: float = default.WATCHDOG_FIRST_MS / 1000


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """How long requests may take and wait, as given on the command line."""

    request_timeout_s: float = default.REQUEST_TIMEOUT_S
    queue_timeout_s: float = default.QUEUE_TIMEOUT_S
    max_queued: int = default.MAX_QUEUED
    shutdown_timeout_s: float = default.SHUTDOWN_TIMEOUT_S


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling defaults, as given on the command line; a folder by its absolute path."""

    generation_config: str = default.GENERATION_CONFIG
    override_generation_config: str | None = None


def sampling(generation_config: str, override: str | None) -> Sampling:
    """What is given, checked as far as it can be without the model.

    Raises:
        ConfigError: no such folder, or an override that is not JSON or holds a key or value that cannot be
    """
    if (generation_config, override) == (default.GENERATION_CONFIG, None):
        return Sampling()
    from baton.gateway import generation_config as files

    files.require_source(generation_config)
    if override is not None:
        files.parse_override(override)
    source = generation_config if generation_config in files.WORDS else os.path.abspath(generation_config)
    return Sampling(generation_config=source, override_generation_config=override)


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Where state lies and how it moves, as given on the command line."""

    block_size: int
    page_size: int
    kv_pages: int | None
    kv_memory: str | None
    fabric: str
    seal: Switch
    host_kv_memory: str = DEFAULT_HOST_KV_MEMORY
    prefix_caching: bool = True
    fetch_back: FetchBack = FetchBack.AUTO
    handoff_timeout_s: float = default.HANDOFF_TIMEOUT_S
    fetch_timeout_s: float = default.FETCH_TIMEOUT_S
    cache_verify_interval_s: float = default.CACHE_VERIFY_INTERVAL_S
    fabric_settings: FabricSettings = DEFAULT_FABRIC


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """What all processes of a service share."""

    model: str  # directory
    served_model_name: str
    gateways: tuple[str, ...]
    secret: str | None
    log_level: LogLevel
    log_format: LogFormat = LogFormat.CONSOLE
    record: str | None = None


def worker_settings(
    service: Service, work: Work, memory: Memory, *, role: Role, name: str, bind: str, share: Share, parallel: Parallel
) -> WorkerSettings:
    """One worker's settings.

    Raises:
        ConfigError: a value that cannot be, by the name of its flag
    """
    _require_block_size(memory.block_size)
    pages, nbytes = _pool_size(pages=memory.kv_pages, memory=memory.kv_memory)
    host_bytes, sharers = _host_memory(memory.host_kv_memory)
    return WorkerSettings(
        role=role,
        name=name,
        model=service.model,
        served_model_name=service.served_model_name,
        dtype=_choose(DTYPES, work.dtype, flag="--dtype"),
        index_dtype=_choose(INDEX_DTYPES, work.index_dtype, flag="--index-dtype"),
        max_model_len=work.max_model_len,
        page_tokens=memory.page_size,
        kv_pages=pages,
        kv_bytes=nbytes,
        host_kv_bytes=host_bytes,
        host_kv_sharers=sharers,
        max_batched_tokens=work.max_batched_tokens,
        max_num_seqs=work.max_num_seqs,
        prefill_ahead=work.prefill_ahead,
        watchdog_ms=round(work.watchdog_s * 1000),
        watchdog_first_ms=round(work.watchdog_first_s * 1000),
        prefix_caching=memory.prefix_caching,
        fetch_back=memory.fetch_back,
        handoff_timeout_s=memory.handoff_timeout_s,
        fetch_timeout_s=memory.fetch_timeout_s,
        cache_verify_interval_s=memory.cache_verify_interval_s,
        threads=share.threads,
        cores=share.cores,
        tp=parallel.tp,
        pp=parallel.pp,
        nnodes=parallel.nnodes,
        node_rank=parallel.node_rank,
        rendezvous=parallel.rendezvous,
        rank=parallel.rank,
        fabrics=_choose(FABRICS, memory.fabric, flag="--fabric"),
        fabric_settings=memory.fabric_settings,
        seal=memory.seal is Switch.ON,
        gateways=service.gateways,
        secret=service.secret,
        bind=bind,
        log_level=service.log_level.value,
        log_format=service.log_format.value,
        record=service.record,
    )


def fabric_settings(
    *, host: str, device: str | None, backend: str, params: Sequence[str], protocol: str, streams: int
) -> FabricSettings:
    """What the flags of data planes say.

    Raises:
        ConfigError: a parameter that is not KEY=VALUE
    """
    pairs = [param.partition("=") for param in params]
    if bad := [param for param, (key, equals, _) in zip(params, pairs, strict=True) if not (key and equals)]:
        raise ConfigError(f"--nixl-param {bad[0]}: write KEY=VALUE, e.g. --nixl-param num_threads=2")
    return FabricSettings(
        host=host,
        devices=tuple(name for name in (device or "").split(",") if name),
        nixl_backend=backend,
        nixl_params={key: value for key, _, value in pairs},
        mooncake_protocol=_choose({"tcp": "tcp", "rdma": "rdma"}, protocol, flag="--mooncake-protocol"),
        tcp_streams=streams,
    )


def _choose(table: Mapping[str, T], value: str, *, flag: str) -> T:
    if value not in table:
        raise ConfigError(f"{flag} {value}: there is {', '.join(table)}")
    return table[value]


def _require_block_size(value: int) -> None:
    if value != BLOCK_TOKENS:
        raise ConfigError(
            f"--block-size {value}: blocks have {BLOCK_TOKENS} tokens on every worker;"
            " --page-size sets the unit of allocation and may differ between workers"
        )


def _host_memory(said: str) -> tuple[int | None, int]:
    """(bytes, workers that share what is free); bytes are None where they follow from the pools and from what is free."""
    if shared := AUTO.fullmatch(said):
        return None, int(shared.group(1) or 1)
    return 0 if said == "0" else parse_size(said, what="--host-kv-memory"), 1


def _pool_size(*, pages: int | None, memory: str | None) -> tuple[int | None, int | None]:
    """(pages, bytes), of which one is None."""
    if pages is not None and memory is not None:
        raise ConfigError("--kv-pages and --kv-memory both set the pool's size; give one of them")
    return (pages, None) if pages is not None else (None, parse_size(memory or DEFAULT_KV_MEMORY, what="--kv-memory"))
