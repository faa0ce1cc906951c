"""Decides who may use the HTTP side: API keys for clients, keys or loopback for operators.

/health, /ready, /metrics, /version, /openapi.json   everybody, as in vLLM
/v1/..., /tokenize, /detokenize                       holders of a key, if keys are set
/sleep, /wake_up, /reset_prefix_cache, /drain         holders of a key; without keys, local clients
/debug/ledger                                         local clients
"""

from collections.abc import Iterator, Sequence
from hashlib import sha256
from hmac import compare_digest
from ipaddress import ip_address

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from baton.gateway.answer import fault_response
from baton.gateway.faults import Fault, HttpFault, refuse
from baton.gateway.root_path import paths_of

GUARDED = (
    *("/v1", "/tokenize", "/detokenize"),
    *("/sleep", "/wake_up", "/reset_prefix_cache", "/drain"),
)


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
            and any(path.startswith(GUARDED) for path in paths_of(scope))
            and not self._allowed(scope)
        ):
            fault = refuse(
                "a valid API key is needed: Authorization: Bearer KEY, or x-api-key: KEY",
                code="invalid_api_key",
                status=401,
            )
            fault.headers["www-authenticate"] = "Bearer"
            await fault_response(fault, scope["path"])(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _allowed(self, scope: Scope) -> bool:
        # no early exit at a match
        matches = [
            compare_digest(sha256(given).digest(), expected)
            for given in _keys(scope)
            for expected in self._expected
        ]
        return any(matches)


def _keys(scope: Scope) -> Iterator[bytes]:
    """Yield the keys of a request, in OpenAI's header and in Anthropic's."""
    headers = dict(reversed(scope["headers"]))  # of a header that is there twice, the first counts
    scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer":
        yield key.strip()
    if (key := headers.get(b"x-api-key", b"").strip()) != b"":
        yield key


def client_of(request: Request, *, api_keys: Sequence[str]) -> str:
    """Return who sends a request that KeyCheck has let pass, as far as fairness among clients goes.

    That is the holder of a key where keys are needed, otherwise an address, because whoever needs
    no key could say another one each time.
    """
    if api_keys:
        expected = {sha256(key.encode()).hexdigest() for key in api_keys}
        given = (sha256(key).hexdigest() for key in _keys(request.scope))
        return next((digest for digest in given if digest in expected), "")
    return "" if request.client is None else request.client.host


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
