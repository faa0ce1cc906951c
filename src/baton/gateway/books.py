"""The ledger as JSON: what every worker holds, and whether all of it is accounted for."""

import msgspec

from baton.core.messages import LedgerView
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
    """One worker. `pages`: group, state, pages. `host`: bytes of host memory for requests that gave way, of the fullest rank."""

    name: str
    role: str
    clean: bool
    ranks: tuple[RankBooks, ...]
    pages: dict[str, dict[str, int]]
    pins: int
    reads: int
    rooms: tuple[RoomBooks, ...]
    host: dict[str, int]


class Books(msgspec.Struct, frozen=True):
    """All workers, and what the gateway holds. `clean`: every worker answered, and nobody holds anything but cache."""

    clean: bool
    missing: tuple[str, ...]
    open_requests: int
    workers: tuple[WorkerBooks, ...]


def books(report: LedgerReport) -> Books:
    """What /debug/ledger answers."""
    clean = not report.missing and not report.open_requests and all(w.clean for w in report.workers)
    return Books(clean, report.missing, report.open_requests, tuple(_worker(w) for w in report.workers))


def _worker(view: LedgerView) -> WorkerBooks:
    return WorkerBooks(
        name=view.name,
        role=view.role,
        clean=view.clean,
        ranks=tuple(RankBooks(r.rank, r.pid, f"{r.boot:016x}") for r in view.ranks),
        pages={str(group): states for group, states in view.pages.items()},
        pins=view.pins,
        reads=view.reads,
        rooms=tuple(RoomBooks(r.room, r.epoch, r.state, r.age_ms, {str(g): n for g, n in r.pages.items()}) for r in view.rooms),
        host=view.host,
    )
