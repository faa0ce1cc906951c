"""Decides who may use the HTTP side: bearer keys for clients, keys or loopback for operators.

/health, /ready, /metrics, /version, /openapi.json   everybody, as in vLLM
/v1/...                                               holders of a key, if keys are set
/sleep, /wake_up, /reset_prefix_cache                 holders of a key; without keys, local clients
/debug/ledger                                         local clients
"""

from collections.abc import Sequence
from hashlib import sha256
from hmac import compare_digest
from ipaddress import ip_address

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from baton.gateway.answer import fault_response
from baton.gateway.faults import Fault, HttpFault, refuse

GUARDED = ("/v1", "/sleep", "/wake_up", "/reset_prefix_cache")


class KeyCheck:
    """Middleware that lets only holders of a key reach the guarded paths."""

    def __init__(self, app: ASGIApp, *, api_keys: Sequence[str]) -> None:
        self._app = app
        # Digests have equal lengths, so the time of a comparison does not tell the length of a key.
        self._expected = [sha256(key.encode()).digest() for key in api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass an allowed request on; answer any other with 401."""
        if (
            scope["type"] == "http"
            and scope["path"].startswith(GUARDED)
            and not self._allowed(scope)
        ):
            fault = refuse(
                "a valid API key is needed: Authorization: Bearer KEY",
                code="invalid_api_key",
                status=401,
            )
            fault.headers["www-authenticate"] = "Bearer"
            await fault_response(fault)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _allowed(self, scope: Scope) -> bool:
        header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, key = header.partition(b" ")
        given = sha256(key.strip()).digest()
        # no early exit at a match
        matches = [compare_digest(given, expected) for expected in self._expected]
        return scheme.lower() == b"bearer" and any(matches)


def require_local(request: Request) -> None:
    """Raise HttpFault 403 unless the client is on this machine."""
    if not is_local(request):
        message = f"{request.url.path} is served to loopback clients only"
        raise HttpFault(403, Fault(message, "permission_error", None, "forbidden"))


def is_local(request: Request) -> bool:
    """Whether the client is on this machine, and not
    a proxy: a proxy makes every client look local."""
    if request.client is None or any(
        h in request.headers for h in ("forwarded", "x-forwarded-for", "x-real-ip")
    ):
        return False
    try:
        return ip_address(request.client.host).is_loopback
    except ValueError:
        return False
