"""The files of the live page, which the gateway serves at `/` and below `/page`.

They hold no data of the service, so everybody may read them; what they show comes from /debug/live,
which is guarded. They are read once, and the browser is told to load nothing from anywhere else.
"""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

FOLDER = Path(__file__).parent / "page"
INDEX = "index.html"
TYPES: Mapping[str, str] = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'"
)
HEADERS: Mapping[str, str] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    # a browser keeps the files, and asks each time whether they have changed: a gateway may be
    # replaced by one of another version
    "cache-control": "no-cache",
}


class PageFile(msgspec.Struct, frozen=True):
    """One file as it is sent."""

    body: bytes
    media_type: str
    etag: str


class LivePage:
    """Serves the files."""

    def __init__(self) -> None:
        self._files = {
            str(path.relative_to(FOLDER)): _read(path)
            for path in sorted(FOLDER.rglob("*"))
            if path.suffix in TYPES
        }

    async def index(self, request: Request) -> Response:
        """GET /."""
        return self._answer(request, INDEX)

    async def file(self, request: Request) -> Response:
        """GET /page/{path}."""
        return self._answer(request, request.path_params["path"])

    def _answer(self, request: Request, path: str) -> Response:
        file = self._files.get(path)
        if file is None:
            raise HTTPException(404)
        headers = {**HEADERS, "etag": file.etag}
        known = request.headers.get("if-none-match", "")
        if file.etag in (tag.strip().removeprefix("W/") for tag in known.split(",")):
            return Response(status_code=304, headers=headers)
        return Response(file.body, headers=headers, media_type=file.media_type)


def _read(path: Path) -> PageFile:
    body = path.read_bytes()
    return PageFile(body, TYPES[path.suffix], f'"{sha256(body).hexdigest()[:32]}"')
