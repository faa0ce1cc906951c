"""The parts of the core objects of a process, which composition roots and replays use."""

import msgspec

from baton.core.gateway.front import Front
from baton.core.gateway.request import FrontSettings
from baton.core.handoff.plans import Plans
from baton.core.ids import Boot, GroupName, Rank
from baton.core.manifest import Manifest
from baton.core.memory.state import Placement
from baton.core.rank.rank import RankCore
from baton.core.scheduler.leader import Leader
from baton.core.scheduler.room import LeaderSettings


class LeaderParts(msgspec.Struct, frozen=True, tag="leader_parts", forbid_unknown_fields=True):
    """The parts of a leader. The manifest names its role."""

    manifest: Manifest
    settings: LeaderSettings
    totals: dict[GroupName, int]

    def make(self, plans: Plans) -> Leader:
        """Make the leader. plans: those of its process

        Raises:
            ConfigError: there is no such role
        """
        leader = Leader(self.manifest, self.settings, dict(self.totals))
        leader.worker.plans = plans
        return leader


class RankParts(msgspec.Struct, frozen=True, tag="rank_parts", forbid_unknown_fields=True):
    """The parts of a rank."""

    rank: Rank
    boot: Boot
    placements: tuple[Placement, ...]  # of all ranks of its worker
    seal: bool

    def make(self, plans: Plans) -> RankCore:
        """Make the rank. plans: those of its process"""
        rank = RankCore(rank=self.rank, boot=self.boot, placements=self.placements, seal=self.seal)
        rank.plans = plans
        return rank


class FrontParts(msgspec.Struct, frozen=True, tag="front_parts", forbid_unknown_fields=True):
    """The parts of a gateway's request logic."""

    boot: Boot
    settings: FrontSettings

    def make(self) -> Front:
        """Make the request logic."""
        return Front(self.boot, self.settings)


Parts = LeaderParts | RankParts | FrontParts
