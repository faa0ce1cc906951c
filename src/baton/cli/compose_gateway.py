"""The composition root of the gateway process: HTTP, core and control plane on one event loop."""

import asyncio
import contextlib
import gc
import signal
from pathlib import Path
from socket import socket as Socket
from ssl import SSLContext
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
import structlog
import uvloop

from baton.adapters.clock import MonotonicClock
from baton.adapters.credentials import load_credentials
from baton.adapters.descriptors import LEAST_FILES, raise_limit
from baton.adapters.entropy import SystemEntropy
from baton.adapters.zmq_control import ZmqControl
from baton.cli.api_keys import open_to_all, read_keys
from baton.cli.record import Recording, recording
from baton.core.errors import ConfigError
from baton.core.gateway.request import FrontSettings
from baton.core.ids import Boot
from baton.core.parts import FrontParts
from baton.core.session.session import SessionLimits, Sessions
from baton.gateway.app import create_app
from baton.gateway.counts import Siblings
from baton.gateway.engine_client import EngineClient
from baton.gateway.front_door import FrontDoor
from baton.gateway.generation_config import GenerationConfig, load
from baton.gateway.serve import serve_http
from baton.gateway.settings import HttpSettings
from baton.gateway.tls import server_context
from baton.gateway.tokenizer import Tokenizer
from baton.shell.gateway_settings import GatewaySettings
from baton.shell.lines import Lines
from baton.shell.listener import bound, inherited
from baton.wire.codec import MAX_FRAME_BYTES

if TYPE_CHECKING:
    from baton.gateway.spans import RequestSpans

log = structlog.get_logger()
FLUSH_S = 1.0  # for the last spans, when the gateway ends
# After that a gateway takes requests although it is not ready, to say why.
READY_WITHIN_S, READY_LOOK_S = 3.0, 0.05


def run_gateway(settings: GatewaySettings) -> None:
    """Run the gateway until SIGTERM or SIGINT. Raises ConfigError for settings that cannot work."""
    structlog.contextvars.bind_contextvars(worker=settings.name)
    keys = read_keys(settings.api_keys, settings.api_key_files)
    if (warning := open_to_all(settings.host, keys)) is not None:
        log.warning("http_open_to_all", why=warning)
    files = raise_limit()
    if files is not None and files < LEAST_FILES:
        log.warning(
            "few_open_files",
            limit=files,
            why="each stream takes one",
            remedy=f"ulimit -Hn {LEAST_FILES}",
        )
    generation = sampling_defaults(settings)
    tokenizer = Tokenizer.load(
        Path(settings.model),
        eos_ids=generation.eos_ids,
        chat_template=None if settings.chat_template is None else Path(settings.chat_template),
    )
    http = HttpSettings(
        model=settings.served_model_name,
        name=settings.name,
        api_keys=keys,
        deadline_ms=_ms(settings.request_timeout_s),
        defaults=generation.defaults,
        tool_call_parser=settings.tool_call_parser,
        reasoning_parser=settings.reasoning_parser,
        exclude_tools_when_tool_choice_none=settings.exclude_tools_when_tool_choice_none,
        cors=settings.cors,
        root_path=settings.root_path,
        describes_itself=not settings.disable_fastapi_docs,
        demo=settings.shared is not None and settings.shared.demo,
    )
    tls = server_context(settings.tls)
    credentials = load_credentials(settings.secret, settings.members)
    socket = (
        bound(settings.host, settings.port)
        if settings.shared is None
        else inherited(settings.shared.listener)
    )
    with contextlib.closing(socket):
        control = ZmqControl(
            bind=settings.control, keys=credentials, max_frame_bytes=MAX_FRAME_BYTES
        )
        with contextlib.closing(control):
            engines = EngineClient(
                http.model, credentials.engine_key if credentials is not None else None
            )
            uvloop.run(_run(settings, http, tokenizer, control, engines, socket, tls))


async def _run(
    settings: GatewaySettings,
    http: HttpSettings,
    tokenizer: Tokenizer,
    control: ZmqControl,
    engines: EngineClient,
    socket: Socket,
    tls: SSLContext | None,
) -> None:
    record = recording(settings.record, name=settings.name)
    door = _front_door(settings, control, record, engines)
    siblings = None
    if settings.shared is not None and settings.shared.counts is not None:
        siblings = Siblings(Path(settings.shared.counts), settings.name)
    spans = None
    if settings.otlp_traces_endpoint is not None:
        spans = exported_spans(settings.otlp_traces_endpoint, settings)
        door.timelines.on_begin.append(spans.began)
        door.timelines.on_end.append(spans.ended)
        engines.headers_of = spans.headers
    app = create_app(door, tokenizer, http, siblings, door.timelines)
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    door.failed.add_done_callback(lambda _: stop.set())
    gc.collect()
    gc.freeze()  # the tokenizer and its libraries live as long as the process
    log.info(
        "gateway_listening", host=settings.host, port=settings.port, control=control.bound_address
    )
    try:
        if siblings is not None:
            await siblings.open(app.state.counts, door.timelines.find)
        if settings.shared is not None:
            await _until_ready(door, stop)
        await serve_http(
            app,
            socket=socket,
            stop=stop,
            hurry=hurry,
            grace_s=settings.shutdown_timeout_s,
            tls=tls,
        )
    finally:
        if siblings is not None:
            siblings.close()
        door.close()
        await engines.close()
        record.close()
        if spans is not None:
            await asyncio.to_thread(spans.close, FLUSH_S)
    if door.failed.done():
        await door.failed


def exported_spans(endpoint: str, settings: GatewaySettings) -> "RequestSpans":
    """Return what tells a collector of every request.

    Raises:
        ConfigError: the packages for that are not installed, or the endpoint is no URL
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from baton.gateway.spans import RequestSpans
    except ImportError as error:
        raise ConfigError(
            f"--otlp-traces-endpoint needs the package {error.name}: pip install 'baton-llm[otel]'"
        ) from error
    if urlsplit(endpoint).scheme not in ("http", "https"):
        raise ConfigError(
            f"--otlp-traces-endpoint is {endpoint!r}: give an URL that begins with http:// or "
            "https://, such as http://127.0.0.1:4318/v1/traces"
        )
    exporter = OTLPSpanExporter(endpoint)
    processor = BatchSpanProcessor(exporter)
    return RequestSpans(
        processor, exporter, gateway=settings.name, model=settings.served_model_name
    )


def _front_door(
    settings: GatewaySettings, control: ZmqControl, record: Recording, engines: EngineClient
) -> FrontDoor:
    """Make the request logic, on this loop."""
    clock, entropy = MonotonicClock(), SystemEntropy()
    boot = Boot(entropy.bits(64))
    bounds = FrontSettings(
        max_queued=settings.max_queued,
        queue_ms=_ms(settings.queue_timeout_s),
        failover_waits=settings.failover == "wait",
        routing_policy=settings.routing_policy,
        local_prefill=settings.local_prefill == "auto",
    )
    parts = FrontParts(boot, bounds)
    front = parts.make()
    return FrontDoor(
        core=record.of(front, parts),
        front=front,
        lines=Lines(Sessions(boot, SessionLimits()), control, clock),
        fileno=control.fileno(),
        clock=clock,
        entropy=entropy,
        warms_up=not settings.skip_server_warmup,
        control=settings.control,
        engines=engines,
    )


async def _until_ready(door: FrontDoor, stop: asyncio.Event) -> None:
    """Wait until requests can be served: meanwhile clients wait in the queue of the socket, or
    another gateway takes them."""
    until = asyncio.get_running_loop().time() + READY_WITHIN_S
    while not (door.ready().ready or stop.is_set()):
        if asyncio.get_running_loop().time() > until:
            return
        await asyncio.sleep(READY_LOOK_S)


def sampling_defaults(settings: GatewaySettings) -> GenerationConfig:
    """Load the defaults of sampling parameters, and log them if they are not neutral.

    Raises:
        ConfigError: the settings or files are invalid
    """
    found = load(
        Path(settings.model),
        source=settings.generation_config,
        override=settings.override_generation_config,
    )
    if changed := msgspec.to_builtins(found.defaults):
        why = (
            "requests that do not name them get these; --generation-config vllm leaves the "
            "model's file out"
        )
        log.info("sampling_defaults", **changed, why=why)
    return found


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
