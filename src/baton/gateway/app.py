"""Puts the HTTP side together: routes, API keys, and OpenAI's error schema for everything that goes wrong."""

import time
from collections.abc import Mapping
from typing import Any

import structlog
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from baton import __version__
from baton.gateway.answer import fault_response
from baton.gateway.auth import KeyCheck
from baton.gateway.desk import Desk
from baton.gateway.door import Door
from baton.gateway.faults import Fault, HttpFault, refuse
from baton.gateway.metrics import Metrics
from baton.gateway.routes import Routes
from baton.gateway.schema import ChatBody, CompletionBody, GenerationBody
from baton.gateway.settings import GatewaySettings
from baton.gateway.tally import RequestTally, TallyingDoor
from baton.gateway.tokenizer import Tokenizer

log = structlog.get_logger("baton.gateway")


def create_app(door: Door, tokenizer: Tokenizer, settings: GatewaySettings) -> FastAPI:
    """The ASGI application. Its table of open requests is `app.state.desk` (used by serve_http to end them)."""
    tally = RequestTally()
    door = TallyingDoor(door, tally, time.monotonic)
    desk = Desk(door, retry_after_s=settings.retry_after_s)
    metrics = Metrics(tally, model=settings.model)
    routes = Routes(door=door, desk=desk, tokenizer=tokenizer, settings=settings, metrics=metrics)
    app = FastAPI(title="Baton", version=__version__)
    app.state.desk = desk
    app.add_api_route("/v1/chat/completions", routes.chat, methods=["POST"], openapi_extra=_takes(ChatBody))
    app.add_api_route("/v1/completions", routes.completion, methods=["POST"], openapi_extra=_takes(CompletionBody))
    app.add_api_route("/v1/models", routes.models, methods=["GET"])
    app.add_api_route("/v1/models/{name:path}", routes.model, methods=["GET"])
    app.add_api_route("/health", routes.health, methods=["GET"])
    app.add_api_route("/ready", routes.ready, methods=["GET"])
    app.add_api_route("/version", routes.version, methods=["GET"])
    app.add_api_route("/metrics", routes.metrics, methods=["GET"])
    app.add_api_route("/debug/ledger", routes.ledger, methods=["GET"])
    app.add_exception_handler(HttpFault, _on_fault)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, _on_bug)
    if settings.api_keys:
        app.add_middleware(KeyCheck, api_keys=settings.api_keys)
    return app


def _takes(body: type[GenerationBody]) -> dict[str, object]:
    """The body's schema for /openapi.json; the handlers parse bodies themselves."""
    schema = body.model_json_schema()
    content = {"application/json": {"schema": _inlined(schema, schema.get("$defs", {}))}}
    return {"requestBody": {"required": True, "content": content}}


def _inlined(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """A schema without references: they would point to the root of the document that it becomes a part of."""
    if isinstance(schema, list):
        return [_inlined(s, definitions) for s in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {k: _inlined(v, definitions) for k, v in schema.items() if k != "$defs"}


async def _on_fault(request: Request, fault: Exception) -> Response:
    assert isinstance(fault, HttpFault)
    log.info("request.refused", path=request.url.path, status=fault.status, code=fault.fault.code, why=fault.fault.message)
    return fault_response(fault)


async def _on_http_exception(request: Request, raised: Exception) -> Response:
    """Unknown paths and methods."""
    assert isinstance(raised, HTTPException)
    message = f"{request.method} {request.url.path}: {raised.detail}"
    fault = refuse(message, code=raised.detail.lower().replace(" ", "_"), status=raised.status_code)
    fault.headers.update(raised.headers or {})
    return fault_response(fault)


async def _on_disconnect(request: Request, gone: Exception) -> Response:
    """The client left while it was still sending: nobody reads this."""
    return Response(status_code=400)


async def _on_bug(request: Request, bug: Exception) -> Response:
    """Ours; the server logs the traceback."""
    return fault_response(HttpFault(500, Fault("internal error", "server_error", None, "internal_error")))
