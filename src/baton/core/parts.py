"""What the core objects of a process are made of, and how they are made: by the composition roots,
and by a replay."""

import msgspec

from baton.core.errors import ConfigError
from baton.core.gateway.front import Front
from baton.core.gateway.request import FrontSettings
from baton.core.handoff.plans import Plans
from baton.core.ids import Boot, GroupName, Rank
from baton.core.manifest import Manifest
from baton.core.memory.state import Placement
from baton.core.rank.rank import RankCore
from baton.core.scheduler.leader import Leader
from baton.core.scheduler.roles import ROLES
from baton.core.scheduler.room import LeaderSettings


class LeaderParts(msgspec.Struct, frozen=True, tag="leader_parts", forbid_unknown_fields=True):
    """What a leader is made of; the manifest's role says which."""

    manifest: Manifest
    settings: LeaderSettings
    totals: dict[GroupName, int]

    def make(self, plans: Plans) -> Leader:
        """The leader. plans: of its process. Raises ConfigError: there is no such role."""
        role = self.manifest.role
        if role not in ROLES:
            raise ConfigError(f"a worker of role {role!r}: there is {', '.join(ROLES)}")
        leader = Leader(self.manifest, self.settings, dict(self.totals))
        leader.worker.plans = plans
        return leader


class RankParts(msgspec.Struct, frozen=True, tag="rank_parts", forbid_unknown_fields=True):
    """What a rank is made of."""

    rank: Rank
    boot: Boot
    placements: tuple[Placement, ...]  # of all ranks of its worker
    seal: bool

    def make(self, plans: Plans) -> RankCore:
        """The rank. plans: of its process"""
        rank = RankCore(rank=self.rank, boot=self.boot, placements=self.placements, seal=self.seal)
        rank.plans = plans
        return rank


class FrontParts(msgspec.Struct, frozen=True, tag="front_parts", forbid_unknown_fields=True):
    """What a gateway's request logic is made of."""

    boot: Boot
    settings: FrontSettings

    def make(self) -> Front:
        """The request logic."""
        return Front(self.boot, self.settings)


Parts = LeaderParts | RankParts | FrontParts
