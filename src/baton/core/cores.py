"""What drives a core object may use of it, what it is made of, and the one place that makes it.

    pump ──AnyLeader, AnyRank, AnyFront──▶ the core object, or something that stands in for it (journal/recording.py)

`Cores` is the seam: the composition roots make every core object through it, and so does a replay.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from baton.core.agreement import Report, StepPlan, Wedged
from baton.core.decode import DecodeLeader
from baton.core.door import Cancel, QueueView, RequestId, Submit
from baton.core.errors import ConfigError
from baton.core.frames import Said
from baton.core.front import Front
from baton.core.ids import Boot, GroupName, Key, Micros, Rank, RankId
from baton.core.leader import Leader
from baton.core.manifest import Manifest
from baton.core.marks import Marks
from baton.core.messages import Credits, LedgerView, Register
from baton.core.plans import Plans
from baton.core.prefill import PrefillLeader
from baton.core.rank import RankCore
from baton.core.rank_effects import RankEffect
from baton.core.request import DECODE, PREFILL, UNIFIED, Bits, FrontSettings, Say
from baton.core.room import Effect, LeaderSettings, Send
from baton.core.state import Placement
from baton.core.unified import UnifiedLeader
from baton.core.work import BatchDone, Copied, DigestDone, Ended, Handle, Released

# ruff: noqa: D102  (each method is the one of the same name of the class that a Protocol stands for)


class AnyLeader(Protocol):
    """See core/leader.py Leader."""

    def gateway_up(self, boot: Boot, now: Micros) -> None: ...
    def peer_up(self, boot: Boot, now: Micros) -> None: ...
    def peer_lost(self, boot: Boot, why: str, now: Micros) -> None: ...
    def receive(self, sender: Boot, message: Said, now: Micros) -> None: ...
    def reported(self, report: Report, now: Micros) -> None: ...
    def on_timer(self, now: Micros) -> None: ...
    def timer(self) -> Micros | None: ...
    def effects(self) -> list[Effect]: ...


class AnyRank(Protocol):
    """See core/rank.py RankCore."""

    def apply(self, plan: StepPlan) -> list[RankEffect]: ...
    def connected(self, peer: RankId, why: str) -> None: ...
    def refused(self, handle: Handle, why: str) -> list[RankEffect]: ...
    def ended(self, end: Ended) -> list[RankEffect]: ...
    def released(self, end: Released) -> list[RankEffect]: ...
    def computed(self, done: BatchDone) -> list[RankEffect]: ...
    def hashed(self, done: DigestDone) -> list[RankEffect]: ...
    def copied(self, done: Copied) -> list[RankEffect]: ...
    def wedged(self, found: Wedged) -> None: ...
    def report(self) -> Report | None: ...


class AnyFront(Protocol):
    """See core/front.py Front."""

    def submit(self, submit: Submit, now: Micros) -> None: ...
    def cancel(self, cancel: Cancel, now: Micros) -> None: ...
    def receive(self, sender: Boot, message: Said, now: Micros) -> None: ...
    def peer_lost(self, boot: Boot, why: str, now: Micros) -> None: ...
    def on_timer(self, now: Micros) -> None: ...
    def timer(self) -> Micros | None: ...
    def effects(self) -> list[Send | Say]: ...
    @property
    def open_requests(self) -> int: ...
    def usable_pairs(self) -> list[tuple[Boot, Boot]]: ...
    def key_of(self, request: RequestId) -> Key | None: ...
    def workers(self) -> list[Register]: ...
    def refusals(self) -> list[str]: ...
    def credits(self) -> dict[str, Credits]: ...
    def queue(self, now: Micros) -> QueueView: ...
    @property
    def marks(self) -> Marks: ...
    def ask_ledger(self, *, audit: bool = True) -> int: ...
    def ask_clear(self) -> int: ...
    def ask_reset_cache(self, worker: str | None = None) -> int: ...
    def ledger(self, question: int) -> list[LedgerView] | None: ...
    def answers(self, question: int) -> list[LedgerView]: ...
    def forget_ledger(self, question: int) -> list[str]: ...


class LeaderParts(msgspec.Struct, frozen=True, tag="leader_parts", forbid_unknown_fields=True):
    """What a leader is made of; the manifest's role says which."""

    manifest: Manifest
    settings: LeaderSettings
    totals: dict[GroupName, int]


class RankParts(msgspec.Struct, frozen=True, tag="rank_parts", forbid_unknown_fields=True):
    """What a rank is made of."""

    rank: Rank
    boot: Boot
    placements: tuple[Placement, ...]  # of all ranks of its worker
    seal: bool


class FrontParts(msgspec.Struct, frozen=True, tag="front_parts", forbid_unknown_fields=True):
    """What a gateway's request logic is made of."""

    boot: Boot
    settings: FrontSettings


class Cores(Protocol):
    """Makes core objects."""

    def leader(self, parts: LeaderParts) -> AnyLeader:
        """The leader of a worker."""
        ...

    def rank(self, parts: RankParts) -> AnyRank:
        """One rank."""
        ...

    def front(self, parts: FrontParts, bits: Bits) -> AnyFront:
        """The request logic of a gateway."""
        ...


class PlainCores:
    """Implements Cores: the objects themselves."""

    def __init__(self) -> None:
        self._plans = Plans()  # of the process: its leader and its rank need the same

    def leader(self, parts: LeaderParts) -> AnyLeader:
        """See Cores."""
        m, s, totals = parts.manifest, parts.settings, dict(parts.totals)
        makers: Mapping[str, Callable[[], Leader[Any]]] = {
            PREFILL: lambda: PrefillLeader(m, s, totals),
            DECODE: lambda: DecodeLeader(m, s, totals),
            UNIFIED: lambda: UnifiedLeader(m, s, totals),
        }
        if m.role not in makers:
            raise ConfigError(f"a worker of role {m.role!r}: there is {', '.join(makers)}")
        leader = makers[m.role]()
        leader.plans = self._plans
        return leader

    def rank(self, parts: RankParts) -> AnyRank:
        """See Cores."""
        rank = RankCore(rank=parts.rank, boot=parts.boot, placements=parts.placements, seal=parts.seal)
        rank.plans = self._plans
        return rank

    def front(self, parts: FrontParts, bits: Bits) -> AnyFront:
        """See Cores."""
        return Front(parts.boot, parts.settings, bits)
