"""Puts the HTTP side together: routes, the API key, and OpenAI's error schema for everything that goes wrong."""

from collections.abc import Mapping
from hmac import compare_digest
from typing import Any

import structlog
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from baton import __version__
from baton.gateway.answer import fault_response
from baton.gateway.desk import Desk
from baton.gateway.door import Door
from baton.gateway.faults import Fault, HttpFault, refuse
from baton.gateway.routes import Routes
from baton.gateway.schema import ChatBody, CompletionBody, GenerationBody
from baton.gateway.settings import GatewaySettings
from baton.gateway.tokenizer import Tokenizer

log = structlog.get_logger("baton.gateway")


class KeyCheck:
    """Middleware: /v1 is for holders of the key."""

    def __init__(self, app: ASGIApp, *, api_key: str) -> None:
        self._app = app
        self._expected = b"Bearer " + api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what is allowed."""
        if scope["type"] == "http" and scope["path"].startswith("/v1") and not self._allowed(scope):
            fault = refuse("a valid API key is needed: Authorization: Bearer KEY", code="invalid_api_key", status=401)
            fault.headers["www-authenticate"] = "Bearer"
            await fault_response(fault)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _allowed(self, scope: Scope) -> bool:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        return compare_digest(given, self._expected)


def create_app(door: Door, tokenizer: Tokenizer, settings: GatewaySettings) -> FastAPI:
    """The ASGI application. Its table of open requests is `app.state.desk` (used by serve_http to end them)."""
    desk = Desk(door, retry_after_s=settings.retry_after_s)
    routes = Routes(door, desk, tokenizer, settings)
    app = FastAPI(title="Baton", version=__version__)
    app.state.desk = desk
    app.add_api_route("/v1/chat/completions", routes.chat, methods=["POST"], openapi_extra=_takes(ChatBody))
    app.add_api_route("/v1/completions", routes.completion, methods=["POST"], openapi_extra=_takes(CompletionBody))
    app.add_api_route("/v1/models", routes.models, methods=["GET"])
    app.add_api_route("/v1/models/{name:path}", routes.model, methods=["GET"])
    app.add_api_route("/health", routes.health, methods=["GET"])
    app.add_api_route("/ready", routes.ready, methods=["GET"])
    app.add_api_route("/version", routes.version, methods=["GET"])
    app.add_api_route("/debug/ledger", routes.ledger, methods=["GET"])
    app.add_exception_handler(HttpFault, _on_fault)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, _on_bug)
    if settings.api_key is not None:
        app.add_middleware(KeyCheck, api_key=settings.api_key)
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
