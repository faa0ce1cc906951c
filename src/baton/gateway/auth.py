"""Decides who may use the HTTP side: API keys for clients, keys or loopback for operators.

/health, /ready, /metrics, /version, /openapi.json   everybody, as in vLLM
/autoscaling                                          everybody: numbers, as in /metrics
/v1/..., /tokenize, /detokenize                       holders of a key, if keys are set
/sleep, /wake_up, /reset_prefix_cache, /drain         holders of a key; without keys, local clients
/demo/..                                              local clients, who hold a key if keys are set
/debug/ledger                                         local clients
/debug/live                                           local clients, and holders of a key; without
                                                      keys everybody, as with /v1
/, /page/..                                           everybody: files without data
"""

import time
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from hmac import compare_digest
from ipaddress import ip_address

import structlog
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from baton.gateway.answer import fault_response
from baton.gateway.api_keys import HOLDER, ApiKey, logged_holder
from baton.gateway.faults import Fault, HttpFault, refuse
from baton.gateway.key_limits import KeyUse
from baton.gateway.root_path import paths_of

log = structlog.get_logger("baton.gateway")
GUARDED = (
    *("/v1", "/tokenize", "/detokenize"),
    *("/sleep", "/wake_up", "/reset_prefix_cache", "/drain", "/demo"),
)
WATCHED = "/debug/live"  # to holders of a key from anywhere, and it does not count as a request


class KeyCheck:
    """Middleware that lets only holders of a key reach the guarded paths, and each of them only as
    often as its key allows."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        api_keys: Sequence[ApiKey],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._uses = [(key, KeyUse(key, now)) for key in api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass an allowed request on; answer any other with 401, or 429."""
        if scope["type"] != "http" or not self._guards(scope):
            await self._app(scope, receive, send)
            return
        found = self._find(scope)
        if found is None:
            fault = refuse(
                "a valid API key is needed: Authorization: Bearer KEY, or x-api-key: KEY",
                code="invalid_api_key",
                status=401,
            )
            fault.headers["www-authenticate"] = "Bearer"
            await fault_response(fault, scope["path"])(scope, receive, send)
            return
        key, use = found
        scope = {**scope, HOLDER: key}
        if any(p.startswith(WATCHED) for p in paths_of(scope)):
            await self._app(scope, receive, send)
            return
        try:
            use.begin()
        except HttpFault as fault:
            log.info(
                "request.refused",
                path=scope["path"],
                status=fault.status,
                code=fault.fault.code,
                **fault.logged,
                **logged_holder(scope),
            )
            await fault_response(fault, scope["path"])(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            use.end()

    def _guards(self, scope: Scope) -> bool:
        paths = tuple(paths_of(scope))
        if any(path.startswith(GUARDED) for path in paths):
            return True
        return any(path.startswith(WATCHED) for path in paths) and not is_local(Request(scope))

    def _find(self, scope: Scope) -> tuple[ApiKey, KeyUse] | None:
        # no early exit at a match
        matches = [
            (key, use)
            for given in map(_digest, _keys(scope))
            for key, use in self._uses
            if compare_digest(given, key.digest)
        ]
        return matches[0] if matches else None


def _digest(key: bytes) -> bytes:
    return sha256(key).digest()


def _keys(scope: Scope) -> Iterator[bytes]:
    """Yield the keys of a request, in OpenAI's header and in Anthropic's."""
    headers = dict(reversed(scope["headers"]))  # of a header that is there twice, the first counts
    scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer":
        yield key.strip()
    if (key := headers.get(b"x-api-key", b"").strip()) != b"":
        yield key


def client_of(request: Request) -> str:
    """Return who sends a request that KeyCheck has let pass, as far as fairness among clients goes.

    That is the holder of a key where keys are needed, otherwise an address, because whoever needs
    no key could say another one each time.
    """
    key: ApiKey | None = request.scope.get(HOLDER)
    if key is not None:
        return key.digest.hex()
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
