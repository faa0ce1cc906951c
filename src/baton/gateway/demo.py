"""`baton serve --demo`: the live page has buttons that break a worker, to watch what becomes of it.

    page ──POST /demo/kill?worker=NAME──▶ Demo ──a signal──▶ the worker's ranks
                                          │  └── their pids, as the worker's ledger states them
                                          ├──shutdown──▶ the gateway's own ends of their connections
                                          └──a bit of each page──▶ their pools, while no request uses them

Only a client on this machine is served, whose browser shows a page of this service itself; and only
processes that descend from the gateway's own parent, the supervisor, are hurt.
"""

import asyncio
import os
import random
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address

import msgspec
import psutil
import structlog
from starlette.requests import Request
from starlette.responses import Response

from baton.core.messages import LedgerView
from baton.gateway.auth import require_local
from baton.gateway.door import Door
from baton.gateway.faults import Fault, HttpFault, refuse
from baton.gateway.pool_bits import flip_bits

log = structlog.get_logger("baton.gateway")
FROZEN_S = 3.0
Address = tuple[str, int]
HEADER = "x-baton-demo"  # which no page of another origin may send without being asked for


class Broken(msgspec.Struct, frozen=True):
    """POST /demo/..: the processes that have got the signal, lost a connection, or whose memory has
    changed."""

    worker: str
    pids: tuple[int, ...]


class Demo:
    """Hurts workers of this service."""

    def __init__(self, door: Door, *, supervisor: int) -> None:
        """supervisor: the pid of the process whose descendants may be hurt"""
        self._door, self._supervisor = door, supervisor
        self._thawing: set[asyncio.Task[None]] = set()
        self._deeds: Mapping[str, Callable[[LedgerView], list[int]]] = {
            "kill": self._kill,
            "freeze": self._freeze,
            "cut": self._cut,
            "flip": self._flip,
        }

    async def answer(self, request: Request) -> Response:
        """POST /demo/{deed}?worker=NAME."""
        _require_own_page(request)
        name, worker = request.path_params["deed"], request.query_params.get("worker", "")
        deed = self._deeds.get(name)
        if deed is None:
            raise refuse(f"there is {', '.join(self._deeds)}, not {name[:40]!r}", status=404)
        report = await self._door.ledger(audit=False)
        views = [view for view in report.workers if view.name == worker]
        if not views:
            raise refuse(f"no worker answers that is called {worker[:40]!r}", param="worker")
        hurt = tuple(pid for view in views for pid in deed(view))
        log.warning("demo", deed=name, worker=worker, pids=hurt)
        body = msgspec.json.encode(Broken(worker, hurt))
        return Response(body, media_type="application/json")

    def _kill(self, view: LedgerView) -> list[int]:
        return [rank.pid for rank in view.ranks if self._send(rank.pid, signal.SIGKILL)]

    def _freeze(self, view: LedgerView) -> list[int]:
        hurt = [rank.pid for rank in view.ranks if self._send(rank.pid, signal.SIGSTOP)]
        thaw = asyncio.ensure_future(self._thaw(hurt))
        self._thawing.add(thaw)
        thaw.add_done_callback(self._thawing.discard)
        return hurt

    def _cut(self, view: LedgerView) -> list[int]:
        return [rank.pid for rank in view.ranks if self._unplug(rank.pid)]

    async def _thaw(self, pids: Sequence[int]) -> None:
        try:
            await asyncio.sleep(FROZEN_S)
        finally:  # also if the gateway ends meanwhile
            for pid in pids:
                self._send(pid, signal.SIGCONT)

    def _send(self, pid: int, number: signal.Signals) -> bool:
        """Send a signal to a descendant of the supervisor; returns whether it is one."""
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            process = os.pidfd_open(pid)  # first: a pid may be another process's a moment later
            try:
                if self._owns(pid):
                    signal.pidfd_send_signal(process, number)
                    return True
            finally:
                os.close(process)
        return False

    def _unplug(self, pid: int) -> bool:
        """Shut down this gateway's connections with a descendant of the supervisor, as a cable that
        is pulled out for a moment; returns whether there were any."""
        with suppress(psutil.NoSuchProcess):
            theirs = _connections(pid) if self._owns(pid) else {}
            ends = [
                (fd, far)
                for (near, far), fd in _connections(os.getpid()).items()
                if (far, near) in theirs
            ]
            return sum(_shut_down(fd, far) for fd, far in ends) > 0
        return False

    def _flip(self, view: LedgerView) -> list[int]:
        """Flip a bit in each page of a worker at rest, as failing memory would; returns the ranks.

        Raises:
            HttpFault: 409 while requests hold pages there, of which tokens are computed at once;
                403 if this user may not write to the memory of other processes
        """
        if view.rooms or view.reads or view.copies:
            raise refuse(
                f"{view.name} has {len(view.rooms)} requests, and its memory changes only while it "
                "has none: wait for their ends",
                code="busy",
                status=409,
            )
        pages = max(states["total"] for states in view.pages.values())
        owned = [rank.pid for rank in view.ranks if self._owns(rank.pid)]
        try:
            for pid in owned:
                flip_bits(pid, pages, random.Random(), share=1.0)
        except PermissionError as error:
            raise HttpFault(
                403,
                Fault(
                    f"the memory of {view.name} cannot be written to from another process "
                    f"({error}); run as root, or with kernel.yama.ptrace_scope = 0",
                    "permission_error",
                    None,
                    "forbidden",
                ),
            ) from error
        return owned

    def _owns(self, pid: int) -> bool:
        return self._supervisor in (parent.pid for parent in psutil.Process(pid).parents())


def _connections(pid: int) -> dict[tuple[Address, Address], int]:
    """Return the descriptors of a process's TCP connections, by near and far address."""
    found = psutil.Process(pid).net_connections("tcp")
    return {(tuple(c.laddr), tuple(c.raddr)): c.fd for c in found if c.raddr}


def _shut_down(fd: int, far: Address) -> bool:
    """Shut down a connection of this process, whose descriptor may be another's a moment later."""
    with suppress(OSError), socket.socket(fileno=os.dup(fd)) as end:
        if end.getpeername()[:2] == far:
            end.shutdown(socket.SHUT_RDWR)
            return True
    return False


def _require_own_page(request: Request) -> None:
    """Raise HttpFault 403 unless a page of this service, shown on this machine, sends this."""
    require_local(request)
    if HEADER not in request.headers or not _is_loopback(request.url.hostname or ""):
        message = f"only this service's own page, on this machine, with the header {HEADER}"
        raise HttpFault(403, Fault(message, "permission_error", None, "forbidden"))


def _is_loopback(host: str) -> bool:
    """Whether a Host header names this machine: another name may have been made to lead here."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
