"""Flags that several commands share: their spelling, their help, and what their values may be. vLLM's names where it has one."""

from collections.abc import Mapping
from enum import Enum
from typing import Annotated

import typer

from baton.cli.config_file import load
from baton.core.fetch_back import FetchBack
from baton.ports.fabric_settings import FabricSettings
from baton.shell.settings import BLOCK_TOKENS, WATCHDOG_FIRST_MS, WATCHDOG_MS, Role

ENGINE, MEMORY, PROCESS, HTTP = "Engine", "Memory", "Processes", "HTTP"

DEFAULT_MODEL = "smollm2"
DEFAULT_BLOCK_TOKENS = BLOCK_TOKENS
DEFAULT_PAGE_TOKENS = 64
DEFAULT_KV_MEMORY = "1GiB"
DEFAULT_HOST_KV_MEMORY = "auto"
DEFAULT_BATCHED_TOKENS = 512
DEFAULT_NUM_SEQS = 128
DEFAULT_FETCH_BACK = FetchBack.AUTO
DEFAULT_FABRIC = FabricSettings()
DEFAULT_WATCHDOG, DEFAULT_WATCHDOG_FIRST = WATCHDOG_MS / 1000, WATCHDOG_FIRST_MS / 1000

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
Watchdog = Annotated[
    float,
    typer.Option(
        "--watchdog-timeout",
        help="Seconds that a step, a hash or a host copy may show no progress, or ten times what it usually takes if that is"
        " more; then its worker is ended and started again. 0: for ever.",
        rich_help_panel=PROCESS,
    ),
]
WatchdogFirst = Annotated[
    float,
    typer.Option(
        "--watchdog-first-timeout",
        help="The same, before the first of its kind has ended, when kernels may still be compiled.",
        rich_help_panel=PROCESS,
    ),
]
PrefixCaching = Annotated[
    bool,
    typer.Option(
        "--enable-prefix-caching/--no-enable-prefix-caching",
        " /--disable-radix-cache",
        help="Keep state for later requests with the same beginning, where the model's state allows it.",
        rich_help_panel=MEMORY,
    ),
]
FetchBackMode = Annotated[
    FetchBack,
    typer.Option(
        "--fetch-back",
        help="Whether prefill fetches from decode what that has cached of a prompt: auto (where it is cheaper), always or never.",
        rich_help_panel=MEMORY,
    ),
]
HandoffTimeout = Annotated[
    float,
    typer.Option(
        help="Seconds after which a handoff fails in which neither the request moves nor the worker that it waits for.",
        rich_help_panel=MEMORY,
    ),
]
FetchTimeout = Annotated[
    float,
    typer.Option(help="Seconds that a read may take from its turn on, for each 64 MiB of it.", rich_help_panel=MEMORY),
]
CacheVerifyInterval = Annotated[
    float,
    typer.Option(
        "--cache-verify-interval",
        help="Seconds within which every cached page is hashed where it lies and compared with its seal, or not used; 0: never.",
        rich_help_panel=MEMORY,
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
GenerationConfig = Annotated[
    str,
    typer.Option(
        "--generation-config",
        metavar="auto|vllm|DIR",
        help="Sampling defaults: auto (the model's generation_config.json), vllm (neutral), or a folder that holds such a file.",
        rich_help_panel=HTTP,
    ),
]
OverrideGenerationConfig = Annotated[
    str | None,
    typer.Option(
        "--override-generation-config",
        metavar="JSON",
        help="Sampling defaults that win over that file, e.g. '{\"temperature\": 0.2}'.",
        rich_help_panel=HTTP,
    ),
]
ShutdownTimeout = Annotated[
    float,
    typer.Option(
        "--shutdown-timeout",
        help="Seconds that open requests may go on after SIGTERM or Ctrl-C; a second one ends them at once.",
        rich_help_panel=HTTP,
    ),
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
OwnHost = Annotated[
    str | None,
    typer.Option(
        "--fabric-host",
        help="Own IP address for fabrics tcp and mooncake, as peers reach it.",
        show_default="that of the route to the gateway",
        rich_help_panel=MEMORY,
    ),
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
        help="Host memory of each rank that generates, for requests that give way when its pool is full: e.g. 4GiB, auto = twice"
        " the pool, but a quarter of what is free at most for all that generate (auto/3: in three workers), 0 = they are computed"
        " again.",
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
    str | None,
    typer.Option(
        help="Own control address, where decode workers reach a prefill worker.",
        show_default="any port at the address of the route to the gateway",
        rich_help_panel=PROCESS,
    ),
]
Name = Annotated[str | None, typer.Option(help="Its name in logs.", show_default="the role", rich_help_panel=PROCESS)]
Cores = Annotated[
    str | None, typer.Option(help="Logical CPUs to be pinned to, e.g. 0,1.", show_default="not pinned", rich_help_panel=PROCESS)
]
