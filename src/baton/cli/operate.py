"""`baton status`, `baton drain` and `baton role`: a running service, seen and changed from outside.

status ──GET /debug/ledger, /ready──▶ a gateway ──▶ a table, drawn again every second
drain, role ──POST /drain──▶ a gateway ──▶ the worker takes no more requests
            └──GET /debug/ledger, until the worker has left, or is back in its new role
"""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from baton.cli.served import root_url
from baton.core.errors import BatonError
from baton.shell.settings import Role

if TYPE_CHECKING:
    import httpx
    from rich.table import Table

LOOK_S = 0.2  # between two looks whether a worker has left
DRAW_S = 1.0

Url = Annotated[str, typer.Option(help="Of a gateway.", callback=root_url)]
ApiKey = Annotated[str | None, typer.Option(help="Bearer token.")]
Name = Annotated[str, typer.Argument(help="Of the worker, as in `baton status`.")]
Timeout = Annotated[float, typer.Option(help="Seconds to wait until the worker is done.")]


class Gateway:
    """One gateway, asked over HTTP.

    Raises:
        BatonError: it does not answer, or refuses
    """

    def __init__(self, url: str, api_key: str | None) -> None:
        import httpx

        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=10)

    def ask(self, path: str, **query: str) -> Any:
        """GET."""
        return self._said("GET", path, query, accepted=(200, 503))

    def order(self, path: str, **query: str) -> Any:
        """POST."""
        return self._said("POST", path, query, accepted=(200,))

    def _said(
        self, method: str, path: str, query: dict[str, str], accepted: tuple[int, ...]
    ) -> Any:
        import httpx

        try:
            answer = self._http.request(method, path, params=query)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise BatonError(
                f"{self._http.base_url}: {error}; name a gateway with --url"
            ) from error
        if answer.status_code not in accepted:
            raise BatonError(f"{self._http.base_url}: {_why(answer)}")
        return answer.json()

    def boots(self, name: str) -> dict[str, str]:
        """Return the roles of the workers with this name, by the boot of their leader."""
        return {
            worker["ranks"][0]["boot"]: worker["role"]
            for worker in self.ask("/debug/ledger")["workers"]
            if worker["name"] == name
        }


def _why(answer: "httpx.Response") -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return f"HTTP {answer.status_code}"


def status(
    url: Url = "http://127.0.0.1:8000",
    api_key: ApiKey = None,
    once: Annotated[bool, typer.Option("--once", help="Draw once, and end.")] = False,
) -> None:
    """Show the workers of a service and what they do, until Ctrl-C."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    gateway, console = Gateway(url, api_key), Console()

    def picture() -> Group:
        books, ready = gateway.ask("/debug/ledger"), gateway.ask("/ready")
        queue = books["queue"]
        head = (
            f"{'ready' if ready['ready'] else 'not ready'}: {ready['why']}\n"
            f"{books['open_requests']} requests open, {queue['length']} of them wait here"
        )
        return Group(Text(head), table_of(books))

    if once or not console.is_terminal:
        console.print(picture())
        return
    try:
        with Live(picture(), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(DRAW_S)
                live.update(picture(), refresh=True)
    except KeyboardInterrupt:
        return


def table_of(books: dict[str, Any]) -> "Table":
    """Return the workers of a ledger as a table."""
    from rich.table import Table

    table = Table("worker", "role", "state", "running", "waiting", "pages used", "ranks", "pids")
    for worker in sorted(books["workers"], key=lambda w: (w["role"], w["name"])):
        credits = books["credits"].get(worker["name"])
        used = "-"
        if credits is not None:
            total, free = (sum(credits[k].values()) for k in ("total_pages", "free_pages"))
            used = f"{total - free} of {total}"
        table.add_row(
            worker["name"],
            worker["role"],
            "draining" if credits is not None and credits["draining"] else "up",
            str(credits["running"] if credits is not None else len(worker["rooms"])),
            str(credits["waiting"]) if credits is not None else "-",
            used,
            str(len(worker["ranks"])),
            " ".join(str(rank["pid"]) for rank in worker["ranks"]),
        )
    for name in books["missing"]:
        table.add_row(name, "-", "silent", *"-----")
    return table


def drain(
    name: Name,
    url: Url = "http://127.0.0.1:8000",
    api_key: ApiKey = None,
    timeout: Timeout = 600.0,
) -> None:
    """Give a worker no more requests, and end it when those that it has have ended.

    What started the worker may start it again: `baton serve` does, and so does Kubernetes.
    """
    _send_away(Gateway(url, api_key), name, None, timeout)


def role(
    name: Name,
    role: Annotated[Role, typer.Argument(help="The new one.")],
    url: Url = "http://127.0.0.1:8000",
    api_key: ApiKey = None,
    timeout: Timeout = 600.0,
) -> None:
    """Drain a worker, and have it begin again in another role, without dropping a request."""
    _send_away(Gateway(url, api_key), name, role.value, timeout)


def _send_away(gateway: Gateway, name: str, role: str | None, timeout: float) -> None:
    """Drain a worker, and wait until it is done."""
    from rich.console import Console

    before = gateway.boots(name)
    gateway.order("/drain", worker=name, **({"role": role} if role is not None else {}))
    wanted = "has left" if role is None else f"is a {role} worker"
    until = time.monotonic() + timeout
    with Console(stderr=True).status(f"{name} drains"):
        while time.monotonic() < until:
            now = gateway.boots(name)
            new = {boot: r for boot, r in now.items() if boot not in before}
            gone = not before.keys() & now.keys()
            if gone and (role is None or (new and set(new.values()) == {role})):
                print(f"{name} {wanted}")
                return
            time.sleep(LOOK_S)
    raise BatonError(f"{name} is not done after {timeout:g} s; it goes on by itself (--timeout)")
