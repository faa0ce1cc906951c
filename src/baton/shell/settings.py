"""What the operator decides about one process. Read from the command line by cli, never from the environment."""

from enum import Enum

import msgspec

from baton.core.errors import ConfigError
from baton.core.fetch_back import FetchBack
from baton.core.watchdog import WatchdogSettings
from baton.ports.fabric_settings import FabricSettings

BLOCK_TOKENS = 16  # B: the unit of layout, transfer and seal; equal on both sides
PREFILL_AHEAD = 0.5
HANDOFF_TIMEOUT_S, FETCH_TIMEOUT_S = 60.0, 10.0
CACHE_VERIFY_INTERVAL_S = 60.0
REQUEST_TIMEOUT_S, QUEUE_TIMEOUT_S, MAX_QUEUED = 600.0, 30.0, 1024
GENERATION_CONFIG = "auto"
SHUTDOWN_TIMEOUT_S = 60.0
LEAST_TIMEOUT_S, MOST_TIMEOUT_S = 0.001, 86_400.0
LEAST_VERIFY_INTERVAL_S = 1.0  # a shorter one would be all that a worker does
WATCHDOG_MS, WATCHDOG_FIRST_MS = 4_000, 300_000
LEAST_WATCHDOG_S = 0.5  # a busy machine keeps a thread waiting for so long


class Role(Enum):
    """What a worker does."""

    PREFILL = "prefill"
    DECODE = "decode"
    UNIFIED = "unified"


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One worker.

    Attributes:
        name: for logs and the ledger, e.g. "prefill-0"
        model: directory of the checkpoint
        served_model_name: what manifests and clients call it
        dtype: "auto" (the checkpoint's), "bfloat16", "float32" or "float16"
        max_model_len: prompt + generated tokens of one request; None = the checkpoint's limit
        page_tokens: tokens in a page, a multiple of 16
        kv_pages: pages of the pool; None = from `kv_bytes`
        kv_bytes: bytes of the pool; None = from `kv_pages`, and a share of the free memory if both are None
        host_kv_bytes: host memory of each rank for the state of requests that give way; None = from its pools and what is free
        host_kv_sharers: workers that generate on this machine, where `host_kv_bytes` is None: what is free is for all of them
        max_batched_tokens: tokens of one forward pass
        max_num_seqs: requests that run at once
        threads: compute threads
        cores: logical CPUs that the process is pinned to; empty = not pinned
        fabrics: in order of preference, e.g. ("shm", "nixl")
        fabric_settings: how they are set up
        seal: whether what is handed over is verified; False is for benchmarks
        gateways: control addresses to dial, e.g. "tcp://127.0.0.1:5555"
        secret: file of the shared secret, asked for off loopback
        bind: own control address, where decode leaders dial; port 0 = any free one
        log_level: "debug", "info", "warning" or "error"
        log_format: "console" or "json"
        tp, pp: ranks that divide each layer's heads, and stages that divide the layers
        nnodes, node_rank: machines that the ranks are divided over, and which of them this is
        rendezvous: HOST:PORT where the ranks find each other; None = a free port of loopback
        rank: which of them this process is; None = the first of its machine, which starts the others there
        handoff_timeout_s: a handoff fails in which for so long neither the request moves nor the worker that it waits for
        fetch_timeout_s: deadline of one read from its turn on, for each 64 MiB
        index_dtype: of the index keys of sparse attention: "auto" (as dtype) or "fp8"
        record: file, or directory for one, to which what enters the core is written; None = nowhere
        prefill_ahead: share of a prefill worker's pool for prompts that decode has not admitted, above 0; 1 = no limit
        prefix_caching: whether state is kept for later requests with the same beginning
        fetch_back: whether prefill fetches what decode has cached of a prompt, and decode lends it
        cache_verify_interval_s: within which every cached page is hashed where it lies, or is not used; 0 = never
        watchdog_ms: for so long a step, a hash or a host copy may show no progress; 0 = for ever
        watchdog_first_ms: the same, before the first of its kind has ended
    """

    role: Role
    name: str
    model: str
    served_model_name: str
    dtype: str
    max_model_len: int | None
    page_tokens: int
    kv_pages: int | None
    kv_bytes: int | None
    max_batched_tokens: int
    max_num_seqs: int
    threads: int
    cores: tuple[int, ...]
    fabrics: tuple[str, ...]
    fabric_settings: FabricSettings = FabricSettings()
    host_kv_bytes: int | None = None
    host_kv_sharers: int = 1
    seal: bool
    gateways: tuple[str, ...]
    secret: str | None
    bind: str
    log_level: str
    tp: int = 1
    pp: int = 1
    nnodes: int = 1
    node_rank: int = 0
    rendezvous: str | None = None
    rank: int | None = None
    handoff_timeout_s: float = HANDOFF_TIMEOUT_S
    fetch_timeout_s: float = FETCH_TIMEOUT_S
    log_format: str = "console"
    record: str | None = None
    index_dtype: str = "auto"
    prefill_ahead: float = PREFILL_AHEAD
    prefix_caching: bool = True
    fetch_back: FetchBack = FetchBack.AUTO
    cache_verify_interval_s: float = CACHE_VERIFY_INTERVAL_S
    watchdog_ms: int = WATCHDOG_MS
    watchdog_first_ms: int = WATCHDOG_FIRST_MS

    @property
    def watchdog(self) -> WatchdogSettings:
        """What the ranks' watchdogs go by."""
        return WatchdogSettings(self.watchdog_ms, self.watchdog_first_ms)

    @property
    def page_blocks(self) -> int:
        """k: blocks in a page."""
        return self.page_tokens // BLOCK_TOKENS

    @property
    def own_rank(self) -> int:
        """The rank that this process is."""
        return self.rank if self.rank is not None else self.node_rank * self.ranks_here

    @property
    def ranks_here(self) -> int:
        """Ranks of the worker on each machine."""
        return self.tp * self.pp // self.nnodes

    @property
    def others_here(self) -> range:
        """Ranks that this process starts."""
        first = self.own_rank + 1
        return range(first, first + self.ranks_here - 1) if self.rank is None else range(first, first)

    def __post_init__(self) -> None:
        if self.page_tokens < BLOCK_TOKENS or self.page_tokens % BLOCK_TOKENS:
            raise ConfigError(f"a page of {self.page_tokens} tokens: it must be a positive multiple of {BLOCK_TOKENS}")
        if self.kv_pages is not None and self.kv_bytes is not None:
            raise ConfigError("the pool's size is given twice, in pages and in bytes; give one of them")
        _require_positive(
            **{
                "maximum model length": self.max_model_len,
                "number of pages": self.kv_pages,
                "pool size": self.kv_bytes,
                "token budget of a step": self.max_batched_tokens,
                "number of running requests": self.max_num_seqs,
                "number of threads": self.threads,
                "tensor parallel width": self.tp,
                "pipeline parallel width": self.pp,
                "number of nodes": self.nnodes,
                "number of workers that share host memory": self.host_kv_sharers,
            }
        )
        self._require_nodes()
        if not 0 < self.prefill_ahead <= 1:
            raise ConfigError(f"--prefill-ahead {self.prefill_ahead}: it must lie above 0, and be 1 at most (1 is no limit)")
        for flag, value in (("--handoff-timeout", self.handoff_timeout_s), ("--fetch-timeout", self.fetch_timeout_s)):
            _require_timeout(flag, value)
        verify = self.cache_verify_interval_s
        if verify and not LEAST_VERIFY_INTERVAL_S <= verify <= MOST_TIMEOUT_S:
            limits = f"{LEAST_VERIFY_INTERVAL_S:g} and {MOST_TIMEOUT_S:g}"
            raise ConfigError(f"--cache-verify-interval {verify:g}: it must lie between {limits} seconds; 0 switches it off")
        for flag, milliseconds in (
            ("--watchdog-timeout", self.watchdog_ms),
            ("--watchdog-first-timeout", self.watchdog_first_ms),
        ):
            if milliseconds and not LEAST_WATCHDOG_S <= milliseconds / 1000 <= MOST_TIMEOUT_S:
                limits = f"0 (off), or from {LEAST_WATCHDOG_S:g} to {MOST_TIMEOUT_S:g} seconds"
                raise ConfigError(f"{flag} {milliseconds / 1000:g}: it must be {limits}")
        if not self.gateways:
            raise ConfigError("a worker needs at least one gateway to register with")
        if not self.fabrics:
            raise ConfigError("a worker needs at least one fabric")

    def _require_nodes(self) -> None:
        ranks = self.tp * self.pp
        if ranks % self.nnodes:
            raise ConfigError(f"{ranks} ranks (tp {self.tp} x pp {self.pp}) cannot be divided evenly over {self.nnodes} nodes")
        if not 0 <= self.node_rank < self.nnodes:
            raise ConfigError(f"node rank {self.node_rank}: with {self.nnodes} nodes it must lie between 0 and {self.nnodes - 1}")
        if self.nnodes > 1 and self.rendezvous is None:
            raise ConfigError(f"{self.nnodes} nodes need an address at which the ranks find each other: --rendezvous HOST:PORT")
        if self.rank is not None and not (0 <= self.rank < ranks and self.rendezvous):
            raise ConfigError(f"rank {self.rank} of {ranks}: it must be one of them, and needs --rendezvous")


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """One gateway process; its HTTP limits are gateway.settings.

    Attributes:
        host, port: where HTTP listens
        control: address where workers register, e.g. "tcp://127.0.0.1:5555"
        model: directory of the checkpoint (its tokenizer and config are read)
        served_model_name: what clients call it
        max_model_len: as the workers'; None = the checkpoint's limit
        secret: file of the shared secret, asked for off loopback
        api_keys: bearer tokens of /v1; without any, everybody is served
        api_key_files: files that hold more of them, one on each line
        warms_up: whether every new pair of workers serves a request of our own before the service is ready
        log_level: "debug", "info", "warning" or "error"
        log_format: "console" or "json"
        index_dtype: of the index keys of sparse attention: "auto" (as dtype) or "fp8"
        record: file, or directory for one, to which what enters the core is written; None = nowhere
        request_timeout_s: most that a request may take
        queue_timeout_s: most that it may wait for memory to generate in
        max_queued: requests that may wait
        generation_config: where sampling defaults come from: "auto" (the model's file), "vllm" (no file) or a folder
        override_generation_config: JSON object of sampling defaults that win over that file
        shutdown_timeout_s: how long open requests may go on after the signal to end; 0 = not at all
    """

    host: str
    port: int
    control: str
    model: str
    served_model_name: str
    max_model_len: int | None
    secret: str | None
    api_keys: tuple[str, ...]
    log_level: str
    api_key_files: tuple[str, ...] = ()
    warms_up: bool = True
    log_format: str = "console"
    record: str | None = None
    request_timeout_s: float = REQUEST_TIMEOUT_S
    queue_timeout_s: float = QUEUE_TIMEOUT_S
    max_queued: int = MAX_QUEUED
    generation_config: str = GENERATION_CONFIG
    override_generation_config: str | None = None
    shutdown_timeout_s: float = SHUTDOWN_TIMEOUT_S

    def __post_init__(self) -> None:
        for flag, value in (("--request-timeout", self.request_timeout_s), ("--queue-timeout", self.queue_timeout_s)):
            _require_timeout(flag, value)
        if not 0 <= self.shutdown_timeout_s <= MOST_TIMEOUT_S:
            limits = f"from 0 (at once) to {MOST_TIMEOUT_S:g} seconds"
            raise ConfigError(f"--shutdown-timeout {self.shutdown_timeout_s:g}: it must lie within {limits}")
        if self.max_queued < 1:
            raise ConfigError(f"--max-queued-requests {self.max_queued}: at least 1 must be able to wait")
        if not 1 <= self.port <= 65_535:
            raise ConfigError(f"port {self.port}: it must lie between 1 and 65535")
        _require_positive(**{"maximum model length": self.max_model_len})


def _require_timeout(flag: str, value: float) -> None:
    if not LEAST_TIMEOUT_S <= value <= MOST_TIMEOUT_S:
        limits = f"from {LEAST_TIMEOUT_S:g} to {MOST_TIMEOUT_S:g} seconds"
        raise ConfigError(f"{flag} {value:g}: it must lie within {limits}")


def _require_positive(**counts: int | None) -> None:
    for what, count in counts.items():
        if count is not None and count < 1:
            raise ConfigError(f"the {what} is {count}; it must be at least 1")
