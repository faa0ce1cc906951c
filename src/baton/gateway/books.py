"""The ledger as JSON: the memory that every worker
holds, and whether all of it is accounted for."""

from collections.abc import Mapping

import msgspec

from baton.core.ids import GroupName
from baton.core.messages import Credits, LedgerView
from baton.gateway.door import LedgerReport


class RankBooks(msgspec.Struct, frozen=True):
    """One rank process. `boot` in hex: JSON readers lose the low bits of 64-bit numbers."""

    rank: int
    pid: int
    boot: str


class RoomBooks(msgspec.Struct, frozen=True):
    """One room as a leader sees it."""

    room: str
    epoch: int
    state: str
    age_ms: int
    pages: dict[str, int]


class WorkerBooks(msgspec.Struct, frozen=True):
    """One worker.

    Attributes:
        pages: number of pages by group and state
        host: bytes of host memory for preempted requests and for checkpoints, on the fullest rank
        copies: states of such requests in host memory or on the way, on all ranks together
    """

    name: str
    role: str
    clean: bool
    ranks: tuple[RankBooks, ...]
    pages: dict[str, dict[str, int]]
    pins: int
    reads: int
    rooms: tuple[RoomBooks, ...]
    host: dict[str, int]
    copies: int


class CreditBooks(msgspec.Struct, frozen=True):
    """A worker's last statement of its capacity. Pages by group; everything else counts rooms.

    Attributes:
        draining: the worker gets no more requests, and ends when those that it has have ended
    """

    free_pages: dict[str, int]
    total_pages: dict[str, int]
    ahead_pages: dict[str, int]
    waiting: int
    running: int
    free_rooms: int
    draining: bool


class QueueBooks(msgspec.Struct, frozen=True):
    """The requests that wait at the gateway, and the number of refusals by reason."""

    length: int
    oldest_ms: int
    refused: dict[str, int]


class Books(msgspec.Struct, frozen=True):
    """All workers and the gateway.

    Attributes:
        clean: every worker has answered, and none holds anything but cached pages
        credits: last statement of capacity, by worker
    """

    clean: bool
    missing: tuple[str, ...]
    open_requests: int
    workers: tuple[WorkerBooks, ...]
    credits: dict[str, CreditBooks]
    queue: QueueBooks


def books(report: LedgerReport) -> Books:
    """Make the answer of /debug/ledger."""
    clean = not report.missing and not report.open_requests and all(w.clean for w in report.workers)
    return Books(
        clean=clean,
        missing=report.missing,
        open_requests=report.open_requests,
        workers=tuple(_worker(w) for w in report.workers),
        credits={name: _credits(c) for name, c in report.credits.items()},
        queue=QueueBooks(report.queue.length, report.queue.oldest_ms, dict(report.queue.refused)),
    )


def _credits(said: Credits) -> CreditBooks:
    return CreditBooks(
        free_pages=_by_name(said.free_pages),
        total_pages=_by_name(said.total_pages),
        ahead_pages=_by_name(said.ahead_pages),
        waiting=said.waiting,
        running=said.running,
        free_rooms=said.free_rooms,
        draining=said.draining,
    )


def _by_name(pages: Mapping[GroupName, int]) -> dict[str, int]:
    return {str(group): n for group, n in pages.items()}


def _worker(view: LedgerView) -> WorkerBooks:
    return WorkerBooks(
        name=view.name,
        role=view.role,
        clean=view.clean,
        ranks=tuple(RankBooks(r.rank, r.pid, f"{r.boot:016x}") for r in view.ranks),
        pages={str(group): states for group, states in view.pages.items()},
        pins=view.pins,
        reads=view.reads,
        rooms=tuple(
            RoomBooks(r.room, r.epoch, r.state, r.age_ms, _by_name(r.pages)) for r in view.rooms
        ),
        host=view.host,
        copies=view.copies,
    )
