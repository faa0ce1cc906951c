"""How an entry is played on a core object: the one table that recording and replay share."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from baton.core.cores import AnyFront, AnyLeader, AnyRank
from baton.core.ids import Micros
from baton.journal.entries import (
    AnyEntry,
    Applied,
    Asked,
    Cancelled,
    ClearAsked,
    Computed,
    Connected,
    FoundWedged,
    GatewayUp,
    Hashed,
    Heard,
    HostCopied,
    Kind,
    LedgerAsked,
    LedgerForgotten,
    Out,
    PeerLost,
    PeerUp,
    ReadEnded,
    ReadRefused,
    ReadReleased,
    Reported,
    ReportTaken,
    ResetCacheAsked,
    Submitted,
    Timer,
    Unanswered,
)

AnyCore = AnyLeader | AnyRank | AnyFront
LeaderPlay = Callable[[AnyLeader, Any, Micros], None]
RankPlay = Callable[[AnyRank, Any], Sequence[Out] | None]
FrontPlay = Callable[[AnyFront, Any, Micros], Sequence[Out] | None]

LEADER: Mapping[type[AnyEntry], LeaderPlay] = {
    GatewayUp: lambda leader, e, at: leader.gateway_up(e.boot, at),
    PeerUp: lambda leader, e, at: leader.peer_up(e.boot, at),
    PeerLost: lambda leader, e, at: leader.peer_lost(e.boot, e.why, at),
    Heard: lambda leader, e, at: leader.receive(e.sender, e.message, at),
    Reported: lambda leader, e, at: leader.reported(e.report, at),
    Timer: lambda leader, e, at: leader.on_timer(at),
}
RANK: Mapping[type[AnyEntry], RankPlay] = {
    Applied: lambda rank, e: rank.apply(e.plan),
    Connected: lambda rank, e: rank.connected(e.peer, e.why),
    ReadRefused: lambda rank, e: rank.refused(e.handle, e.why),
    ReadEnded: lambda rank, e: rank.ended(e.end),
    ReadReleased: lambda rank, e: rank.released(e.end),
    Computed: lambda rank, e: rank.computed(e.done),
    Hashed: lambda rank, e: rank.hashed(e.done),
    HostCopied: lambda rank, e: rank.copied(e.done),
    FoundWedged: lambda rank, e: rank.wedged(e.found),
    ReportTaken: lambda rank, e: [report] if (report := rank.report()) is not None else [],
}
FRONT: Mapping[type[AnyEntry], FrontPlay] = {
    Submitted: lambda front, e, at: front.submit(e.submit, at),
    Cancelled: lambda front, e, at: front.cancel(e.cancel, at),
    Heard: lambda front, e, at: front.receive(e.sender, e.message, at),
    PeerLost: lambda front, e, at: front.peer_lost(e.boot, e.why, at),
    Timer: lambda front, e, at: front.on_timer(at),
    LedgerAsked: lambda front, e, at: [Asked(front.ask_ledger(audit=e.audit))],
    ClearAsked: lambda front, e, at: [Asked(front.ask_clear())],
    ResetCacheAsked: lambda front, e, at: [Asked(front.ask_reset_cache(e.worker))],
    LedgerForgotten: lambda front, e, at: [Unanswered(tuple(front.forget_ledger(e.question)))],
}
ENTRIES: Mapping[Kind, frozenset[type[AnyEntry]]] = {
    Kind.LEADER: frozenset(LEADER),
    Kind.RANK: frozenset(RANK),
    Kind.FRONT: frozenset(FRONT),
}


def play_leader(leader: AnyLeader, entry: AnyEntry, at: Micros) -> list[Out]:
    """Play an entry; all that comes of it."""
    LEADER[type(entry)](leader, entry, at)
    return [*leader.effects()]


def play_rank(rank: AnyRank, entry: AnyEntry) -> list[Out]:
    """Play an entry; all that comes of it."""
    return [*(RANK[type(entry)](rank, entry) or ())]


def play_front(front: AnyFront, entry: AnyEntry, at: Micros) -> list[Out]:
    """Play an entry; all that comes of it."""
    said = FRONT[type(entry)](front, entry, at)
    return [*(said or ()), *front.effects()]
