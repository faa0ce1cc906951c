"""`--root-path`: a proxy serves the gateway below a path, and may hand it on or strip it."""

from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send


class RootPath:
    """Middleware that tells the layers below the root path; routing then ignores it."""

    def __init__(self, app: ASGIApp, *, root_path: str) -> None:
        self._app, self._root_path = app, root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        await self._app({**scope, "root_path": self._root_path}, receive, send)


def paths_of(scope: Scope) -> Iterable[str]:
    """Return the paths that routing may take a request for: as it came, and without the root
    path."""
    path, root = scope["path"], scope.get("root_path", "")
    return path, path.removeprefix(root)
