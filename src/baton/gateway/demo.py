"""`baton serve --demo`: the live page has buttons that break a worker, to watch what becomes of it.

    page ──POST /demo/kill?worker=NAME──▶ Demo ──a signal──▶ the worker's ranks
                                          └── their pids, as the worker's ledger states them

Only a client on this machine is served, whose browser shows a page of this service itself; and only
processes that descend from the gateway's own parent, the supervisor, are sent a signal.
"""

import asyncio
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import ip_address

import msgspec
import psutil
import structlog
from starlette.requests import Request
from starlette.responses import Response

from baton.gateway.auth import require_local
from baton.gateway.door import Door
from baton.gateway.faults import Fault, HttpFault, refuse

log = structlog.get_logger("baton.gateway")
FROZEN_S = 3.0
HEADER = "x-baton-demo"  # which no page of another origin may send without being asked for
SIGNALS: Mapping[str, signal.Signals] = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP}


class Broken(msgspec.Struct, frozen=True):
    """POST /demo/..: the processes that have got the signal."""

    worker: str
    pids: tuple[int, ...]


class Demo:
    """Sends signals to workers of this service."""

    def __init__(self, door: Door, *, supervisor: int) -> None:
        """supervisor: the pid of the process whose descendants may be hurt"""
        self._door, self._supervisor = door, supervisor
        self._thawing: set[asyncio.Task[None]] = set()

    async def answer(self, request: Request) -> Response:
        """POST /demo/{deed}?worker=NAME."""
        _require_own_page(request)
        deed, worker = request.path_params["deed"], request.query_params.get("worker", "")
        number = SIGNALS.get(deed)
        if number is None:
            raise refuse(f"there is {', '.join(SIGNALS)}, not {deed[:40]!r}", status=404)
        report = await self._door.ledger(audit=False)
        ranks = [rank for view in report.workers if view.name == worker for rank in view.ranks]
        if not ranks:
            raise refuse(f"no worker answers that is called {worker[:40]!r}", param="worker")
        hurt = tuple(pid for pid in (rank.pid for rank in ranks) if self._send(pid, number))
        log.warning("demo", deed=deed, worker=worker, pids=hurt)
        if number is signal.SIGSTOP and hurt:
            thaw = asyncio.ensure_future(self._thaw(hurt))
            self._thawing.add(thaw)
            thaw.add_done_callback(self._thawing.discard)
        body = msgspec.json.encode(Broken(worker, hurt))
        return Response(body, media_type="application/json")

    async def _thaw(self, pids: tuple[int, ...]) -> None:
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
                if self._supervisor in (parent.pid for parent in psutil.Process(pid).parents()):
                    signal.pidfd_send_signal(process, number)
                    return True
            finally:
                os.close(process)
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
