"""Puts the HTTP side together: routes, API keys, and an error schema for everything that goes wrong
(OpenAI's; for the Messages API, Anthropic's)."""

import os
import time
from collections.abc import Awaitable, Callable

import msgspec
import structlog
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from baton import __version__
from baton.gateway.answer import fault_response
from baton.gateway.api_keys import logged_holder
from baton.gateway.auth import KeyCheck
from baton.gateway.counts import GatewayCounts, Siblings
from baton.gateway.demo import Demo
from baton.gateway.dispatcher import Dispatcher
from baton.gateway.door import Door, LedgerReport
from baton.gateway.faults import Fault, HttpFault, refuse
from baton.gateway.live import LiveView
from baton.gateway.live_feed import LiveFeed, LiveResponse
from baton.gateway.live_page import LivePage
from baton.gateway.live_times import LiveTimes
from baton.gateway.metrics import Metrics
from baton.gateway.openapi import document
from baton.gateway.operations import OPERATIONS
from baton.gateway.parsers import load_parsers
from baton.gateway.root_path import RootPath
from baton.gateway.routes import Routes
from baton.gateway.scaling_watch import ScalingWatch
from baton.gateway.settings import HttpSettings
from baton.gateway.sleep import Sleeper
from baton.gateway.tally import RequestTally, TallyingDoor
from baton.gateway.timelines import Timelines
from baton.gateway.tokenizer import Tokenizer

log = structlog.get_logger("baton.gateway")


def create_app(
    door: Door,
    tokenizer: Tokenizer,
    settings: HttpSettings,
    siblings: Siblings | None = None,
    timelines: Timelines | None = None,
) -> FastAPI:
    """Make the ASGI application.

    timelines: of the requests behind the door; None = they are not known

    Its table of open requests is `app.state.dispatcher`; serve_http uses it to end them. What it
    counts, for its siblings, is `app.state.counts()`.

    Raises:
        ConfigError: there is no parser of the name that the settings give
    """
    tally, times = RequestTally(), LiveTimes()
    if timelines is not None:
        timelines.on_end.append(tally.ended)
    door = TallyingDoor(door, tally, times, time.monotonic)
    dispatcher = Dispatcher(door, retry_after_s=settings.retry_after_s)

    def own(report: LedgerReport) -> GatewayCounts:
        return GatewayCounts(settings.name, tally, report, dispatcher.open_requests)

    scaling = ScalingWatch(door)
    metrics = Metrics(own, scaling.wanted, model=settings.model, several=siblings is not None)
    sleeper = Sleeper(door, dispatcher, retry_after_s=settings.retry_after_s)
    feed = LiveFeed(
        LiveView(
            door=door,
            dispatcher=dispatcher,
            own=own,
            times=times,
            siblings=siblings,
            timelines=timelines,
            model=settings.model,
            demo=settings.demo,
        ),
        retry_after_s=settings.retry_after_s,
    )
    routes = Routes(
        door=door,
        dispatcher=dispatcher,
        tokenizer=tokenizer,
        settings=settings,
        metrics=metrics,
        sleeper=sleeper,
        parsers=load_parsers(tokenizer, settings),
        siblings=siblings,
        timelines=timelines,
        scaling=scaling,
    )
    app = FastAPI(
        title="Baton",
        version=__version__,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    app.state.dispatcher = dispatcher
    app.state.feed = feed
    app.state.scaling = scaling
    app.state.counts = lambda: own(door.own_report())
    for op in OPERATIONS:
        app.add_api_route(op.path, getattr(routes, op.name), methods=[op.method])
    if settings.describes_itself:
        app.add_api_route("/openapi.json", _describe(settings.root_path), methods=["GET"])
    _add_page(app, feed)
    if settings.demo:
        demo = Demo(door, supervisor=os.getppid())
        app.add_api_route("/demo/{deed}", demo.answer, methods=["POST"])
    app.add_exception_handler(HttpFault, _on_fault)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, _on_bug)
    _add_middleware(app, settings)
    return app


def _add_page(app: FastAPI, feed: LiveFeed) -> None:
    page = LivePage()
    app.add_api_route("/", page.index, methods=["GET", "HEAD"])
    app.add_api_route("/page/{path:path}", page.file, methods=["GET", "HEAD"])
    app.add_api_route("/debug/live", _live(feed), methods=["GET"])


def _add_middleware(app: FastAPI, settings: HttpSettings) -> None:
    """Add what every request passes, the last one first."""
    if settings.api_keys:
        app.add_middleware(KeyCheck, api_keys=settings.api_keys)
    if (cors := settings.cors).allowed_origins:
        # around the check of keys: a browser's preflight has none
        app.add_middleware(
            CORSMiddleware,
            allow_origins=cors.allowed_origins,
            allow_methods=cors.allowed_methods,
            allow_headers=cors.allowed_headers,
            allow_credentials=cors.allow_credentials,
        )
    if settings.root_path:
        app.add_middleware(RootPath, root_path=settings.root_path)


def _describe(root_path: str) -> Callable[[], Awaitable[Response]]:
    described = msgspec.json.encode(document(OPERATIONS, root_path=root_path))

    async def openapi() -> Response:
        return Response(described, media_type="application/json")

    return openapi


def _live(feed: LiveFeed) -> Callable[[], Awaitable[Response]]:
    async def live() -> Response:
        feed.require_place()
        return LiveResponse(feed)

    return live


async def _on_fault(request: Request, fault: Exception) -> Response:
    assert isinstance(fault, HttpFault)
    log.info(
        "request.refused",
        path=request.url.path,
        status=fault.status,
        code=fault.fault.code,
        **fault.logged,
        **logged_holder(request.scope),
    )
    return fault_response(fault, request.url.path)


async def _on_http_exception(request: Request, raised: Exception) -> Response:
    """Answer requests for unknown paths and methods."""
    assert isinstance(raised, HTTPException)
    message = f"{request.method} {request.url.path}: {raised.detail}"
    fault = refuse(message, code=raised.detail.lower().replace(" ", "_"), status=raised.status_code)
    fault.headers.update(raised.headers or {})
    return fault_response(fault, request.url.path)


async def _on_disconnect(request: Request, gone: Exception) -> Response:
    """Answer a client that left while it was still sending; nobody reads this."""
    return Response(status_code=400)


async def _on_bug(request: Request, bug: Exception) -> Response:
    """Answer 500 for a bug; the server logs the traceback."""
    fault = HttpFault(500, Fault("internal error", "server_error", None, "internal_error"))
    return fault_response(fault, request.url.path)
