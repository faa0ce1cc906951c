"""The settings of a gateway process."""

import os
from typing import Annotated, Literal

import msgspec

from baton.ports.flag import HTTP, ONE_OR_MORE, PROCESSES, Flag, NumberLimits, require_limits
from baton.ports.written import path, texts, url_path
from baton.shell.settings import DAY_S, PORT, TIMEOUT, ProcessSettings


def word_or_folder(_flag: str, text: str) -> str:
    """Return the known word unchanged, or the absolute path of a folder."""
    return text if text in ("auto", "vllm") else os.path.abspath(text)


class CorsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which web pages of other origins may use the service from a browser."""

    allowed_origins: Annotated[
        tuple[str, ...],
        Flag(
            "Origins of web pages that may use the service from a browser (CORS).",
            HTTP,
            read=texts,
            default="none",
            metavar="JSON",
        ),
    ] = ()
    allowed_methods: Annotated[
        tuple[str, ...],
        Flag("Methods that they may use.", HTTP, read=texts, default='["*"]', metavar="JSON"),
    ] = ("*",)
    allowed_headers: Annotated[
        tuple[str, ...],
        Flag("Headers that they may send.", HTTP, read=texts, default='["*"]', metavar="JSON"),
    ] = ("*",)
    allow_credentials: Annotated[
        bool, Flag("Browsers may send cookies and other credentials of theirs.", HTTP)
    ] = False


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The files for HTTPS."""

    ssl_keyfile: Annotated[
        str | None,
        Flag("Private key of the certificate, in PEM format.", HTTP, read=path, metavar="FILE"),
    ] = None
    ssl_certfile: Annotated[
        str | None,
        Flag(
            "Certificate in PEM format; HTTPS is served instead of HTTP.",
            HTTP,
            read=path,
            metavar="FILE",
        ),
    ] = None
    ssl_ca_certs: Annotated[
        str | None,
        Flag(
            "Certificates of those who sign clients' certificates, in PEM format.",
            HTTP,
            read=path,
            metavar="FILE",
        ),
    ] = None
    ssl_cert_reqs: Annotated[
        int,
        Flag(
            "Certificates of clients: 0 none is asked for, 1 checked if there is one, 2 required.",
            HTTP,
            limits=NumberLimits(0, 2),
        ),
    ] = 0

    def __post_init__(self) -> None:
        require_limits(self)


class Shared(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the gateways of one `baton serve` share.

    Attributes:
        listener: the descriptor of the socket that they inherit (listener.py)
        counts: the folder with the sockets over which they tell each other what they count; None:
            there is only one gateway
        demo: whether the live page may break workers (`--demo`)
    """

    listener: int
    counts: str | None = None
    demo: bool = False


class GatewaySettings(ProcessSettings, frozen=True, kw_only=True):
    """Settings of one gateway. Its HTTP side has more
    (`gateway/settings.py`), from files and the model."""

    name: str = "gateway"
    shared: Shared | None = None
    host: Annotated[str, Flag("Address on which HTTP listens.", HTTP)] = "127.0.0.1"
    port: Annotated[
        int,
        Flag("Port on which HTTP listens; 0 takes a free one.", HTTP, limits=PORT),
    ] = 8000
    control: Annotated[str, Flag("Address on which workers register.", PROCESSES)] = (
        "tcp://127.0.0.1:5555"
    )
    api_keys: Annotated[
        tuple[str, ...],
        Flag(
            "Key that clients must send; may be repeated, and shows in ps.",
            HTTP,
            ("--api-key",),
            repeated=True,
            metavar="KEY",
        ),
    ] = ()
    api_key_files: Annotated[
        tuple[str, ...],
        Flag(
            "File of keys, one on each line, plain or hashed; may be repeated.",
            HTTP,
            ("--api-key-file",),
            read=path,
            repeated=True,
            metavar="FILE",
        ),
    ] = ()
    skip_server_warmup: Annotated[
        bool, Flag("Be ready without a request of its own through every pair of workers.", HTTP)
    ] = False
    request_timeout_s: Annotated[
        float, Flag("Seconds that a request may take, all in all.", HTTP, limits=TIMEOUT)
    ] = 600.0
    queue_timeout_s: Annotated[
        float,
        Flag(
            "Seconds of them that it may wait for memory; never more than half of them.",
            HTTP,
            limits=TIMEOUT,
        ),
    ] = 30.0
    max_queued: Annotated[
        int,
        Flag(
            "Requests that may wait; more get 429 at once.",
            HTTP,
            ("--max-queued-requests",),
            limits=ONE_OR_MORE,
        ),
    ] = 1024
    failover: Annotated[
        Literal["wait", "fail"],
        Flag(
            "An answer whose decode worker is lost, when there is no other: it waits for the next "
            "one (until --request-timeout) and goes on, or ends with an error.",
            HTTP,
        ),
    ] = "wait"
    routing_policy: Annotated[
        Literal["priced", "round_robin", "least_load", "cache_aware", "lmetric", "mooncake"],
        Flag("Which worker computes a prompt, of those that have room for it.", HTTP),
    ] = "priced"
    local_prefill: Annotated[
        Literal["auto", "never"],
        Flag(
            "auto: a decode worker computes a prompt itself where that costs all requests less "
            "time than to have it computed by a prefill worker.",
            HTTP,
        ),
    ] = "never"
    otlp_traces_endpoint: Annotated[
        str | None,
        Flag(
            "Where an OpenTelemetry collector takes spans by HTTP, such as "
            "http://127.0.0.1:4318/v1/traces; needs baton-llm[otel].",
            HTTP,
            metavar="URL",
        ),
    ] = None
    shutdown_timeout_s: Annotated[
        float,
        Flag(
            "Seconds that open requests may go on after SIGTERM or Ctrl-C; a second one ends "
            "them at once.",
            HTTP,
            limits=NumberLimits(0, DAY_S, "seconds"),
        ),
    ] = 60.0
    generation_config: Annotated[
        str,
        Flag(
            "Sampling defaults: auto (the model's generation_config.json), vllm (neutral), "
            "or a folder that holds such a file.",
            HTTP,
            read=word_or_folder,
            metavar="auto|vllm|DIR",
        ),
    ] = "auto"
    override_generation_config: Annotated[
        str | None,
        Flag(
            "Sampling defaults that win over that file, e.g. '{\"temperature\": 0.2}'.",
            HTTP,
            metavar="JSON",
        ),
    ] = None
    chat_template: Annotated[
        str | None,
        Flag(
            "File with the chat template, instead of the model's own.",
            HTTP,
            read=path,
            metavar="FILE",
        ),
    ] = None
    tool_call_parser: Annotated[
        str,
        Flag(
            "How the model writes tool calls: auto (by its files), none, or a name as vLLM's: "
            "hermes, llama3_json, mistral, ...",
            HTTP,
            metavar="auto|none|NAME",
        ),
    ] = "auto"
    reasoning_parser: Annotated[
        str,
        Flag(
            "How the model writes its reasoning: auto (by its files), none, or a name as vLLM's: "
            "qwen3, deepseek_r1, ...",
            HTTP,
            metavar="auto|none|NAME",
        ),
    ] = "auto"
    exclude_tools_when_tool_choice_none: Annotated[
        bool, Flag("Leave the tools of requests with tool_choice none out of the prompt.", HTTP)
    ] = False
    cors: CorsSettings = CorsSettings()
    tls: TlsSettings = TlsSettings()
    root_path: Annotated[
        str,
        Flag(
            "Path under which a proxy serves this, e.g. /api.",
            HTTP,
            read=url_path,
            default="none",
            metavar="PATH",
        ),
    ] = ""
    disable_fastapi_docs: Annotated[
        bool, Flag("Do not serve the OpenAPI document at /openapi.json.", HTTP)
    ] = False
