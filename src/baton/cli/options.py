"""Flags that several commands share: their spelling, their help, and what their values may be. vLLM's names where it has one."""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Annotated, TypeVar

import msgspec
import typer

from baton.cli.config_file import load
from baton.cli.sizes import parse_size
from baton.core.errors import ConfigError
from baton.ports.fabric_settings import FabricSettings
from baton.shell.settings import (
    BLOCK_TOKENS,
    MAX_QUEUED,
    PREFILL_AHEAD,
    QUEUE_TIMEOUT_S,
    REQUEST_TIMEOUT_S,
    Role,
    WorkerSettings,
)
from baton.shell.threads import Share

T = TypeVar("T")

ENGINE, MEMORY, PROCESS, HTTP = "Engine", "Memory", "Processes", "HTTP"

DEFAULT_MODEL = "smollm2"
DEFAULT_BLOCK_TOKENS = BLOCK_TOKENS
DEFAULT_PAGE_TOKENS = 64
DEFAULT_KV_MEMORY = "1GiB"
DEFAULT_HOST_KV_MEMORY = "0"
DEFAULT_BATCHED_TOKENS = 512
DEFAULT_NUM_SEQS = 128
DEFAULT_FABRIC = FabricSettings()

INDEX_DTYPES: Mapping[str, str] = {"auto": "auto", "fp8": "fp8", "fp8_e4m3": "fp8"}
DTYPES: Mapping[str, str] = {
    "auto": "auto",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "half": "float16",
    "float32": "float32",
    "float": "float32",
}
FABRICS: Mapping[str, tuple[str, ...]] = {
    "auto": ("shm", "nixl", "tcp"),  # mooncake is asked for by name: its listener serves whoever reaches it, docs/fabrics.md
    "shm": ("shm",),
    "nixl": ("nixl",),
    "mooncake": ("mooncake",),
    "tcp": ("tcp",),
}


class Switch(Enum):
    """On or off."""

    ON = "on"
    OFF = "off"


class LogFormat(Enum):
    """How a line is written."""

    CONSOLE = "console"
    JSON = "json"


class LogLevel(Enum):
    """From which severity on lines are logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


Model = Annotated[str, typer.Argument(metavar="MODEL", help="Checkpoint directory, GGUF file, Hugging Face id, or 'smollm2'.")]
ModelPath = Annotated[
    str | None, typer.Option("--model-path", "--model", metavar="MODEL", help="The same as MODEL.", rich_help_panel=ENGINE)
]
Config = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="TOML file; keys are names of flags, and flags given here win.",
        callback=load,
        is_eager=True,
        rich_help_panel=PROCESS,
    ),
]
DType = Annotated[str, typer.Option("--dtype", help="auto, bfloat16, float16 (half) or float32 (float).", rich_help_panel=ENGINE)]
IndexDType = Annotated[
    str,
    typer.Option(
        "--index-dtype",
        help="Index keys of sparse attention: auto (as --dtype) or fp8 (e4m3 with a scale for each token).",
        rich_help_panel=ENGINE,
    ),
]
MaxModelLen = Annotated[
    int | None,
    typer.Option(
        "--max-model-len",
        "--context-length",
        help="Prompt and generated tokens of one request.",
        show_default="the model's",
        rich_help_panel=ENGINE,
    ),
]
BlockSize = Annotated[
    int, typer.Option(help="Tokens in a block, the unit of transfer; 16 is the only size.", rich_help_panel=ENGINE)
]
MaxBatchedTokens = Annotated[
    int,
    typer.Option(
        "--max-num-batched-tokens",
        "--chunked-prefill-size",
        help="Tokens of one forward pass; longer prompts are computed in chunks.",
        rich_help_panel=ENGINE,
    ),
]
MaxNumSeqs = Annotated[
    int,
    typer.Option(
        "--max-num-seqs", "--max-running-requests", help="Requests that one worker runs at once.", rich_help_panel=ENGINE
    ),
]
PrefillAhead = Annotated[
    float,
    typer.Option(
        help="Share of a prefill worker's pool for prompts that decode has not admitted; 1: all.", rich_help_panel=MEMORY
    ),
]
RequestTimeout = Annotated[float, typer.Option(help="Seconds that a request may take, all in all.", rich_help_panel=HTTP)]
QueueTimeout = Annotated[
    float,
    typer.Option(help="Seconds of them that it may wait for memory; never more than half of them.", rich_help_panel=HTTP),
]
MaxQueued = Annotated[
    int, typer.Option("--max-queued-requests", help="Requests that may wait; more get 429 at once.", rich_help_panel=HTTP)
]
ServedModelName = Annotated[
    str | None, typer.Option(help="The name that clients use.", show_default="MODEL", rich_help_panel=HTTP)
]
Fabric = Annotated[
    str,
    typer.Option(
        "--fabric",
        "--disaggregation-transfer-backend",
        help="How state moves: auto (the fastest that both sides have of shm, nixl, tcp), shm, nixl, mooncake or tcp.",
        rich_help_panel=MEMORY,
    ),
]
FabricHost = Annotated[
    str, typer.Option(help="Own IP address for fabrics tcp and mooncake, as peers reach it.", rich_help_panel=MEMORY)
]
FabricDevice = Annotated[
    str | None,
    typer.Option(
        "--fabric-device",
        "--disaggregation-ib-device",
        help="Network devices of nixl or mooncake, e.g. mlx5_0,mlx5_1.",
        show_default="the engine's choice",
        rich_help_panel=MEMORY,
    ),
]
NixlBackend = Annotated[str, typer.Option(help="Plugin of NIXL.", rich_help_panel=MEMORY)]
NixlParam = Annotated[
    list[str] | None,
    typer.Option("--nixl-param", metavar="KEY=VALUE", help="Setting of NIXL's plugin; may be repeated.", rich_help_panel=MEMORY),
]
MooncakeProtocol = Annotated[str, typer.Option(help="How Mooncake moves bytes: tcp or rdma.", rich_help_panel=MEMORY)]
TcpStreams = Annotated[int, typer.Option(min=1, max=16, help="Connections of fabric tcp to a peer.", rich_help_panel=MEMORY)]
PageSize = Annotated[int, typer.Option(help="Tokens in a page, a multiple of 16.", rich_help_panel=MEMORY)]
KvPages = Annotated[int | None, typer.Option(help="Pages of each rank's pool, instead of --kv-memory.", rich_help_panel=MEMORY)]
KvMemory = Annotated[
    str | None,
    typer.Option(
        "--kv-memory",
        "--kv-cache-memory-bytes",
        help="Size of each rank's pool, e.g. 2GiB.",
        show_default=DEFAULT_KV_MEMORY,
        rich_help_panel=MEMORY,
    ),
]
HostKvMemory = Annotated[
    str,
    typer.Option(
        "--host-kv-memory",
        help="Host memory of each rank that generates, for requests that give way when its pool is full: e.g. 4GiB, auto = as"
        " much as the pool, 0 = they are computed again.",
        rich_help_panel=MEMORY,
    ),
]
Seal = Annotated[
    Switch,
    typer.Option(
        help="Verify all state that is handed over. Off is for benchmarks: wrong tokens possible.", rich_help_panel=MEMORY
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(help="Compute threads of each rank.", show_default="the machine's cores divided", rich_help_panel=PROCESS),
]
Secret = Annotated[
    str | None,
    typer.Option(help="File made by 'baton secret new'; encrypts control, required off loopback.", rich_help_panel=PROCESS),
]
Host = Annotated[str, typer.Option(help="Address on which HTTP listens.", rich_help_panel=HTTP)]
Port = Annotated[int, typer.Option(help="Port on which HTTP listens; 0 takes a free one.", rich_help_panel=HTTP)]
ApiKeys = Annotated[
    list[str] | None,
    typer.Option(
        "--api-key", metavar="KEY", help="Key that clients must send; may be repeated, and shows in ps.", rich_help_panel=HTTP
    ),
]
ApiKeyFiles = Annotated[
    list[str] | None,
    typer.Option("--api-key-file", metavar="FILE", help="File of keys, one on each line; may be repeated.", rich_help_panel=HTTP),
]
SkipWarmUp = Annotated[
    bool,
    typer.Option(
        "--skip-server-warmup", help="Be ready without a request of its own through every pair of workers.", rich_help_panel=HTTP
    ),
]
Record = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="New file for all that enters the core (prompts too, as ids), for 'baton replay-log'; or a directory for it.",
        rich_help_panel=PROCESS,
    ),
]
RecordDirectory = Annotated[
    str | None,
    typer.Option(
        "--record",
        metavar="DIR",
        help="Directory in which each process writes all that enters its core (prompts too, as ids), for 'baton replay-log'.",
        rich_help_panel=PROCESS,
    ),
]
Format = Annotated[
    LogFormat, typer.Option("--log-format", help="Lines for people, or JSON for collectors.", rich_help_panel=PROCESS)
]
Level = Annotated[LogLevel, typer.Option("--log-level", help="From which severity on lines are logged.", rich_help_panel=PROCESS)]
ServeControl = Annotated[
    str | None,
    typer.Option(help="Address on which workers register.", show_default="a free port of loopback", rich_help_panel=PROCESS),
]
Control = Annotated[str, typer.Option(help="Address on which workers register.", rich_help_panel=PROCESS)]
WorkerRole = Annotated[Role, typer.Option("--role", "--disaggregation-mode", help="What it computes.", rich_help_panel=PROCESS)]
Gateways = Annotated[
    list[str], typer.Option("--gateway", help="Control address of a gateway; may be repeated.", rich_help_panel=PROCESS)
]
Bind = Annotated[
    str, typer.Option(help="Own control address, where decode workers reach a prefill worker.", rich_help_panel=PROCESS)
]
Name = Annotated[str | None, typer.Option(help="Its name in logs.", show_default="the role", rich_help_panel=PROCESS)]
Cores = Annotated[
    str | None, typer.Option(help="Logical CPUs to be pinned to, e.g. 0,1.", show_default="not pinned", rich_help_panel=PROCESS)
]


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
    """How much is computed at once, as given on the command line."""

    dtype: str
    index_dtype: str
    max_model_len: int | None
    max_batched_tokens: int
    max_num_seqs: int
    prefill_ahead: float = PREFILL_AHEAD


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """How long requests may take and wait, as given on the command line."""

    request_timeout_s: float = REQUEST_TIMEOUT_S
    queue_timeout_s: float = QUEUE_TIMEOUT_S
    max_queued: int = MAX_QUEUED


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Where state lies and how it moves, as given on the command line."""

    block_size: int
    page_size: int
    kv_pages: int | None
    kv_memory: str | None
    fabric: str
    seal: Switch
    host_kv_memory: str = DEFAULT_HOST_KV_MEMORY
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
        host_kv_bytes=_host_bytes(memory.host_kv_memory),
        max_batched_tokens=work.max_batched_tokens,
        max_num_seqs=work.max_num_seqs,
        prefill_ahead=work.prefill_ahead,
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


def _host_bytes(memory: str) -> int | None:
    """Bytes; None = as much as the pools."""
    said = {"auto": None, "0": 0}
    return said[memory] if memory in said else parse_size(memory, what="--host-kv-memory")


def _pool_size(*, pages: int | None, memory: str | None) -> tuple[int | None, int | None]:
    """(pages, bytes), of which one is None."""
    if pages is not None and memory is not None:
        raise ConfigError("--kv-pages and --kv-memory both set the pool's size; give one of them")
    return (pages, None) if pages is not None else (None, parse_size(memory or DEFAULT_KV_MEMORY, what="--kv-memory"))
