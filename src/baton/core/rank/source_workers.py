"""The workers that one rank reads from: what they are, the plan by which it reads, and the
connections to their ranks.

ConnectOrder ──▶ Connect, to every rank that holds something of ours ──▶ Connected, by each ──▶ ConnectResult
part ──▶ Disconnect
"""

from typing import TYPE_CHECKING

import msgspec

from baton.core.agreement import ConnectOrder, ConnectResult
from baton.core.handoff.plan import Leg, PairPlan
from baton.core.ids import Boot, Rank, RankId
from baton.core.manifest import Manifest
from baton.core.rank.rank_effects import Connect, Disconnect, RankEffect

if TYPE_CHECKING:
    from baton.core.rank.rank import RankCore


class SourcePeer(msgspec.Struct):
    """A worker that this rank may read from."""

    manifest: Manifest
    fabric: str
    plan: PairPlan
    legs: tuple[Leg, ...]  # into this rank
    waiting: set[RankId]  # connections not answered yet
    why: str = ""  # of the first one that failed


class SourceWorkers:
    """Connects one rank to the workers that it reads from."""

    def __init__(self, core: "RankCore") -> None:
        self._core = core
        self._peers: dict[Boot, SourcePeer] = {}

    def __len__(self) -> int:
        return len(self._peers)

    def find(self, boot: Boot) -> SourcePeer | None:
        """Return the worker of that boot, or None if it is not known, or not any more."""
        return self._peers.get(boot)

    def connect(self, order: ConnectOrder) -> list[RankEffect]:
        """The leader has paired with a worker."""
        core, theirs = self._core, order.manifest
        plan = core.plans.pair([theirs.placement(r.rank) for r in theirs.ranks], core.placements)
        legs = plan.legs_into(core.rank)
        wanted = {
            leg.source: RankId(theirs.boot, theirs.ranks[leg.source].boot, Rank(leg.source))
            for leg in legs
        }
        self._peers[theirs.boot] = SourcePeer(
            theirs, order.fabric, plan, tuple(legs), set(wanted.values())
        )
        if not wanted:
            core.draft.add_connection(ConnectResult(theirs.boot, ""))
        return [Connect(peer, theirs.ranks[peer.rank], order.fabric) for peer in wanted.values()]

    def connected(self, peer: RankId, why: str) -> None:
        """A Connect was answered; `why` is empty when it succeeded."""
        worker = self._peers.get(peer.worker)
        if worker is None:
            return
        worker.waiting.discard(peer)
        worker.why = worker.why or why
        if not worker.waiting:
            self._core.draft.add_connection(ConnectResult(peer.worker, worker.why))

    def disconnect(self, boot: Boot) -> list[RankEffect]:
        """The leader has lost a worker, or given it up; reads from it that no fabric has had yet
        end at once."""
        worker = self._peers.pop(boot, None)
        if worker is None:
            return []
        peers = [RankId(boot, r.boot, Rank(r.rank)) for r in worker.manifest.ranks]
        effects: list[RankEffect] = [Disconnect(peer) for peer in peers]
        return effects + self._core.fetches.disconnect(peers)
