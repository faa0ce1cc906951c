"""The settings of a worker process, and those that workers and gateways have in common.

Each kind of process has one struct: WorkerSettings, GatewaySettings (`shell/gateway_settings.py`)
and ServeSettings (`cli/serve.py`). The struct is the only source of flags, keys of a TOML file,
help and defaults: to add a flag, add a field, and use it. A process that starts another one hands
it the struct as JSON (`cli/child.py`).
"""

from enum import Enum
from typing import Annotated, Literal

import msgspec

from baton.core.errors import ConfigError
from baton.core.handoff.fetch_back import FetchBack
from baton.core.rank.watchdog import WatchdogSettings
from baton.ports.fabric_settings import FABRICS, FabricSettings, require_mooncake_allowed
from baton.ports.flag import (
    ENGINE,
    HTTP,
    MEMORY,
    ONE_OR_MORE,
    PROCESSES,
    Flag,
    NumberLimits,
    require_limits,
)
from baton.ports.kv_events_config import KvEventsConfig
from baton.ports.speculative_config import SpeculativeConfig
from baton.ports.written import numbers, path, size

BLOCK_TOKENS = 16  # B: the unit of layout, transfer and seal; equal on both sides
KV_BYTES = 1 << 30  # of a pool whose size nobody gave
DAY_S = 86_400.0
PORT = NumberLimits(1, 65_535)
TIMEOUT = NumberLimits(0.001, DAY_S, "seconds")
# A busy machine keeps a thread waiting for half a second.
WATCHDOG = NumberLimits(0.5, DAY_S, "seconds", zero_is_off=True)
# A shorter interval would leave a worker no time for anything else.
VERIFY = NumberLimits(1.0, DAY_S, "seconds", zero_is_off=True)

DTYPES = {name: name for name in ("auto", "bfloat16", "float16", "float32")} | {
    "half": "float16",
    "float": "float32",
}
INDEX_DTYPES = {"auto": "auto", "fp8": "fp8", "fp8_e4m3": "fp8"}


class Role(Enum):
    """The role of a worker."""

    PREFILL = "prefill"
    DECODE = "decode"
    UNIFIED = "unified"


class HostKvMemory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Host memory of each rank, for the state of preempted requests, and for checkpoints.

    Attributes:
        nbytes: bytes for each rank; None = twice the pool, but at most a part of the free memory
        sharers: number of workers on this machine that divide the free memory
    """

    nbytes: int | None = None
    sharers: int = 1

    @staticmethod
    def read(flag: str, text: str) -> "HostKvMemory":
        """Parse a size, 0, "auto" or "auto/3".

        Raises:
            ConfigError: `text` is none of these
        """
        word, slash, sharers = text.partition("/")
        if word != "auto":
            return HostKvMemory(0 if text == "0" else size(flag, text))
        if slash and not (sharers.isascii() and sharers.isdecimal() and 0 < int(sharers) < 10**9):
            raise ConfigError(
                f"{flag} {text}: write auto/N for N workers on this machine, e.g. auto/3"
            )
        return HostKvMemory(sharers=int(sharers) if slash else 1)


class ProcessSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that gateways and workers have in common; `model` is the checkpoint's directory."""

    model: str
    served_model_name: Annotated[str, Flag("The name that clients use.", HTTP, default="MODEL")]
    max_model_len: Annotated[
        int | None,
        Flag(
            "Prompt and generated tokens of one request.",
            ENGINE,
            ("--max-model-len", "--context-length"),
            default="the model's",
            limits=ONE_OR_MORE,
        ),
    ] = None
    secret: Annotated[
        str | None,
        Flag(
            "File made by 'baton secret new', or an identity of 'baton secret identity'; encrypts "
            "control, required off loopback.",
            PROCESSES,
            read=path,
        ),
    ] = None
    members: Annotated[
        str | None,
        Flag(
            "File with the public keys of all processes, where --secret is an identity; read again "
            "when it changes.",
            PROCESSES,
            read=path,
            metavar="FILE",
            by_hand=True,
        ),
    ] = None
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Flag("From which severity on lines are logged.", PROCESSES),
    ] = "info"
    log_format: Annotated[
        Literal["console", "json"], Flag("Lines for people, or JSON for collectors.", PROCESSES)
    ] = "console"
    record: Annotated[
        str | None,
        Flag(
            "New file for all that enters the core (prompts too, as ids), for 'baton "
            "replay-log'; or a directory for it.",
            PROCESSES,
            read=path,
            metavar="FILE",
        ),
    ] = None

    def __post_init__(self) -> None:
        require_limits(self)


class WorkerSettings(ProcessSettings, frozen=True, kw_only=True):
    """Settings of one rank of a worker. The first rank of each machine starts the others there."""

    gateways: Annotated[
        tuple[str, ...],
        Flag(
            "Control address of a gateway; may be repeated. dns://NAME:PORT: a gateway at each "
            "address of the name, which is looked up again every 2 s.",
            PROCESSES,
            ("--gateway",),
            repeated=True,
            by_hand=True,
        ),
    ]
    role: Annotated[
        Role,
        Flag("What it computes.", PROCESSES, ("--role", "--disaggregation-mode"), by_hand=True),
    ] = Role.UNIFIED
    bind: Annotated[
        str,
        Flag(
            "Own control address, where decode workers reach a prefill worker.",
            PROCESSES,
            default="any port at the address of the route to the gateway",
            by_hand=True,
        ),
    ]
    name: Annotated[str, Flag("Its name in logs.", PROCESSES, default="the role", by_hand=True)]
    health_port: Annotated[
        int | None,
        Flag(
            "Port on which HTTP answers /health and /ready, for probes.",
            HTTP,
            default="no HTTP",
            limits=PORT,
            by_hand=True,
        ),
    ] = None
    health_host: Annotated[str, Flag("Address on which they are answered.", HTTP, by_hand=True)] = (
        "127.0.0.1"
    )
    cores: Annotated[
        tuple[int, ...],
        Flag(
            "Logical CPUs to be pinned to, e.g. 0,1.",
            PROCESSES,
            read=numbers,
            default="not pinned",
            by_hand=True,
        ),
    ] = ()
    threads: Annotated[
        int,
        Flag(
            "Compute threads of each rank.",
            PROCESSES,
            default="the machine's cores divided",
            limits=ONE_OR_MORE,
        ),
    ]
    tp: Annotated[
        int,
        Flag(
            "Ranks that each layer of a worker is divided over.",
            PROCESSES,
            ("--tp", "--tensor-parallel-size", "--tp-size"),
            limits=ONE_OR_MORE,
        ),
    ] = 1
    pp: Annotated[
        int,
        Flag(
            "Stages that the layers of a worker are divided over.",
            PROCESSES,
            ("--pp", "--pipeline-parallel-size", "--pp-size"),
            limits=ONE_OR_MORE,
        ),
    ] = 1
    nnodes: Annotated[
        int,
        Flag(
            "Machines that the ranks are divided over.", PROCESSES, limits=ONE_OR_MORE, by_hand=True
        ),
    ] = 1
    node_rank: Annotated[int, Flag("Which of these machines this is.", PROCESSES, by_hand=True)] = 0
    rendezvous: Annotated[
        str | None,
        Flag(
            "Where the ranks find each other, at the machine of rank 0; in a network that is "
            "trusted.",
            PROCESSES,
            ("--rendezvous", "--dist-init-addr"),
            default="a free port of loopback",
            metavar="HOST:PORT",
            by_hand=True,
        ),
    ] = None
    rank: int | None = None  # the rank of this process; None = the first of its machine
    watchdog_timeout_s: Annotated[
        float,
        Flag(
            "Seconds that a step, a hash or a host copy may show no progress, or ten times what it"
            " usually takes if that is more; then its worker is ended and started again. 0: "
            "for ever.",
            PROCESSES,
            limits=WATCHDOG,
        ),
    ] = 4.0
    watchdog_first_timeout_s: Annotated[
        float,
        Flag(
            "The same, before the first of its kind has ended, when kernels may still be compiled;"
            " and the most that it may be from then on.",
            PROCESSES,
            limits=WATCHDOG,
        ),
    ] = 300.0

    dtype: Annotated[
        str, Flag("auto, bfloat16, float16 (half) or float32 (float).", ENGINE, choices=DTYPES)
    ] = "auto"
    index_dtype: Annotated[
        str,
        Flag(
            "Index keys of sparse attention: auto (as --dtype) or fp8 (e4m3 with a scale for "
            "each token).",
            ENGINE,
            choices=INDEX_DTYPES,
        ),
    ] = "auto"
    max_batched_tokens: Annotated[
        int,
        Flag(
            "Tokens of one forward pass; longer prompts are computed in chunks.",
            ENGINE,
            ("--max-num-batched-tokens", "--chunked-prefill-size"),
            limits=ONE_OR_MORE,
        ),
    ] = 512
    speculative: Annotated[
        SpeculativeConfig,
        Flag(
            "Decode drafts tokens, from the text so far or by the model's draft layer (then "
            "prefill needs the flag too), and computes several in one step where the drafts are "
            "right. Answers are the same.",
            ENGINE,
            ("--speculative-config",),
            read=SpeculativeConfig.read,
            default="nothing is drafted",
            metavar="JSON",
        ),
    ] = SpeculativeConfig()
    max_num_seqs: Annotated[
        int,
        Flag(
            "Requests that one worker runs at once.",
            ENGINE,
            ("--max-num-seqs", "--max-running-requests"),
            limits=ONE_OR_MORE,
        ),
    ] = 128
    block_size: Annotated[
        int, Flag("Tokens in a block, the unit of transfer; 16 is the only size.", ENGINE)
    ] = BLOCK_TOKENS

    page_tokens: Annotated[
        int, Flag("Tokens in a page, a multiple of 16.", MEMORY, ("--page-size",))
    ] = 64
    kv_pages: Annotated[
        int | None,
        Flag("Pages of each rank's pool, instead of --kv-memory.", MEMORY, limits=ONE_OR_MORE),
    ] = None
    kv_bytes: Annotated[
        int | None,
        Flag(
            "Size of each rank's pool, e.g. 2GiB.",
            MEMORY,
            ("--kv-memory", "--kv-cache-memory-bytes"),
            read=size,
            default=f"{KV_BYTES >> 30}GiB",
            limits=ONE_OR_MORE,
        ),
    ] = None
    host_kv_memory: Annotated[
        HostKvMemory,
        Flag(
            "Host memory of each rank that generates, for requests that give way when its pool is"
            " full; and of each rank that computes prompts of a model with windows or recurrent"
            " state, for the ends of these: e.g. 4GiB, auto = twice the pool, but a quarter of what"
            " is free at most for all that generate, and as much for prefill (auto/3: in three"
            " workers), 0 = they are computed again.",
            MEMORY,
            read=HostKvMemory.read,
            default="auto",
        ),
    ] = HostKvMemory()
    fabrics: Annotated[
        tuple[str, ...],
        Flag(
            "How state moves: auto (the fastest that both sides have of shm, nixl, tcp; off "
            "loopback of shm and tcp), shm, nixl, mooncake or tcp.",
            MEMORY,
            ("--fabric", "--disaggregation-transfer-backend"),
            choices=FABRICS,
        ),
    ] = FABRICS["auto"]
    fabric_settings: FabricSettings = FabricSettings()
    seal: Annotated[
        bool,
        Flag(
            "Verify all state that is handed over. Off is for benchmarks: wrong tokens possible.",
            MEMORY,
            choices={"on": True, "off": False},
            metavar="<on|off>",
        ),
    ] = True
    prefill_ahead: Annotated[
        float,
        Flag(
            "Share of a prefill worker's pool for prompts that decode has not admitted; 1: all.",
            MEMORY,
        ),
    ] = 0.5
    prefix_caching: Annotated[
        bool,
        Flag(
            "Keep state for later requests with the same beginning, where the model's state "
            "allows it.",
            MEMORY,
            ("--enable-prefix-caching/--no-enable-prefix-caching", " /--disable-radix-cache"),
        ),
    ] = True
    fetch_back: Annotated[
        FetchBack,
        Flag(
            "Whether prefill fetches from decode what that has cached of a prompt: auto "
            "(where it is cheaper), always or never.",
            MEMORY,
        ),
    ] = FetchBack.AUTO
    local_prefill: Annotated[
        Literal["auto", "never"],
        Flag(
            "auto: a decode worker's pools have room for the chunks of prompts, so that gateways "
            "with this flag may have it compute them of models with windows or recurrent state "
            "too.",
            MEMORY,
        ),
    ] = "never"
    drain_timeout_s: Annotated[
        float,
        Flag(
            "Seconds that open requests may go on after SIGTERM, while the worker takes no others; "
            "a second SIGTERM, or Ctrl-C, ends it at once.",
            PROCESSES,
            limits=NumberLimits(0, DAY_S, "seconds"),
        ),
    ] = 60.0
    handoff_timeout_s: Annotated[
        float,
        Flag(
            "Seconds after which a handoff fails in which neither the request moves nor the "
            "worker that it waits for.",
            MEMORY,
            limits=TIMEOUT,
        ),
    ] = 60.0
    fetch_timeout_s: Annotated[
        float,
        Flag(
            "Seconds that a read may take from its turn on, for each 64 MiB of it.",
            MEMORY,
            limits=TIMEOUT,
        ),
    ] = 10.0
    cache_verify_interval_s: Annotated[
        float,
        Flag(
            "Seconds within which every cached page is hashed where it lies and compared "
            "with its seal, or not used; 0: never.",
            MEMORY,
            limits=VERIFY,
        ),
    ] = 60.0

    kv_events: Annotated[
        KvEventsConfig,
        Flag(
            "What enters and leaves the prefix cache is published for other routers, as JSON with "
            "vLLM's keys.",
            MEMORY,
            ("--kv-events-config",),
            read=KvEventsConfig.read,
            default="nothing is published",
            metavar="JSON",
        ),
    ] = KvEventsConfig()
    # among the workers of `baton serve`, whose ports are each that much higher
    kv_events_rank: int = 0

    @property
    def pool_bytes(self) -> int | None:
        """Bytes of each rank's pool; None if the number of pages is given instead."""
        return None if self.kv_pages is not None else self.kv_bytes or KV_BYTES

    @property
    def watchdog(self) -> WatchdogSettings:
        """Settings of the ranks' watchdogs."""
        floor_s, first_s = self.watchdog_timeout_s, self.watchdog_first_timeout_s
        return WatchdogSettings(round(floor_s * 1000), round(first_s * 1000))

    @property
    def page_blocks(self) -> int:
        """k: blocks in a page."""
        return self.page_tokens // BLOCK_TOKENS

    @property
    def own_rank(self) -> int:
        """The rank that this process is."""
        return self.rank if self.rank is not None else self.node_rank * self.ranks_here

    @property
    def room_step(self) -> int:
        """The most positions of one request that are under way at a time."""
        if self.role is Role.DECODE and self.local_prefill == "never":
            return 1
        return self.max_batched_tokens * self.pp

    @property
    def ranks_here(self) -> int:
        """Ranks of the worker on each machine."""
        return self.tp * self.pp // self.nnodes

    @property
    def others_here(self) -> range:
        """Ranks that this process starts."""
        first = self.own_rank + 1
        count = self.ranks_here - 1 if self.rank is None else 0
        return range(first, first + count)

    def __post_init__(self) -> None:
        require_limits(self)
        if self.block_size != BLOCK_TOKENS:
            raise ConfigError(
                f"--block-size {self.block_size}: blocks have {BLOCK_TOKENS} tokens on every "
                "worker;"
                " --page-size sets the unit of allocation and may differ between workers"
            )
        if self.page_tokens < BLOCK_TOKENS or self.page_tokens % BLOCK_TOKENS:
            raise ConfigError(
                f"a page of {self.page_tokens} tokens: it must be a positive "
                f"multiple of {BLOCK_TOKENS}"
            )
        if self.kv_pages is not None and self.kv_bytes is not None:
            raise ConfigError(
                "--kv-pages and --kv-memory both set the pool's size; give one of them"
            )
        if self.speculative.draft_layer and self.pp > 1:
            raise ConfigError(
                f"--speculative-config: method {self.speculative.method}: with --pp {self.pp} the "
                "draft layer and the embedding are on different stages, which is not supported "
                "yet; use --tp instead, or choose method suffix"
            )
        if not 0 < self.prefill_ahead <= 1:
            raise ConfigError(
                f"--prefill-ahead {self.prefill_ahead}: it must lie above 0, "
                "and be 1 at most (1 is no limit)"
            )
        require_mooncake_allowed(
            self.fabrics,
            self.fabric_settings.mooncake.allow_unauthenticated,
            flag="--mooncake-allow-unauthenticated",
        )
        if not self.gateways:
            raise ConfigError(
                "a worker needs at least one gateway to register with: --gateway tcp://HOST:PORT"
            )
        self._require_nodes()

    def _require_nodes(self) -> None:
        ranks = self.tp * self.pp
        if ranks % self.nnodes:
            raise ConfigError(
                f"{ranks} ranks (tp {self.tp} x pp {self.pp}) cannot be divided "
                f"evenly over {self.nnodes} nodes"
            )
        if not 0 <= self.node_rank < self.nnodes:
            raise ConfigError(
                f"node rank {self.node_rank}: with {self.nnodes} nodes it must "
                f"lie between 0 and {self.nnodes - 1}"
            )
        if self.nnodes > 1 and self.rendezvous is None:
            raise ConfigError(
                f"{self.nnodes} nodes need an address at which the ranks find "
                "each other: --rendezvous HOST:PORT"
            )
        if self.rank is not None and not (0 <= self.rank < ranks and self.rendezvous):
            raise ConfigError(
                f"rank {self.rank} of {ranks}: it must be one of them, and needs --rendezvous"
            )
